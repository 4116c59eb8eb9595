"""The schedule against drawn arrivals: no admitted image is late or lost, whatever comes."""

from __future__ import annotations

import pytest

from tests.serving.test_schedule import Simulation
from vitkit.serving.schedule import Schedule
from vitkit.serving.times import BatchTimes

pytest.importorskip("hypothesis", reason="`make test` installs it")
from hypothesis import given, settings
from hypothesis import strategies as st

SIZES = (1, 2, 4, 8)


@st.composite
def times_of_batches(draw: st.DrawFn) -> dict[int, float]:
    fixed = draw(st.floats(0.001, 0.02))
    each = draw(st.floats(0.0001, 0.01))
    return {size: fixed + each * size for size in SIZES}


arrivals = st.lists(
    st.tuples(
        st.floats(0, 0.05), st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.004, 0.03]), min_size=1, max_size=10)
    ),
    min_size=1,
    max_size=80,
)


@settings(max_examples=150, deadline=None)
@given(times_of_batches(), st.floats(1.2, 30), arrivals, st.floats(0.3, 1.0), st.integers(1, 40))
def test_what_is_admitted_is_done_in_time(
    measured: dict[int, float],
    bound: float,
    coming: list[tuple[float, list[float]]],
    speed: float,
    most: int,
) -> None:
    """speed: how long batches take next to their measured time."""
    run = Simulation(Schedule(BatchTimes(measured), bound * measured[1], most), speed)
    at = 0.0
    for gap, extras in coming:
        at += gap
        before = run.schedule.num_waiting
        if not run.come(at, extras):
            assert run.schedule.num_waiting <= before
            is_possible = run.last.retry_after is not None
            assert not is_possible or run.last.retry_after >= 0
        assert run.schedule.num_waiting <= most
    run.finish()


@settings(max_examples=80, deadline=None)
@given(times_of_batches(), st.floats(1.2, 30), st.integers(1, 200))
def test_after_the_stated_wait_the_same_image_is_admitted(
    measured: dict[int, float], bound: float, burst: int
) -> None:
    run = Simulation(Schedule(BatchTimes(measured), bound * measured[1], 10_000))
    for _ in range(burst):
        run.come(0.0, [0.0])
    if run.refused:
        assert run.last.retry_after is not None
        assert run.come(run.last.retry_after + 1e-6, [0.0])
    run.finish()
