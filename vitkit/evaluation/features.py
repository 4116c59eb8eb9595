"""Frozen features: what a model's head reads of every image, computed once, kept on disk, read in blocks."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitkit.data.cache import cache_folder
from vitkit.data.open import Data, open_data
from vitkit.data.pipeline import Pipeline
from vitkit.data.sources.source import Source, fingerprint
from vitkit.data.splits import Default
from vitkit.data.threads import Progress
from vitkit.evaluation.passes import SourcePass
from vitkit.files import written_whole
from vitkit.models.configs import Size
from vitkit.models.model import HEAD, check_rgb
from vitkit.notes import Note
from vitkit.predictor import Predictor, load
from vitkit.world import World, check_alone

DIGEST_BYTES = 16
_READ_BYTES = 2**24


@dataclass(frozen=True)
class Features:
    """What a model makes of a source's images."""

    x: np.ndarray
    "float32 (images, width); mapped from the cache's file, so that it may be larger than memory."
    labels: np.ndarray
    class_names: tuple[str, ...]
    notes: tuple[str, ...]


def frozen_features(
    predictor: Predictor,
    data: Data,
    *,
    default: Default = "train",
    classes: tuple[str, ...] | None = None,
    batch_size: int = 64,
    progress: Progress | None = None,
    cache: bool = True,
    pipeline: Pipeline | None = None,
) -> Features:
    """Return the features of the images of DATA, from the cache if they are there."""
    source = open_data(data, default=default, classes=classes)
    notes = list(source.notes)
    path = cache_folder() / "features" / f"{_key(predictor, source, pipeline)}.npy"

    def found(x: np.ndarray) -> Features:
        return Features(x, source.labels, source.class_names, tuple(notes))

    if cache:
        try:
            return found(_read(path, len(source)))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            notes.append(Note(f"{path} can't be used ({error}): features were computed again", "warning"))
    world = World(0, 1, predictor.device)
    images = SourcePass(
        source, predictor.preprocessing, world=world, batch_size=batch_size, pipeline=pipeline
    )
    passed = images.batches(predictor.model, images.features_of(predictor.model), progress)
    batches = (rows.cpu() for _, rows in passed)
    first = next(batches)
    needed = len(source) * first.shape[1] * first.element_size()
    if cache and _has_room(path.parent, needed):
        _write(path, len(source), first, batches)
        return found(_read(path, len(source)))
    if cache:
        text = f"features are not kept: no room for {needed / 1e6:,.0f} MB in {path.parent}"
        notes.append(Note(text, "warning"))
    return found(torch.cat([first, *batches]).numpy())


def load_frozen(model: str | os.PathLike[str] | Predictor, device: str, image_size: Size | None) -> Predictor:
    """Return a model; an untrained one has the same random weights each time."""
    check_alone("frozen features are measured in one process: start without torchrun")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        predictor = load(model, device=device, image_size=image_size)
    check_rgb(predictor.model.config, predictor.spec)
    return predictor


def _key(predictor: Predictor, source: Source, pipeline: Pipeline | None = None) -> str:
    """Return a text that changes when the weights, the preprocessing or an image does."""
    digest = hashlib.blake2b(digest_size=16)
    config = dataclasses.asdict(predictor.model.config)
    del config["num_classes"]
    digest.update(repr(("float32", config, predictor.preprocessing)).encode())
    if pipeline is not None:
        digest.update(str(pipeline).encode())
    for name, tensor in predictor.model.state_dict().items():
        if not name.startswith(HEAD):  # features don't depend on it
            digest.update(repr((name, tensor.dtype, tuple(tensor.shape))).encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    digest.update(fingerprint(source, labelled=False).encode())
    return digest.hexdigest()


def _has_room(folder: Path, needed: int) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > needed + 2**20
    except OSError:
        return False


def _write(path: Path, count: int, first: Tensor, others: Iterator[Tensor]) -> None:
    """Write a .npy file batch by batch, with a digest of it after its end, where NumPy doesn't look."""
    header = io.BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (count, first.shape[1])}
    np.lib.format.write_array_header_1_0(header, shape)
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    with written_whole(path) as part, open(part, "wb") as file:

        def put(data: bytes) -> None:
            digest.update(data)
            file.write(data)

        put(header.getvalue())
        put(first.numpy().tobytes())
        for rows in others:
            put(rows.numpy().tobytes())
        file.write(digest.digest())


def _read(path: Path, count: int) -> np.ndarray:
    """Map a file of features into memory; ValueError for one that isn't as it was written."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    with open(path, "rb") as file:
        left = os.fstat(file.fileno()).st_size - DIGEST_BYTES
        while left > 0:
            data = file.read(min(left, _READ_BYTES))
            if not data:
                raise ValueError("it became shorter")
            digest.update(data)
            left -= len(data)
        if file.read() != digest.digest():
            raise ValueError("its checksum is wrong")
    x: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    if x.dtype != np.float32 or x.ndim != 2 or len(x) != count:
        raise ValueError(f"it holds {x.dtype} of shape {x.shape}")
    return x
