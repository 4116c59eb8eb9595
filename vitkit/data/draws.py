"""Random numbers without state: each is a function of (seed, position, stream), so any can be drawn at any time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def _mix(values: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser: every input bit reaches every output bit."""
    with np.errstate(over="ignore"):
        values = values + _GOLDEN
        values = (values ^ (values >> np.uint64(30))) * _MIX1
        values = (values ^ (values >> np.uint64(27))) * _MIX2
        return values ^ (values >> np.uint64(31))


def key(seed: int, stream: str) -> np.uint64:
    """Return the key of a named stream of a seed."""
    digest = hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def bits(seed: int, stream: str, positions: np.ndarray, count: int = 1) -> np.ndarray:
    """Return 64 random bits for each position and draw: uint64 (positions, count)."""
    rows = _mix(np.asarray(positions, np.uint64) ^ key(seed, stream))
    with np.errstate(over="ignore"):
        columns = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
        return _mix(rows[:, None] + columns[None, :])


def uniform(seed: int, stream: str, positions: np.ndarray, count: int = 1) -> np.ndarray:
    """Return numbers from 0 up to 1 (excluded) for each position and draw: float64 (positions, count)."""
    return (bits(seed, stream, positions, count) >> np.uint64(11)) * 2.0**-53


def generator(seed: int, stream: str, position: int) -> np.random.Generator:
    """Return numpy's generator for one position, for what needs more than uniform numbers."""
    word = int(bits(seed, stream, np.array([position]))[0, 0])
    return np.random.Generator(np.random.PCG64(word))


@dataclass(frozen=True)
class Draw:
    """The random choices of one training batch: what a batched transform draws from."""

    seed: int
    step: int
    positions: np.ndarray
    "Global position of each image: how many images the run has used before it; int64 (images,)."
    stream: str = ""

    def child(self, name: str) -> Draw:
        """Return independent choices for a named part."""
        return replace(self, stream=f"{self.stream}/{name}")

    def uniform(self, name: str, count: int = 1) -> np.ndarray:
        """Return numbers from 0 up to 1 for each image: float64 (images, count)."""
        return uniform(self.seed, f"{self.stream}/{name}", self.positions, count)

    def for_step(self, name: str) -> np.random.Generator:
        """Return a generator for what a whole step shares, on every rank."""
        return generator(self.seed, f"{self.stream}/{name}", self.step)


class Shuffle:
    """A permutation of range(length) that is computed place by place: a Feistel network over the indices."""

    ROUNDS = 6

    def __init__(self, length: int, seed: int, stream: str) -> None:
        self.length = length
        self.half = max(1, ((max(length, 2) - 1).bit_length() + 1) // 2)
        self.mask = np.uint64((1 << self.half) - 1)
        self.keys = [key(seed, f"{stream}/{number}") for number in range(self.ROUNDS)]

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        """Return the indices at these places: int64."""
        values = np.asarray(places, np.uint64)
        result = self._encrypt(values)
        while (outside := result >= self.length).any():  # walk the cycle until it is back inside
            result[outside] = self._encrypt(result[outside])
        return result.astype(np.int64)

    def _encrypt(self, values: np.ndarray) -> np.ndarray:
        half = np.uint64(self.half)
        left, right = values >> half, values & self.mask
        for word in self.keys:
            left, right = right, left ^ (_mix(right ^ word) & self.mask)
        return (left << half) | right
