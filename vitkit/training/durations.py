"""Stretches of training as people write them: 500 (steps), "10 epochs" or "10ep", "5%" of the whole run."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Literal

from vitkit.config import shown
from vitkit.errors import InputError

Duration = int | str
Unit = Literal["steps", "epochs", "%"]

_FORM = re.compile(
    r"(?P<amount>[0-9]{1,15}(?:\.[0-9]{1,15})?) *(?P<unit>epochs?|ep|%)|(?P<steps>[0-9]{1,15})"
)


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
    """Return a duration in whole steps: the nearest, halves up, and at least 1 unless it is 0.

    The length of the run itself is resolved without `total_steps`, and can't be a share.
    """
    amount, unit = split_duration(text, what)
    if unit == "epochs":
        amount *= Fraction(steps_per_epoch)
    elif unit == "%":
        if total_steps is None:
            raise InputError(f"{what} is {text!r}; the length of a run is given in steps or epochs")
        amount *= Fraction(total_steps, 100)
    return max(int(amount > 0), int(amount + Fraction(1, 2)))
