"""What the report on data and packing share: every split of a source, its images by threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np

from vitkit.data.sources.source import Picture, Source, what_is_wrong
from vitkit.errors import InputError

Result = TypeVar("Result")
Progress = Callable[[int, int], None]
"Told how many images are done, and of how many."
_CHUNK = 16


class Unreadable(NamedTuple):
    """An image that can't be read."""

    image: str
    reason: str


def work_through(
    source: Source, indices: np.ndarray, function: Callable[[Picture], Result]
) -> Iterator[tuple[int, Result | Unreadable]]:
    """Yield each index, in order, with what threads made of its picture; an InputError makes it unreadable."""

    def work(part: np.ndarray) -> list[tuple[int, Result | Unreadable]]:
        rendered = source.render(part)
        done: list[tuple[int, Result | Unreadable]] = []
        for place, index in enumerate(part.tolist()):
            try:
                picture = source.read(index) if rendered is None else rendered[place]
                done.append((index, function(picture)))
            except InputError as error:
                where = source.where(index)
                done.append((index, Unreadable(where, what_is_wrong(where, error))))
        return done

    workers = os.cpu_count() or 1
    pool = ThreadPoolExecutor(workers)
    waiting: deque[Future[list[tuple[int, Result | Unreadable]]]] = deque()
    try:
        for start in range(0, len(indices), _CHUNK):
            waiting.append(pool.submit(work, indices[start : start + _CHUNK]))
            if len(waiting) > 2 * workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
