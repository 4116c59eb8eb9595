"""The rate of training steps, by a clock that the test sets."""

from __future__ import annotations

import pytest

from vitkit.training.log import Stopwatch


class World:
    """A clock, the time spent waiting for data, and how often something was compiled."""

    now = waited = 0.0
    compiled = 0

    def watch(self, warm_up: int) -> Stopwatch:
        return Stopwatch(100, lambda: self.waited, lambda: self.compiled, warm_up, clock=lambda: self.now)

    def step(self, watch: Stopwatch, seconds: float, compiles: bool = False) -> float:
        self.now += seconds
        self.compiled += compiles
        return watch.stepped(lambda: None)


@pytest.mark.parametrize("compiling", [1, 2, 4])
def test_compilation_is_in_no_rate(compiling: int) -> None:
    """Whichever step compiles, the first or a later one, its time is in neither rate nor training time."""
    world = World()
    watch = world.watch(warm_up=1)
    apart = []
    for step in range(1, 6):
        is_long = step in (1, compiling)
        apart.append(world.step(watch, 30.0 if is_long else 0.1, compiles=is_long))
    slow = len({1, compiling})
    assert [seconds > 0 for seconds in apart] == [step in (1, compiling) for step in range(1, 6)]
    assert sum(apart) == pytest.approx(30.0 * slow)
    assert watch.line(5)["images_per_second"] == pytest.approx(1000.0)
    assert watch.seconds == pytest.approx(0.1 * (5 - slow))


def test_a_line_of_compilation_alone_has_no_rate() -> None:
    world = World()
    watch = world.watch(warm_up=1)
    world.step(watch, 30.0, compiles=True)
    assert watch.line(1) == {}


def test_measurements_and_checkpoints_are_in_no_rate() -> None:
    world = World()
    watch = world.watch(warm_up=0)
    world.step(watch, 0.1)
    world.now += 50.0
    world.compiled += 1  # a sharded model compiles for measurements
    watch.skip_to_now(1)
    world.waited += 0.05
    assert world.step(watch, 0.1) == 0.0
    assert watch.line(2) == {"images_per_second": pytest.approx(1000.0), "waiting": pytest.approx(0.5)}
    assert watch.seconds == pytest.approx(50.2)


def test_a_resumed_run_adds_up() -> None:
    world = World()
    watch = world.watch(warm_up=0)
    world.now += 7.0
    watch.start(40, 12.0)
    world.step(watch, 0.5)
    assert watch.seconds == pytest.approx(12.5)
    assert watch.line(41)["images_per_second"] == pytest.approx(200.0)
