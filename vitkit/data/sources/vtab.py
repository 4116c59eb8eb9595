"""VTAB-1k: a table of its 19 tasks, and their images, from shared lists or cut from raw data by VTAB's rules."""

from __future__ import annotations

import bisect
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from vitkit.data.cache import cache_folder
from vitkit.data.draws import Shuffle
from vitkit.data.sources.source import Absent, Files, Source, Subset
from vitkit.data.sources.vision import open_vision
from vitkit.data.spec import VTAB, DataSpec
from vitkit.data.splits import Default
from vitkit.errors import InputError, did_you_mean
from vitkit.files import read_text
from vitkit.notes import Note

UNOFFICIAL = "not the official images"
_WHOLE = re.compile(r"-?[0-9]{1,9}")
CALTECH_SHOTS = 30
"Training images of each class of Caltech101; the rest is its test part."
Group = Literal["Natural", "Specialized", "Structured"]
Stored = Literal["train", "validation", "test"]

# Name of each split -> its images; test is the task's own.
TRAINING = {"train800": 800, "val200": 200, "train800val200": 1000}
SPLITS = (*TRAINING, "test")


class Cut(NamedTuple):
    """Which stored parts of the raw data val and test are cut from; train is always the first of the stored train."""

    val: Stored
    test: Stored


THREE = Cut("validation", "test")
HELD_OUT = Cut("train", "test")
CLEVR = Cut("train", "validation")  # its stored test has no labels
ONE = Cut("train", "train")
HALVES = Cut("test", "test")


@dataclass(frozen=True)
class Task:
    """A row of the table."""

    title: str
    group: Group
    num_classes: int
    sizes: tuple[int, int, int]
    "Images of the full train, val and test splits."
    cut: Cut
    image: tuple[int, int] | None = None
    "Height and width of its images, where all have one size."
    folder: str = ""
    "Its name in the folders that people share, where it isn't ours."
    flip: bool = True
    "Whether training may mirror images: not where left and right are the answer."
    crop: bool = True
    "Whether training may cut images: not where what is cut off may be the answer."


TASKS: dict[str, Task] = {
    "caltech101": Task("Caltech101", "Natural", 102, (2754, 306, 6084), HELD_OUT),
    "cifar100": Task("CIFAR-100", "Natural", 100, (45000, 5000, 10000), HELD_OUT, (32, 32), "cifar"),
    "dtd": Task("DTD", "Natural", 47, (1880, 1880, 1880), THREE),
    "flowers102": Task("Flowers102", "Natural", 102, (1020, 1020, 6149), THREE, None, "oxford_flowers102"),
    "pets": Task("Pets", "Natural", 37, (2944, 736, 3669), HELD_OUT, None, "oxford_iiit_pet"),
    "sun397": Task("Sun397", "Natural", 397, (76128, 10875, 21750), THREE),
    "svhn": Task("SVHN", "Natural", 10, (65931, 7326, 26032), HELD_OUT, (32, 32)),
    "camelyon": Task("Camelyon", "Specialized", 2, (262144, 32768, 32768), THREE, (96, 96), "patch_camelyon"),
    "eurosat": Task("EuroSAT", "Specialized", 10, (16200, 5400, 5400), ONE, (64, 64)),
    "resisc45": Task("Resisc45", "Specialized", 45, (18900, 6300, 6300), ONE, (256, 256)),
    "retinopathy": Task(
        "Retinopathy", "Specialized", 5, (35126, 10906, 42670), THREE, None, "diabetic_retinopathy"
    ),
    "clevr_count": Task("Clevr-Count", "Structured", 8, (63000, 7000, 15000), CLEVR, crop=False),
    "clevr_dist": Task("Clevr-Dist", "Structured", 6, (63000, 7000, 15000), CLEVR, crop=False),
    "dmlab": Task("DMLab", "Structured", 6, (65550, 22628, 22735), THREE, (360, 480), crop=False),
    "dsprites_loc": Task(
        "dSpr-Loc", "Structured", 16, (589824, 73728, 73728), ONE, (64, 64), flip=False, crop=False
    ),
    "dsprites_ori": Task("dSpr-Ori", "Structured", 16, (589824, 73728, 73728), ONE, (64, 64), flip=False),
    "kitti": Task("KITTI-Dist", "Structured", 4, (6347, 423, 711), THREE, crop=False),
    "smallnorb_azi": Task(
        "sNORB-Azim", "Structured", 18, (24300, 12150, 12150), HALVES, (96, 96), flip=False
    ),
    "smallnorb_ele": Task("sNORB-Elev", "Structured", 9, (24300, 12150, 12150), HALVES, (96, 96)),
}


class Slice(NamedTuple):
    """Images of a stored part of the raw data, in its order."""

    part: Stored
    start: int
    stop: int


def slices(task: Task) -> dict[str, tuple[Slice, ...]]:
    """Return where each split of a task is in the stored parts of its raw data."""
    train, val, test = task.sizes
    first = train if task.cut.val == "train" else 0
    begin = (train if task.cut.test == "train" else 0) + (val if task.cut.test == task.cut.val else 0)
    train800, val200 = Slice("train", 0, 800), Slice(task.cut.val, first, first + 200)
    return {
        "train800": (train800,),
        "val200": (val200,),
        "train800val200": (train800, val200),
        "test": (Slice(task.cut.test, begin, begin + test),),
    }


def part_sizes(task: Task) -> Counter[Stored]:
    """Return how many images of each stored part a task's full splits take."""
    counts: Counter[Stored] = Counter()
    parts: tuple[Stored, ...] = ("train", *task.cut)
    for part, size in zip(parts, task.sizes, strict=True):
        counts[part] += size
    return counts


def find_task(name: str) -> str:
    """Return our name of a task, from it or from that of the folders that people share."""
    names = {**{task.folder: ours for ours, task in TASKS.items() if task.folder}, **{n: n for n in TASKS}}
    if name not in names:
        hint = did_you_mean(name, names) or f"; there are {', '.join(TASKS)}"
        raise InputError(f"VTAB has no task {name!r}{hint}")
    return names[name]


# A label is the number of the last of these that lies below the distance.
CLEVR_DEPTHS = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
KITTI_METRES = (-100.0, 8.0, 20.0, 999.0)
KITTI_VEHICLES = ("Car", "Van", "Truck")
NO_VEHICLE = 1000.0
CLEVR_FEWEST = 3
"Objects of the emptiest scene."


def clevr_count(num_objects: int) -> int:
    """Return Clevr-Count's label: scenes have 3 to 10 objects."""
    return num_objects - CLEVR_FEWEST


def clevr_distance(depths: Iterable[float]) -> int:
    """Return Clevr-Dist's label from the depths of all objects (`pixel_coords[2]`): the nearest counts."""
    return _last_below(CLEVR_DEPTHS, min(depths))


def kitti_distance(metres: Iterable[float]) -> int:
    """Return KITTI-Dist's label from the distances of cars, vans and trucks (`location[2]`); there may be none."""
    return _last_below(KITTI_METRES, min([*metres, NO_VEHICLE]))


def _last_below(thresholds: tuple[float, ...], distance: float) -> int:
    return bisect.bisect_left(thresholds, distance) - 1


def open_vtab(spec: DataSpec, default: Default) -> Source:
    """Return a split of a task; without one, train800val200 to train and test to measure."""
    try:
        return open_task(spec.source.removeprefix(VTAB), spec.split, _root(spec), default)[0]
    except Absent as error:
        raise error if spec.root else Absent(f"{error}; say where it is: [root=FOLDER]") from None


def list_vtab_splits(spec: DataSpec) -> list[str]:
    """Return the splits that a task has lists of, or that are cut from its raw data."""
    folder = find_lists(find_task(spec.source.removeprefix(VTAB)), _root(spec))
    return list(_present(folder) if folder else SPLITS)


def _root(spec: DataSpec) -> Path:
    return Path(spec.root).expanduser() if spec.root else cache_folder() / "data"


def open_task(
    name: str, split: str | None, root: str | os.PathLike[str], default: Default = "train"
) -> tuple[Source, bool]:
    """Return a split of a task in a folder, and whether its images are the official ones."""
    name, root = find_task(name), Path(root)
    task, shown, notes = TASKS[name], f"{VTAB}{name}", []
    folder = find_lists(name, root)
    splits = _present(folder) if folder else SPLITS
    if split is None:
        split = "train800val200" if default == "train" else "test"
        notes.append(Note(f"{shown}: using split {split!r}", "data"))
    elif split not in (*SPLITS, "all") or (folder and split != "all" and split not in splits):
        hint = did_you_mean(split, splits) or ";"
        raise InputError(f"{shown} has no split {split!r}{hint} it has {', '.join(splits)}, all")
    parts = ["train800val200", "test"] if split == "all" else [split]
    if folder:
        source, counts = _read_lists(folder, parts, task, shown)
        is_official = counts.get("test", task.sizes[2]) == task.sizes[2]
        if not is_official:
            text = f"test.txt names {counts['test']:,}, VTAB's test split has {task.sizes[2]:,}"
            notes.append(Note(f"{shown}: {UNOFFICIAL}: {text}", "data"))
    else:
        source, is_official = _derive(name, parts, root), False
        text = f"cut from the raw data in {root} by VTAB's rules, in an order of our own"
        notes.append(Note(f"{shown}: {UNOFFICIAL}: {text}", "data"))
    source.name, source.split, source.notes = shown, split, tuple(notes)
    return source, is_official


def find_lists(name: str, root: Path) -> Path | None:
    """Return the folder of a task's lists, under its shared name or ours."""
    for folder in filter(None, (TASKS[name].folder, name)):
        if _present(root / folder):
            return root / folder
    return None


def _present(folder: Path) -> tuple[str, ...]:
    """Return the splits that a folder has lists of; train800 and val200 make the third."""
    found = {split for split in SPLITS if (folder / f"{split}.txt").is_file()}
    if {"train800", "val200"} <= found:
        found.add("train800val200")
    return tuple(split for split in SPLITS if split in found)


def _read_lists(folder: Path, splits: Sequence[str], task: Task, shown: str) -> tuple[Source, dict[str, int]]:
    """Return the images of some splits, and how many each has."""
    counts: dict[str, int] = {}
    paths: list[str] = []
    labels: list[int] = []
    faults: list[str] = []
    for split in splits:
        files = [folder / f"{split}.txt"]
        if split == "train800val200" and not files[0].is_file():
            files = [folder / "train800.txt", folder / "val200.txt"]
        if not all(file.is_file() for file in files):
            raise InputError(f"{shown}: no such file: {files[0]}")
        first = len(paths)
        for file in files:
            _read_list(file, task, paths, labels, faults)
        wanted, found = TRAINING.get(split), len(paths) - first
        counts[split] = found
        if wanted and found != wanted:
            names = " and ".join(file.name for file in files)
            faults.append(
                f"{folder}: {names} {'name' if len(files) > 1 else 'names'} {found:,} images; "
                f"VTAB's {split} has {wanted:,}: restore the list"
            )
        if not found:
            raise InputError(f"{files[0]} names no image; expected lines such as 'images/000001.jpg 7'")
    classes = tuple(map(str, range(task.num_classes)))
    source = Files(shown, splits[0], classes, np.array(labels, np.int64), paths)
    source.faults = tuple(faults)
    return source, counts


def _read_list(path: Path, task: Task, paths: list[str], labels: list[int], faults: list[str]) -> None:
    """Add the images and labels of one list."""
    lines = read_text(path).splitlines()
    listed: dict[str, set[str]] = {}
    missing: list[str] = []
    count = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        image, text = line.rsplit(None, 1) if len(line.split()) > 1 else ("", "")
        if not _WHOLE.fullmatch(text):
            raise InputError(
                f"{path}, line {number}, is {line!r}; expected a path and a label, as in 'images/000001.jpg 7'"
            )
        if not 0 <= (label := int(text)) < task.num_classes:
            raise InputError(
                f"{path}, line {number}, has label {label}; {task.title} has {task.num_classes} classes, "
                f"0 to {task.num_classes - 1}"
            )
        file = os.path.join(path.parent, image.strip())
        folder, base = os.path.split(file)
        if folder not in listed:  # one listing is quicker than a look at each of many thousand files
            listed[folder] = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        if base not in listed[folder]:
            missing.append(f"line {number}: no such file: {file}")
        paths.append(file)
        labels.append(label)
        count += 1
    if missing and len(missing) == count:
        raise InputError(f"{path}, {missing[0]}; none of its files is there")
    if missing:
        faults.append(
            f"{path}: {len(missing):,} of {count:,} files are missing, the first in {missing[0]}; put them there"
        )


def _derive(name: str, splits: Sequence[str], root: Path) -> Source:
    """Cut splits from raw data by VTAB's rules; what is stored sorted is shuffled first, as TFDS's files are."""
    task = TASKS[name]
    marker, open_part = RAW.get(name, (None, None))
    if marker is None or open_part is None or not (root / marker).exists():
        lists = f"{root / (task.folder or name)}/ with train800val200.txt and test.txt"
        raise Absent(f"vtab/{name} is not in {root}: expected {lists}" + (f", or {marker}" if marker else ""))
    wanted = [piece for split in splits for piece in slices(task)[split]]
    pieces = [_piece(name, piece, open_part, root) for piece in wanted]
    return pieces[0] if len(pieces) == 1 else Joined(pieces)


def _piece(name: str, piece: Slice, open_part: Callable[[Path, Stored], Source], root: Path) -> Subset:
    task, source = TASKS[name], open_part(root, piece.part)
    size = part_sizes(task)[piece.part]
    if len(source) < size or source.num_classes != task.num_classes:
        raise InputError(
            f"vtab/{name}: the raw data in {root} has {len(source):,} images of {source.num_classes} classes "
            f"in {piece.part}; VTAB's rule needs {size:,} of {task.num_classes}"
        )
    order = Shuffle(len(source), 0, f"vtab/{name}/{piece.part}")
    return Subset(source, order[np.arange(piece.start, piece.stop)])


class Joined(Source):
    """Parts of sources of the same classes, one after the other."""

    def __init__(self, parts: Sequence[Subset]) -> None:
        self.parts = tuple(parts)
        self.class_names = parts[0].class_names
        self.labels = np.concatenate([part.labels for part in parts])
        self.starts = np.cumsum([0, *map(len, parts)])
        if all(part.images is not None for part in parts):
            self.images = np.concatenate([part.images for part in parts if part.images is not None])

    def read(self, index: int) -> Any:
        part, place = self._find(index)
        return part.read(place)

    def where(self, index: int) -> str:
        part, place = self._find(index)
        return part.where(place)

    def content_keys(self) -> list[str] | None:
        keys = [part.content_keys() for part in self.parts]
        return [key for found in keys for key in found or ()] if None not in keys else None

    def _find(self, index: int) -> tuple[Source, int]:
        number = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.parts[number], int(index - self.starts[number])


def _vision(name: str, parts: dict[Stored, str], root: Path, part: Stored) -> Source:
    """Return a stored part of one of torchvision's data sets."""
    return open_vision(DataSpec(name, parts[part], root=str(root)), "train")


def _sun397(root: Path, part: Stored) -> Source:
    whole = _vision("sun397", {"train": "all"}, root, "train")
    assert isinstance(whole, Files)
    return _third("sun397", whole, part)


def _third(name: str, whole: Files, part: Stored) -> Source:
    """Return train, validation or test of data that is stored as one, by VTAB's sizes."""
    parts: tuple[Stored, ...] = ("train", "validation", "test")
    ends = np.minimum(np.cumsum([0, *TASKS[name].sizes]), len(whole))
    place = parts.index(part)
    return _some(whole, Shuffle(len(whole), 0, f"vtab/{name}")[np.arange(ends[place], ends[place + 1])])


def _some(whole: Files, indices: np.ndarray) -> Files:
    paths = [whole.paths[index] for index in indices]
    return Files(whole.name, whole.split, whole.class_names, whole.labels[indices], paths)


def _caltech101(root: Path, part: Stored) -> Source:
    """Torchvision leaves the background out, which is one of VTAB's classes."""
    folder = root / "caltech101" / "101_ObjectCategories"
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    found = [
        (str(path), label)
        for label, name in enumerate(names)
        for path in sorted((folder / name).glob("*.jpg"))
    ]
    labels = np.array([label for _, label in found], np.int64)
    order = Shuffle(len(found), 0, "vtab/caltech101")[np.arange(len(found))]
    is_train = np.zeros(len(found), bool)
    for label in range(len(names)):
        is_train[order[labels[order] == label][:CALTECH_SHOTS]] = True
    source = Files("caltech101", part, tuple(names), labels, [path for path, _ in found])
    return _some(source, np.flatnonzero(is_train if part == "train" else ~is_train))


def _clevr(task: str, root: Path, part: Stored) -> Source:
    folder, split = root / "clevr" / "CLEVR_v1.0", {"train": "train", "validation": "val"}[part]
    path = folder / "scenes" / f"CLEVR_{split}_scenes.json"
    try:
        scenes = json.loads(path.read_bytes())["scenes"]
        objects = [scene["objects"] for scene in scenes]
        files = [str(folder / "images" / split / scene["image_filename"]) for scene in scenes]
        if task == "clevr_count":
            labels = [clevr_count(len(things)) for things in objects]
        else:
            labels = [clevr_distance(thing["pixel_coords"][2] for thing in things) for things in objects]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"{path} holds no scenes of CLEVR: {error}") from None
    names = tuple(
        f"{number + CLEVR_FEWEST} objects" if task == "clevr_count" else f"depth {number}"
        for number in range(TASKS[task].num_classes)
    )
    return Files(task, split, names, np.array(labels, np.int64), files)


def _kitti(root: Path, part: Stored) -> Source:
    folder = root / "Kitti" / "raw" / "training"
    files, labels = [], []
    for path in sorted((folder / "label_2").glob("*.txt")):
        try:
            things = [line.split() for line in path.read_text().splitlines() if line.strip()]
            labels.append(kitti_distance(float(thing[13]) for thing in things if thing[0] in KITTI_VEHICLES))
        except (OSError, ValueError, IndexError):
            raise InputError(f"{path} holds no labels of KITTI; expected lines of 15 fields") from None
        files.append(str(folder / "image_2" / f"{path.stem}.png"))
    names = ("up to 8 m", "8 to 20 m", "beyond 20 m", "no vehicle")
    return _third("kitti", Files("kitti", part, names, np.array(labels, np.int64), files), part)


_TWO: dict[Stored, str] = {"train": "train", "test": "test"}
_STORED: dict[Stored, str] = {"train": "train", "validation": "val", "test": "test"}
# Raw data that a task can be cut from: where it is, as torchvision lays it out, and how a stored part is opened.
RAW: dict[str, tuple[str, Callable[[Path, Stored], Source]]] = {
    "caltech101": ("caltech101/101_ObjectCategories/", _caltech101),
    "cifar100": ("cifar-100-python/", partial(_vision, "cifar100", _TWO)),
    "dtd": ("dtd/dtd/", partial(_vision, "dtd", _STORED)),
    "flowers102": ("flowers-102/", partial(_vision, "flowers102", _STORED)),
    "pets": ("oxford-iiit-pet/", partial(_vision, "pets", _TWO)),
    "sun397": ("SUN397/", _sun397),
    "svhn": ("train_32x32.mat", partial(_vision, "svhn", _TWO)),
    "camelyon": ("pcam/", partial(_vision, "pcam", _STORED)),
    "eurosat": ("eurosat/2750/", partial(_vision, "eurosat", {"train": "all"})),
    "clevr_count": ("clevr/CLEVR_v1.0/", partial(_clevr, "clevr_count")),
    "clevr_dist": ("clevr/CLEVR_v1.0/", partial(_clevr, "clevr_dist")),
    "kitti": ("Kitti/raw/training/", _kitti),
}
