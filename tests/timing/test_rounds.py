"""Turns: their order, warm passes, percentiles, and ratios round by round."""

from __future__ import annotations

import pytest

from vitkit.timing.rounds import MOST_PASSES, interleaved, speed, turn, warm_up


def test_each_second_round_is_reversed() -> None:
    assert list(interleaved(3, 3)) == [
        *((0, 0), (0, 1), (0, 2)),
        *((1, 2), (1, 1), (1, 0)),
        *((2, 0), (2, 1), (2, 2)),
    ]


def test_short_passes_are_many_and_start_warm() -> None:
    calls: list[int] = []
    assert warm_up(lambda: calls.append(1)) == MOST_PASSES
    calls.clear()
    assert len(turn(lambda: calls.append(1), 5)) == 5
    assert len(calls) == 6
    calls.clear()
    assert len(turn(lambda: calls.append(1), 1)) == len(calls) == 1


def test_ratios_are_those_of_the_same_round() -> None:
    first = [[1.0], [2.0], [4.0]]  # the machine gets slower
    found = speed([[0.5], [1.0, 1.0], [1.0]], first, batch_size=8)
    assert found.ratio == 2 and (found.ratio_low, found.ratio_high) == (2, 3)
    assert found.images_per_second == 8
    assert (found.p50, found.passes) == (1, 4)
    assert found.p95 == pytest.approx(1) and found.p99 == pytest.approx(1)
    assert speed(first, first, 8).ratio == 1
