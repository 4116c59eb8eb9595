"""A pipeline is a short string, such as 'inception_crop(224)|flip|randaugment(2,15)': first per image, then per batch."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vitkit.config import convert, describe
from vitkit.data import crops
from vitkit.errors import InputError, did_you_mean

# What workers do to one image: function(image, random, ...) -> image.
IMAGE_STEPS: dict[str, Callable[..., Any]] = {
    "inception_crop": crops.inception_crop,
    "resize": crops.resize,
    "resize_small": crops.resize_small,
    "central_crop": crops.central_crop,
    "random_crop": crops.random_crop,
}
# Steps after which all images have one size.
FIXED = ("inception_crop", "resize", "central_crop", "random_crop")

_STEP = re.compile(r"\s*(\w+)\s*(?:\((.*)\))?\s*")
_SIZE = re.compile(r"(\d+)x(\d+)")


@dataclass(frozen=True)
class Step:
    """One operation with its arguments."""

    name: str
    arguments: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        written = ",".join(f"{name}={_write(value)}" for name, value in self.arguments)
        return f"{self.name}({written})" if written else self.name


@dataclass(frozen=True)
class Pipeline:
    """Steps per image, steps per batch, and steps that mix images with their labels, in this order."""

    image: tuple[Step, ...] = ()
    batch: tuple[Step, ...] = ()
    mix: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return "|".join(map(str, (*self.image, *self.batch, *self.mix)))

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width that the per-image steps give; None where they leave it open."""
        for step in reversed(self.image):
            if step.name in FIXED:
                size = dict(step.arguments)["size"]
                return (size, size) if isinstance(size, int) else size
        return None


def batch_steps() -> dict[str, Callable[..., Any]]:
    """What runs on whole batches on the device: function(images, draw, ...) -> images."""
    from vitkit.data import operations, policies

    return {
        "flip": operations.flip,
        "pad_crop": operations.pad_crop,
        "randaugment": policies.randaugment,
        "timm_randaugment": policies.timm_randaugment,
        "autoaugment": policies.autoaugment,
        "trivialaugment": policies.trivialaugment,
        "color_jitter": operations.color_jitter,
        "erase": operations.erase,
    }


def mix_steps() -> dict[str, Callable[..., Any]]:
    """What mixes images and their labels: function(images, targets, draw, ..., group) -> images, targets."""
    from vitkit.data import mixing

    return {"mixup": mixing.mixup, "cutmix": mixing.cutmix, "mix": mixing.mix}


def parse_pipeline(text: str) -> Pipeline:
    """Return what a pipeline string says, checked; an empty string is a pipeline that does nothing."""
    stages: list[tuple[str, Mapping[str, Callable[..., Any]], tuple[str, ...]]] = [
        ("image", IMAGE_STEPS, ("image", "random")),
        ("batch", batch_steps(), ("images", "draw")),
        ("mix", mix_steps(), ("images", "targets", "draw", "group")),
    ]
    found: dict[str, list[Step]] = {stage: [] for stage, _, _ in stages}
    reached = 0
    for part in filter(None, (part.strip() for part in _split(text, "|"))):
        match = _STEP.fullmatch(part)
        if match is None:
            raise InputError(f"pipeline {text!r}: {part!r} is no step; expected name or name(arguments)")
        name = match[1]
        place = next((place for place, (_, steps, _) in enumerate(stages) if name in steps), None)
        if place is None:
            names = [name for _, steps, _ in stages for name in steps]
            hint = did_you_mean(name, names) or ";"
            raise InputError(f"pipeline {text!r}: unknown step {name!r}{hint} there are {', '.join(names)}")
        stage, steps, given = stages[place]
        if place < reached:
            raise InputError(
                f"pipeline {text!r}: {name} works per {stage}; put it before {stages[reached][0]} steps"
            )
        reached = place
        found[stage].append(_bind(name, steps[name], match[2] or "", given))
    return Pipeline(*(tuple(found[stage]) for stage, _, _ in stages))


def _bind(name: str, function: Callable[..., Any], text: str, given: tuple[str, ...]) -> Step:
    """Match arguments with a function's parameters and check their types."""
    hints = typing.get_type_hints(function)
    parameters = [item for item in inspect.signature(function).parameters.values() if item.name not in given]
    names = [item.name for item in parameters]
    arguments: dict[str, Any] = {}
    for place, argument in enumerate(filter(None, (part.strip() for part in _split(text, ",")))):
        key, equals, value = argument.partition("=")
        if not equals:
            if place >= len(names):
                raise InputError(f"{name} takes at most {len(names)} arguments: {', '.join(names)}")
            key, value = names[place], argument
        key = key.strip()
        if key not in names:
            raise InputError(f"{name} has no argument {key!r}{did_you_mean(key, names)}".rstrip(";"))
        if key in arguments:
            raise InputError(f"{name} is given {key} twice")
        try:
            arguments[key] = convert(_value(value.strip()), hints[key])
        except TypeError:
            raise InputError(f"{name}: {key} is {value.strip()!r}; expected {describe(hints[key])}") from None
    for item in parameters:
        if item.default is inspect.Parameter.empty and item.name not in arguments:
            raise InputError(f"{name} needs {item.name}, as in {name}({item.name}=...)")
    return Step(name, tuple(arguments.items()))


def _split(text: str, separator: str) -> list[str]:
    """Split at a separator outside parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _value(text: str) -> Any:
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    if match := _SIZE.fullmatch(text):
        return int(match[1]), int(match[2])
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text)
    except ValueError:
        return text


def _write(value: Any) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
