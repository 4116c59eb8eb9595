"""The data sets of the paper's suite: which are available in a folder, and why others are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitkit.config import as_changes
from vitkit.data.cache import cache_folder
from vitkit.data.open import open_data
from vitkit.data.sources.source import Absent, Source
from vitkit.errors import InputError
from vitkit.evaluation.real import read_real, validation_numbers
from vitkit.transfer.protocols import part_changes
from vitkit.transfer.vtab.tasks import Exercise, Missing, find_tasks

# Classes, images to learn from and images to report on.
SETS = {
    "imagenet": (1000, 1_281_167, 50_000),
    "cifar10": (10, 50_000, 10_000),
    "cifar100": (100, 50_000, 10_000),
    "pets": (37, 3680, 3669),
    "flowers102": (102, 1020, 6149),
}
REAL, VTAB = "real.json", "vtab"


@dataclass(frozen=True)
class FoundSet:
    """A data set that is here, opened."""

    data: str
    train: Source
    measured: Source


def find_root(folder: str | None) -> Path:
    """Return where the data sets are."""
    if folder is None:
        return cache_folder() / "data"
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise InputError(f"{folder} is not a folder; expected one that holds {', '.join(SETS)} or {VTAB}")
    return root


def find_sets(root: Path) -> tuple[dict[str, FoundSet], dict[str, str]]:
    """Return the data sets that are here, and why each other one isn't."""
    here: dict[str, FoundSet] = {}
    absent: dict[str, str] = {}
    for name in SETS:
        own = root / name
        data = str(own.absolute()) if own.is_dir() else f"{name}[root={root}]"
        try:
            train = open_data(data, default="train")
            measured = open_data(data, default="measure", classes=train.class_names)
            if train.is_multi_label:
                raise InputError(f"{data} is multi-label; {name} has one label per image")
        except InputError as error:
            is_absent = isinstance(error, Absent) and not own.is_dir()
            absent[name] = (
                f"{root} has neither a folder {name} nor torchvision's" if is_absent else str(error)
            )
            continue
        here[name] = FoundSet(data, train, measured)
    return here, absent


def find_real(root: Path, imagenet: FoundSet | None) -> Path | str:
    """Return ReaL's labels, or why it isn't measured."""
    path = root / REAL
    if not path.is_file():
        return f"{root} has no {REAL}"
    if imagenet is None:
        return "it is measured with imagenet, which is skipped"
    try:
        read_real(path)
        validation_numbers(imagenet.measured)
    except InputError as error:
        return str(error)
    if (classes := imagenet.train.num_classes) != SETS["imagenet"][0]:
        return f"its labels are ImageNet's 1,000 classes, and {imagenet.data} has {classes:,}"
    return path


def find_vtab(root: Path, changes: Sequence[str]) -> tuple[dict[str, Exercise | Missing], str]:
    """Return VTAB's tasks where at least one is here, or why none is run."""
    folder = root / VTAB
    own, rest = part_changes(changes)
    if not folder.is_dir():
        return {}, f"{root} has no folder {VTAB}"
    if own.protocol == "quick":
        return {}, "VTAB has no protocol=quick: vit vtab has the protocols light and fewshot"
    if (duration := duration_of(rest)) is not None and not duration.isdecimal():
        return {}, f"duration={duration} is not a number of steps, which VTAB's protocols need"
    if set(str(folder)) & set(",[]"):
        return {}, f"the folder {folder} has a comma or bracket in its name: rename it, or link to it"
    found = find_tasks(str(folder))
    is_here = any(isinstance(task, Exercise) for task in found.values())
    return (found, "") if is_here else ({}, f"{folder} holds none of its tasks")


def duration_of(changes: Sequence[str]) -> str | None:
    """Return the length of a run that changes ask for."""
    found = [str(change.value) for change in as_changes(changes) if change.key == "duration"]
    return found[-1] if found else None
