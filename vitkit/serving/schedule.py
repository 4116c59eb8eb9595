"""Which images are computed together, and whether one more can be answered in time; no threads, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from vitkit.errors import InputError
from vitkit.serving.times import BatchTimes

T = TypeVar("T")

RESERVE = 0.1
"Share of the bound that is kept for what happens around a batch: reading, waking up, writing the answer."


class Refused(Exception):
    """An image can't be answered in time."""

    def __init__(self, reason: str, retry_after: float | None) -> None:
        """retry_after: seconds after which it could be; None if it never can."""
        super().__init__(reason)
        self.reason, self.retry_after = reason, retry_after


@dataclass
class Batch(Generic[T]):
    """Images that are computed together."""

    deadline: float
    "Of the first one to be due."
    entries: list[T] = field(default_factory=list)
    extra: float = 0.0
    "Seconds that its images need besides the batch's own time."


@dataclass(frozen=True)
class _End:
    """The last batch in line."""

    size: int
    extra: float
    start: float
    due: float


class Schedule(Generic[T]):
    """Waiting images in batches, in the order in which they came, each with the time at which it will be done.

    What is admitted is done in time as long as batches keep to their predicted times, whatever comes later. A batch takes
    at most half of the bound: images that come while one runs wait for its end and are in the next one.
    """

    def __init__(
        self, times: BatchTimes, latency: float, max_waiting: int = 1024, reserve: float = RESERVE
    ) -> None:
        """latency: the bound in seconds. max_waiting: images that may wait. reserve: share of the bound, see RESERVE."""
        self.times, self.latency, self.max_waiting = times, latency, max_waiting
        self.reserve = reserve * latency
        if times.measured(1) > latency - self.reserve:
            raise InputError(
                f"one image takes {1000 * times.measured(1):.3g} ms, so a bound of {1000 * latency:.3g} ms can't be "
                f"kept: give at least {1000 * times.measured(1) / (1 - reserve):.0f}ms"
            )
        self._waiting = deque[Batch[T]]()
        self._num_waiting = 0
        self._busy_until: float | None = None
        self._running: tuple[Batch[T], float] | None = None

    @property
    def num_waiting(self) -> int:
        """How many images wait, without those that are computed now."""
        return self._num_waiting

    @property
    def running_since(self) -> float | None:
        """When the batch that is computed now was started."""
        return None if self._running is None else self._running[1]

    @property
    def batch_seconds(self) -> float:
        """How long a batch may take, unless a single image takes longer."""
        return (self.latency - self.reserve) / 2

    def admit(
        self,
        now: float,
        arrived: float,
        entries: Sequence[T],
        extras: Sequence[float],
        bound: float | None = None,
    ) -> float:
        """Put images that came together in line and return when they are due, or raise Refused and change nothing.

        extras: seconds that each image needs besides its batch. bound: theirs, if it isn't that of all.
        """
        bound = self.latency if bound is None else bound
        deadline = arrived + bound
        placed = self._place(now, deadline, extras, bound)
        for is_new, extra, entry in zip(placed, extras, entries, strict=True):
            if is_new:
                self._waiting.append(Batch(deadline))
            batch = self._waiting[-1]
            batch.entries.append(entry)
            batch.extra += extra
            batch.deadline = min(batch.deadline, deadline)
        self._num_waiting += len(entries)
        return deadline

    def check(self, now: float, extras: Sequence[float]) -> None:
        """Raise Refused if images that had come just now would be."""
        self._place(now, now + self.latency, extras, self.latency)

    def start(self, now: float) -> Batch[T] | None:
        """Take the first batch to compute it now; None where nothing waits."""
        assert self._running is None
        if not self._waiting:
            return None
        batch = self._waiting.popleft()
        self._num_waiting -= len(batch.entries)
        self._running = batch, now
        self._busy_until = now + self._seconds(batch)
        return batch

    def finish(self, now: float, learns: bool = True) -> None:
        """Note that the batch which was started is done; learns: whether its time says how long such batches take."""
        assert self._running is not None
        batch, started = self._running
        if learns:
            self.times.observe(len(batch.entries), batch.extra, now - started)
        self._running = self._busy_until = None

    def _seconds(self, batch: Batch[T]) -> float:
        return self.times.predict(len(batch.entries), batch.extra)

    def _place(self, now: float, deadline: float, extras: Sequence[float], bound: float) -> list[bool]:
        """Return for each image whether it opens a batch."""
        if len(extras) > self.max_waiting:
            raise Refused(f"{len(extras)} images at once, but only {self.max_waiting} may wait", None)
        start = end = max(now, self._busy_until or now)
        last: _End | None = None
        for batch in self._waiting:
            opened, end = end, end + self._seconds(batch)
            last = _End(len(batch.entries), batch.extra, opened, batch.deadline - self.reserve)
        if self._num_waiting + len(extras) > self.max_waiting:
            raise Refused(f"{self._num_waiting} images are waiting", max(end - start, 0.0) + start - now)
        due = deadline - self.reserve
        placed, excess = self._pack(extras, last, end, due, is_idle=self._running is None and last is None)
        if excess > 0:
            usable = bound - self.reserve
            _, alone = self._pack(extras, None, 0.0, usable, is_idle=True)
            if alone > 0:
                what = "this image takes" if len(extras) == 1 else f"these {len(extras)} images take"
                due_within = f"answers are due within {1000 * bound:.0f} ms"
                raise Refused(f"{what} at least {1000 * (alone + usable):.0f} ms, and {due_within}", None)
            raise Refused("too busy to answer in time", excess)
        return placed

    def _pack(
        self, extras: Sequence[float], last: _End | None, end: float, due: float, is_idle: bool
    ) -> tuple[list[bool], float]:
        """Return for each image whether it opens a batch behind the last one, and by how much the end is too late."""
        correction = self.times.correction
        if is_idle:
            correction = min(correction, 1.0)  # noise of late must not stop a server that has nothing to do
        largest = self.times.best_batch(self.batch_seconds)
        # A batch behind others is opened only if it could be filled: a late one of few images would block the line.
        full = 0.0 if is_idle else correction * self.times.measured(largest)
        placed, excess = list[bool](), 0.0
        for extra in extras:
            joined = (
                None
                if last is None
                else _End(last.size + 1, last.extra + extra, last.start, min(last.due, due))
            )
            if joined is not None and joined.size <= largest:
                seconds = correction * (self.times.measured(joined.size) + joined.extra)
                if seconds <= self.batch_seconds and joined.start + seconds <= joined.due:
                    last, end = joined, joined.start + seconds
                    placed.append(False)
                    continue
            last = _End(1, extra, end, due)
            seconds = correction * (self.times.measured(1) + extra)
            excess = max(excess, end + max(seconds, full) - due)
            end += seconds
            placed.append(True)
        return placed, max(excess, end - due)
