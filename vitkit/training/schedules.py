"""The learning rate as a pure function of the step, and durations: 500 (steps), '10ep', '5%'."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from vitkit.config import NotNegative, check_bounds, shown
from vitkit.errors import InputError

Duration = int | str
Unit = Literal["steps", "epochs", "%"]

_FORM = re.compile(
    r"(?P<amount>[0-9]{1,15}(?:\.[0-9]{1,15})?) *(?P<unit>epochs?|ep|%)|(?P<steps>[0-9]{1,15})"
)

# The settings that each schedule reads, in addition to its warm-up. Other settings are refused.
READS: dict[str, tuple[str, ...]] = {
    "cosine": ("end", "cooldown", "warmup_inside"),
    "linear": ("end", "cooldown", "warmup_inside"),
    "rsqrt": ("timescale", "cooldown"),
    "step": ("drops",),
    "constant": (),
}


def split_duration(duration: Duration, what: str = "a duration") -> tuple[Fraction, Unit]:
    """Return amount and unit; `what` names the setting in the error message."""
    if isinstance(duration, int) and not isinstance(duration, bool) and duration >= 0:
        return Fraction(duration), "steps"
    form = _FORM.fullmatch(duration) if isinstance(duration, str) else None
    if form is None:
        raise InputError(
            f"{what} is {shown(duration)}; expected steps (500), epochs ('10 epochs', '10ep') "
            "or a share of the run ('5%')"
        )
    if form["steps"]:
        return Fraction(form["steps"]), "steps"
    amount = Fraction(form["amount"])
    if form["unit"] != "%":
        return amount, "epochs"
    if amount > 100:
        raise InputError(f"{what} is {duration!r}; a share of the run is at most 100%")
    return amount, "%"


def parse_duration(
    text: Duration, steps_per_epoch: float, total_steps: int | None = None, what: str = "a duration"
) -> int:
    """Return a duration in steps, rounded to the nearest (halves up), and at least 1 unless it is 0.

    Without `total_steps`, as for the length of the run itself, it can't be a share of the run.
    """
    amount, unit = split_duration(text, what)
    if unit == "epochs":
        amount *= Fraction(steps_per_epoch)
    elif unit == "%":
        if total_steps is None:
            raise InputError(f"{what} is {text!r}; the length of a run must be in steps or epochs")
        amount *= Fraction(total_steps, 100)
    return max(int(amount > 0), int(amount + Fraction(1, 2)))


@dataclass(frozen=True)
class ScheduleConfig:
    """How the learning rate changes over the run; its peak is a setting of the optimiser."""

    name: Literal["cosine", "linear", "rsqrt", "step", "constant"] = "cosine"
    "Shape after the warm-up: half a cosine, a straight line, base / sqrt(1 + steps / timescale), tenfold drops (step), or flat (constant)."
    warmup: Duration = 0
    "Length of the linear warm-up."
    warmup_from: NotNegative = 0.0
    "Learning rate at step 0 of the warm-up."
    warmup_inside: bool = False
    "Whether cosine and linear decay from step 0, so that the warm-up replaces their start, as in timm. By default they decay from the end of the warm-up."
    end: NotNegative = 0.0
    "Final learning rate of cosine and linear."
    cooldown: Duration = 0
    "Length of the last part of the run: rsqrt decays linearly to 0 in it; cosine and linear stay at `end`."
    timescale: Duration = 10_000
    "Time in which rsqrt decays by a factor of sqrt(2)."
    drops: tuple[Duration, ...] = ("30%", "60%", "90%")
    "Steps, counted from 0, after which the schedule 'step' divides the learning rate by 10. Each is the last step before a drop."

    def __post_init__(self) -> None:
        if self.name not in READS:
            raise InputError(f"schedule is {self.name!r}; expected one of {', '.join(READS)}")
        for name in ("end", "cooldown", "timescale", "drops", "warmup_inside"):
            if name not in READS[self.name] and getattr(self, name) != getattr(ScheduleConfig, name):
                raise InputError(f"{name} does not apply to schedule {self.name!r}: remove it")
        for name in ("warmup_from", "warmup_inside"):
            if getattr(self, name) > 0 and not split_duration(self.warmup, "warmup")[0]:
                raise InputError(f"{name} does not apply without a warm-up: set warmup, or remove it")
        for name in ("warmup", "cooldown", "timescale"):
            split_duration(getattr(self, name), name)
        for drop in self.drops:
            split_duration(drop, "one of drops")
        check_bounds(self)
        if not split_duration(self.timescale)[0]:
            raise InputError(f"timescale must be above 0, not {self.timescale!r}")


def build_schedule(
    config: ScheduleConfig, base: float, total: int, steps_per_epoch: float
) -> Callable[[int], float]:
    """Return the function from a step, counted from 0, to its learning rate.

    With a warm-up, step 0 has `warmup_from` (by default 0, so the first update changes nothing). Step `warmup` is the
    first at `base` or, with `warmup_inside`, at the decay's value there. From step `total` on, the rate stays at its final
    value. Layer decay scales the rate for each group of parameters (`optimizers`). Lines of metrics count steps from 1.
    """

    def steps(name: str, duration: Duration) -> int:
        return parse_duration(duration, steps_per_epoch, total, name)

    warmup, cooldown = steps("warmup", config.warmup), steps("cooldown", config.cooldown)
    if warmup + cooldown > total:
        raise InputError(
            f"warmup and cooldown take {warmup} and {cooldown} steps; the whole run has {total}: "
            "shorten them, as in schedule.warmup=5%"
        )
    falls_from = 0 if config.warmup_inside else warmup
    timescale = steps("timescale", config.timescale)
    drops = [steps("one of drops", drop) for drop in config.drops]

    def learning_rate(step: int) -> float:
        if step < warmup:
            return config.warmup_from + (base - config.warmup_from) * step / warmup
        progress = min(1.0, (step - falls_from) / max(1, total - cooldown - falls_from))
        match config.name:
            case "cosine":
                return config.end + (base - config.end) * 0.5 * (1.0 + math.cos(math.pi * progress))
            case "linear":
                return config.end + (base - config.end) * (1.0 - progress)
            case "rsqrt":
                # Has no fixed end: a cooldown can start from any step of a longer run (Zhai et al., Scaling ViT).
                rate = base / math.sqrt(1.0 + (step - warmup) / timescale)
                return rate * min(1.0, max(0, total - step) / cooldown) if cooldown else rate
            case "step":
                return base / 10 ** sum(drop < step for drop in drops)
            case _:
                return base

    return learning_rate
