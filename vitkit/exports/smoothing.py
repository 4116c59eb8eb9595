"""Smoothing: outlier channels of activations move into the weights that read them; the function stays the same.

A linear layer reads x as x W = (x / s) (s W) for any scale s per channel. Where x comes from a LayerNorm, 1 / s becomes a
part of the norm's weight and bias. Where it is attention's mixture of values, 1 / s becomes a part of the rows of qkv that
give the values, since attention mixes tokens and not channels (SmoothQuant, Xiao et al. 2022). Between fc1 and fc2 is a
GELU, through which no scale passes.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from vitkit.models.compact import Block as CompactBlock
from vitkit.models.model import Model
from vitkit.models.vit import Block

STRENGTH = 0.5
"""Share of an outlier, on the logarithmic scale, that moves from the activation to the weight: SmoothQuant's alpha.

At one half the result doesn't depend on how a channel's size was divided between the two before.
"""
LEAST = 1e-5


def smooth(model: Model, largest: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rescale a model in place, and return by what the input of each linear layer is now divided, per channel.

    largest: for the name of each linear layer, the largest magnitude in each channel of its input.
    """
    scales: dict[str, Tensor] = {}
    for name, block in model.named_modules():
        if isinstance(block, Block):
            pairs = [(block.norm1, f"{name}.attn.qkv"), (block.norm2, f"{name}.mlp.fc1")]
            attention, prefix = block.attn, f"{name}.attn"
        elif isinstance(
            block, CompactBlock
        ):  # its second norm also gives the residual stream, which must not change
            pairs = [(block.pre_norm, f"{name}.self_attn.qkv")]
            attention, prefix = block.self_attn, f"{name}.self_attn"
        else:
            continue
        for norm, reader in pairs:
            scale = _divide(model, reader, largest[reader])
            norm.weight.data /= scale
            norm.bias.data /= scale
            scales[reader] = scale
        reader = f"{prefix}.proj"
        scale = _divide(model, reader, largest[reader])
        width = len(scale)  # the last rows give the values, in the order of the channels
        attention.qkv.weight.data[-width:] /= scale[:, None]
        if attention.qkv.bias is not None:
            attention.qkv.bias.data[-width:] /= scale
        scales[reader] = scale
    return scales


def _divide(model: Model, reader: str, largest: Tensor) -> Tensor:
    """Return the scale of each channel of a layer's input, and multiply the layer's weights by it."""
    layer = model.get_submodule(reader)
    assert isinstance(layer, nn.Linear)
    rows = layer.weight.abs().amax(dim=0).clamp(min=LEAST)
    scale = largest.clamp(min=LEAST) ** STRENGTH / rows ** (1.0 - STRENGTH)
    scale /= scale.log().mean().exp()
    layer.weight.data *= scale
    return scale
