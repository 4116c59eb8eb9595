"""Calibration for 8 bits: images of a source, and how large the inputs of layers are on them.

The scales of float8 are kept in the model folder, next to the weights that they belong to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitkit.data.loader import EvaluationLoader
from vitkit.data.open import Data, open_data
from vitkit.data.operations import normalize
from vitkit.data.pipeline import evaluation_pipeline
from vitkit.data.sources.source import Source, Subset
from vitkit.errors import InputError
from vitkit.files import digest
from vitkit.models.configs import Preprocessing
from vitkit.models.float8 import float8_layers
from vitkit.models.model import Model, check_rgb
from vitkit.notes import Note
from vitkit.weights.files import read_json
from vitkit.weights.folder import write_json

MOST, LEAST = 64, 16
"Images that are taken for calibration, and those that it needs."
BATCH = 8
FILE = "float8.json"
"Of a model folder: the scales of float8."
FORMAT_VERSION = 1
Extents = dict[str, Tensor]


def from_source(source: Source, preprocessing: Preprocessing, most: int = MOST) -> Tensor:
    """Return prepared images that are spread evenly over a source; unreadable ones are skipped."""
    places = np.linspace(0, len(source) - 1, min(most, len(source))).round().astype(np.int64)
    loader = EvaluationLoader(
        Subset(source, places), evaluation_pipeline(preprocessing), batch_size=most, workers=0
    )
    batches = [batch["image"] for batch in loader]
    if not batches:
        raise InputError(f"{source.name}:{source.split} has no readable images")
    return normalize(torch.cat(batches), preprocessing.mean, preprocessing.std)


def for_calibration(source: Source, preprocessing: Preprocessing, precision: str = "int8") -> Tensor:
    """Return images to calibrate on."""
    if len(source) < LEAST:
        raise InputError(
            f"{source.name}:{source.split} has {len(source)} images; {precision} needs {LEAST} or more to calibrate on, preferably {MOST}"
        )
    images = from_source(source, preprocessing)
    if len(images) < LEAST:
        raise InputError(
            f"only {len(images)} of the images of {source.name}:{source.split} can be read; {precision} needs {LEAST} or more"
        )
    return images


@contextmanager
def watching(
    model: Model, names: Sequence[str], see: Callable[[str, Tensor, Tensor], None]
) -> Iterator[None]:
    """Call `see(name, input, output)` whenever a layer runs."""

    def hook(name: str) -> Any:
        return lambda _, inputs, output: see(name, inputs[0], output)

    handles = [model.get_submodule(name).register_forward_hook(hook(name)) for name in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def run(model: Model, images: Tensor) -> None:
    with torch.no_grad():
        for batch in images.split(BATCH):
            model.features(batch)


def measure_extents(model: Model, names: Sequence[str], images: Tensor) -> tuple[Extents, Extents]:
    """Return the least and the largest value in each channel of each layer's input."""
    lows: Extents = {}
    highs: Extents = {}

    def see(name: str, x: Tensor, _: Tensor) -> None:
        is_linear = isinstance(model.get_submodule(name), nn.Linear)
        x = x.flatten(0, -2) if is_linear else x.transpose(0, 1).flatten(1).T  # (values, channels)
        low, high = x.aminmax(dim=0)
        lows[name] = torch.minimum(lows.get(name, low), low)
        highs[name] = torch.maximum(highs.get(name, high), high)

    with watching(model, names, see):
        run(model, images)
    return lows, highs


@dataclass(frozen=True)
class Scales:
    """How large the inputs of each float8 layer are, and where that was measured."""

    data: str
    images: int
    weights_sha256: str
    largest: dict[str, float]


def measure_scales(model: Model, images: Tensor) -> dict[str, float]:
    """Return the largest magnitude of the inputs of each layer that float8 is for."""
    names = float8_layers(model)
    lows, highs = measure_extents(model, names, images)
    return {name: max(lows[name].abs().max().item(), highs[name].abs().max().item()) for name in names}


def write_scales(folder: Path, scales: Scales) -> None:
    """Write the scales of float8 into a model folder."""
    write_json(folder / FILE, {"format_version": FORMAT_VERSION, **dataclasses.asdict(scales)})


def read_scales(folder: Path, model: Model, weights_sha256: str) -> Scales | None:
    """Return the scales of a model folder, or None if it has none."""
    path = folder / FILE
    if not path.exists():
        return None
    document = read_json(path)
    if document.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"{path} has format version {document.get('format_version')!r}; this version of vitkit reads {FORMAT_VERSION}"
        )
    largest = document.get("largest", {})
    is_whole = (
        isinstance(largest, dict)
        and set(largest) == set(float8_layers(model))
        and all(isinstance(value, int | float) and value >= 0 for value in largest.values())
    )
    if document.get("weights_sha256") != weights_sha256 or not is_whole:
        raise InputError(f"{path} belongs to other weights: --calibrate DATA measures the scales of these")
    return Scales(str(document.get("data")), int(document.get("images", 0)), weights_sha256, dict(largest))


def find_scales(
    model: Model,
    preprocessing: Preprocessing,
    weights: Path | None,
    calibrate: Data | None,
    device: torch.device,
) -> tuple[dict[str, float] | None, Note]:
    """Return the scales of float8, measured on `calibrate` or read from the model folder, and a note on them.

    weights: the file that the model was read from. In a model folder, new scales are saved next to it.
    """
    folder = weights.parent if weights is not None and weights.name == "model.safetensors" else None
    if folder is not None and not (folder / "config.json").exists():
        folder = None
    if calibrate is not None:
        check_rgb(model.config, "the model")
        source = open_data(calibrate, default="train", labelled=False)
        images = for_calibration(source, preprocessing, "float8")
        largest, text = measure_scales(model.to(device), images.to(device)), "for this command alone"
        if folder is not None and weights is not None:
            write_scales(folder, Scales(source.data_name, len(images), digest(weights), largest))
            text = f"saved in {folder / FILE}"
        return largest, Note(f"float8: scales measured on {len(images)} images of {source.data_name}, {text}")
    scales = None if folder is None or weights is None else read_scales(folder, model, digest(weights))
    if scales is not None:
        return scales.largest, Note(f"float8: scales from {scales.images} images of {scales.data}", "model")
    return None, Note(
        "float8: each token has its own scale, which is slower; --calibrate DATA measures fixed scales"
    )
