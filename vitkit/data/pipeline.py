"""A pipeline is a short string, such as 'inception_crop(224)|flip|randaugment(2,15)': first per image, then per batch."""

from __future__ import annotations

import inspect
import math
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vitkit.config import admitted_values, convert
from vitkit.data import crops
from vitkit.errors import InputError, did_you_mean
from vitkit.models.configs import Preprocessing

# What workers do to one image: function(image, random, ...) -> image.
IMAGE_STEPS: dict[str, Callable[..., Any]] = {
    "inception_crop": crops.inception_crop,
    "resize": crops.resize,
    "resize_small": crops.resize_small,
    "central_crop": crops.central_crop,
    "random_crop": crops.random_crop,
}
# The same on batches of one size that lie in memory: function(images, draw, ...) -> images.
BATCHED_STEPS: dict[str, Callable[..., Any]] = {
    "inception_crop": crops.batched_inception_crop,
    "resize": crops.batched_resize,
    "resize_small": crops.batched_resize_small,
    "central_crop": crops.central_crop,
    "random_crop": crops.batched_random_crop,
}
# Those that leave nothing to chance.
UNDRAWN = ("resize", "resize_small", "central_crop")
# Steps after which all images have one size.
FIXED = ("inception_crop", "resize", "central_crop", "random_crop")

# The least and the greatest value of each argument that is a number, or of each of several numbers.
ABOVE_0 = math.nextafter(0, 1)
RANGES: dict[str, tuple[float, float]] = {
    "size": (1, 65535),
    "area_min": (0, 1),
    "area_max": (ABOVE_0, 1),
    "ratio_min": (ABOVE_0, math.inf),
    "ratio_max": (ABOVE_0, math.inf),
    "probability": (0, 1),
    "switch_probability": (0, 1),
    "padding": (0, 65535),
    "layers": (1, 100),
    "magnitude": (0, 100),
    "brightness": (0, math.inf),
    "contrast": (0, math.inf),
    "saturation": (0, math.inf),
    "hue": (0, 0.5),
    "degrees": (0, 180),
    "shear": (0, 10),
    "fill": (0, 255),
    "mean": (0, 1),
    "std": (0, math.inf),
    "alpha": (ABOVE_0, math.inf),
    "mixup_alpha": (0, math.inf),
    "cutmix_alpha": (0, math.inf),
}

_STEP = re.compile(r"\s*(\w+)\s*(?:\((.*)\))?\s*")


@dataclass(frozen=True)
class Step:
    """One operation with its arguments."""

    name: str
    arguments: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        written = ",".join(f"{name}={_write(name, value)}" for name, value in self.arguments)
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
        "affine": operations.affine,
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
    for part in (part.strip() for part in _split(text, "|")) if text.strip() else ():
        match = _STEP.fullmatch(part)
        if match is None:
            raise InputError(f"pipeline {text!r}: {part!r} is not a step; expected name or name(arguments)")
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
    arguments: dict[str, object] = {}
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
            arguments[key] = _convert(key, value.strip(), hints[key])
        except InputError as error:
            # A second number in a row is most often the other side.
            is_side = (
                place == 1 and not equals and isinstance(arguments.get("size"), int) and value.isdecimal()
            )
            hint = f"; two sides are {name}({arguments['size']}x{value})" if is_side else ""
            raise InputError(f"{name}: {error}{hint}") from None
    for item in parameters:
        if item.default is inspect.Parameter.empty and item.name not in arguments:
            raise InputError(f"{name} needs {item.name}, as in {name}({item.name}=...)")
    _check_together(name, {item.name: item.default for item in parameters} | arguments)
    return Step(name, tuple(arguments.items()))


def _convert(name: str, text: str, hint: Any) -> Any:
    """Return the value of an argument, checked by itself."""
    try:
        if name == "size" and "/" in text:
            raise TypeError
        value = convert(_value(text), hint)
    except TypeError:
        raise InputError(f"{name} is {text!r}; expected {admitted_values(hint)}") from None
    if name in RANGES:
        _check_range(name, value, *RANGES[name])
    return value


def _check_range(words: str, value: Any, low: float, high: float) -> None:
    for number in value if isinstance(value, tuple) else (value,):
        if not (low <= number <= high and math.isfinite(number)):
            least = "above 0" if low == ABOVE_0 else f"{low:g} or more"
            most = "" if high == math.inf else f", {high:g} at most"
            raise InputError(f"{words} is {number}; expected {least}{most}")


def _check_together(name: str, values: Mapping[str, Any]) -> None:
    """Check what one argument alone doesn't tell."""
    for word in ("area", "ratio"):
        low, high = values.get(f"{word}_min", 0), values.get(f"{word}_max", 0)
        if low > high:
            raise InputError(f"{name}: {word}_min is {low:g}, above {word}_max, {high:g}")
    if name == "mix" and not values["mixup_alpha"] and not values["cutmix_alpha"]:
        raise InputError("mix: both alphas are 0; give mixup_alpha or cutmix_alpha, or leave mix out")
    if name == "timm_randaugment":
        from vitkit.data.policies import parse_timm

        parse_timm(values["text"])


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
    if re.fullmatch(r"[+-]?\d{1,18}", text):
        return int(text)
    if "/" in text:
        return tuple(map(_value, text.split("/")))
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text)
    except ValueError:
        return text


def _write(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        return ("x" if name == "size" else "/").join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def evaluation_pipeline(preprocessing: Preprocessing) -> Pipeline:
    """Return the steps that measuring takes: resize, or resize the shorter side and crop the centre, as a model states it."""
    size, interpolation = preprocessing.size, ("interpolation", preprocessing.interpolation)
    if preprocessing.crop_fraction is None:
        return Pipeline(image=(Step("resize", (("size", size), interpolation)),))
    rows, columns = (math.floor(side / preprocessing.crop_fraction) for side in size)
    small = ("size", rows if rows == columns else (rows, columns))
    return Pipeline(
        image=(Step("resize_small", (small, interpolation)), Step("central_crop", (("size", size),)))
    )
