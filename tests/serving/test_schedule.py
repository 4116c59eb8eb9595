"""The schedule under a simulated clock: whatever comes whenever, what is admitted is done in time."""

from __future__ import annotations

import pytest

from vitkit.errors import InputError
from vitkit.serving.schedule import Refused, Schedule
from vitkit.serving.times import BatchTimes

LINEAR = {size: 0.010 * size for size in (1, 2, 4, 8, 16)}
FLAT = {size: 0.010 + 0.001 * size for size in (1, 2, 4, 8, 16, 32)}


def make(measured: dict[int, float] = LINEAR, latency: float = 0.1, **settings: float) -> Schedule[int]:
    return Schedule(BatchTimes(measured), latency, **settings)  # type: ignore[arg-type]


class Simulation:
    """One worker that takes each batch as soon as it is free."""

    def __init__(self, schedule: Schedule[int], speed: float = 1.0) -> None:
        self.schedule, self.speed = schedule, speed
        self.now, self.free_at = 0.0, None
        self.done, self.sizes = dict[int, float](), list[int]()
        self.deadlines, self.refused = dict[int, float](), 0
        self._current: list[int] = []

    def advance(self, until: float) -> None:
        while self.free_at is not None and self.free_at <= until:
            self.now = self.free_at
            self.schedule.finish(self.now)
            self.done |= dict.fromkeys(self._current, self.now)
            self.free_at = None
            self._start()
        self.now = until

    def come(self, at: float, extras: list[float]) -> bool:
        self.advance(at)
        first = len(self.deadlines)
        entries = [*range(first, first + len(extras))]
        try:
            self.schedule.admit(at, at, entries, extras)
        except Refused as refused:
            self.refused += 1
            self.last = refused
            return False
        self.deadlines |= dict.fromkeys(entries, at + self.schedule.latency)
        if self.free_at is None:
            self._start()
        return True

    def _start(self) -> None:
        if batch := self.schedule.start(self.now):
            seconds = self.schedule.times.measured(len(batch.entries)) + batch.extra
            self.free_at = self.now + self.speed * seconds
            self._current = batch.entries
            self.sizes.append(len(batch.entries))

    def finish(self) -> None:
        self.advance(self.now + 1e6)
        assert self.schedule.num_waiting == 0
        assert sorted(self.done) == sorted(self.deadlines)  # nothing is lost
        assert [*self.done] == sorted(self.done)  # first come, first served
        for entry, at in self.done.items():
            assert at <= self.deadlines[entry] + 1e-9


def test_an_idle_server_starts_at_once() -> None:
    run = Simulation(make())
    assert run.come(1.0, [0.0])
    run.finish()
    assert run.done == {0: pytest.approx(1.010)}


def test_what_comes_while_a_batch_runs_is_computed_together() -> None:
    run = Simulation(make(FLAT))
    for number in range(5):
        assert run.come(0.001 * number, [0.0])
    run.finish()
    assert run.sizes == [1, 4]


def test_what_cannot_be_kept_is_refused_at_once_with_a_time() -> None:
    run = Simulation(make())
    while run.come(0.0, [0.0]):
        pass
    assert run.last.reason == "too busy to answer in time"
    wait = run.last.retry_after
    assert wait is not None and 0 < wait <= 0.1
    assert run.come(wait + 1e-9, [0.0])
    run.finish()


def test_overload_keeps_batches_full_and_the_worker_busy() -> None:
    run = Simulation(make(FLAT))
    times = 0.00025
    for number in range(12_000):  # 4,000 a second for 3 s, twice the capacity
        run.come(times * number, [0.0])
    span = run.now
    run.finish()
    assert sum(run.sizes) / span > 0.93 * 32 / FLAT[32]
    assert run.refused > 3_000


def test_linear_times_keep_the_worker_busy_as_well() -> None:
    run = Simulation(make(LINEAR))
    for number in range(4000):  # 400 a second for 10 s, four times the capacity
        run.come(0.0025 * number, [0.0])
    span = run.now
    run.finish()
    assert sum(run.sizes) / span > 0.97 * 100


def test_images_of_one_request_are_admitted_together_or_not_at_all() -> None:
    run = Simulation(make())
    assert run.come(0.0, [0.0] * 6)
    assert not run.come(0.0, [0.0] * 4)
    assert run.last.retry_after is not None
    assert run.come(0.0, [0.0] * 3)
    run.finish()


def test_what_never_fits_has_no_time_to_come_back() -> None:
    schedule = make()
    with pytest.raises(
        Refused, match="these 20 images take at least 200 ms, and answers are due within 100 ms"
    ) as refused:
        schedule.admit(0.0, 0.0, [0] * 20, [0.0] * 20)
    assert refused.value.retry_after is None
    with pytest.raises(Refused, match="this image takes at least 210 ms") as refused:
        schedule.admit(0.0, 0.0, [0], [0.2])
    assert refused.value.retry_after is None


def test_the_line_is_bounded() -> None:
    schedule = make(latency=100.0, max_waiting=10)
    for entry in range(10):
        schedule.admit(0.0, 0.0, [entry], [0.0])
    with pytest.raises(Refused, match="10 images are waiting") as refused:
        schedule.admit(0.0, 0.0, [11], [0.0])
    assert refused.value.retry_after is not None
    assert schedule.num_waiting == 10


def test_a_refusal_changes_nothing() -> None:
    run = Simulation(make())
    while run.come(0.0, [0.0]):
        pass
    waiting = run.schedule.num_waiting
    for _ in range(100):
        assert not run.come(0.0, [0.0])
    assert run.schedule.num_waiting == waiting
    run.finish()


def test_a_bound_below_the_time_of_one_image_is_refused() -> None:
    with pytest.raises(
        InputError, match="one image takes 10 ms, so a bound of 5 ms can't be kept: give at least 11ms"
    ):
        make(latency=0.005)


def test_a_burst_of_noise_does_not_stop_an_idle_server() -> None:
    schedule = make(latency=0.05)
    run = Simulation(schedule)
    for _ in range(50):
        schedule.times.observe(1, 0.0, 10.0)
    assert run.come(1.0, [0.0]) and run.come(2.0, [0.0, 0.0])
    run.finish()


def test_slower_batches_than_measured_are_learned() -> None:
    run = Simulation(make(), speed=1.6)
    for number in range(4000):
        run.come(0.0025 * number, [0.0])
    early = {entry: at for entry, at in run.done.items() if at > 1.0}
    late = sum(at > run.deadlines[entry] + 1e-9 for entry, at in early.items())
    assert late == 0 and len(early) > 500


def test_work_with_a_longer_bound_of_its_own_makes_nobody_late() -> None:
    run = Simulation(make())
    assert run.come(0.0, [0.0])
    assert run.schedule.admit(0.0, 0.0, [1], [0.3], bound=0.5) == 0.5
    run.deadlines[1] = 0.5
    assert run.come(0.005, [0.0]) is False  # it would have to wait for the long one
    run.finish()
