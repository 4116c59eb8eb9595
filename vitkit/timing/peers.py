"""Other libraries and runtimes: how each gets a model's weights, and how it opens them."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.errors import InputError
from vitkit.models.configs import ViTConfig
from vitkit.predictor import Predictor
from vitkit.timing.ways import LIBRARIES, Way
from vitkit.weights.convert import save

Call = Callable[[Tensor], Tensor]

# torchvision's models that are rows for comparison, with their image sizes.
TORCHVISION = {"efficientnet_b0": 224, "efficientnet_b7": 600}
HINTS = {"float32": "f32", "bfloat16": "bf16"}
"OpenVINO's words; without one it takes bfloat16 wherever a processor has it."


@dataclass(frozen=True)
class Peer:
    """A library that runs the same model."""

    module: str
    "The Python package."
    write: Callable[[Predictor, Path], Path]
    "Write a model for it into a folder that all peers of the model share; return the path to open."
    open: Callable[[Path, Way], nn.Module | Call]
    is_runtime: bool = False
    "Whether it runs a graph, on the CPU alone."


def write_timm(predictor: Predictor, folder: Path) -> Path:
    save(predictor, folder / "timm", "timm", accept="numerics")
    return folder / "timm"


def open_timm(path: Path, way: Way) -> nn.Module:
    import timm

    return timm.create_model(f"local-dir:{path}", pretrained=True)


def write_transformers(predictor: Predictor, folder: Path) -> Path:
    if not predictor.model.config.num_classes:
        raise InputError("its classifier needs a head")
    save(predictor, folder / "transformers", "hf", accept="numerics")
    return folder / "transformers"


def open_transformers(path: Path, way: Way) -> nn.Module:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return Logits(
        transformers.AutoModelForImageClassification.from_pretrained(
            path, attn_implementation="sdpa" if is_vit(path) else None, dtype=torch.float32
        )
    )


def is_vit(path: Path) -> bool:
    """Return whether a folder of transformers holds a ViT; its ResNets have no attention to choose."""
    return bool(json.loads((path / "config.json").read_text())["model_type"] == "vit")


class Logits(nn.Module):
    """A model of transformers that returns logits alone."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).logits


def write_torchvision(predictor: Predictor, folder: Path) -> Path:
    save(predictor, folder / "torchvision" / "model.safetensors", "torchvision", accept="numerics")
    config = predictor.model.config
    assert isinstance(config, ViTConfig)  # torchvision has no other family, and save has checked it
    arguments = {
        "image_size": config.size[0],
        "patch_size": config.patch,
        "num_layers": config.depth,
        "num_heads": config.heads,
        "hidden_dim": config.width,
        "mlp_dim": config.mlp_width,
        "num_classes": config.num_classes,
        "representation_size": config.pre_logits or None,
    }
    (folder / "torchvision" / "arguments.json").write_text(json.dumps(arguments))
    return folder / "torchvision"


def open_torchvision(path: Path, way: Way) -> nn.Module:
    import torchvision
    from safetensors.torch import load_file

    if str(path) in TORCHVISION:
        return torchvision.models.get_model(str(path))
    arguments = json.loads((path / "arguments.json").read_text())
    model = torchvision.models.VisionTransformer(**arguments)
    model.load_state_dict(load_file(path / "model.safetensors"))
    return model


def write_graph(predictor: Predictor, folder: Path) -> Path:
    """Write the graph that both runtimes read."""
    path = folder / "graph" / "model.onnx"
    if path.exists():
        return path
    if missing := [name for name in ("onnx", "onnxscript") if find_spec(name) is None]:
        raise InputError(f'its graph needs {", ".join(missing)}: pip install "vitkit[export]"')
    path.parent.mkdir(exist_ok=True)
    config = predictor.model.config
    model = predictor.model.cpu()
    try:
        with quiet(), torch.no_grad():
            torch.onnx.export(
                model,
                (torch.zeros(2, config.channels, *config.size),),
                path,
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                input_names=["images"],
                output_names=["logits"],
                external_data=True,
                verbose=False,
            )
    except Exception as error:  # the exporter raises what its parts raise
        path.unlink(missing_ok=True)
        lines = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"torch.onnx can't export it: {lines[0]}") from error
    finally:
        predictor.model.to(predictor.device)
    return path


def open_onnxruntime(path: Path, way: Way) -> Call:
    import onnxruntime

    if way.precision != "float32":
        raise InputError(f"it has no {way.precision} on the CPU")
    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = way.threads
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def open_openvino(path: Path, way: Way) -> Call:
    import openvino

    core = openvino.Core()
    if way.precision == "bfloat16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise InputError("it has no bfloat16 on this processor")
    options = {
        "INFERENCE_PRECISION_HINT": HINTS[way.precision],
        "PERFORMANCE_HINT": "LATENCY",  # the throughput hint halves the speed of single requests
        "INFERENCE_NUM_THREADS": way.threads,
    }
    # `read_model` is C++ and sends no telemetry; the converters in Python do.
    request = core.compile_model(core.read_model(path), "CPU", options).create_infer_request()
    output = request.model_outputs[0]
    # The output is a view of memory that the next call overwrites.
    return lambda images: torch.from_numpy(request.infer([images.numpy()], share_inputs=True)[output].copy())


PEERS: dict[str, Peer] = {
    "timm": Peer("timm", write_timm, open_timm),
    "transformers": Peer("transformers", write_transformers, open_transformers),
    "torchvision": Peer("torchvision", write_torchvision, open_torchvision),
    "onnxruntime": Peer("onnxruntime", write_graph, open_onnxruntime, is_runtime=True),
    "openvino": Peer("openvino", write_graph, open_openvino, is_runtime=True),
}


def check(library: str, way: Way, train: bool) -> None:
    """Raise InputError if a peer can't be measured, whatever the model."""
    peer = PEERS[library]
    if find_spec(peer.module) is None:
        raise InputError(f"not installed: pip install {peer.module}")
    if peer.is_runtime and train:
        raise InputError("it doesn't train")
    if peer.is_runtime and way.device != "cpu":
        raise InputError("it is measured on the CPU only")


def written(library: str, predictor: Predictor, folder: Path) -> Path:
    """Write a model for a peer; the error is the reason why it can't have it, without names before it."""
    try:
        return PEERS[library].write(predictor, folder)
    except InputError as error:
        words = str(error)
        for name in (LIBRARIES[library], "transformers", "torchvision", "timm"):
            words = words.removeprefix(f"{name} has no such model: ")
        raise InputError(words) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporter's progress and warnings off the terminal."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
