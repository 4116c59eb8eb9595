"""A source of labelled images: length, class names, labels, and any image by its index."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import operator
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from vitkit.data.spec import TORCH, DataSpec
from vitkit.errors import CannotRead, InputError, did_you_mean, first_line
from vitkit.files import read_file
from vitkit.notes import Note

# What `read` gives: a file, its bytes, or pixels (height, width, channels) of type uint8.
Picture = str | os.PathLike[str] | bytes | np.ndarray


class Absent(InputError):
    """Data that is not where it was looked for."""


def what_is_wrong(error: Exception) -> str:
    """Return what an error says of an image that can't be read, without which image that is."""
    return error.reason if isinstance(error, CannotRead) else str(error)


def file_key(path: str) -> str:
    """Return a text that changes when a file does, without reading it: its place, size and time."""
    try:
        status = os.stat(path)
        version = f"{status.st_size}\0{status.st_mtime_ns}"
    except (OSError, ValueError):  # an error when it is read
        version = "missing"
    return f"{os.path.abspath(path)}\0{version}"


class Source(Dataset[tuple[Tensor, Any]]):
    """Images with labels. A subclass fills the attributes and says how to read one image.

    labels: int64 (images,), or bool (images, classes) where an image may have several.
    images: all pixels, uint8 (images, height, width, channels), where they fit in memory; else None.
    faults: what is wrong with it as a whole, each one line: such a source opens only with tolerate=True.
    place: the file or folder of data that has no splits of its own, so that some are made of it.
    may_change: whether an image may differ from one reading to the next, so that nothing computed from it is kept.
    may_lack_classes: whether all images of a class may be unreadable, as where labels don't matter.
    notes: what a verb reports about it, each one line: the split that was chosen, the order of classes, skipped files.
    spec: the DATA that `open_data` was given, its split named; None for a source made in another way.
    """

    name: str
    split: str
    class_names: tuple[str, ...]
    labels: np.ndarray
    images: np.ndarray | None = None
    notes: tuple[Note, ...] = ()
    faults: tuple[str, ...] = ()
    spec: DataSpec | None = None
    place: str | None = None
    may_change: bool = False
    may_lack_classes: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"<Source {self.name}:{self.split}, images={len(self)}, classes={self.num_classes}>"

    def _repr_html_(self) -> str:
        """Return the source as notebooks show it."""
        from vitkit.data.splits import listed
        from vitkit.display import html_table

        facts = {
            "images": len(self),
            "classes": f"{self.num_classes:,}: {listed(self.class_names)}",
            "multi-label": self.is_multi_label,
        }
        return html_table(self.data_name, facts)

    @overload
    def __getitem__(self, index: slice) -> Subset: ...

    @overload
    def __getitem__(self, index: int) -> tuple[Tensor, Any]: ...

    def __getitem__(self, index: int | slice) -> Subset | tuple[Tensor, Any]:
        """Return an image and its label, as PyTorch's DataLoader takes them; of a slice, the source of these images.

        The image is RGB, uint8 (3, height, width); the label an int, or where images have several, bool (classes,).
        """
        from vitkit.data.decode import read_pixels

        if isinstance(index, slice):
            return Subset(self, np.arange(len(self))[index])
        place = operator.index(index)
        place += len(self) if place < 0 else 0
        if not 0 <= place < len(self):
            raise IndexError(f"image {index} of {self.data_name}, which has {len(self):,}")
        try:
            pixels = read_pixels(self, place)
        except InputError as error:
            raise CannotRead(self.where(place), what_is_wrong(error)) from error
        label = (
            torch.from_numpy(self.labels[place].copy()) if self.is_multi_label else int(self.labels[place])
        )
        return pixels.clone(memory_format=torch.contiguous_format), label

    def with_transform(self, transform: Callable[[Any], Any]) -> Transformed:
        """Return a data set for PyTorch's DataLoader: (transform(image), label), the image an RGB PIL image."""
        return Transformed(self, transform)

    @property
    def data_name(self) -> str:
        """The DATA string that names this source in results."""
        return f"{self.name}:{self.split}" if self.spec is None else str(self.spec)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def is_multi_label(self) -> bool:
        return self.labels.ndim == 2

    def read(self, index: int) -> Picture:
        """Return one image, not yet decoded where it is a file."""
        if self.images is None:
            raise NotImplementedError
        return self.images[index]

    def render(self, indices: np.ndarray) -> np.ndarray | None:
        """Return generated images as a batch, uint8 (images, height, width, channels); None for other sources."""
        return None

    def where(self, index: int) -> str:
        """Say which image this is, for messages: a path where there is one."""
        return f"{self.name}:{self.split}, image {index}"

    def identity(self, index: int) -> str:
        """Return a text that is the same for the same image in two sources."""
        return os.path.abspath(self.where(index))

    def content_keys(self) -> list[str] | None:
        """Return a text for each image that changes when its file does; None for images in no file."""
        return None


class Files(Source):
    """Images in files."""

    def __init__(
        self,
        name: str,
        split: str,
        class_names: tuple[str, ...],
        labels: np.ndarray,
        paths: list[str],
        notes: Sequence[Note] = (),
    ) -> None:
        self.name, self.split, self.class_names = name, split, class_names
        self.labels, self.paths, self.notes = labels, paths, tuple(notes)

    def read(self, index: int) -> Picture:
        return self.paths[index]

    def where(self, index: int) -> str:
        return self.paths[index]

    def content_keys(self) -> list[str]:
        # Threads wait for a network's disk together; chunks, because a file at a time would cost more than it waits.
        chunks = [self.paths[start : start + 1000] for start in range(0, len(self.paths), 1000)]
        with ThreadPoolExecutor(16) as pool:
            return [
                key for keys in pool.map(lambda paths: list(map(file_key, paths)), chunks) for key in keys
            ]


class Subset(Source):
    """Some images of a source, in a given order."""

    def __init__(self, source: Source, indices: np.ndarray) -> None:
        self.source = source
        self.indices = indices
        self.name, self.split, self.class_names = source.name, source.split, source.class_names
        self.labels, self.notes, self.faults = source.labels[indices], source.notes, source.faults
        self.images = None if source.images is None else source.images[indices]
        self.may_change = source.may_change

    def read(self, index: int) -> Picture:
        return self.source.read(int(self.indices[index]))

    def render(self, indices: np.ndarray) -> np.ndarray | None:
        return self.source.render(self.indices[indices])

    def where(self, index: int) -> str:
        return self.source.where(int(self.indices[index]))

    def identity(self, index: int) -> str:
        return self.source.identity(int(self.indices[index]))

    def content_keys(self) -> list[str] | None:
        keys = self.source.content_keys()
        return None if keys is None else [keys[index] for index in self.indices]


class Transformed(Dataset[tuple[Any, Any]]):
    """A source as PyTorch's data sets are: what a transform makes of each image, with its label."""

    def __init__(self, source: Source, transform: Callable[[Any], Any]) -> None:
        self.source, self.transform = source, transform
        self.classes, self.targets = list(source.class_names), source.labels

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        from PIL import Image

        pixels, label = self.source[index]
        return self.transform(Image.fromarray(pixels.permute(1, 2, 0).numpy())), label


def fingerprint(source: Source, *, labelled: bool = True) -> str:
    """Return a text that is the same for the same images, and changes when one of them, or their order, does.

    Files are known by place, size and time, images in memory by their pixels, others by the settings of their source.
    labelled: whether labels and names of classes count too.
    """
    digest = hashlib.blake2b(digest_size=16)
    keys = source.content_keys()
    if keys is not None:
        for key in keys:
            digest.update(key.encode("utf-8", "surrogateescape") + b"\n")
    elif source.images is not None:
        digest.update(repr(source.images.shape).encode())
        digest.update(np.ascontiguousarray(source.images).data)
    else:  # generated, or in a library's own store
        inner, indices = source, np.arange(len(source))
        while isinstance(inner, Subset):
            indices = inner.indices[indices]
            inner = inner.source
        digest.update(_settings(inner).encode() + indices.tobytes())
        digest.update(np.ascontiguousarray(source.labels).tobytes())
    if labelled:
        digest.update(json.dumps(source.class_names).encode())
        digest.update(np.ascontiguousarray(source.labels).tobytes())
    return digest.hexdigest()


def read_picture(source: Source, index: int) -> Picture:
    """Return one image of a source; whatever goes wrong is an InputError: a disk that fails, a source's own reader."""
    try:
        return source.read(index)
    except InputError:
        raise
    except Exception as error:
        raise InputError(first_line(error)) from error


def image_keys(source: Source) -> np.ndarray:
    """Return 16 bytes for each image that change when it does, wherever the image stands: uint64 (images, 2).

    Files are known by place, size and time, images in memory by their pixels, generated ones by the settings of their
    source and their number, others by the bytes that are read. An unreadable image has a key that no other has.
    """
    if (names := source.content_keys()) is not None:
        contents: Iterable[bytes] = (name.encode("utf-8", "surrogateescape") for name in names)
    elif source.images is not None:
        shape = repr(source.images.shape[1:]).encode()
        contents = (shape + image.tobytes() for image in source.images)
    else:
        inner, indices = source, np.arange(len(source))
        while isinstance(inner, Subset):
            indices = inner.indices[indices]
            inner = inner.source
        if type(inner).render is not Source.render:
            settings = f"{_settings(inner)} {len(inner)}"
            pairs = zip(indices.tolist(), np.ascontiguousarray(source.labels), strict=True)
            contents = (f"{settings} {number} {label.tolist()}".encode() for number, label in pairs)
        else:
            contents = (_content(source, index) for index in range(len(source)))
    digests = b"".join(hashlib.blake2b(content, digest_size=16).digest() for content in contents)
    return np.frombuffer(digests, np.uint64).reshape(-1, 2)


def _content(source: Source, index: int) -> bytes:
    try:
        picture = read_picture(source, index)
        if isinstance(picture, np.ndarray):
            return repr(picture.shape).encode() + picture.tobytes()
        return picture if isinstance(picture, bytes) else read_file(picture)
    except InputError:
        return os.urandom(16)


def _settings(source: Source) -> str:
    """Return what tells a generated source, or one in a library's own store, from others."""
    settings = {
        name: value
        for name, value in vars(source).items()
        if isinstance(value, str | int) and not isinstance(value, bool)
    }
    return repr((type(source).__name__, sorted(settings.items())))


def take(source: Source, spec: DataSpec) -> Source:
    """Return the part of a source that a spec's slice and shots ask for."""
    indices = np.arange(len(source))
    if spec.start is not None or spec.stop is not None:
        is_spread = spec.seed is not None and spec.shots is None
        order = spread_order(source.labels, spec.seed or 0) if is_spread else indices
        for end in (spec.start, spec.stop):
            if end and not end.endswith("%") and int(end) > len(source):
                raise InputError(
                    f"data spec '{spec}' asks for image {int(end):,}; {source.name}:{source.split} has {len(source):,}"
                )
        places = slice(_place(spec.start, len(source), 0), _place(spec.stop, len(source), len(source)))
        indices = np.sort(order[places])
    if spec.shots is not None:
        labels, names = source.labels[indices], source.class_names
        advice = f"; upto{spec.shots} takes what there is"
        indices = indices[
            choose_shots(labels, spec.shots, spec.seed or 0, names, spec.takes_fewer, advice=advice)
        ]
    if len(indices) == len(source):
        return source
    if not len(indices):
        raise InputError(f"data spec '{spec}' selects none of the {len(source)} images")
    part = Subset(source, indices)
    lost = int(np.count_nonzero(_present(source) & ~_present(part)))
    if lost:
        text = f"'{spec}' has no image of {lost} of the {source.num_classes} classes"
        part.notes += (Note(text, "warning"),)
    return part


def shared_images(one: Source, other: Source) -> int:
    """Return how many images two sources have in common, by where they are."""
    # Two data sets of PyTorch may have one name: that of their class.
    if one.name == other.name and "all" in (one.split, other.split) and not one.name.startswith(TORCH):
        return min(len(one), len(other))
    small, large = sorted((one, other), key=len)
    places = {small.identity(index) for index in range(len(small))}
    return sum(large.identity(index) in places for index in range(len(large)))


def match_classes(source: Source, classes: Sequence[str]) -> Source:
    """Return the source with its labels as places in `classes`, matched by name and never by position."""
    names = tuple(classes)
    if names == source.class_names:
        return source
    place = {name: number for number, name in enumerate(names)}
    if len(place) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"two classes are named {twice!r}, so that labels can't be matched by name")
    present = _present(source)
    for name, has_images in zip(source.class_names, present, strict=True):
        if has_images and name not in place:
            shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            hint = did_you_mean(name, names) or ";"
            raise InputError(
                f"{source.name}:{source.split} has class {name!r}, which is none of the {len(names)} expected{hint} "
                f"classes are matched by name: {shown}"
            )
    numbers = np.array([place.get(name, -1) for name in source.class_names], np.int64)
    if source.is_multi_label:
        labels = np.zeros((len(source), len(names)), bool)
        labels[:, numbers[present]] = source.labels[:, present]
    else:
        labels = numbers[source.labels]
    matched = copy.copy(source)
    matched.labels, matched.class_names = labels, names
    absent = len(names) - int(present.sum())
    if absent:
        text = f"{source.name}: no image of {absent} of the {len(names)} classes"
        matched.notes += (Note(text, "data"),)
    return matched


def count_classes(source: Source) -> np.ndarray:
    """Return the number of images of each class: (classes,)."""
    if source.is_multi_label:
        return np.asarray(source.labels.sum(0))
    return np.bincount(source.labels, minlength=source.num_classes)


def spread(length: int, most: int) -> np.ndarray:
    """Return up to `most` of the places 0 to length - 1, evenly spread."""
    return np.arange(length) if length <= most else np.arange(most) * length // most


def _present(source: Source) -> np.ndarray:
    """Return which classes have images: bool (classes,)."""
    return count_classes(source) > 0


def choose_shots(
    labels: np.ndarray,
    shots: int,
    seed: int,
    class_names: Sequence[str],
    takes_fewer: bool = False,
    *,
    unreadable: Collection[int] = (),
    advice: str = "",
) -> np.ndarray:
    """Return the indices of `shots` images of each class, by big_vision's rule: per class, the first of a permutation.

    takes_fewer: whether a class with fewer images gives all that it has; otherwise it is an error, which ends in `advice`.
    unreadable: images that are passed over; a class of which all are is skipped.
    """
    if labels.ndim != 1:
        raise InputError("shots need one label per image")
    generator = np.random.default_rng(seed)
    chosen = []
    for number, name in enumerate(class_names):
        order = generator.permutation(np.flatnonzero(labels == number))
        members = order[~np.isin(order, [*unreadable])] if unreadable else order
        if len(order) and not len(members):
            continue
        if len(members) < shots and not takes_fewer:
            word = "readable image" if len(members) < len(order) else "image"
            count = f"{len(members)} {word}{'' if len(members) == 1 else 's'}"
            raise InputError(f"{shots}shot: class {name!r} has only {count}{advice}")
        chosen.append(members[:shots])
    return np.concatenate(chosen)


def spread_order(labels: np.ndarray, seed: int) -> np.ndarray:
    """Return a random order in which every stretch holds each class by its share, as far as counts allow."""
    order = np.random.default_rng(seed).permutation(len(labels))
    if labels.ndim != 1:
        return order
    by_class = order[np.argsort(labels[order], kind="stable")]
    counts = np.bincount(labels)
    within = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return by_class[np.argsort((within + 0.5) / np.repeat(counts, counts), kind="stable")]


def stratified_split(labels: np.ndarray, hashes: np.ndarray, share: float) -> np.ndarray:
    """Return a mask of the images to hold out: of each class the `share` with the smallest content hashes.

    At least one image of a class with two or more is held out, and at least one stays. Copies of an image count once
    and are held out together; an image that several classes hold stays.
    """
    order = np.lexsort((labels, hashes))
    distinct = np.ones(len(order), bool)
    distinct[1:] = (np.diff(hashes[order]) != 0) | (np.diff(labels[order]) != 0)
    order = order[distinct]  # one image for each pair of hash and label, by hash
    _, places, counts = np.unique(hashes[order], return_inverse=True, return_counts=True)
    shared = counts[places] > 1
    held = []
    for number in np.unique(labels):
        members = labels[order] == number
        count = min(members.sum() - 1, max(1, math.floor(share * members.sum() + 0.5)))
        held.append(order[members & ~shared][:count])
    return np.isin(hashes, hashes[np.concatenate([*held, []]).astype(np.int64)])


def _place(end: str | None, length: int, default: int) -> int:
    if end is None:
        return default
    if end.endswith("%"):
        return length * int(end[:-1]) // 100
    return int(end)
