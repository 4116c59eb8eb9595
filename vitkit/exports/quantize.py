"""Static int8 that survives outliers: they are smoothed or computed in float, and layers that still lose much stay in float.

Three kinds of outliers, three remedies. Channels after a LayerNorm, or of the values: smoothing, which changes nothing else
(`smoothing`). Hidden units of an MLP, a few of which reach a hundred times the others' values in trained models: these
units are computed in float next to the others (`SplitMlp`). Whatever else: a layer whose output on the calibration images
differs by more than `LARGEST_ERROR` stays in float. Patch embedding, norms, softmax, pool and head are always in float.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitkit.calibration import BATCH, Extents, measure_extents, run, watching
from vitkit.exports.int8 import Int8Conv2d, Int8Layer, Int8Linear
from vitkit.exports.smoothing import smooth
from vitkit.models.float8 import large_layers
from vitkit.models.layers import Mlp
from vitkit.models.model import HEAD, Model, first_convolution

USUAL, OUTLIER = 0.98, 2.0
"A hidden unit is an outlier if its largest value is more than OUTLIER times that which the share USUAL of units stays below."
LARGEST_ERROR = 0.05
"Relative error of a layer's output."


@dataclass(frozen=True)
class Remedies:
    """What was done about outliers."""

    smoothed: int
    "Layers whose input was smoothed."
    split: dict[str, int]
    "MLPs of which some hidden units are computed in float, and how many."
    kept_float: tuple[str, ...]
    "Layers that stay in float."


def quantize(model: Model, images: Tensor, *, convolutions: bool) -> Remedies:
    """Make the layers of a float model int8 in place; inputs are scaled to what prepared images give.

    convolutions: also those of a ResNet or a hybrid's backbone.
    """
    layers = find_layers(model, convolutions)
    lows, highs = measure_extents(model, layers, images)
    scales = smooth(model, {name: torch.maximum(lows[name].abs(), highs[name].abs()) for name in layers})
    for name, scale in scales.items():
        lows[name], highs[name] = lows[name] / scale, highs[name] / scale
    split = split_units(model, lows, highs)
    made = {name: to_int8(model.get_submodule(name), lows[name], highs[name]) for name in layers}
    errors = measure_errors(model, made, images[: 2 * BATCH])
    kept_float = tuple(name for name in layers if errors[name] > LARGEST_ERROR)
    for name in layers:
        if name not in kept_float:
            model.set_submodule(name, made[name])
    return Remedies(len(scales), split, kept_float)


def find_layers(model: Model, convolutions: bool) -> list[str]:
    """Return the names of the layers in which nearly all multiply-adds are."""
    inner = set(large_layers(model))
    if convolutions:
        outside = {first_convolution(model), "patch_embed.proj"}
        found = {name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
        inner |= {name for name in found - outside if not name.startswith(("tokenizer.", *HEAD))}
    return sorted(inner)


def to_int8(layer: nn.Module, low: Tensor, high: Tensor) -> Int8Layer:
    """Return the int8 form of a layer for inputs between the least and the largest value of all channels."""
    if isinstance(layer, nn.Linear):
        return Int8Linear(layer, low.min().item(), high.max().item())
    assert isinstance(layer, nn.Conv2d)
    return Int8Conv2d(layer, low.min().item(), high.max().item())


class SplitMlp(nn.Module):
    """An MLP of which a few hidden units are computed in float; in the others' part, these have zero weights."""

    def __init__(self, source: Mlp, units: Tensor) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = source.fc1, source.act, source.fc2
        self.few1, self.few2 = _part(source.fc1, units, 0), _part(source.fc2, units, 1)
        self.fc1.weight.data[units] = 0.0
        self.fc1.bias.data[units] = 0.0
        self.fc2.weight.data[:, units] = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x))) + self.few2(self.act(self.few1(x)))


def _part(layer: nn.Linear, units: Tensor, axis: int) -> nn.Linear:
    """Return a layer with some of the outputs (axis 0) or of the inputs (axis 1) of another, whose bias it lacks then."""
    weight = layer.weight.data.index_select(axis, units)
    part = nn.Linear(weight.shape[1], weight.shape[0], bias=axis == 0)
    part.weight.data = weight.clone()
    if axis == 0:
        part.bias.data = layer.bias.data[units].clone()
    return part.requires_grad_(False)


def split_units(model: Model, lows: Extents, highs: Extents) -> dict[str, int]:
    """Split MLPs with outliers among their hidden units, in place; these no longer count in the extents."""
    split = {}
    for name, mlp in list(model.named_modules()):
        reader = f"{name}.fc2"
        if not isinstance(mlp, Mlp) or reader not in highs:
            continue
        units = (highs[reader] > OUTLIER * highs[reader].quantile(USUAL)).nonzero().flatten()
        if len(units):
            model.set_submodule(name, SplitMlp(mlp, units))
            lows[reader][units], highs[reader][units] = 0.0, 0.0
            split[name] = len(units)
    return split


def measure_errors(model: Model, made: dict[str, Int8Layer], images: Tensor) -> dict[str, float]:
    """Return the relative error of the output of each layer's int8 form on the float layer's input."""
    lost = dict.fromkeys(made, 0.0)
    whole = dict.fromkeys(made, 0.0)

    def see(name: str, x: Tensor, y: Tensor) -> None:
        lost[name] += float((made[name](x) - y).square().sum())
        whole[name] += float(y.square().sum())

    with watching(model, list(made), see):
        run(model, images)
    return {name: (lost[name] / max(whole[name], 1e-30)) ** 0.5 for name in made}
