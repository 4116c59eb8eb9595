"""The tasks that a suite runs: VTAB-1k's in a folder, or procedural ones to practise; and the paper's results."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from vitkit.data.open import open_data
from vitkit.data.sources.source import Source, shared_images
from vitkit.data.sources.vtab import SPLITS, TASKS, Absent, Group, Task, find_task, open_task
from vitkit.data.spec import VTAB, as_spec
from vitkit.data.splits import counted
from vitkit.errors import InputError
from vitkit.notes import Note

GROUPS: tuple[Group, ...] = get_args(Group)
SMALL = 96 * 96
"Area in pixels below which BiT's rule calls images small."


@dataclass(frozen=True)
class Exercise:
    """A task with its data, ready to run."""

    name: str
    title: str
    group: Group
    num_classes: int
    splits: dict[str, str]
    "DATA of train800, val200, train800val200 and test."
    num_test: int
    is_small: bool
    flip: bool
    crop: bool
    is_official: bool
    notes: tuple[Note, ...] = ()
    opened: dict[str, Source] = field(default_factory=dict, repr=False)
    "Splits that were opened to see whether the task is there."

    def open(self, split: str) -> Source:
        """Return one of its splits, which is the caller's: pixels of tasks that are done are not kept."""
        return self.opened.pop(split) if split in self.opened else open_data(self.splits[split])


@dataclass(frozen=True)
class Missing:
    """A task that can't be run, and why; one whose data is there but broken is a failure."""

    name: str
    title: str
    group: Group
    reason: str
    is_failure: bool


SHAPES = "shapes"
SHAPES_TEST = 1000
# Practice: what shapes is asked about, with the side of its images, and what training may do to them.
PRACTICE: dict[str, tuple[str, Group, str, int, bool, bool]] = {
    "class": ("Shape", "Natural", "class", 32, True, True),
    "class_small": ("Shape, 16 px", "Specialized", "class", 16, True, True),
    "count": ("Count", "Structured", "count", 32, True, False),
    "distance": ("Distance", "Structured", "distance", 32, True, False),
    "x": ("X position", "Structured", "x", 32, False, False),
    "orientation": ("Orientation", "Structured", "orientation", 32, False, True),
}

# ViT's table 9, in percent; tasks in the order of TASKS.
_TABLE_9 = {
    "ViT-H/14 (JFT)": "95.3 85.5 75.2 99.7 97.2 65.0 88.9 83.3 96.7 91.4 76.6 91.7 63.8 53.1 79.4 63.3 84.5 33.2 51.2",
    "ViT-L/16 (JFT)": "95.4 81.9 74.3 99.7 96.7 63.5 87.4 83.6 96.5 89.7 77.1 86.4 63.1 49.7 74.5 60.5 82.2 36.2 51.1",
    "ViT-L/16 (I21k)": "90.8 84.1 74.1 99.3 92.7 61.0 80.9 82.5 95.6 85.2 75.3 70.3 56.1 41.9 74.7 64.9 79.9 30.5 41.7",
}
PUBLISHED: dict[str, dict[str, float]] = {
    model: {task: float(value) / 100 for task, value in zip(TASKS, row.split(), strict=True)}
    for model, row in _TABLE_9.items()
}


def task_names(data: str) -> tuple[str, ...]:
    """Return the names of all tasks of a suite."""
    return tuple(PRACTICE if data == SHAPES else TASKS)


def choose_tasks(data: str, asked: str | None) -> list[str]:
    """Return the tasks that a list such as 'dtd,svhn' names, in the suite's order; all without one."""
    every = task_names(data)
    if asked is None:
        return list(every)
    names = [name.strip() for name in asked.split(",") if name.strip()]
    if data != SHAPES:
        names = [find_task(name) for name in names]
    for name in names:
        if name not in every:
            raise InputError(f"shapes has no task {name!r}; there are {', '.join(every)}")
    if not names:
        raise InputError("--tasks names no task; expected tasks such as --tasks dtd,svhn")
    return [name for name in every if name in names]


def find_tasks(data: str) -> dict[str, Exercise | Missing]:
    """Return all tasks of a suite by name, those that a folder doesn't hold too."""
    return {name: find_exercise(data, name) for name in task_names(data)}


def find_exercise(data: str, name: str) -> Exercise | Missing:
    """Return a task with its data, or why it can't be run."""
    if data == SHAPES:
        return _practice(name)
    task, root = TASKS[name], Path(data).expanduser()
    try:
        train, _ = open_task(name, "train800val200", root)
        test, is_official = open_task(name, "test", root)
    except InputError as error:
        return Missing(name, task.title, task.group, str(error), not isinstance(error, Absent))
    for source in (train, test):
        if source.faults:
            return Missing(name, task.title, task.group, source.faults[0], True)
    if shared := shared_images(train, test):
        reason = f"{VTAB}{name}: test shares {counted(shared, 'image')} with train: restore the lists"
        return Missing(name, task.title, task.group, reason, True)
    specs = {split: f"{VTAB}{name}:{split}[root={data}]" for split in SPLITS}
    opened = {"train800val200": train, "test": test}
    for split, source in opened.items():
        source.spec = as_spec(specs[split])
    return Exercise(
        name,
        task.title,
        task.group,
        task.num_classes,
        specs,
        num_test=len(test),
        is_small=_is_small(task),
        flip=task.flip,
        crop=task.crop,
        is_official=is_official,
        notes=tuple(dict.fromkeys((*train.notes, *test.notes))),
        opened=opened,
    )


def _is_small(task: Task) -> bool:
    return task.image is not None and task.image[0] * task.image[1] < SMALL


def _practice(name: str) -> Exercise:
    from vitkit.data.sources.shapes import LABELS

    title, group, label, side, flip, crop = PRACTICE[name]
    cuts = {"train800": "train[:800", "val200": "train[800:1000", "train800val200": "train[:1000"}
    cuts["test"] = f"test[:{SHAPES_TEST}"
    specs = {split: f"shapes:{cuts[split]},label={label},size={side}]" for split in SPLITS}
    return Exercise(
        name,
        title,
        group,
        len(LABELS[label]),
        specs,
        num_test=SHAPES_TEST,
        is_small=True,
        flip=flip,
        crop=crop,
        is_official=False,
    )


def group_means(accuracies: Mapping[str, float], groups: Mapping[str, Group]) -> dict[Group, float]:
    """Return the unweighted mean of each group that has tasks."""
    found: dict[Group, list[float]] = {group: [] for group in GROUPS}
    for name, accuracy in accuracies.items():
        found[groups[name]].append(accuracy)
    return {group: statistics.fmean(values) for group, values in found.items() if values}
