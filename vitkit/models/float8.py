"""float8 in the large products of a transformer: qkv, the projection after attention and the MLP, in each layer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.errors import InputError
from vitkit.kernels.float8 import LARGEST, SIDE, float8_linear, round_to_float8, row_scales
from vitkit.kernels.gelu import exact_gelu, gelu_float8, linear_gelu
from vitkit.models.configs import Gelu

PROJECTIONS = ("qkv", "proj", "fc1", "fc2", "linear1", "linear2")
"Names of the large layers of a block."
MARGIN = 2.0
"""How far values may exceed those that scales were measured on.

It costs no precision: the steps of floats are relative, and e4m3 has a range of 2^15 between its least normal value and its
largest.
"""


def large_layers(model: nn.Module) -> list[str]:
    """Return the names of the linear layers of a transformer's blocks, in which nearly all multiply-adds are."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and ".blocks." in f".{name}" and name.split(".")[-1] in PROJECTIONS
    ]


def float8_layers(model: nn.Module) -> list[str]:
    """Return the names of the layers that float8 is for; others have sizes that the GPU doesn't take."""
    layers = {name: model.get_submodule(name) for name in large_layers(model)}
    return [
        name
        for name, layer in layers.items()
        if isinstance(layer, nn.Linear) and not (layer.in_features % SIDE or layer.out_features % SIDE)
    ]


def to_float8(model: nn.Module, largest: Mapping[str, float] | None) -> None:
    """Make the large layers float8, in place.

    largest: for the name of each layer, the largest magnitude of its inputs. Without, each token is scaled by its own.
    """
    names = float8_layers(model)
    if not names:
        raise InputError(
            f"this model can't compute in float8: it has no layers of tokens whose sizes are multiples of {SIDE}"
        )
    if largest is not None and set(largest) != set(names):
        raise InputError("the scales of float8 belong to another model: measure them again")
    for name in names:
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        model.set_submodule(name, Float8Linear(layer, None if largest is None else largest[name]))


def infer_mlp(x: Tensor, first: nn.Module, gelu: Gelu, second: nn.Module) -> Tensor:
    """Return second(GELU(first(x))) in bfloat16 or float8, with as few passes over the hidden units as there can be.

    In bfloat16 on a GPU, GELU is the end of the product, in the tanh form. There is no such product with the erf form, which
    timm's weights have; the difference, 0.2% of the logits, is a sixth of bfloat16's error, which one rounding less makes up.
    """
    is_tanh = gelu == "tanh"
    if isinstance(second, Float8Linear) and second.scale is not None:
        hidden = gelu_float8(first(x).flatten(0, -2), second.scale, is_tanh=is_tanh)
        return second.multiply(hidden, second.scale).unflatten(0, x.shape[:-1])
    if isinstance(first, nn.Linear) and x.is_cuda and x.dtype == torch.bfloat16:
        return second(linear_gelu(x, first.weight, first.bias))
    hidden = first(x)
    return second(F.gelu(hidden, approximate="tanh") if is_tanh else exact_gelu(hidden))


class Float8Linear(nn.Module):
    """x W + b with 8-bit floats: weights have one scale, inputs one or, without `largest`, one for each token."""

    weight: Tensor
    weight_scale: Tensor
    scale: Tensor | None

    def __init__(self, source: nn.Linear, largest: float | None) -> None:
        super().__init__()
        self.in_features, self.out_features = source.in_features, source.out_features
        weight = source.weight.detach()
        weight_scale = weight.abs().max().float().clamp(min=1e-12) / LARGEST
        self.register_buffer("weight", round_to_float8(weight, weight_scale))
        if largest is None:  # the product with a scale for each row takes one for each output
            self.register_buffer("scale", None)
            self.register_buffer("weight_scale", weight_scale.repeat(1, self.out_features))
        else:
            self.register_buffer("scale", weight_scale.new_tensor(max(MARGIN * largest, 1e-12) / LARGEST))
            self.register_buffer("weight_scale", weight_scale)
        self.bias = source.bias

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        scale = row_scales(rows) if self.scale is None else self.scale
        return self.multiply(round_to_float8(rows, scale), scale).unflatten(0, x.shape[:-1])

    def multiply(self, rows: Tensor, scale: Tensor) -> Tensor:
        """Return the product of rows that are 8 bits already."""
        return float8_linear(rows, self.weight, scale, self.weight_scale, self.bias, torch.bfloat16)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {'dynamic' if self.scale is None else 'static'}"
