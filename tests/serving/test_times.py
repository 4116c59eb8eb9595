"""Times of batches: measured, interpolated, corrected by what batches take."""

from __future__ import annotations

import pytest

from vitkit.errors import InputError
from vitkit.serving.times import MOST, WINDOW, BatchTimes, measure_batches


def test_sizes_between_measured_ones_are_on_a_line() -> None:
    times = BatchTimes({1: 0.010, 4: 0.016, 8: 0.024})
    assert [times.measured(size) for size in (1, 2, 4, 6, 8)] == pytest.approx(
        [0.010, 0.012, 0.016, 0.020, 0.024]
    )
    assert times.measured(16) == pytest.approx(0.048)


def test_a_larger_batch_is_never_quicker() -> None:
    times = BatchTimes({1: 0.010, 2: 0.008, 4: 0.012})
    assert [times.measured(size) for size in (1, 2, 4)] == [0.010, 0.010, 0.012]


def test_one_image_must_have_been_measured() -> None:
    with pytest.raises(InputError, match="from 1 image on"):
        BatchTimes({2: 0.1})


def test_slow_batches_raise_predictions_until_they_are_forgotten() -> None:
    times = BatchTimes({1: 0.010})
    for _ in range(4):
        times.observe(1, 0.0, 0.020)
    assert times.predict(1) == pytest.approx(0.020)
    for _ in range(WINDOW):
        times.observe(1, 0.0, 0.010)
    assert times.predict(1) == pytest.approx(0.010)


def test_predictions_fall_only_after_many_quick_batches() -> None:
    times = BatchTimes({1: 0.010})
    times.observe(1, 0.0, 0.005)
    assert times.predict(1) == pytest.approx(0.010)
    for _ in range(WINDOW):
        times.observe(1, 0.0, 0.006)
    assert times.predict(1) == pytest.approx(0.006)


def test_one_stuck_batch_does_not_stop_all_work() -> None:
    times = BatchTimes({1: 0.010})
    times.observe(1, 0.0, 100.0)
    assert times.correction == MOST


def test_what_images_need_besides_is_no_surprise() -> None:
    times = BatchTimes({1: 0.010})
    times.observe(1, 0.040, 0.050)
    assert times.correction == 1.0
    assert times.predict(1, 0.040) == pytest.approx(0.050)


def test_the_best_batch_has_the_highest_throughput_in_time() -> None:
    times = BatchTimes({1: 0.010, 2: 0.015, 4: 0.025, 8: 0.060})
    assert times.best_batch(0.100) == 4  # 8 is slower for each image
    assert times.best_batch(0.020) == 2
    assert times.best_batch(0.001) == 1


def test_measuring_stops_at_the_first_size_that_takes_too_long() -> None:
    now, seen = [0.0], list[int]()

    def run(size: int) -> None:
        seen.append(size)
        now[0] += 0.010 * size

    times = measure_batches(run, 64, most_seconds=0.035, clock=lambda: now[0])
    assert times.largest == 4 and times.measured(4) == pytest.approx(0.040)
    assert set(seen) == {1, 2, 4}
    assert measure_batches(run, 3, 10.0, clock=lambda: now[0]).largest == 3
