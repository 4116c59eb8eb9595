"""The user's cache folder, and the hashes of image contents kept there so that no image is hashed twice."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from vitkit.data.threads import map_in_order
from vitkit.errors import InputError
from vitkit.files import write_file

UNREADABLE = 2**64 - 1
_CHECKSUM_BYTES = 16


def cache_folder() -> Path:
    """Return the folder for what can be made or fetched again: VITKIT_CACHE, else ~/.cache/vitkit."""
    return Path(os.environ.get("VITKIT_CACHE") or "~/.cache/vitkit").expanduser()


def cache_file(kind: str, name: str) -> Path:
    """Return where the cache keeps one thing of a kind, by its name: a path or a URL."""
    return cache_folder() / kind / f"{_hash(name.encode('utf-8', 'surrogateescape')):016x}"


def keep(path: Path, data: bytes) -> None:
    """Write a file of the cache, with its checksum before it; if the cache can't be written to, work continues without it."""
    with suppress(InputError):
        write_file(path, _checksum(data) + data)


def kept(path: Path) -> bytes | None:
    """Return what `keep` wrote; None where nothing was, or where it isn't as it was written: it is made again."""
    try:
        found = path.read_bytes()
    except OSError:
        return None
    checksum, data = found[:_CHECKSUM_BYTES], found[_CHECKSUM_BYTES:]
    return data if checksum == _checksum(data) else None


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECKSUM_BYTES).digest()


def content_hashes(name: str, keys: Sequence[str], read: Callable[[int], bytes]) -> np.ndarray:
    """Return 64 bits of the hash of each image's bytes; an image whose key is in the cache isn't read.

    A key says where an image is and in which version: another key, another content. Images that can't be read all
    have the greatest hash there is, which isn't kept.
    """
    path = cache_file("hashes", name)
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
        is_read = hashes != UNREADABLE
        keep(path, np.stack([np.array(numbers, np.uint64), hashes])[:, is_read].tobytes())
    return hashes


def _load(path: Path) -> dict[int, int]:
    data = kept(path)
    if data is None:
        return {}
    keys, hashes = np.frombuffer(data, np.uint64).reshape(2, -1).tolist()
    return dict(zip(keys, hashes, strict=True))


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
