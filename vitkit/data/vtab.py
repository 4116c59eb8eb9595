"""VTAB-1k as facts: its 19 tasks with their classes, sizes, splits and label rules, and what training may do to images."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from vitkit.errors import InputError, did_you_mean

Group = Literal["Natural", "Specialized", "Structured"]
Part = Literal["train", "validation", "test"]

PREFIX = "vtab/"
"How DATA names a task: vtab/TASK."
# Name of each split -> its images; test is the task's own.
TRAINING = {"train800": 800, "val200": 200, "train800val200": 1000}
SPLITS = (*TRAINING, "test")


class Cut(NamedTuple):
    """Which stored parts of the raw data val and test are cut from; train is always the first of the stored train."""

    val: Part
    test: Part


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

    part: Part
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


def part_sizes(task: Task) -> Counter[Part]:
    """Return how many images of each stored part a task's full splits take."""
    counts: Counter[Part] = Counter()
    parts: tuple[Part, ...] = ("train", *task.cut)
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


def dsprites_bin(value: int, num_values: int) -> int:
    """Return dSprites' label: a factor's value (32 x positions, 40 orientations) as one of 16 bins."""
    return value * TASKS["dsprites_loc"].num_classes // num_values


def _last_below(thresholds: tuple[float, ...], distance: float) -> int:
    return bisect.bisect_left(thresholds, distance) - 1
