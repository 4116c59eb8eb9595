"""A model becomes an ONNX graph of logits and features, with any batch size."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitkit.errors import InputError
from vitkit.models.configs import OwnConfig
from vitkit.models.layers import StandardizedConv2d, pad_same
from vitkit.models.model import Model
from vitkit.models.resnet import Stem

OPSET = 20
INPUT, LOGITS, FEATURES = "images", "logits", "features"
LARGEST_FILE = 1_800_000_000
"Bytes of weights that a single ONNX file takes; its format ends at 2 GiB. Those of larger models get a second file."


class Outputs(nn.Module):
    """The outputs of a graph: logits, then features where they are something else than the logits."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.names = output_names(model)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        if self.names == (FEATURES,):
            return (self.model.features(images),)
        if self.names == (LOGITS,):
            return (self.model(images),)
        features = self.model.features(images)
        return self.model.classify(features), features


def output_names(model: Model) -> tuple[str, ...]:
    """Return which outputs the graph of a model has: a user's own module computes its logits by itself."""
    config = model.config
    if isinstance(config, OwnConfig) and not config.new_head:
        return (LOGITS,)
    return (LOGITS, FEATURES) if config.num_classes else (FEATURES,)


def plain_copy(model: Model) -> Model:
    """Return a copy in float32 whose standardised convolutions are plain ones with the same kernels."""
    model = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
    for parent, name, module in _children(model):
        if isinstance(module, StandardizedConv2d):
            setattr(parent, name, PlainConv2d(module))
        elif isinstance(module, Stem) and not module.is_small:
            setattr(parent, name, PlainStem(module))
    return model


def _children(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    return [(parent, *child) for parent in model.modules() for child in parent.named_children()]


class PlainStem(nn.Module):
    """BiT's 7x7 stem. Its zeros are concatenated: ONNX Runtime merges a Pad into MaxPool, which pads with minus infinity."""

    def __init__(self, source: Stem) -> None:
        super().__init__()
        self.conv = source.conv

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv(images)  # (batch, channels, rows, columns)
        row = x.new_zeros(x.shape[0], x.shape[1], 1, x.shape[3])
        x = torch.cat([row, x, row], dim=2)
        column = x.new_zeros(*x.shape[:3], 1)
        return F.max_pool2d(torch.cat([column, x, column], dim=3), 3, 2)


class PlainConv2d(nn.Conv2d):
    """A standardised convolution whose kernel is computed once."""

    def __init__(self, source: StandardizedConv2d) -> None:
        with torch.device("meta"):
            super().__init__(
                source.in_channels,
                source.out_channels,
                source.kernel_size,  # type: ignore[arg-type]
                source.stride,  # type: ignore[arg-type]
                source.padding,  # type: ignore[arg-type]
                bias=False,
            )
        self.weight = nn.Parameter(source.standardize(source.weight.double()).float(), requires_grad=False)
        self.same = source.same

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(pad_same(x, self.kernel_size[0], self.stride[0]) if self.same else x)


def write_onnx(model: Model, path: Path) -> tuple[str, ...]:
    """Write the graph of a model on the CPU, and return the names of its outputs."""
    outputs = Outputs(model)
    sample = torch.zeros(2, model.config.channels, *model.config.size)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    try:
        # The plain formula of attention: fused kernels return memory in an order that the converter doesn't know.
        with _quiet(), torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            program = torch.export.export(
                outputs, (sample,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False
            )
            graph = torch.onnx.export(
                program,
                (),
                dynamo=True,
                input_names=[INPUT],
                output_names=list(outputs.names),
                opset_version=OPSET,
                verbose=False,
            )
        assert graph is not None
        _strip(graph)
        _quantize_before_moves(graph.model.graph)
        graph.save(path, external_data=weights > LARGEST_FILE)
    except InputError:
        raise
    except (RuntimeError, ValueError, TypeError, NotImplementedError, AssertionError) as error:
        cause = str(error.__cause__ or error).strip().splitlines()
        kind = type(model.config).__name__
        raise InputError(
            f"this model can't be exported: torch.onnx doesn't convert its {kind} ({cause[0] if cause else error!r})"
        ) from error
    return outputs.names


def require(*packages: str) -> None:
    """Raise InputError unless these packages of the extra `export` are installed."""
    from importlib.util import find_spec

    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise InputError(f'export needs {", ".join(missing)}: pip install "vitkit[export]"')


def _strip(graph: Any) -> None:
    """Remove what the exporter notes about the source code: file names of this machine."""
    graph.model.metadata_props.clear()
    for node in graph.model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None


def _quantize_before_moves(graph: Any) -> None:
    """Exchange a transposition and a reshape, as those of attention's output, with the rounding to 8 bits after them.

    OpenVINO then joins the rounding to the product before, and moves a quarter of the bytes.
    """
    for rounding in [node for node in graph if node.op_type == "QuantizeLinear"]:
        reshape = rounding.inputs[0].producer()
        if reshape is None or reshape.op_type != "Reshape" or len(reshape.outputs[0].uses()) > 1:
            continue
        transpose = reshape.inputs[0].producer()
        if transpose is None or transpose.op_type != "Transpose" or len(transpose.outputs[0].uses()) > 1:
            continue
        (restoring, _), *others = rounding.outputs[0].uses()
        if others or restoring.op_type != "DequantizeLinear":
            continue
        uses = list(restoring.outputs[0].uses())
        rounding.replace_input_with(0, transpose.inputs[0])
        transpose.replace_input_with(0, restoring.outputs[0])
        for reader, place in uses:
            reader.replace_input_with(place, reshape.outputs[0])
        graph.remove([transpose, reshape])
        graph.insert_after(restoring, [transpose, reshape])
        for value in (rounding.outputs[0], restoring.outputs[0], transpose.outputs[0]):
            value.shape = None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's progress and warnings off the terminal."""
    names: Sequence[str] = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")
    levels = [(logger := logging.getLogger(name), logger.level) for name in names]
    for logger, _ in levels:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in levels:
            logger.setLevel(level)
