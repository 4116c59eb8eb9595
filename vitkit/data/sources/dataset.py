"""PyTorch's map-style data sets as sources, and sources as what PyTorch's DataLoader takes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import numpy as np
import torch

from vitkit.data.images import to_pixels
from vitkit.data.sources.labels import Label, name_classes, number_labels, say_classes
from vitkit.data.sources.source import Files, Picture, Source, Subset
from vitkit.data.sources.vision import CONTENTS, Pixels
from vitkit.data.spec import TORCH, DataSpec
from vitkit.data.splits import WORDS
from vitkit.errors import CannotRead, InputError, first_line
from vitkit.notes import Note

PAIR = "expected (image, label), the image a PIL image, an array or a tensor"
# Where data sets state their labels, and the names of their classes.
LABELS, NAMES = ("targets", "labels"), ("wnids", "classes")


class MapDataset(Protocol):
    """What torch.utils.data.Dataset is, map-style: a length, and (image, label) by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def is_dataset(data: object) -> bool:
    """Return whether this is a data set of PyTorch's kind; torch need not be there to know."""
    known = str | bytes | os.PathLike | Source | DataSpec | Sequence | Mapping | np.ndarray
    return hasattr(type(data), "__getitem__") and not isinstance(data, known)


def open_dataset(data: Any, progress: Callable[[int, int], None] | None = None) -> Source:
    """Return a map-style data set as a source: what its class name, labels and names of classes say of it.

    torchvision's own, without transforms, are read from their files or pixels. Of others nothing computed is kept, since
    what they return may differ from one time to the next. The source's spec ends in a digest, so that runs and results
    tell two data sets of one class apart.
    """
    name = TORCH + type(data).__name__
    if not hasattr(type(data), "__len__"):
        raise InputError(f"{name} has no length; expected a map-style data set, with __len__ and __getitem__")
    if not len(data):
        raise InputError(f"{name} has no images")
    split = _split(data)
    with _same_draws():
        source = (
            _of_subset(data) or _of_torchvision(data, name, split) or _wrapped(data, name, split, progress)
        )
        own_name = f"{source.name}-{_digest(source)}"
    source.spec = DataSpec(own_name, None if source.split == "all" else source.split)
    return source


def _digest(source: Source) -> str:
    """Return a short text that another data set does not have: of its labels, classes and some images."""
    from vitkit.data.decode import read_pixels  # torchvision

    digest = hashlib.blake2b(json.dumps(source.class_names).encode(), digest_size=4)
    digest.update(repr(source.labels.shape).encode() + np.ascontiguousarray(source.labels).tobytes())
    for index in _some(len(source)):
        with suppress(InputError):  # an unreadable image says nothing
            pixels = read_pixels(source, index)
            digest.update(repr(pixels.shape).encode() + pixels.numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def _same_draws() -> Iterator[None]:
    """Let a transform's random choices be the same each time, and leave all generators as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            np.random.seed(0)
            random.seed(0)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _some(length: int) -> list[int]:
    """Return the places of the first, the middle and the last image."""
    return sorted({0, length // 2, length - 1})


# The threads that read images take turns: PyTorch runs data sets in processes, so that they need not allow for threads.
# A data set may read another, in the same turn.
_turn = threading.RLock()


def _renew() -> None:
    global _turn
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):  # the thread whose turn it is, is not in a child
    os.register_at_fork(after_in_child=_renew)


class Wrapped(Source):
    """Images that a data set returns, each time it is asked."""

    may_change = True

    def __init__(
        self, data: Any, name: str, split: str, class_names: tuple[str, ...], labels: np.ndarray
    ) -> None:
        self.data, self.name, self.split = data, name, split
        self.class_names, self.labels = class_names, labels

    def read(self, index: int) -> Picture:
        return to_pixels(_pair(self.data, index, self.name)[0])

    def where(self, index: int) -> str:
        return _where(self.name, index)

    def identity(self, index: int) -> str:
        return f"{self.name} {id(self.data)} {index}"


def _where(name: str, index: int) -> str:
    return f"{name}, image {index}"


def _pair(data: Any, index: int, name: str) -> tuple[Any, Any]:
    """Return an image and its label; whatever goes wrong is an InputError."""
    try:
        with _turn:
            item = data[index]
    except Exception as error:  # the user's own code
        words = f"{type(error).__name__}: {first_line(error)}"
        raise CannotRead(_where(name, index), words) from error
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise InputError(f"{_where(name, index)} is a {type(item).__name__}; {PAIR}")
    return item[0], item[1]


def _split(data: Any) -> str:
    """Return the split that a data set says it is; 'all' where it says nothing."""
    stated = getattr(data, "split", None)
    if isinstance(stated, str) and stated:
        return WORDS.get(stated, stated)
    is_train = getattr(data, "train", None)
    return "all" if not isinstance(is_train, bool) else "train" if is_train else "test"


def _of_subset(data: Any) -> Source | None:
    """Return a part, as random_split makes it, of a data set that states its labels."""
    if type(data).__name__ != "Subset" or not type(data).__module__.startswith("torch.utils.data"):
        return None
    if _stated_labels(data.dataset) is None:
        return None
    return Subset(open_dataset(data.dataset), np.asarray(data.indices, np.int64))


def _of_torchvision(data: Any, name: str, split: str) -> Source | None:
    """Return what one of torchvision's own data sets holds, where no transform changes it."""
    kind = type(data)
    content = CONTENTS.get(kind.__name__) if kind.__module__.startswith("torchvision.datasets") else None
    if content is None or data.transforms is not None or not _has_plain_loader(data):
        return None
    images, found, class_names = content(data)
    labels = np.asarray(found, np.int64)
    if not _agree(_samples(data, name), labels, name):
        return None
    source: Source
    if isinstance(images, np.ndarray):
        source = Pixels(name, split, class_names, labels, images)
    else:
        source = Files(name, split, class_names, labels, list(images))
    source.notes = (say_classes(name, class_names, "in torchvision's order"),)
    return source


def _has_plain_loader(data: Any) -> bool:
    """Return whether images are read in the usual way, as far as a data set says."""
    loader = getattr(data, "loader", None)
    return loader is None or (loader.__module__, loader.__name__) == (
        "torchvision.datasets.folder",
        "default_loader",
    )


def _wrapped(data: Any, name: str, split: str, progress: Callable[[int, int], None] | None) -> Source:
    samples = _samples(data, name)
    for index, (image, _) in samples.items():
        try:  # before anything is computed: what is wrong with one is mostly wrong with all
            to_pixels(image)
        except InputError as error:
            raise InputError(f"{_where(name, index)}: {error}") from error
    notes = []
    found = _stated_labels(data)
    if found is None or not _agree(samples, found, name):
        found = []
        for index in range(len(data)):
            found.append(_label(_pair(data, index, name)[1], _where(name, index)))
            if progress:
                progress(index + 1, len(data))
        text = f"{name}: read each of {len(data):,} images for its label; an attribute `targets` would make that unnecessary"
        notes.append(Note(text, "data"))
    class_names = next(filter(None, (_names(getattr(data, where, None)) for where in NAMES)), None)
    order = "in the data set's order" if class_names else None
    if all(isinstance(label, tuple) for label in found):
        labels = _matrix(found, name)
        class_names = class_names or tuple(map(str, range(labels.shape[1])))
        if len(class_names) != labels.shape[1]:
            raise InputError(f"{name} has labels of {labels.shape[1]} classes, and names {len(class_names)}")
    else:
        class_names = class_names or name_classes(found)
        labels = number_labels(found, class_names, lambda index: f"{_where(name, index)},", name)
    source = Wrapped(data, name, split, class_names, labels)
    source.notes = (*notes, say_classes(name, class_names, order))
    return source


def _stated_labels(data: Any) -> Any:
    """Return the labels that an attribute holds, one for each image; None where there are none, or others are returned."""
    if getattr(data, "target_transform", None) is not None:
        return None
    for name in LABELS:
        stated = getattr(data, name, None)
        if stated is None:
            continue
        try:
            values = np.asarray(stated)
        except Exception:  # an attribute of that name may be anything
            continue
        if len(values.shape) == 1 and len(values) == len(data) and values.dtype.kind in "biuU":
            return values.tolist()
    return None


def _samples(data: Any, name: str) -> dict[int, tuple[Any, Any]]:
    """Return the first, the middle and the last image with their labels, except those that can't be read."""
    found, failed = {}, []
    for index in _some(len(data)):
        try:
            found[index] = _pair(data, index, name)
        except InputError as error:
            failed.append(error)
    if not found:
        raise failed[0]
    return found


def _agree(samples: dict[int, tuple[Any, Any]], labels: Sequence[Label] | np.ndarray, name: str) -> bool:
    """Return whether some images come with the labels that are stated."""
    return all(_label(label, _where(name, index)) == labels[index] for index, (_, label) in samples.items())


def _label(value: Any, where: str) -> Any:
    """Return a label as a number, a text, or a tuple of booleans."""
    if isinstance(value, str):
        return value
    try:
        values = np.asarray(value)
    except Exception:
        values = np.empty(0, object)
    if not values.shape and values.dtype.kind in "biu":
        return int(values)
    if (
        len(values.shape) == 1
        and len(values)
        and values.dtype.kind in "biuf"
        and np.isin(values, (0, 1)).all()
    ):
        return tuple(map(bool, values))
    shown = repr(value) if isinstance(value, float) else f"a {type(value).__name__}"
    raise InputError(f"{where}, has label {shown}; expected a whole number, a text, or a vector of 0 and 1")


def _matrix(labels: Sequence[tuple[bool, ...]], name: str) -> np.ndarray:
    if len(lengths := {len(label) for label in labels}) > 1:
        low, high = min(lengths), max(lengths)
        raise InputError(f"{name} has labels of {low} to {high} values; expected one for each class in all")
    return np.array(labels, bool)


def _names(stated: Any) -> tuple[str, ...] | None:
    """Return names of classes where that is what an attribute holds: texts, each once."""
    if not isinstance(stated, list | tuple) or not all(isinstance(name, str) for name in stated):
        return None
    return tuple(stated) if stated and len(set(stated)) == len(stated) else None
