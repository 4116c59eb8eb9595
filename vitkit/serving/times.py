"""How long a batch takes: measured at start, corrected by what every batch since then took."""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping

from vitkit.errors import InputError

WINDOW = 256
"Batches that the correction looks back on."
SAFE = 0.99
"Share of those batches that a prediction covers."
LEAST, MOST = 0.5, 8.0
"Limits of the correction, so that no burst of noise outlives its window by stopping all work."


class BatchTimes:
    """Predicts the seconds that a batch takes from its number of images and what single images need besides."""

    def __init__(self, measured: Mapping[int, float]) -> None:
        """measured: seconds by number of images, which starts with 1."""
        self._sizes = sorted(measured)
        if not self._sizes or self._sizes[0] != 1 or min(measured.values()) <= 0:
            raise InputError(
                f"times of batches are {dict(measured)}; expected positive seconds, from 1 image on"
            )
        # A larger batch never counts as quicker, whatever the noise of the measurement.
        self._seconds = list[float]()
        for size in self._sizes:
            self._seconds.append(max(measured[size], self._seconds[-1] if self._seconds else 0.0))
        self._ratios = deque[float](maxlen=WINDOW)
        self._correction = 1.0

    @property
    def largest(self) -> int:
        """The largest batch that was measured."""
        return self._sizes[-1]

    @property
    def correction(self) -> float:
        """What measured times are multiplied by to cover nearly all batches of late."""
        return self._correction

    def measured(self, images: int) -> float:
        """Return what was measured for so many images, in a straight line between sizes."""
        place = bisect_left(self._sizes, images)
        if place == len(self._sizes):
            return self._seconds[-1] * images / self.largest
        if self._sizes[place] == images:
            return self._seconds[place]
        low, high = self._sizes[place - 1], self._sizes[place]
        share = (images - low) / (high - low)
        return self._seconds[place - 1] * (1 - share) + self._seconds[place] * share

    def predict(self, images: int, extra: float = 0.0) -> float:
        """Return seconds that nearly every such batch keeps to; extra: what its images need besides."""
        return (self.measured(images) + extra) * self._correction

    def observe(self, images: int, extra: float, seconds: float) -> None:
        """Learn from a batch that has run."""
        self._ratios.append(seconds / (self.measured(images) + extra))
        ranked = sorted(self._ratios)
        worst = ranked[min(len(ranked) - 1, int(SAFE * len(ranked)))]
        # Few batches say little about the slowest: until there are more, what was measured at start counts as well.
        if len(ranked) < WINDOW // 8:
            worst = max(1.0, worst)
        self._correction = min(max(worst, LEAST), MOST)

    def best_batch(self, most_seconds: float) -> int:
        """Return the batch with the highest throughput among those that keep to a time; at least one image."""
        fitting = [size for size in self._sizes if self.predict(size) <= most_seconds]
        return max(fitting, key=lambda size: size / self.measured(size), default=1)


def measure_batches(
    run: Callable[[int], object],
    largest: int,
    most_seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> BatchTimes:
    """Return the times of batches of 1, 2, 4, ... images, up to the largest or to the first that takes too long.

    run: computes one batch of so many images.
    """
    found = dict[int, float]()
    size = 1
    while True:
        run(size)  # the first one of a size prepares what the next ones reuse
        found[size] = statistics.median(_seconds(run, size, clock) for _ in range(5))
        if size >= largest or found[size] > most_seconds:
            return BatchTimes(found)
        size = min(2 * size, largest)


def _seconds(run: Callable[[int], object], size: int, clock: Callable[[], float]) -> float:
    start = clock()
    run(size)
    return clock() - start
