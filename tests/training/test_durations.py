"""Durations: each way of writing one gives exact steps, and nothing else is taken."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitkit.errors import InputError
from vitkit.training.durations import parse_duration

counts = st.integers(0, 10**7)
epochs = st.integers(1, 10**5)
totals = st.integers(1, 10**7)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        (0, 0),
        (500, 500),
        ("500", 500),
        ("1 epoch", 97),
        ("10 epochs", 970),
        ("10epochs", 970),
        ("10ep", 970),
        ("10 ep", 970),
        ("0.5 epochs", 49),  # 48.5: halves up
        ("2.25ep", 218),
        ("5%", 50),
        ("7%", 70),  # 0.07 * 1000 is not 70 in floating point
        ("12.5 %", 125),
        ("100%", 1000),
        ("0%", 0),
        ("0 epochs", 0),
        ("0.01%", 1),  # what is there lasts at least one step
    ],
)
def test_a_duration_in_steps(text: int | str, steps: int) -> None:
    assert parse_duration(text, steps_per_epoch=97, total_steps=1000) == steps


def test_epochs_need_not_be_whole_steps() -> None:
    assert parse_duration("300 epochs", 1_281_167 / 4096) == 93_835  # AugReg and ViT: 93.8k steps


@pytest.mark.parametrize(
    "text",
    [
        -1,
        "-1",
        1.5,
        True,
        None,
        "",
        " 5",
        "5 ",
        "1e3",
        "5 steps",
        "ten epochs",
        "10 epoch s",
        "10EP",
        "nan%",
        "9" * 18,
    ],
)
def test_anything_else_is_refused(text: Any) -> None:
    with pytest.raises(InputError) as error:
        parse_duration(text, 97, 1000, "warmup")
    assert str(error.value) == (
        f"warmup is {text!r}; expected steps (500), epochs ('10 epochs', '10ep') or a share of the run ('5%')"
    )


def test_a_share_is_of_the_run() -> None:
    with pytest.raises(InputError, match=r"^warmup is '101%'; a share of the run is at most 100%$"):
        parse_duration("101%", 97, 1000, "warmup")
    expected = r"^a duration is '5%'; the length of a run is given in steps or epochs$"
    with pytest.raises(InputError, match=expected):
        parse_duration("5%", 97)


@given(counts, epochs, totals)
def test_whole_amounts_are_exact(count: int, per_epoch: int, total: int) -> None:
    assert parse_duration(count, per_epoch, total) == parse_duration(str(count), per_epoch, total) == count
    assert parse_duration(f"{count}ep", per_epoch, total) == count * per_epoch
    assert parse_duration(f"{count} epochs", per_epoch, total) == count * per_epoch


@given(st.decimals(0, 100, places=3), epochs, totals)
def test_parts_are_the_nearest_step(amount: Any, per_epoch: int, total: int) -> None:
    for text, exact in (
        (f"{amount}%", Fraction(amount) * total / 100),
        (f"{amount} epochs", Fraction(amount) * per_epoch),
    ):
        steps = parse_duration(text, per_epoch, total)
        assert (steps == 0) == (exact == 0)
        assert -Fraction(1, 2) < steps - exact <= Fraction(1, 2) or (steps == 1 and exact < 1)


@given(st.text(alphabet="0123456789.% epochs-+", max_size=12))
def test_no_text_is_taken_half(text: str) -> None:
    try:
        steps = parse_duration(text, 10, 1000)
    except InputError:
        return
    assert steps >= 0
    assert text[0].isdigit()
    assert text.rstrip("epochs% ").replace(".", "", 1).isdigit()
