"""Numbers as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from vitkit.figures import numbers


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (9.5, "9.5 s"),
        (42.4, "42 s"),
        (59.97, "1 min"),
        (213, "3 min 33 s"),
        (3600, "1 h"),
        (3905, "1 h 5 min"),
        (3599.9, "1 h"),
        (86400 * 3 + 3600, "3 d 1 h"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert numbers.duration(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (59.6, "60 seconds"),
        (119, "119 seconds"),
        (150, "2.5 minutes"),
        (9000, "2.5 hours"),
        (216000, "2.5 days"),
    ],
)
def test_rough_durations(seconds: float, words: str) -> None:
    assert numbers.rough_duration(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0:00"), (59.6, "1:00"), (65, "1:05"), (3905, "1:05:05"), (360000, "100:00:00")],
)
def test_clock(seconds: float, words: str) -> None:
    assert numbers.clock(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3_760_000, "3.76 M"),
        (999_900, "1 M"),
        (86_567_656, "86.6 M"),
        (1.8e9, "1.8 B"),
        (950, "950"),
        (0, "0"),
    ],
)
def test_compact(value: float, words: str) -> None:
    assert numbers.compact(value) == words


@pytest.mark.parametrize(
    ("value", "words"), [(0.61234, "0.6123"), (17994.4, "17,994"), (0, "0"), (1e-5, "1e-05"), (1.0, "1")]
)
def test_decimal(value: float, words: str) -> None:
    assert numbers.decimal(value) == words


@given(some.floats(allow_nan=False, allow_infinity=False))
def test_decimal_is_near(value: float) -> None:
    assert float(numbers.decimal(value).replace(",", "")) == pytest.approx(value, rel=6e-3)


def test_metrics() -> None:
    assert numbers.metric("val_ema/accuracy", 0.96531) == "96.53%"
    assert numbers.metric("val/loss", 0.6) == "0.6000"
    assert numbers.metric("val/loss", 1e-5) == "1e-05"
    assert numbers.metric_name("val_ema/accuracy") == "val ema accuracy"


@pytest.mark.parametrize(
    ("exaflops", "words"),
    [
        (4.72e-8, "47.2 GFLOPs"),
        (2.36e-5, "23.6 TFLOPs"),
        (0.0451, "45.1 PFLOPs"),
        (0.99996, "1 EFLOPs"),
        (4262.3, "4,260 EFLOPs"),
        (0.0, "0 GFLOPs"),
    ],
)
def test_flops(exaflops: float, words: str) -> None:
    assert numbers.flops(exaflops) == words
