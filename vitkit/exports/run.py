"""`vitkit.export`: a model becomes a folder with a graph for ONNX Runtime or OpenVINO, checked against its source."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from vitkit.calibration import for_calibration, from_source
from vitkit.config import check_choice
from vitkit.data.open import Data, open_data
from vitkit.data.sources.source import Source
from vitkit.errors import InputError
from vitkit.exports.card import write_card
from vitkit.exports.check import Check, compare, measure, what_is_lost
from vitkit.exports.images import BUILT_IN, built_in
from vitkit.exports.quantize import quantize
from vitkit.files import check_output, digest, folder_written_whole
from vitkit.models.configs import OwnConfig, ResNetConfig, Size
from vitkit.models.model import check_rgb
from vitkit.notes import Note
from vitkit.predictor import AnyModel, Predictor, exported_path, load, named_model
from vitkit.results import Result
from vitkit.runtimes import Precision, Runtime
from vitkit.runtimes.folder import CONFIG, ENTRY, FILES, FORMAT_VERSION, GRAPHS, read_folder
from vitkit.runtimes.graph import OPSET, plain_copy, require, write_onnx
from vitkit.runtimes.model import RuntimeModel
from vitkit.runtimes.openvino import import_openvino
from vitkit.runtimes.session import open_session
from vitkit.weights.folder import Stored, to_json, write_json
from vitkit.weights.load import weight_file

PACKAGES: dict[Runtime, tuple[str, ...]] = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("onnx", "onnxscript", "openvino"),
}
LOSS = "loss"
"Word for --accept: write the export although it loses more than the tolerance."


@dataclass(frozen=True)
class Int8Calibration(Result):
    """What the ranges of int8 were measured on, and what was done about outliers."""

    data: str
    images: int
    smoothed: int
    "Layers whose outlier channels moved into the weights."
    split: dict[str, int]
    "MLPs of which some hidden units are computed in float, and how many."
    kept_float: tuple[str, ...]
    "Layers that stay in float, since int8 would change their output too much."


@dataclass(frozen=True)
class Exported(Result):
    """The result of `export`."""

    model: str
    out: str
    to: Runtime = field(metadata={"json": "runtime"})
    precision: Precision
    opset: int
    image_size: tuple[int, int]
    num_classes: int
    outputs: tuple[str, ...]
    bytes: int
    "Of the graph's files."
    source_sha256: str | None
    "Of the file with the source's weights; None for a model that was passed as an object."
    check: Check
    calibration: Int8Calibration | None = field(default=None, metadata={"optional": True})
    notes: tuple[Note, ...] = ()

    _leads = ("out", "to", "precision", "check")


def export(
    model: AnyModel,
    out: str | os.PathLike[str],
    to: Runtime = "onnx",
    precision: Precision = "float32",
    *,
    calibrate: Data | None = None,
    data: Data | None = None,
    image_size: Size | None = None,
    accept: str | Sequence[str] = (),
    force: bool = False,
    announce: Callable[[str], None] | None = None,
) -> Exported:
    """Write a model as a graph for ONNX Runtime or OpenVINO; `load`, `predict` and `evaluate` take its folder as a MODEL.

    to: the runtime. precision: "int8" is static, with ranges from 64 images of `calibrate`; "bfloat16" needs OpenVINO.
    data: labelled images to measure accuracy on, before and after. accept: "loss" writes the export even if it loses more
    than the tolerance. announce: called with a line for each step of the work.
    """
    words = (accept,) if isinstance(accept, str) else tuple(accept)
    folder = Path(out).expanduser()
    _check_request(to, precision, calibrate, words)
    check_output(folder, FILES, force=force, alone=True)
    require(*PACKAGES[to])
    say = announce or (lambda _: None)
    source, given = _load(model, image_size)
    weights = None if isinstance(model, Predictor | torch.nn.Module) else weight_file(given)
    weights_sha256 = None if weights is None else digest(weights)
    _check_int8(source, to, precision)
    learned, labelled = _open(source, calibrate, "train"), _open(source, data, "measure")
    network, calibration = plain_copy(source.model), None
    if precision == "int8":
        assert learned is not None
        say(f"calibrating on {learned.data_name}")
        images, what = for_calibration(learned, source.preprocessing), learned.data_name
        remedies = quantize(network, images, convolutions=to == "openvino")
        calibration = Int8Calibration(
            what, len(images), remedies.smoothed, remedies.split, remedies.kept_float
        )
    elif labelled is not None:
        images, what = from_source(labelled, source.preprocessing), labelled.data_name
    else:
        images, what = built_in(source.preprocessing), BUILT_IN
    stored = Stored(source.model.config, source.preprocessing, source.class_names or None, source.multi_label)
    with folder_written_whole(folder) as new:
        say(f"writing the graph for {to}")
        outputs = _write_graph(network, new, to)
        del network
        sums = {name: digest(new / name) for name in GRAPHS[to] if (new / name).exists()}
        entry: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "runtime": to,
            "precision": precision,
            "opset": OPSET,
            "outputs": list(outputs),
            "sha256": sums,
            "source": source.spec,
            "source_sha256": weights_sha256,
            "versions": {name: metadata.version(name) for name in ("vitkit", "torch", *PACKAGES[to])},
        }
        document = {"vitkit": to_json(stored), ENTRY: entry}
        write_json(new / CONFIG, document)
        say("checking it against its source")
        check = _check(source, new, images, what, labelled)
        lost = what_is_lost(check, precision)
        if lost and LOSS not in words:
            raise InputError(
                f"the export loses too much, so nothing is written: {lost}; --accept {LOSS} (accept={LOSS!r}) writes it anyway"
            )
        result = Exported(
            source.spec,
            str(folder),
            to,
            precision,
            OPSET,
            source.model.config.size,
            source.model.config.num_classes,
            outputs,
            sum((new / name).stat().st_size for name in sums),
            weights_sha256,
            check,
            calibration,
            (Note(lost, "warning"),) if lost else (),
        )
        entry |= {"calibration": calibration and calibration.to_json(), "check": check.to_json()}
        write_json(new / CONFIG, document)
        write_card(new, stored, result)
    return result


def _check_request(to: Runtime, precision: Precision, calibrate: Data | None, accept: Sequence[str]) -> None:
    """Refuse settings that exclude each other, before anything is read."""
    check_choice("to", to, Runtime)
    check_choice("precision", precision, Precision)
    if other := [word for word in accept if word != LOSS]:
        raise InputError(
            f"--accept is {other[0]!r}; expected {LOSS}, which accepts a larger loss than the tolerance"
        )
    if precision == "bfloat16" and to == "onnx":
        raise InputError(
            "ONNX Runtime doesn't compute in bfloat16 on the CPU: use --to openvino, or --precision float32 or int8"
        )
    if precision == "int8" and calibrate is None:
        raise InputError(
            "int8 is calibrated on images like those that the model will see: add --calibrate DATA"
        )
    if precision != "int8" and calibrate is not None:
        raise InputError(f"--calibrate is for --precision int8, not {precision}: remove it")


def _load(model: AnyModel, image_size: Size | None) -> tuple[Predictor, str]:
    model, given = named_model(model)
    if exported_path(model) is not None or (
        isinstance(model, Predictor) and isinstance(model.model, RuntimeModel)
    ):
        raise InputError(f"{given} is already an exported graph: give the model folder that it was made from")
    if isinstance(model, Predictor):
        model.model.check_whole(given)
        return load(model, image_size=image_size), given
    return load(model, device="cpu", image_size=image_size), given


def _check_int8(source: Predictor, to: Runtime, precision: Precision) -> None:
    config = source.model.config
    if precision != "int8":
        return
    if isinstance(config, OwnConfig):
        raise InputError(f"int8 is for vitkit's own models, and {config.module} is a module of your own")
    if isinstance(config, ResNetConfig) and to == "onnx":
        raise InputError(
            "ONNX Runtime is no faster with int8 convolutions between GroupNorms, and a ResNet has no other layers: use "
            "--to openvino"
        )


def _open(source: Predictor, data: Data | None, default: Any) -> Source | None:
    if data is None:
        return None
    check_rgb(source.model.config, source.spec)
    return open_data(data, default=default, labelled=default == "measure")


def _write_graph(network: Any, folder: Path, to: Runtime) -> tuple[str, ...]:
    path = folder / GRAPHS["onnx"][0]
    outputs = write_onnx(network, path)
    if to == "openvino":
        openvino = import_openvino()
        graph = openvino.Core().read_model(os.fspath(path))
        openvino.save_model(graph, os.fspath(folder / GRAPHS["openvino"][0]), compress_to_fp16=False)
        for name in GRAPHS["onnx"]:
            (folder / name).unlink(missing_ok=True)
    return outputs


def _check(source: Predictor, folder: Path, images: torch.Tensor, what: str, data: Source | None) -> Check:
    opened = read_folder(folder)
    graph = RuntimeModel(opened, open_session(opened, torch.get_num_threads()))
    device = source.device
    source.model.cpu()
    try:
        check = compare(source.model, graph, images, what)
        if data is None:
            return check
        exported, plain = (
            Predictor(
                model,
                source.preprocessing,
                source.class_names,
                source.name,
                multi_label=source.multi_label,
                spec=source.spec,
            )
            for model in (graph, source.model)
        )
        return dataclasses.replace(check, **measure(plain, exported, data))  # type: ignore[arg-type]
    finally:
        source.model.to(device)
