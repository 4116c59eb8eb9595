"""What the report on data and packing share: every split of a source, its images by threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from vitkit.data.open import check_items, open_data
from vitkit.data.sources.source import Picture, Source, take, what_is_wrong
from vitkit.data.spec import DataSpec
from vitkit.data.splits import NoSplit
from vitkit.errors import InputError

Result = TypeVar("Result")
Progress = Callable[[int, int], None]
"Told how many images are done, and of how many."
# Splits that are made of others.
JOINT = {"trainval": ("train", "val"), "train800val200": ("train800", "val200")}
_NO_SPLIT = "?"
_CHUNK = 16


class Unreadable(NamedTuple):
    """An image that can't be read."""

    image: str
    reason: str


def open_splits(spec: DataSpec, faults: list[str] | None = None) -> list[Source]:
    """Return every split that a source has, or that is made of it, each with the spec's slice and shots.

    faults: is told of splits that can't be opened, which is an error otherwise, or where there is no other.
    """
    check_items(spec)
    whole = replace(spec, start=None, stop=None, shots=None, seed=None)
    found: list[Source] = []
    for split in split_names(whole):
        try:
            found.append(open_data(replace(whole, split=split), tolerate=True))
        except NoSplit:  # it would be made, and there are too few images for it
            continue
        except InputError as error:
            if faults is None:
                raise
            faults.append(str(error))
    if faults and not found:
        raise InputError(faults[0])
    return [take(source, replace(spec, split=source.split)) for source in found]


def split_names(spec: DataSpec) -> list[str]:
    """Return the names of the splits that a source has, without one that is made of others of them."""
    try:
        open_data(replace(spec, split=_NO_SPLIT), default="train")
    except NoSplit as error:
        names = error.available
        return [name for name in names if not (name in JOINT and {*JOINT[name]} <= {*names})]
    raise AssertionError(f"{spec.source} has a split {_NO_SPLIT!r}")


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
