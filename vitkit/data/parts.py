"""What the report on data and packing share: every split of a source, its images by threads, files written whole."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from vitkit.data.open import open_data
from vitkit.data.sources.source import Picture, Source, Subset, take
from vitkit.data.spec import DataSpec
from vitkit.errors import InputError

Result = TypeVar("Result")
Progress = Callable[[int, int], None]
"Told how many images are done, and of how many."
# Splits that are made of others.
JOINT = {"trainval": ("train", "val")}
_NO_SPLIT = "?"
_CHUNK = 16


class Unreadable(NamedTuple):
    """An image that can't be read."""

    image: str
    reason: str


def open_splits(spec: DataSpec) -> list[Source]:
    """Return every split that a source has, or that is made of it, each with the spec's slice and shots."""
    whole = replace(spec, start=None, stop=None, shots=None, seed=spec.seed if spec.shots is None else 0)
    found: list[Source] = []
    for split in split_names(whole):
        try:
            found.append(open_data(replace(whole, split=split), default="train"))
        except InputError:
            # Only a split that is made is a subset of what was opened: there are too few images for this one.
            if not (found and isinstance(found[0], Subset)):
                raise
    return [take(source, replace(spec, split=source.split)) for source in found]


def split_names(spec: DataSpec) -> list[str]:
    """Return the names of the splits that a source has, without one that is made of others of them."""
    try:
        open_data(replace(spec, split=_NO_SPLIT), default="train")
    except InputError as error:
        answer = re.search(r"has no split '\?'; it has (.*), all$", str(error))
        if answer is None:
            raise
        names = answer[1].split(", ")
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
                done.append((index, _unreadable(source.where(index), str(error))))
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


def _unreadable(where: str, message: str) -> Unreadable:
    for name in (where, "the image's bytes"):
        message = message.removeprefix(f"cannot read {name}: ")
    return Unreadable(where, message)


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a hidden file to write to, which becomes `path` at the end; after an error nothing is left of it."""
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
