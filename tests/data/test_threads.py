"""Work by threads comes in order, is bounded, and ends when its reader does."""

from __future__ import annotations

import pickle
import threading
import time

import numpy as np
import pytest

from vitkit.data.open import open_data
from vitkit.data.sources.source import what_is_wrong
from vitkit.data.threads import map_in_order, work_through
from vitkit.errors import CannotRead


def test_results_come_in_order_whatever_takes_longer() -> None:
    def work(number: int) -> int:
        time.sleep(0.01 if number % 3 == 0 else 0)
        return number * number

    assert list(map_in_order(work, range(20), threads=4)) == [number * number for number in range(20)]
    assert list(map_in_order(work, [])) == []


def test_no_more_is_begun_than_asked() -> None:
    begun: list[int] = []
    results = map_in_order(begun.append, range(100), threads=2, ahead=3)
    next(results)
    assert max(begun) <= 3
    before = threading.active_count()
    results.close()  # type: ignore[attr-defined]
    assert max(begun) <= 3 and threading.active_count() < before, "its threads ended"


def test_an_error_comes_where_its_item_stands() -> None:
    results = map_in_order(lambda number: 1 // number, [2, 1, 0, 1])
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_images_come_by_index() -> None:
    source = open_data("shapes:val[:50,size=8]")
    found = list(work_through(source, np.arange(40), lambda picture: np.asarray(picture).sum()))
    assert [index for index, _ in found] == list(range(40))
    assert [total for _, total in found] == source.render(np.arange(40)).sum(axis=(1, 2, 3)).tolist()  # type: ignore[union-attr]


def test_the_reason_of_an_unreadable_image_comes_from_another_process() -> None:
    sent = pickle.loads(pickle.dumps(CannotRead("a.jpg", "it is empty")))
    assert (str(sent), sent.reason) == ("cannot read a.jpg: it is empty", "it is empty")
    assert what_is_wrong(sent) == "it is empty"


def test_threads_are_as_many_as_the_cores_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    names = set(map_in_order(lambda _: (time.sleep(0.01), threading.current_thread().name)[1], range(40)))
    assert len(names) == 3
