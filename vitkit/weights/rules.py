"""Rules that translate between another layout's tensors and ours: name patterns, and how to convert values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from vitkit.errors import InputError
from vitkit.models.configs import ModelConfig, ViTConfig
from vitkit.weights.files import Tensors

_FIELD = re.compile(r"\{(\w)(\+1)?(:02)?\}")


@dataclass(frozen=True)
class Move:
    """Converts one or more of their tensors to one of ours, and back."""

    to_ours: Callable[[Sequence[Tensor]], Tensor]
    to_theirs: Callable[[Tensor, ModelConfig], Sequence[Tensor]]


@dataclass(frozen=True)
class Rule:
    """One of our names, their name or names for it, and the move between them.

    Names may hold fields: {i} is a number, {i+1} the same number counted from one, {i+1:02} with two digits.
    """

    ours: str
    theirs: tuple[str, ...]
    move: Move

    @cached_property
    def our_pattern(self) -> Pattern:
        return Pattern(self.ours)

    @cached_property
    def their_patterns(self) -> tuple[Pattern, ...]:
        return tuple(Pattern(name) for name in self.theirs)


class Pattern:
    """A name with numbered fields."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.fields = [(match[1], bool(match[2])) for match in _FIELD.finditer(text)]
        parts = _FIELD.split(text)[::4]
        self.regex = re.compile(r"(\d+)".join(map(re.escape, parts)))

    def match(self, name: str) -> dict[str, int] | None:
        """Return the numbers in a name of this pattern, counted from zero."""
        match = self.regex.fullmatch(name)
        if match is None:
            return None
        numbers = zip(self.fields, match.groups(), strict=True)
        values = {field: int(digits) - from_one for (field, from_one), digits in numbers}
        return values if self.format(values) == name else None

    def format(self, values: dict[str, int]) -> str:
        """Return the name with these numbers."""

        def write(match: re.Match[str]) -> str:
            return f"{values[match[1]] + bool(match[2]):{'02' if match[3] else ''}}"

        return _FIELD.sub(write, self.text)


def to_ours(rules: Iterable[Rule], theirs: Tensors) -> tuple[Tensors, list[str]]:
    """Return the tensors under our names, and the names that no rule reads."""
    ours: Tensors = {}
    used: set[str] = set()
    for rule in rules:
        for name in theirs:
            values = rule.their_patterns[0].match(name)
            if values is None:
                continue
            names = [pattern.format(values) for pattern in rule.their_patterns]
            absent = [name for name in names if name not in theirs]
            if absent:
                raise InputError(f"tensor {absent[0]} is missing, although {name} is present")
            target = rule.our_pattern.format(values)
            try:
                ours[target] = rule.move.to_ours([theirs[name] for name in names])
            except (RuntimeError, ValueError, IndexError):
                shapes = ", ".join(f"{name} {tuple(theirs[name].shape)}" for name in names)
                raise InputError(f"tensor of an unexpected shape: {shapes}") from None
            used.update(names)
    return ours, [name for name in theirs if name not in used]


def to_theirs(rules: Iterable[Rule], ours: Tensors, config: ModelConfig, layout: str) -> Tensors:
    """Return the tensors under their names; raise InputError for a tensor that their layout doesn't have."""
    theirs: Tensors = {}
    rules = list(rules)
    for name, tensor in ours.items():
        for rule in rules:
            values = rule.our_pattern.match(name)
            if values is not None:
                moved = rule.move.to_theirs(tensor, config)
                names = [pattern.format(values) for pattern in rule.their_patterns]
                theirs.update(zip(names, moved, strict=True))
                break
        else:
            raise InputError(f"{layout} has no place for {name}")
    return theirs


def _heads(config: ModelConfig) -> int:
    return config.heads  # type: ignore[attr-defined]


def _stack_heads(kernels: Sequence[Tensor]) -> Tensor:
    return torch.cat([kernel.flatten(1).mT for kernel in kernels])  # each (width, heads, size)


def _split_heads(weight: Tensor, config: ModelConfig, parts: int) -> list[Tensor]:
    return [part.mT.unflatten(1, (_heads(config), -1)) for part in weight.chunk(parts)]


def split_heads(parts: int) -> Move:
    """Convert separate Flax attention kernels (width, heads, size) to one stacked matrix, and back."""
    return Move(_stack_heads, lambda weight, config: _split_heads(weight, config, parts))


def split_head_biases(parts: int) -> Move:
    """Convert Flax attention biases (heads, size) to one stacked vector, and back."""
    return Move(
        lambda biases: torch.cat([bias.flatten() for bias in biases]),
        lambda bias, config: [part.unflatten(0, (_heads(config), -1)) for part in bias.chunk(parts)],
    )


def stacked(parts: int) -> Move:
    """Convert separate matrices or vectors to one stacked along the first axis, and back."""
    return Move(lambda tensors: torch.cat(list(tensors)), lambda tensor, _: tensor.chunk(parts))


COPY = Move(lambda tensors: tensors[0], lambda tensor, _: [tensor])
DENSE = Move(lambda tensors: tensors[0].permute(1, 0), lambda tensor, _: [tensor.permute(1, 0)])
CONV = Move(lambda tensors: tensors[0].permute(3, 2, 0, 1), lambda tensor, _: [tensor.permute(2, 3, 1, 0)])
# Old files store norms as (1, 1, 1, channels).
VECTOR = Move(lambda tensors: tensors[0].flatten(), lambda tensor, _: [tensor])
# Flax's attention output kernel is (heads, size, width).
OUT = Move(
    lambda tensors: tensors[0].flatten(0, 1).mT,
    lambda tensor, config: [tensor.mT.unflatten(0, (_heads(config), -1))],
)
# Their dense layer is our 1x1 convolution.
POINTWISE = Move(lambda tensors: tensors[0][:, :, None, None], lambda tensor, _: [tensor[:, :, 0, 0]])


def copies(pairs: Iterable[tuple[str, str]], move: Move = COPY) -> list[Rule]:
    """Return the rules for pairs of modules that have a weight and a bias."""
    return [
        Rule(f"{ours}.{kind}", (f"{theirs}.{kind}",), move)
        for ours, theirs in pairs
        for kind in ("weight", "bias")
    ]


def beyond_first_vit(config: ViTConfig) -> str | None:
    """Return how this ViT differs from the paper's, which is the only one in transformers and torchvision, or None."""
    if config.positions != "learned" or config.positions_at != "stem" or not config.prefix_positions:
        return "its ViT has learned positions with a row for the class token"
    if config.pool != "token" or config.registers or config.final_norm != "tokens":
        return "its ViT reads the normalised class token and has no registers"
    if config.layer_scale is not None:
        return "its ViT has no LayerScale"
    if config.attention != "full":
        return f"its ViT has no attention {config.attention!r}"
    return None
