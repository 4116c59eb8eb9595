"""A source of labelled images: length, class names, labels, and any image by its index."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np

from vitkit.data.spec import DataSpec
from vitkit.errors import InputError

# What `read` gives: a file, its bytes, or pixels (height, width, channels) of type uint8.
Picture = str | os.PathLike[str] | bytes | np.ndarray


class Source:
    """Images with labels. A subclass fills the attributes and says how to read one image.

    labels: int64 (images,), or bool (images, classes) where an image may have several.
    images: all pixels, uint8 (images, height, width, channels), where they fit in memory; else None.
    """

    name: str
    split: str
    class_names: tuple[str, ...]
    labels: np.ndarray
    images: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def has_several_labels(self) -> bool:
        return self.labels.ndim == 2

    def read(self, index: int) -> Picture:
        """Return one image, not yet decoded where it is a file."""
        if self.images is None:
            raise NotImplementedError
        return self.images[index]

    def where(self, index: int) -> str:
        """Say which image this is, for messages: a path where there is one."""
        return f"{self.name}:{self.split}, image {index}"


class Subset(Source):
    """Some images of a source, in a given order."""

    def __init__(self, source: Source, indices: np.ndarray) -> None:
        self.source = source
        self.indices = indices
        self.name, self.split, self.class_names = source.name, source.split, source.class_names
        self.labels = source.labels[indices]
        self.images = None if source.images is None else source.images[indices]

    def read(self, index: int) -> Picture:
        return self.source.read(int(self.indices[index]))

    def where(self, index: int) -> str:
        return self.source.where(int(self.indices[index]))


def take(source: Source, spec: DataSpec) -> Source:
    """Return the part of a source that a spec's slice and shots ask for."""
    indices = np.arange(len(source))
    if spec.start is not None or spec.stop is not None:
        indices = indices[_place(spec.start, len(source), 0) : _place(spec.stop, len(source), len(source))]
    if spec.shots is not None:
        indices = indices[choose_shots(source.labels[indices], spec.shots, spec.seed, source.class_names)]
    if len(indices) == len(source):
        return source
    if not len(indices):
        raise InputError(f"data spec '{spec}' leaves none of the {len(source)} images")
    return Subset(source, indices)


def choose_shots(labels: np.ndarray, shots: int, seed: int, class_names: Sequence[str]) -> np.ndarray:
    """Return the indices of `shots` images of each class, by big_vision's rule: per class, the first of a permutation."""
    if labels.ndim != 1:
        raise InputError("shots are defined for images with one label each")
    generator = np.random.default_rng(seed)
    chosen = []
    for number, name in enumerate(class_names):
        members = np.flatnonzero(labels == number)
        if len(members) < shots:
            raise InputError(f"{shots}shot: class {name!r} has only {len(members)} images")
        chosen.append(generator.permutation(members)[:shots])
    return np.concatenate(chosen)


def stratified_split(labels: np.ndarray, hashes: np.ndarray, share: float) -> np.ndarray:
    """Return a mask of the images to hold out: of each class the `share` with the smallest content hashes.

    At least one image of a class with two or more is held out, and at least one stays.
    """
    held = np.zeros(len(labels), bool)
    for number in np.unique(labels):
        members = np.flatnonzero(labels == number)
        count = min(len(members) - 1, max(1, math.floor(share * len(members) + 0.5)))
        order = members[np.argsort(hashes[members], kind="stable")]
        held[order[:count]] = True
    return held


def _place(end: str | None, length: int, default: int) -> int:
    if end is None:
        return default
    if end.endswith("%"):
        return length * int(end[:-1]) // 100
    return min(int(end), length)
