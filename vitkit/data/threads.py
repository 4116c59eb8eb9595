"""Work by threads whose results come in order: any function over any items, or over the images of a source."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import numpy as np

from vitkit.data.images import ROOM
from vitkit.data.sources.source import Picture, Source, read_picture, what_is_wrong
from vitkit.errors import InputError
from vitkit.machine import num_cores
from vitkit.results import Unreadable as Unreadable

Item = TypeVar("Item")
Value = TypeVar("Value")
_CHUNK = 16


def as_unreadable(source: Source, index: int, error: Exception) -> Unreadable:
    """Return an image that could not be read, and why."""
    return Unreadable(source.where(index), what_is_wrong(error), opened_data(source))


def opened_data(source: Source) -> str:
    """Return the DATA, without slice and shots, that `open_data` opened for a source or for what it is a part of."""
    opened: Source | None = source
    while opened is not None and opened.spec is None:
        opened = getattr(opened, "source", None)
    if opened is None or opened.spec is None:
        return ""
    return str(replace(opened.spec.whole, split=opened.split))


def map_in_order(
    function: Callable[[Item], Value],
    items: Iterable[Item],
    *,
    threads: int | None = None,
    ahead: int | None = None,
) -> Iterator[Value]:
    """Yield function(item) for each item, in order, computed by threads.

    threads: one for each core, 16 at most, unless given.
    ahead: how many items are begun before the first result is taken, which bounds memory; twice the threads, unless given.
    """
    threads = threads or min(16, num_cores())
    ahead = 2 * threads if ahead is None else ahead
    pool = ThreadPoolExecutor(threads)
    waiting: deque[Future[Value]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # also where the caller stops early
        pool.shutdown(cancel_futures=True)


def work_through(
    source: Source, indices: np.ndarray, function: Callable[[Picture], Value]
) -> Iterator[tuple[int, Value | Unreadable]]:
    """Yield each index, in order, with what threads made of its picture; an InputError makes it unreadable."""

    def work(part: np.ndarray) -> list[tuple[int, Value | Unreadable]]:
        rendered = source.render(part)
        done: list[tuple[int, Value | Unreadable]] = []
        for place, index in enumerate(part.tolist()):
            try:
                picture = read_picture(source, index) if rendered is None else rendered[place]
                with ROOM.hold():
                    done.append((index, function(picture)))
            except InputError as error:
                done.append((index, as_unreadable(source, index, error)))
        return done

    # Chunks, because generated images are rendered faster together.
    chunks = (indices[start : start + _CHUNK] for start in range(0, len(indices), _CHUNK))
    for done in map_in_order(work, chunks):
        yield from done
