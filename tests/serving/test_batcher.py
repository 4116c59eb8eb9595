"""The batcher with real threads: every accepted image gets its own answer, and closing finishes them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from vitkit.serving.batcher import Batcher, Refused
from vitkit.serving.times import BatchTimes

QUICK = {size: 0.0001 + 0.00001 * size for size in (1, 2, 4, 8)}


def squares(images: Sequence[int]) -> list[int]:
    return [image * image for image in images]


class Gate:
    """A computation that waits until it is opened."""

    def __init__(self) -> None:
        self.opened, self.entered, self.batches = threading.Event(), threading.Event(), list[list[int]]()

    def __call__(self, images: Sequence[int]) -> list[int]:
        self.batches.append([*images])
        self.entered.set()
        assert self.opened.wait(10)
        return squares(images)


@contextmanager
def batcher(
    compute, latency: float = 5.0, measured: dict[int, float] = QUICK, **settings: int
) -> Iterator[Batcher]:  # type: ignore[no-untyped-def]
    made = Batcher(compute, BatchTimes(measured), latency, **settings)
    try:
        yield made
    finally:
        made.close(10)


def test_everyone_gets_their_own_answer() -> None:
    with batcher(squares) as made, ThreadPoolExecutor(8) as pool:
        asked = [[*range(number, number + number % 5)] for number in range(400)]
        found = pool.map(lambda images: made.submit(images).result(10), asked)
        assert [*found] == [squares(images) for images in asked]
        counts = made.counts()
    assert counts.accepted == counts.answered == sum(map(len, asked))
    assert counts.refused == counts.failed == counts.dropped == 0
    assert sum(size * times for size, times in counts.sizes.items()) == counts.answered


def test_waiting_images_are_computed_together() -> None:
    gate = Gate()
    with batcher(gate) as made:
        first = made.submit([1])
        assert gate.entered.wait(5)
        rest = [made.submit([number]) for number in (2, 3, 4)]
        gate.opened.set()
        assert [future.result(5) for future in (first, *rest)] == [[1], [4], [9], [16]]
    assert gate.batches == [[1], [2, 3, 4]]


def test_no_images_are_no_work() -> None:
    with batcher(squares) as made:
        assert made.submit([]).result(1) == []
        assert made.counts().batches == 0


def test_overload_is_refused_at_once() -> None:
    gate = Gate()
    with batcher(gate, latency=1.0, measured={1: 0.4}) as made:
        accepted = [made.submit([1])]
        assert gate.entered.wait(5)
        accepted.append(made.submit([2]))
        start = time.monotonic()
        with pytest.raises(Refused) as refused:
            made.submit([3])
        assert time.monotonic() - start < 0.2
        assert refused.value.retry_after and 0 < refused.value.retry_after < 1
        with pytest.raises(Refused):
            made.check()
        gate.opened.set()
        assert all(future.result(5) for future in accepted)
        assert made.counts().refused == 2


def test_time_before_submitting_counts() -> None:
    with batcher(squares, latency=1.0) as made, pytest.raises(Refused):
        made.submit([1], arrived=time.monotonic() - 2)


def test_late_answers_are_given_and_counted() -> None:
    gate = Gate()
    with batcher(gate, latency=0.05) as made:
        future = made.submit([3])
        time.sleep(0.1)
        gate.opened.set()
        assert future.result(5) == [9]
        assert made.counts().late == 1


def test_closing_finishes_what_was_accepted() -> None:
    gate = Gate()
    made = Batcher(gate, BatchTimes(QUICK), 5.0)
    futures = [made.submit([1])]
    assert gate.entered.wait(5)
    futures += [made.submit([number]) for number in range(20)]
    closing = ThreadPoolExecutor(1).submit(made.close, 10)
    while not made._is_closed:
        time.sleep(0.001)
    with pytest.raises(Refused, match="shutting down") as refused:
        made.submit([1])
    assert refused.value.retry_after
    assert not closing.done()
    gate.opened.set()
    assert closing.result(10)
    assert all(future.done() for future in futures)
    assert not made.is_alive()


def test_an_error_reaches_its_batch_alone() -> None:
    def compute(images: Sequence[int]) -> list[int]:
        if 13 in images:
            raise RuntimeError("unlucky")
        return squares(images)

    with batcher(compute) as made:
        with pytest.raises(RuntimeError, match="unlucky"):
            made.submit([13]).result(5)
        assert made.submit([2]).result(5) == [4]
        assert made.counts().failed == 1 and made.is_alive()


def test_a_request_over_several_batches_fails_once() -> None:
    def compute(images: Sequence[int]) -> list[int]:
        if 13 in images:
            raise RuntimeError("unlucky")
        return squares(images)

    with batcher(compute) as made:
        with pytest.raises(RuntimeError, match="unlucky"):
            made.submit([13, *range(30)]).result(5)
        assert made.submit([2]).result(5) == [4]


def test_a_wrong_number_of_results_is_an_error() -> None:
    with batcher(lambda images: []) as made, pytest.raises(RuntimeError, match="0 results for 1 images"):
        made.submit([1]).result(5)


def test_cancelled_requests_are_not_computed() -> None:
    gate = Gate()
    with batcher(gate) as made:
        made.submit([1])
        assert gate.entered.wait(5)
        gone, kept = made.submit([2, 3]), made.submit([4])
        assert gone.cancel()
        gate.opened.set()
        assert kept.result(5) == [16]
        assert made.counts().dropped == 2
    assert gate.batches == [[1], [4]]


def test_a_stuck_batch_shows() -> None:
    gate, now = Gate(), [0.0]
    made = Batcher(gate, BatchTimes(QUICK), 0.1, clock=lambda: now[0])
    made.submit([1])
    assert gate.entered.wait(5) and made.is_alive()
    now[0] = 11.0
    assert not made.is_alive()
    gate.opened.set()
    assert made.close(5)


def test_it_needs_no_web_framework_and_no_torch() -> None:
    code = "import sys, vitkit.serving.batcher; print({'torch', 'fastapi', 'uvicorn', 'pydantic'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"
