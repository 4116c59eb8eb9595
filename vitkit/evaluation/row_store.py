"""Rows of numbers kept on disk by the key of the image that they belong to, in files that are only ever added.

A folder holds the rows of one model. A file of it is a part: float32 rows one after the other, then the key of each,
then a footer with their number, their width and a checksum. Parts are written whole under a name that follows from their
keys, so that several processes may add at the same time; which part holds a row doesn't matter.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitkit.files import written_whole

SUFFIX = ".rows"
KEY_BYTES = 16
_CHECKSUM_BYTES = 16
_FOOTER = struct.Struct("<8sQQ")  # mark, rows, columns
_MARK = b"vitrows1"
_READ_BYTES = 2**24


@dataclass(frozen=True)
class Part:
    """A file of rows."""

    path: Path
    keys: np.ndarray
    "uint64 (rows, 2)"
    width: int

    def rows(self) -> np.ndarray:
        """Map the rows into memory, float32 (rows, width); ValueError where the file isn't as it was written."""
        digest = hashlib.blake2b(digest_size=_CHECKSUM_BYTES)
        with open(self.path, "rb") as file:
            left = os.fstat(file.fileno()).st_size - _CHECKSUM_BYTES
            while left > 0:
                data = file.read(min(left, _READ_BYTES))
                if not data:
                    raise ValueError("it became shorter")
                digest.update(data)
                left -= len(data)
            if file.read() != digest.digest():
                raise ValueError("its checksum is wrong")
        return np.memmap(self.path, np.float32, "r", shape=(len(self.keys), self.width))


@dataclass(frozen=True)
class Found:
    """What a store has of the rows that were asked for."""

    x: np.ndarray
    "float32 (rows that were found, width), in the order of the keys; mapped from one file where that holds them all."
    has: np.ndarray
    "Which of the keys were found: bool (keys,)."
    damaged: tuple[str, ...]
    "What was wrong with files that were removed."


class RowStore:
    """The rows in a folder, which need not be there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, keys: np.ndarray) -> Found:
        """Return the rows of some keys, uint64 (keys, 2), as far as they are here."""
        damaged: list[str] = []
        while True:
            parts, places = self._look_up(keys, damaged)
            try:
                return Found(*_gather(keys, parts, places), tuple(damaged))
            except _Damaged as error:  # look again without it
                damaged.append(_remove(error.path, error.__cause__ or error))

    def has(self, keys: np.ndarray) -> np.ndarray:
        """Return which of some keys are here, without reading their rows: bool (keys,)."""
        is_here: np.ndarray = self._look_up(keys, [])[1][:, 0] >= 0
        return is_here

    def add(self, keys: np.ndarray, rows: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
        """Write a part from places among the keys and their rows, as they come; an interrupt leaves nothing."""
        digest = hashlib.blake2b(digest_size=_CHECKSUM_BYTES)
        name = hashlib.blake2b(np.ascontiguousarray(keys).tobytes(), digest_size=16).hexdigest()
        used: list[np.ndarray] = []
        width = 0
        with written_whole(self.folder / f"{name}{SUFFIX}") as path, open(path, "wb") as file:

            def put(data: bytes) -> None:
                digest.update(data)
                file.write(data)

            for places, values in rows:
                width = values.shape[1]
                used.append(keys[places])
                put(np.ascontiguousarray(values, np.float32).tobytes())
            kept = np.concatenate([*used, keys[:0]])
            put(kept.tobytes())
            put(_FOOTER.pack(_MARK, len(kept), width))
            file.write(digest.digest())

    def has_room(self, num_bytes: int) -> bool:
        """Say whether so many bytes can be written here."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return os.access(self.folder, os.W_OK) and shutil.disk_usage(self.folder).free > num_bytes + 2**20
        except OSError:
            return False

    def _look_up(self, keys: np.ndarray, damaged: list[str]) -> tuple[list[Part], np.ndarray]:
        """Return parts, and for each key the number of its part and its row there, -1 where no part has it."""
        places = np.full((len(keys), 2), -1)
        parts: list[Part] = []
        for part in sorted(self._parts(damaged), key=lambda part: (-len(part.keys), part.path)):
            missing = np.flatnonzero(places[:, 0] < 0)
            if not len(missing):
                break
            order = np.argsort(part.keys[:, 0], kind="stable")
            wanted = keys[missing]
            at = np.searchsorted(part.keys[order, 0], wanted[:, 0]).clip(max=len(order) - 1)
            is_here = (part.keys[order[at]] == wanted).all(1)
            if is_here.any():
                places[missing[is_here], 0] = len(parts)
                places[missing[is_here], 1] = order[at[is_here]]
                parts.append(part)
        return parts, places

    def _parts(self, damaged: list[str]) -> Iterator[Part]:
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            try:
                part = _open(path)
            except FileNotFoundError:  # another process found it damaged
                continue
            except (OSError, ValueError) as error:
                damaged.append(_remove(path, error))
                continue
            if len(part.keys):
                yield part


class _Damaged(Exception):
    def __init__(self, path: Path) -> None:
        self.path = path


def _gather(keys: np.ndarray, parts: list[Part], places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that were found, and which these are."""
    has = places[:, 0] >= 0
    if len(parts) == 1 and np.array_equal(parts[0].keys, keys[has]):
        return _rows(parts[0]), has
    numbers, rows = places[has].T
    x = np.empty((len(rows), parts[0].width if parts else 0), np.float32)
    for number, part in enumerate(parts):
        own = np.flatnonzero(numbers == number)
        own = own[np.argsort(rows[own], kind="stable")]  # a file is read from its beginning to its end
        x[own] = _rows(part)[rows[own]]
    return x, has


def _rows(part: Part) -> np.ndarray:
    try:
        return part.rows()
    except (OSError, ValueError) as error:
        raise _Damaged(part.path) from error


def _open(path: Path) -> Part:
    """Return a part with its keys; ValueError where its size isn't what its footer says."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        end = size - _CHECKSUM_BYTES - _FOOTER.size
        if end < 0:
            raise ValueError("it is too short")
        file.seek(end)
        mark, count, width = _FOOTER.unpack(file.read(_FOOTER.size))
        if mark != _MARK or end != count * (4 * width + KEY_BYTES):
            raise ValueError("it is not a file of rows, or is cut off")
        file.seek(end - count * KEY_BYTES)
        keys = np.frombuffer(file.read(count * KEY_BYTES), np.uint64).reshape(-1, 2)
    return Part(path, keys, width)


def _remove(path: Path, error: BaseException) -> str:
    """Remove a damaged file; return what was wrong."""
    with suppress(OSError):
        path.unlink()
    return f"{path} can't be used ({error})"
