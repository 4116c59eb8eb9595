"""Which operations an image gets, and how strong: RandAugment as published and as timm's, AutoAugment, TrivialAugment."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vitkit.data.draws import Draw
from vitkit.data.operations import Assignment, Fill, Interpolation, apply
from vitkit.errors import InputError, did_you_mean

# Operations whose direction is drawn.
SIGNED = frozenset({"Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"})

# RandAugment in its first form, in TensorFlow, which big_vision keeps: the amount at level 1 is magnitude 10.
# TensorFlow never shifts all 8 bits out, so that Posterize keeps one at least.
PAPER_LEVELS: dict[str, Callable[[float], float]] = {
    "AutoContrast": lambda level: 0,
    "Equalize": lambda level: 0,
    "Invert": lambda level: 0,
    "Rotate": lambda level: 30 * level,
    "Posterize": lambda level: max(1, int(4 * level)),
    "Solarize": lambda level: int(256 * level),
    "Color": lambda level: 1.8 * level + 0.1,
    "Contrast": lambda level: 1.8 * level + 0.1,
    "Brightness": lambda level: 1.8 * level + 0.1,
    "Sharpness": lambda level: 1.8 * level + 0.1,
    "ShearX": lambda level: 0.3 * level,
    "ShearY": lambda level: 0.3 * level,
    "TranslateX": lambda level: 100 * level,
    "TranslateY": lambda level: 100 * level,
    "Cutout": lambda level: int(40 * level),
    "SolarizeAdd": lambda level: int(110 * level),
}


def randaugment(images: Tensor, draw: Draw, layers: int = 2, magnitude: float = 10) -> Tensor:
    """Do one operation of 16 per layer, always and at full strength: RandAugment as published and in big_vision."""
    names = tuple(PAPER_LEVELS)
    height, width = images.shape[-2:]
    operations = np.floor(draw.uniform("operation", layers) * len(names))
    signs = np.where(draw.uniform("sign", layers) < 0.5, -1.0, 1.0)
    centres = np.floor(draw.uniform("centre", 2 * layers).reshape(-1, layers, 2) * (height, width))
    for layer in range(layers):
        parts = []
        for name, rows in _members(names, operations[:, layer]):
            amounts: Any = np.full(len(rows), PAPER_LEVELS[name](magnitude / 10))
            if name in SIGNED:
                amounts *= signs[rows, layer]
            elif name == "Cutout":
                # TensorFlow's: a square of twice the amount around any pixel, cut off at the edges.
                centre = centres[rows, layer]
                amounts = np.concatenate([centre - amounts[:, None], centre + amounts[:, None]], axis=1)
            parts.append(Assignment(name, rows, amounts))
        images = apply(images, parts, fill=128)
    return images


def erased_share(size: tuple[int, int], layers: int = 2, magnitude: float = 10) -> float:
    """Return the share of images of which one step of published RandAugment leaves nothing: it counts in pixels."""
    reach = {name: PAPER_LEVELS[name](magnitude / 10) for name in ("TranslateX", "TranslateY", "Cutout")}
    erasing: float = (reach["TranslateX"] >= size[1]) + (reach["TranslateY"] >= size[0])
    erasing += math.prod(_covering(side, reach["Cutout"]) / side for side in size)
    return 1 - (1 - erasing / len(PAPER_LEVELS)) ** layers


def _covering(side: int, reach: float) -> int:
    """Return how many centres 0 to side - 1 a box has that reaches over all of a side: [centre - reach, centre + reach)."""
    return max(0, min(side - 1, int(reach)) - max(0, side - int(reach)) + 1)


@dataclass(frozen=True)
class TimmRandAugment:
    """What a string such as rand-m9-mstd0.5-inc1 says."""

    magnitude: int = 10
    layers: int = 2
    probability: float = 0.5
    "Of each layer's operation."
    deviation: float = 0.0
    "Standard deviation of the magnitude; infinite: it is uniform from 0 to `magnitude`."
    maximum: int = 10
    is_increasing: bool = False
    "Whether every operation is stronger at a higher magnitude."


_SECTION = re.compile(r"([a-z]+)([0-9].*)")
_SECTIONS: dict[str, tuple[str, type]] = {
    "m": ("magnitude", int),
    "n": ("layers", int),
    "p": ("probability", float),
    "mstd": ("deviation", float),
    "mmax": ("maximum", int),
    "inc": ("is_increasing", int),
}


@functools.cache
def parse_timm(text: str) -> TimmRandAugment:
    """Return what timm's string says, or raise InputError."""
    start, *sections = text.split("-")
    expected = f"expected rand-SECTION-... with sections {', '.join(_SECTIONS)}, such as rand-m9-mstd0.5-inc1"
    if start != "rand":
        raise InputError(f"RandAugment string {text!r} starts with {start!r}; {expected}")
    found: dict[str, Any] = {}
    for section in sections:
        match = _SECTION.fullmatch(section)
        if match is None or match[1] not in _SECTIONS:
            hint = did_you_mean(match[1], _SECTIONS) if match else ""
            raise InputError(f"RandAugment string {text!r}: unknown section {section!r}{hint}; {expected}")
        field, kind = _SECTIONS[match[1]]
        if field in found:
            raise InputError(f"RandAugment string {text!r} says {match[1]} twice")
        try:
            found[field] = kind(match[2])
        except ValueError:
            words = "a whole number" if kind is int else "a number"
            raise InputError(
                f"RandAugment string {text!r}: {match[1]} takes {words}, not {match[2]!r}"
            ) from None
    if found.get("probability", 0.0) > 1:
        raise InputError(
            f"RandAugment string {text!r}: p is a probability, {found['probability']} is more than 1"
        )
    if found.get("deviation", 0.0) > 100:
        found["deviation"] = float("inf")
    found["is_increasing"] = bool(found.get("is_increasing", 0))
    return TimmRandAugment(**found)


# timm's auto_augment.py: _enhance_level_to_arg and _enhance_increasing_level_to_arg. The first runs from 0.1 to 1.9, so
# that half of the magnitudes weaken; the second goes from 1 either way by the magnitude.
def _enhance(level: np.ndarray, sign: np.ndarray) -> np.ndarray:
    return 1.8 * level + 0.1


def _enhance_increasing(level: np.ndarray, sign: np.ndarray) -> np.ndarray:
    return np.maximum(0.1, 1 + 0.9 * level * sign)


# timm's amounts for level = magnitude / 10, and a sign; of translations as a share of the side.
Levels = dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]
TIMM_LEVELS: Levels = {
    "AutoContrast": lambda level, sign: np.zeros_like(level),
    "Equalize": lambda level, sign: np.zeros_like(level),
    "Invert": lambda level, sign: np.zeros_like(level),
    "Rotate": lambda level, sign: 30 * level * sign,
    "Posterize": lambda level, sign: np.trunc(4 * level),
    "Solarize": lambda level, sign: np.minimum(256, np.trunc(256 * level)),
    "SolarizeAdd": lambda level, sign: np.minimum(128, np.trunc(110 * level)),
    "Color": _enhance,
    "Contrast": _enhance,
    "Brightness": _enhance,
    "Sharpness": _enhance,
    "ShearX": lambda level, sign: 0.3 * level * sign,
    "ShearY": lambda level, sign: 0.3 * level * sign,
    "TranslateX": lambda level, sign: 0.45 * level * sign,
    "TranslateY": lambda level, sign: 0.45 * level * sign,
}
TIMM_INCREASING: Levels = TIMM_LEVELS | {
    "Posterize": lambda level, sign: 4 - np.trunc(4 * level),
    "Solarize": lambda level, sign: 256 - np.minimum(256, np.trunc(256 * level)),
    "Color": _enhance_increasing,
    "Contrast": _enhance_increasing,
    "Brightness": _enhance_increasing,
    "Sharpness": _enhance_increasing,
}


def timm_randaugment(
    images: Tensor,
    draw: Draw,
    text: str = "rand-m9-mstd0.5-inc1",
    interpolation: Literal["random", "nearest", "bilinear", "bicubic"] = "random",
    fill: Fill = 128,
) -> Tensor:
    """Do what timm's string says; random interpolation is bilinear or bicubic, drawn for each operation."""
    wanted = parse_timm(text)
    levels = TIMM_INCREASING if wanted.is_increasing else TIMM_LEVELS
    names, layers = tuple(levels), wanted.layers
    operations = np.floor(draw.uniform("operation", layers) * len(names))
    operations[draw.uniform("whether", layers) >= wanted.probability] = -1
    magnitudes = _magnitudes(draw, wanted) / 10
    signs = np.where(draw.uniform("sign", layers) < 0.5, -1.0, 1.0)
    kinds: Any = ("bilinear", "bicubic") if interpolation == "random" else (interpolation, interpolation)
    seconds = draw.uniform("interpolation", layers) < 0.5
    sides = {"TranslateX": images.shape[-1], "TranslateY": images.shape[-2]}
    for layer in range(layers):
        parts: list[Assignment] = []
        for name, rows in _members(names, operations[:, layer]):
            amounts = levels[name](magnitudes[rows, layer], signs[rows, layer]) * sides.get(name, 1)
            if name in SIGNED:
                second = seconds[rows, layer]
                parts.append(Assignment(name, rows[~second], amounts[~second], kinds[0]))
                parts.append(Assignment(name, rows[second], amounts[second], kinds[1]))
            else:
                parts.append(Assignment(name, rows, amounts))
        images = apply(images, parts, fill)
    return images


def _magnitudes(draw: Draw, wanted: TimmRandAugment) -> np.ndarray:
    """Draw magnitudes (images, layers)."""
    if wanted.deviation == float("inf"):
        # timm's mstd above 100: magnitudes are uniform from 0.
        drawn = wanted.magnitude * draw.uniform("magnitude", wanted.layers)
    else:
        first, second = np.split(draw.uniform("magnitude", 2 * wanted.layers), 2, axis=1)
        normal = np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second)  # Box and Muller's
        drawn = wanted.magnitude + wanted.deviation * normal
    return np.clip(drawn, 0, wanted.maximum)


# AutoAugment's policies: 25 pairs of (operation, probability, strength from 0 to 9).
Policy = tuple[tuple[tuple[str, float, int], tuple[str, float, int]], ...]
POLICIES: dict[str, Policy] = {
    "cifar10": (
        (("Invert", 0.1, 0), ("Contrast", 0.2, 6)),
        (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
        (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
        (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9)),
        (("AutoContrast", 0.5, 0), ("Equalize", 0.9, 0)),
        (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
        (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
        (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
        (("Equalize", 0.6, 0), ("Equalize", 0.5, 0)),
        (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
        (("Color", 0.7, 7), ("TranslateX", 0.5, 8)),
        (("Equalize", 0.3, 0), ("AutoContrast", 0.4, 0)),
        (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6)),
        (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
        (("Solarize", 0.5, 2), ("Invert", 0.0, 0)),
        (("Equalize", 0.2, 0), ("AutoContrast", 0.6, 0)),
        (("Equalize", 0.2, 0), ("Equalize", 0.6, 0)),
        (("Color", 0.9, 9), ("Equalize", 0.6, 0)),
        (("AutoContrast", 0.8, 0), ("Solarize", 0.2, 8)),
        (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
        (("Solarize", 0.4, 5), ("AutoContrast", 0.9, 0)),
        (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9)),
        (("AutoContrast", 0.9, 0), ("Solarize", 0.8, 3)),
        (("Equalize", 0.8, 0), ("Invert", 0.1, 0)),
        (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 0)),
    ),
    "imagenet": (
        (("Posterize", 0.4, 8), ("Rotate", 0.6, 9)),
        (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 0)),
        (("Equalize", 0.8, 0), ("Equalize", 0.6, 0)),
        (("Posterize", 0.6, 7), ("Posterize", 0.6, 6)),
        (("Equalize", 0.4, 0), ("Solarize", 0.2, 4)),
        (("Equalize", 0.4, 0), ("Rotate", 0.8, 8)),
        (("Solarize", 0.6, 3), ("Equalize", 0.6, 0)),
        (("Posterize", 0.8, 5), ("Equalize", 1.0, 0)),
        (("Rotate", 0.2, 3), ("Solarize", 0.6, 8)),
        (("Equalize", 0.6, 0), ("Posterize", 0.4, 6)),
        (("Rotate", 0.8, 8), ("Color", 0.4, 0)),
        (("Rotate", 0.4, 9), ("Equalize", 0.6, 0)),
        (("Equalize", 0.0, 0), ("Equalize", 0.8, 0)),
        (("Invert", 0.6, 0), ("Equalize", 1.0, 0)),
        (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
        (("Rotate", 0.8, 8), ("Color", 1.0, 2)),
        (("Color", 0.8, 8), ("Solarize", 0.8, 7)),
        (("Sharpness", 0.4, 7), ("Invert", 0.6, 0)),
        (("ShearX", 0.6, 5), ("Equalize", 1.0, 0)),
        (("Color", 0.4, 0), ("Equalize", 0.6, 0)),
        (("Equalize", 0.4, 0), ("Solarize", 0.2, 4)),
        (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 0)),
        (("Invert", 0.6, 0), ("Equalize", 1.0, 0)),
        (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
        (("Equalize", 0.8, 0), ("Equalize", 0.6, 0)),
    ),
}
# TrivialAugment's operations, the first of which does nothing.
TRIVIAL = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
)


@dataclass(frozen=True)
class Ranges:
    """torchvision's strengths: what each operation reaches at the last of a number of equal steps."""

    steps: int
    shear: float
    translate: tuple[float, float]
    "Pixels down and across."
    rotate: float
    enhance: float
    posterize: int
    "Bits dropped."

    def amounts(self, name: str, step: np.ndarray, sign: np.ndarray) -> np.ndarray:
        """Return the amounts of an operation at steps from 0, each with its sign."""
        if name in ("ShearX", "ShearY"):
            return sign * self._linear(self.shear)[step]
        if name == "TranslateX":
            return -np.trunc(sign * self._linear(self.translate[1])[step])
        if name == "TranslateY":
            return -np.trunc(sign * self._linear(self.translate[0])[step])
        if name == "Rotate":
            return sign * self._linear(self.rotate)[step]
        if name in ("Brightness", "Color", "Contrast", "Sharpness"):
            return 1 + sign * self._linear(self.enhance)[step]
        if name == "Posterize":
            return 8 - np.rint(self.posterize * step / (self.steps - 1))
        if name == "Solarize":
            return torch.linspace(255, 0, self.steps).double().numpy()[step]
        return np.zeros(len(step))

    def _linear(self, last: float) -> np.ndarray:
        return (
            torch.linspace(0, last, self.steps).double().numpy()
        )  # torchvision's roundings decide whole pixels


def autoaugment(
    images: Tensor,
    draw: Draw,
    policy: Literal["cifar10", "imagenet"] = "imagenet",
    interpolation: Interpolation = "nearest",
    fill: Fill = 0,
) -> Tensor:
    """Do one pair of operations out of AutoAugment's 25, with torchvision's strengths."""
    if policy not in POLICIES:
        raise InputError(f"unknown AutoAugment policy {policy!r}; there are {', '.join(POLICIES)}")
    height, width = images.shape[-2:]
    # Cubuk et al. 2018: translations up to 150 pixels of images with 331.
    ranges = Ranges(10, 0.3, (150 / 331 * height, 150 / 331 * width), 30, 0.9, 4)
    pairs = POLICIES[policy]
    chosen = np.floor(draw.uniform("pair")[:, 0] * len(pairs)).astype(int)
    whether = draw.uniform("whether", 2)
    signs = np.where(draw.uniform("sign", 2) < 0.5, -1.0, 1.0)
    for turn in range(2):
        names, probabilities, steps = (
            np.array(column)[chosen] for column in zip(*(p[turn] for p in pairs), strict=True)
        )
        happens = whether[:, turn] < probabilities
        parts = []
        for name in sorted({pair[turn][0] for pair in pairs}):
            rows = np.flatnonzero(happens & (names == name))
            parts.append(
                Assignment(name, rows, ranges.amounts(name, steps[rows], signs[rows, turn]), interpolation)
            )
        images = apply(images, parts, fill)
    return images


def trivialaugment(
    images: Tensor, draw: Draw, interpolation: Interpolation = "nearest", fill: Fill = 0
) -> Tensor:
    """Do one operation at a random strength: TrivialAugment with torchvision's wide ranges."""
    # Müller and Hutter 2021, the wide space: 31 strengths, translations up to 32 pixels, turns up to 135 degrees.
    ranges = Ranges(31, 0.99, (32, 32), 135, 0.99, 6)
    operations = np.floor(draw.uniform("operation")[:, 0] * len(TRIVIAL))
    steps = np.floor(draw.uniform("strength")[:, 0] * ranges.steps).astype(int)
    signs = np.where(draw.uniform("sign")[:, 0] < 0.5, -1.0, 1.0)
    parts = [
        Assignment(name, rows, ranges.amounts(name, steps[rows], signs[rows]), interpolation)
        for name, rows in _members(TRIVIAL, operations)
        if name != "Identity"
    ]
    return apply(images, parts, fill)


def _members(names: Sequence[str], operations: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each name with the rows that drew it."""
    for number, name in enumerate(names):
        yield name, np.flatnonzero(operations == number)
