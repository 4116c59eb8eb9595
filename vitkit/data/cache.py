"""The user's cache folder, and what is kept there of data: hashes of image contents, so that none is read twice."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from vitkit.data.threads import map_in_order
from vitkit.errors import InputError
from vitkit.files import write_file

UNREADABLE = 2**64 - 1


def cache_folder() -> Path:
    """Return the folder for what can be made or fetched again: VITKIT_CACHE, else ~/.cache/vitkit."""
    return Path(os.environ.get("VITKIT_CACHE") or "~/.cache/vitkit").expanduser()


def cache_file(kind: str, name: str, suffix: str) -> Path:
    """Return where the cache keeps one thing of a kind, by its name: a path or a URL."""
    return cache_folder() / kind / f"{_hash(name.encode('utf-8', 'surrogateescape')):016x}{suffix}"


def keep(path: Path, data: bytes) -> None:
    """Write a file of the cache whole or not at all; a cache that can't be written to is done without."""
    with suppress(InputError):
        write_file(path, data)


def content_hashes(name: str, keys: Sequence[str], read: Callable[[int], bytes]) -> np.ndarray:
    """Return 64 bits of the hash of each image's bytes; an image whose key is in the cache isn't read.

    A key says where an image is and in which version: another key, another content. Images that can't be read all
    have the greatest hash there is, which isn't kept.
    """
    path = cache_file("hashes", name, ".npz")
    known = _load(path)
    numbers = [_hash(key.encode("utf-8", "surrogateescape")) for key in keys]
    missing = [index for index, number in enumerate(numbers) if number not in known]

    def hashed(index: int) -> int:
        try:
            return _hash(read(index))
        except InputError:
            return UNREADABLE

    for index, value in zip(missing, map_in_order(hashed, missing), strict=True):
        known[numbers[index]] = value
    hashes = np.array([known[number] for number in numbers], np.uint64)
    if missing:
        kept = hashes != UNREADABLE
        buffer = io.BytesIO()
        np.savez(buffer, keys=np.array(numbers, np.uint64)[kept], hashes=hashes[kept])
        keep(path, buffer.getvalue())
    return hashes


def _load(path: Path) -> dict[int, int]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(zip(arrays["keys"].tolist(), arrays["hashes"].tolist(), strict=True))
    except Exception:  # not there yet, or damaged: it is made again
        return {}


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
