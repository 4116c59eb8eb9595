"""Other libraries and runtimes: how each gets a model's weights, and how it opens them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitkit.errors import InputError
from vitkit.models.configs import ViTConfig
from vitkit.predictor import Predictor
from vitkit.runtimes.graph import plain_copy, require, write_onnx
from vitkit.runtimes.onnx_runtime import OnnxSession
from vitkit.runtimes.openvino import OpenVinoSession, has_bfloat16
from vitkit.runtimes.session import Session
from vitkit.timing.ways import Way
from vitkit.weights.convert import NoSuchModel, save

Call = Callable[[Tensor], Tensor]

# torchvision's models that are rows for comparison, with their image sizes.
TORCHVISION = {"efficientnet_b0": 224, "efficientnet_b7": 600}


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
    require("onnx", "onnxscript")
    path.parent.mkdir(exist_ok=True)
    write_onnx(plain_copy(predictor.model), path)
    return path


def open_onnxruntime(path: Path, way: Way) -> Call:
    if way.precision != "float32":
        raise InputError(f"it has no {way.precision} on the CPU")
    return run_graph(OnnxSession(path, way.threads))


def open_openvino(path: Path, way: Way) -> Call:
    if way.precision == "bfloat16" and not has_bfloat16():
        raise InputError("it has no bfloat16 on this processor")
    precision: Literal["float32", "bfloat16"] = "bfloat16" if way.precision == "bfloat16" else "float32"
    return run_graph(OpenVinoSession(path, precision, way.threads))


def run_graph(session: Session) -> Call:
    """Return a call for the first output of a graph: logits, or features of a model without a head."""
    return lambda images: torch.from_numpy(next(iter(session.run(images.numpy()).values())))


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
    if way.precision == "float8":
        raise InputError("it has no float8")
    if peer.is_runtime and train:
        raise InputError("it doesn't train")
    if peer.is_runtime and way.device != "cpu":
        raise InputError("it is measured on the CPU only")


def written(library: str, predictor: Predictor, folder: Path) -> Path:
    """Write a model for a peer; the error is the reason why it can't have it."""
    try:
        return PEERS[library].write(predictor, folder)
    except NoSuchModel as error:
        raise InputError(error.reason) from error
