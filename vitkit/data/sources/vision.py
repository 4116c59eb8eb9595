"""torchvision's data sets by name: one table says what each is called there and how its images are found."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitkit.data.cache import cache_folder
from vitkit.data.sources.files import is_offline
from vitkit.data.sources.labels import say_classes
from vitkit.data.sources.source import Absent, Files, Picture, Source, file_key
from vitkit.data.spec import DataSpec
from vitkit.data.splits import MADE, Default, choose_split, make_split
from vitkit.errors import InputError, first_line
from vitkit.notes import Note


class Content(NamedTuple):
    """What torchvision's object holds: files, or pixels uint8 (images, height, width, channels)."""

    images: list[str] | np.ndarray
    labels: Any
    class_names: tuple[str, ...]


def _pixels(data: Any) -> Content:
    return Content(data.data, data.targets, tuple(data.classes))


def _grey(data: Any) -> Content:
    images = np.repeat(data.data.numpy()[..., None], 3, axis=-1)
    return Content(images, data.targets.numpy(), tuple(data.classes))


def _planes(data: Any) -> Content:
    names = getattr(data, "classes", "0123456789")  # SVHN names none
    return Content(np.ascontiguousarray(data.data.transpose(0, 2, 3, 1)), data.labels, tuple(names))


def _files(data: Any) -> Content:
    return Content([os.fspath(path) for path in data._image_files], data._labels, tuple(data.classes))


def _sorted_files(data: Any) -> Content:
    """The order of SUN397's files is the file system's."""
    files = sorted(zip(map(os.fspath, data._image_files), data._labels, strict=True))
    return Content([path for path, _ in files], [label for _, label in files], tuple(data.classes))


def _pets(data: Any) -> Content:
    return Content([os.fspath(path) for path in data._images], data._labels, tuple(data.classes))


def _samples(data: Any) -> Content:
    names = getattr(data, "wnids", data.classes)  # ImageNet's own names are not unique, its WordNet ids are
    return Content([path for path, _ in data.samples], [label for _, label in data.samples], tuple(names))


def _signs(data: Any) -> Content:
    names = tuple(map(str, range(43)))
    return Content([path for path, _ in data._samples], [label for _, label in data._samples], names)


def _caltech(data: Any) -> Content:
    folder = Path(data.root, "101_ObjectCategories")
    numbers = zip(data.y, data.index, strict=True)
    paths = [str(folder / data.categories[label] / f"image_{number:04d}.jpg") for label, number in numbers]
    return Content(paths, data.y, tuple(data.categories))


class Place(NamedTuple):
    """Where torchvision is told that a data set is, and how paths there are really called."""

    root: Path
    link: str = ""
    "A link that is gone once the data set is open; empty where there is none."
    target: str = ""

    def named(self, text: str) -> str:
        return text.replace(self.link, self.target) if self.link else text


Arguments = Mapping[str, str | bool]
"What torchvision's class takes: split='test', or train=False."


@dataclass(frozen=True)
class DataSet:
    """A row of the table."""

    kind: str
    "Its class in torchvision.datasets."
    splits: dict[str, Arguments]
    "Our name of each split -> torchvision's arguments; none where torchvision has no splits, and one is made."
    size: str
    "What a download takes; empty where torchvision can't."
    content: Callable[[Any], Content] | None
    "Where its object keeps images, labels and names; None for PCAM, which is read from its HDF5 files."
    folder: str = ""
    "The folder that torchvision looks for in its root; empty where it looks in the root itself."
    holds: tuple[str, ...] = ()
    "What shows that a folder is this one, whatever its name: some of what it holds."


_TRAIN_TEST: dict[str, Arguments] = {"train": {"split": "train"}, "test": {"split": "test"}}
_THREE: dict[str, Arguments] = {
    "train": {"split": "train"},
    "val": {"split": "val"},
    "test": {"split": "test"},
}
_FLAG: dict[str, Arguments] = {"train": {"train": True}, "test": {"train": False}}

_MNIST = ("train-images-idx3-ubyte", "t10k-images-idx3-ubyte")

DATA_SETS: dict[str, DataSet] = {
    "aircraft": DataSet(
        "FGVCAircraft",
        {**_THREE, "trainval": {"split": "trainval"}},
        "2.8 GB",
        _files,
        "fgvc-aircraft-2013b",
        ("data",),
    ),
    "caltech101": DataSet(
        "Caltech101", {}, "140 MB", _caltech, "caltech101/101_ObjectCategories", ("ant", "Faces")
    ),
    "cifar10": DataSet(
        "CIFAR10", _FLAG, "170 MB", _pixels, "cifar-10-batches-py", ("data_batch_1", "test_batch")
    ),
    "cifar100": DataSet("CIFAR100", _FLAG, "170 MB", _pixels, "cifar-100-python", ("train", "test", "meta")),
    "dtd": DataSet("DTD", _THREE, "600 MB", _files, "dtd/dtd", ("images", "labels")),
    "eurosat": DataSet("EuroSAT", {}, "90 MB", _samples, "eurosat/2750", ("Forest", "River")),
    "fashion_mnist": DataSet("FashionMNIST", _FLAG, "30 MB", _grey, "FashionMNIST/raw", _MNIST),
    "flowers102": DataSet(
        "Flowers102", _THREE, "350 MB", _files, "flowers-102", ("jpg", "imagelabels.mat", "setid.mat")
    ),
    "food101": DataSet("Food101", _TRAIN_TEST, "5 GB", _files, "food-101", ("images", "meta")),
    "gtsrb": DataSet("GTSRB", _TRAIN_TEST, "280 MB", _signs, "gtsrb", ("GTSRB",)),
    "imagenet": DataSet("ImageNet", {"train": {"split": "train"}, "val": {"split": "val"}}, "", _samples),
    "mnist": DataSet("MNIST", _FLAG, "12 MB", _grey, "MNIST/raw", _MNIST),
    "pcam": DataSet(
        "PCAM",
        _THREE,
        "7 GB",
        None,
        "pcam",
        ("camelyonpatch_level_2_split_test_x.h5", "camelyonpatch_level_2_split_test_y.h5"),
    ),
    "pets": DataSet(
        "OxfordIIITPet",
        {"train": {"split": "trainval"}, "test": {"split": "test"}},
        "800 MB",
        _pets,
        "oxford-iiit-pet",
        ("images", "annotations"),
    ),
    "stl10": DataSet("STL10", _TRAIN_TEST, "2.6 GB", _planes, "stl10_binary", ("train_X.bin", "test_X.bin")),
    "sun397": DataSet("SUN397", {}, "37 GB", _sorted_files, "SUN397", ("ClassName.txt",)),
    "svhn": DataSet(
        "SVHN",
        {**_TRAIN_TEST, "extra": {"split": "extra"}},
        "250 MB, extra 1.3 GB",
        _planes,
        holds=("train_32x32.mat", "test_32x32.mat"),
    ),
}


# torchvision's classes that hold all they know of their images, and where.
CONTENTS: dict[str, Callable[[Any], Content]] = {
    row.kind: row.content for row in DATA_SETS.values() if row.content is not None
} | {"ImageFolder": _samples}


class Pixels(Source):
    """Images that torchvision keeps in memory."""

    def __init__(
        self, name: str, split: str, class_names: tuple[str, ...], labels: np.ndarray, images: np.ndarray
    ) -> None:
        self.name, self.split, self.class_names = name, split, class_names
        self.labels, self.images = labels, images


class Patches(Source):
    """PCAM's images, read one by one from HDF5 files."""

    class_names = ("normal", "tumor")

    def __init__(self, name: str, split: str, parts: list[Any], place: Place) -> None:
        import h5py

        self.name, self.split = name, split
        self.files: list[str] = []
        starts, labels = [0], []
        for part in parts:
            files = part._FILES[part._split]
            with h5py.File(part._base_folder / files["targets"][0]) as file:
                labels.append(file["y"][:].reshape(-1).astype(np.int64))
            self.files.append(place.named(str(part._base_folder / files["images"][0])))
            starts.append(starts[-1] + len(labels[-1]))
        self.starts = np.array(starts)
        self.labels = np.concatenate(labels)

    def read(self, index: int) -> Picture:
        import h5py

        part = int(np.searchsorted(self.starts, index, side="right")) - 1
        with h5py.File(self.files[part]) as file:
            return file["x"][index - self.starts[part]]

    def content_keys(self) -> list[str]:
        counts = zip(map(file_key, self.files), np.diff(self.starts), strict=True)
        return [f"{key}\0{row}" for key, count in counts for row in range(count)]


def open_vision(spec: DataSpec, default: Default) -> Source:
    """Return one of torchvision's data sets; it is downloaded only if the spec says so."""
    name, row = spec.source, DATA_SETS[spec.source]
    split, notes = choose_split(list(row.splits or MADE), spec.split, default, name)
    chosen = [{}] if not row.splits else [row.splits[split]] if split != "all" else _every(row)
    with _laid_out(_root(spec), row) as place:
        parts = [_load(spec, row, arguments, place) for arguments in chosen]
        source = (
            Patches(name, split, parts, place)
            if row.content is None
            else _join(name, split, list(map(row.content, parts)), place)
        )
    low, high = source.labels.min(initial=0), source.labels.max(initial=0)
    if low < 0 or high >= source.num_classes:
        raise InputError(f"{name} has labels {low} to {high}; expected 0 to {source.num_classes - 1}")
    source.notes = (*notes, say_classes(name, source.class_names, "in torchvision's order"))
    if row.splits:
        return source
    made = make_split(source, split, str(_root(spec) / name))
    if made is not source:
        made.notes += (Note(f"{name}: this split is vitkit's own; there is no official one", "data"),)
    return made


def _every(row: DataSet) -> list[Arguments]:
    return [arguments for split, arguments in row.splits.items() if split != "trainval"]


def _join(name: str, split: str, parts: list[Content], place: Place) -> Source:
    labels = np.concatenate([np.asarray(part.labels, np.int64) for part in parts])
    class_names = parts[0].class_names
    if isinstance(parts[0].images, np.ndarray):
        images = np.concatenate([np.asarray(part.images) for part in parts])
        return Pixels(name, split, class_names, labels, images)
    return Files(
        name, split, class_names, labels, [place.named(path) for part in parts for path in part.images]
    )


@contextmanager
def _laid_out(root: Path, row: DataSet) -> Iterator[Place]:
    """Yield the data where torchvision finds it, as people unpack it: the folder by any name, or with fewer above it."""
    parts = Path(row.folder).parts
    for skipped in range(len(parts) + 1):
        folder = root.joinpath(*parts[skipped:])
        if parts and all((folder / name).exists() for name in row.holds):
            whole = folder.absolute()
            if whole.parts[-len(parts) :] == parts:
                yield Place(whole.parents[len(parts) - 1] if skipped else root)
                return
            with tempfile.TemporaryDirectory() as above:
                link = Path(above, row.folder)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(whole)
                yield Place(Path(above), str(link), str(folder))
            return
    yield Place(root)


def _load(spec: DataSpec, row: DataSet, arguments: Arguments, place: Place) -> Any:
    """Return torchvision's object for a split."""
    from torchvision import datasets

    root = _root(spec)
    if spec.download and not row.size:
        raise InputError(f"{spec.source} can't be downloaded; {_advice(spec, row)}")
    downloads = spec.download and not is_offline() and not place.link
    missing = f"{spec.source} is not in {root}: {_layout(root, row)}; {_advice(spec, row)}"
    if spec.download and is_offline():
        missing = (
            f"{spec.source} is not in {root}, and HF_HUB_OFFLINE is set, so nothing is downloaded: unset it"
        )
    if not downloads and not root.is_dir():
        raise Absent(missing)
    if downloads:
        root.mkdir(parents=True, exist_ok=True)
        arguments = {**arguments, "download": True}
    try:
        with redirect_stdout(sys.stderr):
            return getattr(datasets, row.kind)(place.root, **arguments)
    except Exception as error:  # torchvision's readers and downloads raise all kinds
        gone = error.filename if isinstance(error, FileNotFoundError) else None
        cause = place.named(f"'{gone}' is missing" if gone else first_line(error))
        is_missing = any(words in cause for words in ("Dataset not found", "not present in the root"))
        if is_missing and not downloads:
            raise Absent(missing) from error
        raise InputError(f"cannot open {spec.source} in {root}: {cause}") from error


def _layout(root: Path, row: DataSet) -> str:
    """Return what was looked for in a root."""
    if not row.holds:
        return "expected train and val with a folder for each class, and meta.bin"
    if not row.folder:
        return f"expected {root / row.holds[0]}"
    held = " and ".join([", ".join(row.holds[:-1]), row.holds[-1]] if len(row.holds) > 1 else row.holds)
    return f"expected {root / row.folder}/ with {held}, or these in {root} itself"


def _root(spec: DataSpec) -> Path:
    return Path(spec.root).expanduser() if spec.root else cache_folder() / "data"


def _advice(spec: DataSpec, row: DataSet) -> str:
    if not row.size:
        return "put ImageNet's own archives into root=FOLDER, or open a folder of it as './imagenet:val'"
    return f"add [download=true] to fetch it ({row.size}), or say where it is: [root=FOLDER]"
