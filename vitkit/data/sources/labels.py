"""From labels as they are stored, numbers or texts, to class numbers and class names."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from vitkit.data.splits import WORDS, counted, listed
from vitkit.errors import InputError, did_you_mean
from vitkit.files import read_file
from vitkit.notes import Note

Label = int | str
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_MOST_CLASSES = 100_000
"So many classes may be numbers, or ten for each image."


def clean(name: str) -> str:
    """Return a class name in Unicode's composed form: file systems differ in how they spell accents."""
    return unicodedata.normalize("NFC", name)


def read_labels(texts: Sequence[str], names: Sequence[str] | None = None) -> Sequence[Label]:
    """Return labels that are stored as texts: names of classes, or whole numbers where all of them are."""
    distinct = set(texts)
    if names is not None and distinct <= set(names):
        return texts
    if _are_whole(distinct):
        numbers = {text: int(text) for text in distinct}
        if len(set(numbers.values())) == len(distinct):  # 007 and 7 are two names
            return [numbers[text] for text in texts]
    return texts


def name_classes(labels: Sequence[Label]) -> tuple[str, ...]:
    """Return the names of the classes that some labels show: '0' up to the largest number, or texts, sorted.

    Texts that are all whole numbers are sorted as such: 2 before 10.
    """
    numbers = [label for label in labels if isinstance(label, int)]
    if len(numbers) == len(labels):
        highest = max(numbers, default=-1)
        if highest >= max(_MOST_CLASSES, 10 * len(numbers)):
            raise InputError(
                f"{len(numbers):,} images have labels up to {highest}, but labels count classes from 0: "
                "number the classes consecutively, or write classes.txt with one name per line"
            )
        return tuple(map(str, range(highest + 1)))
    names = {str(label) for label in labels}
    return tuple(sorted(names, key=(lambda name: (int(name), name)) if _are_whole(names) else None))


def number_labels(
    labels: Sequence[Label], names: Sequence[str], where: Callable[[int], str], origin: str
) -> np.ndarray:
    """Return labels as places in `names`, int64; `where` names an image and `origin` the classes in errors."""
    places = {name: place for place, name in enumerate(names)}
    numbers = np.empty(len(labels), np.int64)
    for index, label in enumerate(labels):
        if isinstance(label, str):
            place = places.get(label)
            if place is None:
                hint = did_you_mean(label, names) or ";"
                raise InputError(
                    f"{where(index)} has class {label!r}, which {origin} lacks{hint} add it there"
                )
            numbers[index] = place
        elif 0 <= label < len(names):
            numbers[index] = label
        else:
            raise InputError(
                f"{where(index)} has label {label}; {origin} gives {len(names)} classes, 0 to {len(names) - 1}"
            )
    return numbers


def find_names(folder: str) -> tuple[tuple[str, ...], str] | None:
    """Return the class names in classes.txt, or the one file named ...classes.txt, and its path.

    If the folder is named like a split, or data, the file may also be next to it.
    """
    path = Path(folder, "classes.txt")
    if not path.exists():
        others = sorted(file for file in Path(folder).glob("*classes.txt") if not file.name.startswith("."))
        if not others:
            above, name = os.path.split(os.path.abspath(folder))
            return find_names(above) if name.lower() in (*WORDS, "data") else None
        if len(others) > 1:
            raise InputError(f"{folder} holds {listed([file.name for file in others])}: name one classes.txt")
        path = others[0]
    return parse_names(read_file(path), str(path)), str(path)


def parse_names(data: bytes, path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the class names in a text with one a line."""
    try:
        names = [clean(line.strip()) for line in data.decode("utf-8-sig").rstrip().split("\n")]
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text") from None
    for number, name in enumerate(names, 1):
        if not name:
            raise InputError(f"{path}, line {number}, is empty; expected one class name per line")
        if name in names[: number - 1]:
            raise InputError(f"{path} names class {name!r} twice")
    return tuple(names)


def _are_whole(texts: Iterable[str]) -> bool:
    return all(_WHOLE.fullmatch(text) for text in texts)


def say_classes(name: str, class_names: Sequence[str], order: str | None = None) -> Note:
    """Return the note on the classes of a source and their order, which is sorted unless said."""
    order = order or ("sorted as numbers" if _are_whole(class_names) else "sorted by name")
    return Note(f"{name}: {counted(len(class_names), 'class')}, {order}: {listed(class_names)}", "data")
