"""Splits: their names, which one a verb takes, and how one is made where data has none."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from vitkit.data.cache import UNREADABLE, content_hashes
from vitkit.data.sources.source import Source, Subset, stratified_split
from vitkit.errors import InputError, did_you_mean
from vitkit.files import read_file
from vitkit.notes import Note

Default = Literal["train", "measure"]
# What folders, files and tables call a split -> its name here.
WORDS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
}
# The splits that are made, with their share of each class.
MADE = {"train": 0.8, "val": 0.1, "test": 0.1}


def choose_split(
    available: Sequence[str], asked: str | None, default: Default, name: str
) -> tuple[str, list[Note]]:
    """Return the split that was asked for, else the one that the verb takes, and notes on the choice."""
    if asked is not None:
        split = WORDS.get(asked, asked)
        if split == "all" or split in available:
            return split, []
        hint = did_you_mean(split, available) or ";"
        raise InputError(f"{name} has no split {asked!r}{hint} it has {', '.join(available)}, all")
    wanted = ("train",) if default == "train" else ("test", "val")
    for split in wanted:
        if split in available:
            others = ", ".join(other for other in available if other != split)
            also = f" (also: {others})" if others else ""
            return split, [Note(f"{name}: using split {split!r}{also}", "data")]
    raise InputError(
        f"{name} has no {' or '.join(wanted)} split, only {', '.join(available)}: "
        f"name the one to take, such as '{name}:{available[0]}'"
    )


def split_of_file(path: str) -> str | None:
    """Return the split that a file's name says, else its folder's: train-00000-of-00005.parquet, val/000.tar."""
    folder, _, file = re.sub(r"^(https?://[^?]*).*", r"\1", path).rpartition("/")
    found = {WORDS[word] for word in re.split(r"[^a-z]+", file.lower()) if word in WORDS}
    if len(found) > 1:
        raise InputError(f"{path} names two splits, {' and '.join(sorted(found))}: rename it")
    return found.pop() if found else WORDS.get(folder.rpartition("/")[2].lower())


class Chosen(NamedTuple):
    """The files of a split."""

    split: str
    files: list[str]
    naming: list[str]
    "The files whose labels give the classes of every split: those of train, else all."
    is_made: bool
    "Whether no name says a split, so that one is to be made of all the files."
    notes: list[Note]


def group_files(paths: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the files of each split that names say, and the files whose names say none."""
    groups: dict[str, list[str]] = {split: [] for split in MADE}
    without: list[str] = []
    for path in paths:
        split = split_of_file(path)
        (without if split is None else groups[split]).append(path)
    return {split: group for split, group in groups.items() if group}, without


def choose_files(paths: Sequence[str], asked: str | None, default: Default, name: str) -> Chosen:
    """Return the files of the split that was asked for, else of the one that the verb takes."""
    groups, without = group_files(paths)
    chosen, notes = choose_split(list(groups or MADE), asked, default, name)
    if not groups:
        return Chosen(chosen, without, without, True, notes)
    if without:
        notes.append(Note(f"{name}: skipped {listed(without)}, whose names say no split", "warning"))
    every = [path for group in groups.values() for path in group]
    files = every if chosen == "all" else groups[chosen]
    return Chosen(chosen, files, groups.get("train", every), False, notes)


def make_split(source: Source, split: str, place: str) -> Source:
    """Return a split of a source that has none, by the contents of its images; `place` is its file or folder."""
    source.place = place
    if split == "all":
        return source
    masks = made_splits(source)
    indices = np.flatnonzero(masks[split])
    if not len(indices):
        raise InputError(
            f"{source.name} has too few images for a split {split!r}: "
            "add images, or make folders train and val yourself"
        )
    part = Subset(source, indices)
    part.split = split
    counts = ", ".join(f"{name} {mask.sum():,}" for name, mask in masks.items())
    text = f"{source.name}: has no split; made one by content, always the same: {counts}; ':all' is all of it"
    part.notes = (*source.notes, Note(text, "data"), *_unmeasured(source, masks["test"]))
    return part


def _unmeasured(source: Source, test: np.ndarray) -> Iterator[Note]:
    """Say which classes have too few images for the made test split: one, or copies of one."""
    if source.is_multi_label:
        return
    whole, held = (
        np.bincount(labels, minlength=source.num_classes) for labels in (source.labels, source.labels[test])
    )
    names = [source.class_names[number] for number in np.flatnonzero((whole > 0) & (held == 0))]
    if names:
        classes = counted(len(names), "class")
        text = f"{source.name}: too few images to measure {classes}, used for training only: {listed(names)}"
        yield Note(text, "data")


def made_splits(source: Source) -> dict[str, np.ndarray]:
    """Return which images of data without splits go into train, val and test: bool (images,); val may be empty."""
    keys = source.content_keys()
    assert keys is not None and source.place is not None
    hashes = content_hashes(os.path.abspath(source.place), keys, lambda index: _bytes(source, index))
    # Several labels leave nothing to stratify by: nearly every combination is its own.
    labels = np.zeros(len(source), np.int64) if source.is_multi_label else source.labels
    is_readable = hashes != UNREADABLE
    test = stratified_split(labels, hashes, MADE["test"]) & is_readable
    rest = np.flatnonzero(~test)
    share = MADE["val"] / (1 - MADE["test"])
    val = np.zeros_like(test)
    val[rest] = stratified_split(labels[rest], hashes[rest], share) & is_readable[rest]
    return {"train": ~test & ~val, "val": val, "test": test}


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first of some names, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def counted(number: int, word: str) -> str:
    """Return a number with its word: 1 image, 2 images, 2 classes."""
    plural = f"{word}es" if word.endswith("s") else f"{word}s"
    return f"{number:,} {word if number == 1 else plural}"


def _bytes(source: Source, index: int) -> bytes:
    picture = source.read(index)
    if isinstance(picture, bytes):
        return picture
    return picture.tobytes() if isinstance(picture, np.ndarray) else read_file(picture)
