"""Rounds: candidates take turns, in alternating order, so that what else a machine does meets all of them alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

TURN_SECONDS = 0.25
"Least length of a turn."
MOST_PASSES = 100
WARM_UPS = 2


@dataclass(frozen=True)
class Speed:
    """How fast a candidate is at one batch size; times are seconds per batch."""

    images_per_second: float
    "Median of the rounds."
    p50: float
    p95: float
    p99: float
    passes: int
    ratio: float
    "Of the rates of this candidate and of the first, round by round: the median."
    ratio_low: float
    "The lower quartile."
    ratio_high: float
    "The upper quartile."


def interleaved(candidates: int, rounds: int) -> Iterator[tuple[int, int]]:
    """Yield (round, candidate): each round has every candidate once, each second round in reverse order."""
    for number in range(rounds):
        order = range(candidates)
        yield from ((number, place) for place in (order if number % 2 == 0 else reversed(order)))


def warm_up(step: Callable[[], object]) -> int:
    """Run a step until it is warm; return how many passes a turn takes."""
    seconds = math.inf
    for _ in range(WARM_UPS):
        began = time.perf_counter()
        step()
        seconds = time.perf_counter() - began
    return max(1, min(MOST_PASSES, math.ceil(TURN_SECONDS / seconds)))


def turn(step: Callable[[], object], passes: int) -> list[float]:
    """Return the seconds of each pass. Short passes are preceded by one that isn't counted: the caches are another's."""
    if passes > 1:
        step()
    seconds = []
    for _ in range(passes):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return seconds


def rates(turns: Sequence[Sequence[float]], batch_size: int) -> list[float]:
    """Return the images per second of each round."""
    return [batch_size * len(seconds) / sum(seconds) for seconds in turns]


def speed(turns: Sequence[Sequence[float]], first: Sequence[Sequence[float]], batch_size: int) -> Speed:
    """Return the speed of a candidate from its turns, next to those of the first candidate."""
    own = rates(turns, batch_size)
    ratios = [a / b for a, b in zip(own, rates(first, batch_size), strict=True)]
    passes = [seconds for turn in turns for seconds in turn]
    p50, p95, p99 = np.percentile(passes, [50, 95, 99]).tolist()
    low, median, high = np.percentile(ratios, [25, 50, 75]).tolist()
    return Speed(statistics.median(own), p50, p95, p99, len(passes), median, low, high)
