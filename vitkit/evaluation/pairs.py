"""Pairs of images of the same or of different identities: read from a file in LFW's format, or drawn from labels."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitkit.data.images import EXTENSIONS
from vitkit.data.sources.source import Files
from vitkit.errors import InputError
from vitkit.files import read_file

MOST_PAIRS = 1_000_000
"Pairs of each kind that are drawn where there are more."
FOLDS = 10
_MOST_LISTED = 10_000_000
"Pairs of any kind up to which all are looked at."


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of images, by their places."""

    first: np.ndarray
    second: np.ndarray
    is_same: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    def among(self, images: np.ndarray, count: int) -> Pairs:
        """Return the pairs of which both are among these images of so many, by their places there."""
        place = np.full(count, -1)
        place[images] = np.arange(len(images))
        kept = (place[self.first] >= 0) & (place[self.second] >= 0)
        return Pairs(place[self.first[kept]], place[self.second[kept]], self.is_same[kept])


@dataclass(frozen=True, eq=False)
class Protocol:
    """What is compared: pairs for rates, and folds of pairs for accuracy."""

    pairs: Pairs
    folds: tuple[Pairs, ...]
    "Each with same and different pairs; none where there are too few identities."

    def among(self, images: np.ndarray, count: int) -> Protocol:
        """Return what is left of it where only these images can be read."""
        folds = [fold.among(images, count) for fold in self.folds]
        kept = tuple(fold for fold in folds if fold.is_same.any() and not fold.is_same.all())
        return replace(self, pairs=self.pairs.among(images, count), folds=kept if len(kept) > 1 else ())


def draw_protocol(labels: np.ndarray, num_pairs: int = MOST_PAIRS, seed: int = 0) -> Protocol:
    """Return all pairs of images with these labels; of a kind with more than `num_pairs`, so many drawn at random.

    Folds share no identity. Each has all pairs of its images that are the same, and as many different ones, drawn.
    """
    random = np.random.default_rng(seed)
    pairs = _joined(_same_pairs(labels, num_pairs, random), _different_pairs(labels, num_pairs, random))
    identities, counts = np.unique(labels, return_counts=True)
    folds = []
    # A fold without same pairs would say nothing: identities with several images are dealt out first.
    several, single = identities[counts > 1], identities[counts == 1]
    count = min(FOLDS, len(several) // 2)
    order = np.concatenate([random.permutation(several), random.permutation(single)])
    for number in range(count if count > 1 else 0):
        members = np.flatnonzero(np.isin(labels, order[number::count]))
        same = members[_same_pairs(labels[members], num_pairs, random)]
        different = members[_different_pairs(labels[members], len(same), random)]
        folds.append(_joined(same[random.permutation(len(same))[: len(different)]], different))
    return Protocol(pairs, tuple(folds))


def read_protocol(path: str | os.PathLike[str], root: Path) -> tuple[Protocol, Files]:
    """Return the pairs of a file in LFW's format, and the images that they name, in the folders of a root.

    The first line says how many folds there are, unless there is one, and how many same pairs each has; as many
    different ones follow these. A pair is 'NAME N N' or 'NAME N NAME N'; image N of NAME is NAME/NAME_000N or NAME/N.
    """
    lines = [
        (number, line.split("\t") if "\t" in line else line.split())
        for number, line in enumerate(_text(path).splitlines(), 1)
        if line.strip()
    ]
    head = [int(word) for word in lines[0][1] if word.isdecimal()] if lines else []
    if not lines or len(head) != len(lines[0][1]) or len(head) not in (1, 2) or not all(head):
        raise InputError(
            f"{path} is not a file of pairs in LFW's format: its first line says how many folds, and pairs of each kind in a "
            "fold, as in '10 300'"
        )
    num_folds, size = (1, *head)[-2:]
    if len(lines) - 1 != 2 * num_folds * size:
        raise InputError(
            f"{path} says {num_folds} x 2 x {size} pairs in its first line, but has {len(lines) - 1:,}: it is damaged"
        )
    images = _Images(root, path)
    first, second, is_same = list[int](), list[int](), list[bool]()
    for place, (number, words) in enumerate(lines[1:]):
        expects_same = place % (2 * size) < size
        if len(words) != (3 if expects_same else 4) or not (words[-1] + words[1]).isdecimal():
            form = "NAME N N" if expects_same else "NAME N NAME N"
            raise InputError(f"{path}, line {number}: expected '{form}'")
        one, other = (words[0], words[1]), (words[-2] if not expects_same else words[0], words[-1])
        if not expects_same and one[0] == other[0]:
            raise InputError(
                f"{path}, line {number}: both images are of {one[0]!r}, but pairs here must differ"
            )
        first.append(images.place(*one, number))
        second.append(images.place(*other, number))
        is_same.append(expects_same)
    pairs = Pairs(np.array(first), np.array(second), np.array(is_same))
    edges = np.arange(1, num_folds) * 2 * size
    columns = (np.split(column, edges) for column in (pairs.first, pairs.second, pairs.is_same))
    folds = tuple(Pairs(*parts) for parts in zip(*columns, strict=True)) if num_folds > 1 else ()
    return Protocol(pairs, folds), images.source()


class _Images:
    """Images by name and number, each looked for once."""

    def __init__(self, root: Path, file: str | os.PathLike[str]) -> None:
        self.root, self.file = root, file
        self.paths: list[str] = []
        self.names: list[str] = []
        self._places: dict[tuple[str, int], int] = {}
        self._folders: dict[str, dict[int, str]] = {}

    def place(self, name: str, number: str, line: int) -> int:
        key = (name, int(number))
        if key not in self._places:
            found = self._folder(name, line).get(key[1])
            if found is None:
                raise InputError(f"{self.file}, line {line}: no image {number} in {self.root / name}")
            self._places[key] = len(self.paths)
            self.paths.append(found)
            self.names.append(name)
        return self._places[key]

    def source(self) -> Files:
        names, labels = np.unique(self.names, return_inverse=True)
        return Files(str(self.root), "all", tuple(names.tolist()), labels, self.paths)

    def _folder(self, name: str, line: int) -> dict[int, str]:
        if name not in self._folders:
            folder = self.root / name
            if Path(name).name != name or not folder.is_dir():
                raise InputError(f"{self.file}, line {line}: no folder {name!r} in {self.root}")
            found: dict[int, str] = {}
            for path in sorted(folder.iterdir()):
                number = path.stem.removeprefix(f"{name}_")
                if path.suffix.lower() in EXTENSIONS and number.isdecimal():
                    found.setdefault(int(number), str(path))
            self._folders[name] = found
        return self._folders[name]


def _text(path: str | os.PathLike[str]) -> str:
    try:
        return read_file(Path(path).expanduser()).decode()
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file; expected pairs in LFW's format") from None


def _joined(same: np.ndarray, different: np.ndarray) -> Pairs:
    first, second = np.concatenate([same, different]).T
    return Pairs(first, second, np.arange(len(first)) < len(same))


def _same_pairs(labels: np.ndarray, most: int, random: np.random.Generator) -> np.ndarray:
    """Return pairs with the same label, all or as many as asked for: (pairs, 2)."""
    order = np.argsort(labels, kind="stable")
    _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    ends = np.cumsum(counts * (counts - 1) // 2)
    numbers = _numbers(int(ends[-1]) if len(ends) else 0, most, random)
    owners = np.searchsorted(ends, numbers, side="right")
    within = numbers - np.append(0, ends)[owners]
    return np.asarray(order[starts[owners][:, None] + _pair(within)])


def _different_pairs(labels: np.ndarray, most: int, random: np.random.Generator) -> np.ndarray:
    """Return pairs with different labels, all or as many as asked for: (pairs, 2)."""
    every = len(labels) * (len(labels) - 1) // 2
    numbers = np.empty(0, np.int64)
    if every <= _MOST_LISTED:
        pairs = _pair(np.arange(every))
        places = np.flatnonzero(labels[pairs[:, 0]] != labels[pairs[:, 1]])
        return pairs[places[_numbers(len(places), most, random)]]
    for _ in range(20):  # nearly all pairs differ, so that a few rounds do
        drawn = random.integers(0, every, 2 * most)
        pairs = _pair(drawn)
        numbers = np.unique(np.append(numbers, drawn[labels[pairs[:, 0]] != labels[pairs[:, 1]]]))
        if len(numbers) >= most:
            break
    return _pair(np.sort(random.permutation(numbers)[:most]))


def _numbers(count: int, most: int, random: np.random.Generator) -> np.ndarray:
    """Return the numbers below a count, all or as many as asked for, in order."""
    if count <= most:
        return np.arange(count)
    if count <= _MOST_LISTED:
        return np.sort(random.permutation(count)[:most])
    found = np.empty(0, np.int64)
    while len(found) < most:
        found = np.unique(np.append(found, random.integers(0, count, most)))
    return np.sort(random.permutation(found)[:most])


def _pair(numbers: np.ndarray) -> np.ndarray:
    """Return the pairs i < j that are numbered 0 for (0, 1), 1 for (0, 2), 2 for (1, 2), ...: (numbers, 2)."""
    second = ((1 + np.sqrt(1 + 8 * numbers.astype(np.float64))) / 2).astype(np.int64)
    second -= second * (second - 1) // 2 > numbers  # rounding of the root
    second += second * (second + 1) // 2 <= numbers
    return np.stack([numbers - second * (second - 1) // 2, second], 1)
