"""Dynamic batching with a hard bound on latency: what can't be answered in time is refused at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from vitkit.serving.schedule import Refused, Schedule
from vitkit.serving.times import BatchTimes

__all__ = ["Batcher", "Counts", "Refused"]

T = TypeVar("T")
R = TypeVar("R")


@dataclass
class Counts:
    """What a batcher has done so far, in images."""

    accepted: int = 0
    refused: int = 0
    answered: int = 0
    late: int = 0
    "Answered after their deadline."
    failed: int = 0
    "Accepted, but their batch raised an error."
    dropped: int = 0
    "Accepted, but their request was cancelled before they were computed."
    batches: int = 0
    seconds: float = 0.0
    "In which batches were computed."
    sizes: dict[int, int] = field(default_factory=dict)
    "Batches by their number of images."


@dataclass(eq=False)
class _Request(Generic[R]):
    """Images that came together and are answered together."""

    future: Future[list[R]]
    results: list[Any]
    open: int
    deadline: float = 0.0


class Batcher(Generic[T, R]):
    """Computes images of many requests together, in a thread of its own."""

    def __init__(
        self,
        compute: Callable[[Sequence[T]], Sequence[R]],
        times: BatchTimes,
        latency: float,
        max_waiting: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """compute: returns one result for each image. latency: seconds from a request's arrival to its answer."""
        self._compute, self._clock = compute, clock
        self._schedule: Schedule[tuple[_Request[R], int, T]] = Schedule(times, latency, max_waiting)
        self._changed = threading.Condition()
        self._is_closed = False
        self._counts = Counts()
        self._thread = threading.Thread(target=self._work, name="batcher", daemon=True)
        self._thread.start()

    @property
    def latency(self) -> float:
        """The bound in seconds."""
        return self._schedule.latency

    @property
    def times(self) -> BatchTimes:
        """Measured and observed times of batches."""
        return self._schedule.times

    @property
    def num_waiting(self) -> int:
        """How many images wait."""
        return self._schedule.num_waiting

    def counts(self) -> Counts:
        """Return a copy of what was counted."""
        with self._changed:
            return replace(self._counts, sizes=dict(self._counts.sizes))

    @property
    def is_closed(self) -> bool:
        """Whether it refuses everything from now on."""
        return self._is_closed

    def is_alive(self) -> bool:
        """Return whether the thread runs and its batch isn't stuck: over ten times its bound."""
        since = self._schedule.running_since
        is_stuck = since is not None and self._clock() - since > max(10 * self.latency, 10.0)
        return self._thread.is_alive() and not is_stuck

    def check(self, images: int = 1) -> None:
        """Raise Refused if so many images that had come just now would be: before their bytes are read."""
        with self._changed:
            self._refuse_if_closed(images)
            try:
                self._schedule.check(self._clock(), (0.0,) * images)
            except Refused:
                self._counts.refused += images
                raise

    def submit(
        self,
        images: Sequence[T],
        extras: Sequence[float] | None = None,
        arrived: float | None = None,
        bound: float | None = None,
    ) -> Future[list[R]]:
        """Return the future results of images, or raise Refused at once.

        extras: seconds that each image needs besides its share of the batch, such as for decoding.
        arrived: when the request's last byte came, by the batcher's clock. Default: now.
        bound: seconds from there to the answer, for work that takes longer than the bound of all images allows.
        Cancelling the future takes images that are not yet computed out of the line.
        """
        future: Future[list[R]] = Future()
        if not images:
            future.set_result([])
            return future
        extras = (0.0,) * len(images) if extras is None else extras
        with self._changed:
            self._refuse_if_closed(len(images))
            now = self._clock()
            request: _Request[R] = _Request(future, [None] * len(images), len(images))
            entries = [(request, place, image) for place, image in enumerate(images)]
            try:
                arrived = now if arrived is None else arrived
                request.deadline = self._schedule.admit(now, arrived, entries, extras, bound)
            except Refused:
                self._counts.refused += len(images)
                raise
            self._counts.accepted += len(images)
            self._changed.notify_all()
        return future

    def close(self, timeout: float | None = None) -> bool:
        """Refuse what comes from now on, finish what was accepted, and return whether all of it is done."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _refuse_if_closed(self, images: int) -> None:
        if self._is_closed:
            self._counts.refused += images
            raise Refused("the server is shutting down", self.latency)

    def _work(self) -> None:
        while True:
            with self._changed:
                batch = self._schedule.start(self._clock())
                while batch is None:
                    if self._is_closed:
                        return
                    self._changed.wait()
                    batch = self._schedule.start(self._clock())
            entries = [entry for entry in batch.entries if not entry[0].future.done()]
            results: Sequence[R] | None = None
            error: BaseException | None = None
            if entries:
                try:
                    results = self._compute([image for _, _, image in entries])
                    if len(results) != len(entries):
                        raise RuntimeError(f"{len(results)} results for {len(entries)} images")
                except Exception as raised:
                    error = raised
            self._deliver(entries, results, error, len(batch.entries) - len(entries))

    def _deliver(
        self,
        entries: Sequence[tuple[_Request[R], int, T]],
        results: Sequence[R] | None,
        error: BaseException | None,
        dropped: int,
    ) -> None:
        """Count a batch and answer the requests that it completes."""
        finished = list[_Request[R]]()
        with self._changed:
            now = self._clock()
            started = self._schedule.running_since or now
            self._schedule.finish(now, learns=error is None and not dropped)
            self._counts.dropped += dropped
            if entries:
                self._counts.batches += 1
                self._counts.seconds += now - started
                self._counts.sizes[len(entries)] = self._counts.sizes.get(len(entries), 0) + 1
            for place, (request, own, _) in enumerate(entries):
                if error is None and results is not None:
                    request.results[own] = results[place]
                    self._counts.answered += 1
                    self._counts.late += now > request.deadline
                else:
                    self._counts.failed += 1
                request.open -= 1
                if not request.open or (error is not None and request not in finished):
                    finished.append(request)
        for request in finished:
            with suppress(InvalidStateError):  # cancelled, or an earlier batch of it has failed
                if error is not None:
                    request.future.set_exception(error)
                else:
                    request.future.set_result(request.results)
