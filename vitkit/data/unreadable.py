"""Unreadable images: the one rule for when they are skipped and when they are an error, and what is said of them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vitkit.config import check_choice
from vitkit.data.sources.source import Source, count_classes
from vitkit.data.spec import TORCH, as_spec
from vitkit.data.splits import counted, listed
from vitkit.data.threads import Unreadable
from vitkit.errors import InputError
from vitkit.notes import Note

BadImages = Literal["skip", "error", "any"]
"""What is done with unreadable images: skip them, unless they are many or all of a class; stop at the first; skip any
number of them."""
MOST = 0.1
"Share of a source that may be unreadable."
SHOWN = 3
"Images that a message names."
Flag = Literal["setting", "option", "argument"]
# How a user changes what is done: in a training run's settings, on the command line, in Python alone.
FLAGS: dict[Flag, str] = {
    "setting": "data.bad_images={}",
    "option": "--bad-images {0} (bad_images='{0}' in Python)",
    "argument": "bad_images='{}'",
}


@dataclass(frozen=True)
class BadImageRule:
    """What is done with unreadable images, and how the user changes that."""

    choice: BadImages = "skip"
    flag: Flag = "argument"

    def __post_init__(self) -> None:
        check_choice("bad_images", self.choice, BadImages)

    def advice(self, choice: BadImages) -> str:
        """Return how the user asks for another choice."""
        return FLAGS[self.flag].format(choice)


def too_many(unreadable: int, images: int) -> bool:
    """Say whether so many unreadable images of all are an error; a single one is not."""
    return unreadable > max(1, MOST * images)


class Skipped:
    """The unreadable images of a source, each counted once, and the judgement on them.

    By "skip" they become an error when they are more than a tenth of the images, and more than one, or when they are
    all images of a class: what is learned or measured without them would mislead.
    """

    def __init__(self, source: Source, rule: BadImageRule) -> None:
        self.source, self.rule = source, rule
        self.found: dict[int, Unreadable] = {}
        "By index in the source."
        self._lost: list[int] = []
        "Classes of which no image can be read."

    @property
    def entries(self) -> list[Unreadable]:
        """The images in the order of the source."""
        return [self.found[index] for index in sorted(self.found)]

    def add(self, found: Mapping[int, Unreadable]) -> None:
        """Count images, and raise an InputError where they are too many."""
        new = {index: entry for index, entry in found.items() if index not in self.found}
        if new:
            self.found |= new
            self._count_classes(np.array([*new]))
        if self.found:
            self._judge()

    def _count_classes(self, new: np.ndarray) -> None:
        """Note the classes that have lost their last image; only classes of new images are looked at."""
        if len(self.found) == len(new):
            self._left = count_classes(self.source)
        labels = self.source.labels[new]
        lost = labels.sum(0) if labels.ndim == 2 else np.bincount(labels, minlength=len(self._left))
        self._left = self._left - lost
        self._lost += np.flatnonzero((self._left == 0) & (lost > 0)).tolist()

    def _judge(self) -> None:
        bad, every = len(self.found), len(self.source)
        if self.rule.choice == "error":
            entry = self.entries[0]
            raise InputError(
                f"cannot read {entry.image}: {entry.reason}; {self.rule.advice('skip')} skips unreadable images"
            )
        if bad == every:
            raise InputError(f"no image{self._of} can be read: {_named(self.entries)}")
        if self.rule.choice == "skip" and self.fault:
            raise InputError(
                f"{self.fault}, so results would mislead: {_named(self.entries)}; repair these files, or continue "
                f"without them: {self.rule.advice('any')}"
            )

    @property
    def fault(self) -> str:
        """Why the unreadable images can't just be skipped: they are too many, or all of a class; '' if they can."""
        bad, every = len(self.found), len(self.source)
        if too_many(bad, every):
            return f"{bad:,} of {every:,} images{self._of} can't be read"
        if self._lost and not self.source.may_lack_classes:
            names = listed([repr(self.source.class_names[number]) for number in self._lost])
            word = "class" if len(self._lost) == 1 else "classes"
            return f"no image of {word} {names}{self._of} can be read"
        return ""

    @property
    def _of(self) -> str:
        if self.source.class_names == ("",) and not self.entries[0].data:
            return ""  # files that were given one by one
        return f" of {self.entries[0].data or f'{self.source.name}:{self.source.split}'}"


def skipped_notes(found: Iterable[Unreadable], listed_by: str = "") -> list[Note]:
    """Return what every verb says at its end of the images that it skipped: a line for each data set.

    listed_by: what lists all of those that belong to no data set.
    """
    by_data: dict[str, dict[str, Unreadable]] = {}
    for entry in found:
        by_data.setdefault(_whole(entry.data), {}).setdefault(entry.image, entry)
    notes = []
    for whole, entries in by_data.items():
        splits = {entry.data for entry in entries.values()}
        of = f" of {splits.pop() if len(splits) == 1 else whole}" if whole else ""
        count = counted(len(entries), "unreadable image")
        notes.append(Note(f"skipped {count}{of}: {_named(entries.values(), listed_by)}", "warning"))
    return notes


def _named(found: Iterable[Unreadable], listed_by: str = "") -> str:
    """Name the first images with their reasons, and what names all."""
    entries = list(found)
    reasons = (entry.reason.partition(" (")[0] for entry in entries)  # without what they add in parentheses
    text = listed([f"{entry.image} ({why})" for entry, why in zip(entries, reasons, strict=True)], SHOWN)
    whole = _whole(entries[0].data)
    if not whole and listed_by and len(entries) > SHOWN:
        return f"{text}; {listed_by} lists them all"
    if not whole or whole.startswith(TORCH):  # a data set of PyTorch opens in Python alone
        return text
    return f"{text}; `vit data {shlex.quote(whole)}` lists them all"


def _whole(data: str) -> str:
    """Return a DATA string without its split."""
    if not data:
        return ""
    try:
        return str(as_spec(data).whole)
    except InputError:  # such as a folder with brackets in its name that is gone
        return data
