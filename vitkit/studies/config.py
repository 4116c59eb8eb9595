"""A study's file: a base recipe, a grid or list of settings, and what is measured at the end of each run."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from vitkit.config import (
    Change,
    Changes,
    Count,
    as_changes,
    check_bounds,
    from_dict,
    merge,
    read_yaml,
    shown,
)
from vitkit.data.spec import as_spec
from vitkit.errors import InputError, did_you_mean
from vitkit.files import read_text
from vitkit.training.config import TrainConfig
from vitkit.training.recipes import FOLDER, head, resolve

Figure = Literal["data", "compute", "laws", "images", "shape"]
STUDIES = FOLDER / "studies"
OWN_FOLDERS = ("report", "failed")
"Folders of a study that are no runs."
SEED = "seed"
"The axis over which results are averaged; its first value runs first."
MOST_RUNS = 2000
OWN = ("recipe", "images", "group")
"What a point of a study may have besides settings of `vit train`."
READS = {
    "fewshot": ("shots", "seeds"),
    "knn": ("neighbours",),
    "probe": (),
    "finetune": ("settings", "seeds"),
    "test": (),
}
"Settings that each way to measure reads, besides its data and its name."


@dataclass(frozen=True)
class MeasureConfig:
    """What is measured of a trained model."""

    by: Literal["fewshot", "knn", "probe", "finetune", "test"]
    "The verb: few-shot ridge regression, nearest neighbours, a linear probe, fine-tuning, or its own classes on other images (test)."
    data: str
    "DATA to learn from, and to measure on its test split, else val."
    evaluate: str | None = None
    "DATA to measure on, if not that."
    name: str = ""
    "What tables and figures call it; by default made of the data and the way."
    shots: Count = 10
    "Images per class for fewshot."
    neighbours: Count = 20
    "Neighbours for knn."
    seeds: Count = 1
    "Choices of images for fewshot, runs for finetune."
    settings: dict[str, Any] = field(default_factory=dict)
    "Settings of `vit finetune`."

    def __post_init__(self) -> None:
        check_bounds(self)
        spec = as_spec(self.data)
        for name in ("shots", "neighbours", "seeds", "settings"):
            default = {} if name == "settings" else getattr(MeasureConfig, name)
            if name not in READS[self.by] and getattr(self, name) != default:
                raise InputError(f"{name} does not apply to measuring by {self.by!r}: remove it")
        if self.by == "test" and self.evaluate is not None:
            raise InputError(
                "evaluate does not apply to measuring by 'test', which learns nothing: remove it"
            )
        if not self.name:
            words = {
                "fewshot": f"{self.shots}-shot",
                "knn": "kNN",
                "finetune": "fine-tuning",
                "test": "accuracy",
            }
            made = f"{Path(spec.source).name} {words.get(self.by, self.by)}"
            object.__setattr__(self, "name", made)
        if not self.word:
            raise InputError(
                f"the measure's name {self.name!r} has no letter or digit, so that no file can be named after it"
            )

    @property
    def word(self) -> str:
        """Its name as that of a file."""
        return file_word(self.name)


@dataclass(frozen=True)
class StudyConfig:
    """A study: runs that differ in a few settings, measured alike."""

    recipe: str
    "The recipe of every run, by name or file."
    settings: dict[str, Any] = field(default_factory=dict)
    "Settings of every run that differ from the recipe's."
    grid: dict[str, Any] = field(default_factory=dict)
    "Axes, of which every combination is a run. An axis is a list of values of the setting that it is named after, or a mapping of labels to settings."
    runs: tuple[dict[str, Any], ...] = ()
    "Runs with a name and settings each; with a grid, every combination of the grid is run for each of them."
    measure: tuple[MeasureConfig, ...] = ()
    "What is measured of each trained model; the first is shown in figures and tables."
    figures: tuple[Figure, ...] = ("compute",)
    "Figures to draw: accuracy against training images (data), accuracy against compute (compute), error against compute, parameters and images with fitted laws (laws), images seen to a given error (images), accuracy as one setting of the shape grows, a line for each group (shape)."
    tables: tuple[tuple[str, ...], ...] = ()
    "Tables of the first measure: the axis of the rows, and that of the columns if there is one."
    without: tuple[dict[str, Any], ...] = ()
    "Combinations of the grid to skip, each with labels of some axes, as in [{positions: none, place: every_layer}]."
    data_images: Count | dict[str, Any] | None = None
    "Images in data.train, to plan a study whose data isn't here; for several sets, a number for each, as in {./imagenet: 1281167}."
    data_classes: Count | dict[str, Any] = 1000
    "Classes of data that isn't here, likewise."

    def __post_init__(self) -> None:
        check_bounds(self)
        words = [measure.word for measure in self.measure]
        if twice := [measure.name for measure in self.measure if words.count(measure.word) > 1]:
            raise InputError(f"two measures are called {twice[-1]!r}: give one of them a name of its own")
        for axis, points in self.grid.items():
            if not isinstance(points, list | Mapping) or not points:
                raise InputError(
                    f"grid.{axis} is {shown(points)}; expected a list of values, or labels with settings, at least one"
                )
        for name in ("data_images", "data_classes"):
            numbers = getattr(self, name)
            for data, number in numbers.items() if isinstance(numbers, dict) else ():
                if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                    raise InputError(f"{name} of {data} is {shown(number)}; expected a whole number above 0")
        axes = [*self.grid, *(["run"] if self.runs else [])]
        for name in (name for table in self.tables for name in table):
            if name not in axes:
                hint = did_you_mean(name, axes) or f"; expected one of {', '.join(axes)}"
                raise InputError(f"tables name the axis {name!r}, which the study doesn't have{hint}")
        if any(len(table) not in (1, 2) for table in self.tables):
            raise InputError(
                "a table has an axis for its rows, and one for its columns or none: give one or two"
            )

    def number_of(self, name: Literal["data_images", "data_classes"], data: str) -> int | None:
        """Return how many images or classes the study says that a DATA has."""
        numbers = getattr(self, name)
        return numbers.get(as_spec(data).source) if isinstance(numbers, dict) else numbers


@dataclass(frozen=True)
class StudyRun:
    """One run of a study."""

    name: str
    labels: Mapping[str, str]
    "Its place on each axis."
    groups: tuple[str, ...]
    "Lines of figures that it belongs to; none for its model's family."
    config: TrainConfig


@dataclass(frozen=True)
class Study:
    """A study that was read and checked, apart from its data."""

    name: str
    about: str
    config: StudyConfig
    runs: tuple[StudyRun, ...]


@dataclass(frozen=True)
class Point:
    """One place on an axis: its label, and the settings there."""

    axis: str
    label: str
    recipe: str | None
    images: int | None
    groups: tuple[str, ...]
    changes: tuple[Change, ...]
    word: str
    "What it adds to the name of a run."


def find_study(study: str | os.PathLike[str]) -> Path:
    """Return a study's file; an existing path wins over a name."""
    path = Path(study)
    if path.is_file():
        return path
    names = {file.stem: file for file in sorted(STUDIES.glob("*.yaml"))}
    if str(study) in names:
        return names[str(study)]
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        raise InputError(f"no such study file: {study}")
    hint = did_you_mean(str(study), names) or ";"
    raise InputError(f"unknown study {str(study)!r}{hint} expected a file, or one of {', '.join(names)}")


def read_study(study: str | os.PathLike[str], changes: Changes = ()) -> Study:
    """Return a study by name or file, with its own settings changed: `["data_images=1000", "grid.seed=[0]"]`."""
    path = find_study(study)
    text = read_text(path)
    made = as_changes(changes)
    settings = read_yaml(text, path.name)
    config = study_config(_with_changes(settings, made), path.name)
    return Study(path.stem, head(text).get("about", ""), config, tuple(expand(config, path.name)))


def study_config(settings: Mapping[str, Any], where: str) -> StudyConfig:
    """Return a study's settings from a mapping; `where` names its file."""
    entries = settings.get("measure", ())
    if not isinstance(entries, list | tuple) or not all(isinstance(entry, Mapping) for entry in entries):
        raise InputError(f"measure in {where} is {shown(entries)}; expected a list of {{by: ..., data: ...}}")
    measure = tuple(
        from_dict(MeasureConfig, entry, f"measure {place} of {where}")
        for place, entry in enumerate(entries, 1)
    )
    return from_dict(StudyConfig, {**settings, "measure": measure}, where)


def _with_changes(settings: Mapping[str, Any], changes: list[Change]) -> dict[str, Any]:
    """Return a study's settings with changes; `settings.KEY` keeps KEY as it is, dots and all."""
    own = [change for change in changes if not change.key.startswith("settings.")]
    merged = merge(settings, own)
    inner = {change.key.removeprefix("settings."): change.value for change in changes if change not in own}
    if inner:
        given = merged.get("settings") or {}
        kept = (
            {change.key: change.value for change in as_changes(given)} if isinstance(given, Mapping) else {}
        )
        merged["settings"] = {**kept, **inner}
    return merged


def expand(config: StudyConfig, where: str) -> Iterator[StudyRun]:
    """Yield the runs of a study, those of the first seed first, each with a name of its own."""
    axes = [[_listed_run(entry, where) for entry in config.runs]] if config.runs else []
    axes += [list(_points(axis, points, where)) for axis, points in config.grid.items()]
    if not axes:
        raise InputError(f"{where} has neither grid nor runs: give at least one run")
    if (count := math.prod(map(len, axes))) > MOST_RUNS:
        raise InputError(f"{where} has {count:,} runs; expected at most {MOST_RUNS:,}")
    names: dict[str, Mapping[str, str]] = {}
    left_out = [_left_out(entry, axes, where) for entry in config.without]
    for points in sorted(itertools.product(*axes), key=lambda points: _seed_place(points, axes)):
        if any(entry <= {(point.axis, point.label) for point in points} for entry in left_out):
            continue
        name, labels = "_".join(point.word for point in points), {point.axis: point.label for point in points}
        if name in names:
            raise InputError(
                f"{where}: two runs are called {name!r}: {_in_words(names[name])}; and {_in_words(labels)}"
            )
        if name in OWN_FOLDERS:
            raise InputError(f"{where}: no run can be called {name!r}, which is a folder of the study's own")
        names[name] = labels
        _refuse_overlap(points, where)
        try:
            resolved = _resolve(config, points)
        except InputError as error:
            raise InputError(f"{where}, run {name}: {error}") from None
        groups = tuple(dict.fromkeys(group for point in points for group in point.groups))
        yield StudyRun(name, labels, groups, resolved)
    if not names:
        raise InputError(f"{where}: without leaves no run: keep at least one")


def _left_out(entry: Mapping[str, Any], axes: list[list[Point]], where: str) -> set[tuple[str, str]]:
    """Return the labels of a combination to skip."""
    known = {points[0].axis: [point.label for point in points] for points in axes}
    found = {(axis, _label(value)) for axis, value in entry.items()}
    for axis, label in found:
        if axis not in known:
            hint = did_you_mean(axis, known) or f"; expected one of {', '.join(known)}"
            raise InputError(f"{where}: without names the axis {axis!r}, which the study doesn't have{hint}")
        if label not in known[axis]:
            hint = did_you_mean(label, known[axis]) or f"; expected one of {', '.join(known[axis])}"
            raise InputError(
                f"{where}: without names {label!r} on the axis {axis!r}, which isn't there{hint}"
            )
    return found


def _label(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def _seed_place(points: tuple[Point, ...], axes: list[list[Point]]) -> int:
    """Return the place on the axis of seeds, so that a study that is cut short has whole seeds."""
    return next(
        (axis.index(point) for point, axis in zip(points, axes, strict=True) if point.axis == SEED), 0
    )


def _resolve(config: StudyConfig, points: tuple[Point, ...]) -> TrainConfig:
    """Return the settings of one run."""
    recipe = [config.recipe, *(point.recipe for point in points if point.recipe)][-1]
    changes = [*as_changes(config.settings), *(change for point in points for change in point.changes)]
    resolved = resolve(recipe, changes)
    for point in points:
        if point.images is not None:
            train = first_images(resolved.data.train, point.images)
            resolved = replace(resolved, data=replace(resolved.data, train=train))
    return resolved


def first_images(data: str, images: int) -> str:
    """Return the DATA of so many images of a DATA, with all classes spread alike: more images hold the fewer."""
    spec = as_spec(data)
    if spec.shots is not None or any((end or "").endswith("%") for end in (spec.start, spec.stop)):
        raise InputError(f"images: {images:,} of '{data}' needs it whole, or a slice such as [:45000,seed=0]")
    start = int(spec.start or 0)
    if spec.stop is not None and start + images > int(spec.stop):
        raise InputError(f"images is {images:,}, but '{data}' has {int(spec.stop) - start:,}")
    return str(replace(spec, stop=str(start + images), seed=spec.seed or 0))


def _listed_run(entry: Mapping[str, Any], where: str) -> Point:
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise InputError(f"{where}: a run in runs has no name: {shown(dict(entry))}")
    settings = {key: value for key, value in entry.items() if key != "name"}
    return _point("run", name, settings, where)


def _points(axis: str, points: Any, where: str) -> Iterator[Point]:
    """Yield the points of an axis of the grid."""
    if isinstance(points, Mapping):
        for label, settings in points.items():
            if not isinstance(settings, Mapping):
                raise InputError(
                    f"{where}: grid.{axis}.{label} is {shown(settings)}; expected settings, as in {{model.name: B/16}}"
                )
            yield _point(axis, str(label), settings, where)
        return
    last = axis.rpartition(".")[2]
    for value in points:
        if isinstance(value, Mapping | list):
            raise InputError(
                f"{where}: grid.{axis} holds {shown(value)}; expected plain values, or labels with settings"
            )
        label = _label(value)
        point = _point(axis, label, {axis: value}, where)
        yield point if isinstance(value, str) else replace(point, word=file_word(f"{last}-{label}"))


def _point(axis: str, label: str, settings: Mapping[str, Any], where: str) -> Point:
    own = {name: settings[name] for name in OWN if name in settings}
    rest = {name: value for name, value in settings.items() if name not in OWN}
    images, recipe, group = own.get("images"), own.get("recipe"), own.get("group", ())
    groups = (group,) if isinstance(group, str) else tuple(group) if isinstance(group, list) else group
    if images is not None and (not isinstance(images, int) or isinstance(images, bool) or images < 1):
        raise InputError(f"{where}: images is {shown(images)} in {label!r}; expected a number of images")
    if recipe is not None and not isinstance(recipe, str):
        raise InputError(f"{where}: recipe is {shown(recipe)} in {label!r}; expected a name or file")
    if not isinstance(groups, tuple) or not all(isinstance(one, str) for one in groups):
        raise InputError(
            f"{where}: group is {shown(group)} in {label!r}; expected a name, or a list of names"
        )
    word = file_word(label)
    if not word:
        raise InputError(f"{where}: {label!r} has no letter or digit, so that no run can be named after it")
    return Point(axis, label, recipe, images, groups, tuple(as_changes(dict(rest))), word)


def file_word(label: str) -> str:
    """Return a label as a part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9.+=]+", "-", label).strip("-.")


def _refuse_overlap(points: tuple[Point, ...], where: str) -> None:
    """Refuse two axes that set the same, of which one would be ignored."""
    seen: dict[str, str] = {}
    for point in points:
        own = [name for name in ("images", "recipe") if getattr(point, name) is not None]
        for key in (*own, *(change.key for change in point.changes)):
            if key in seen and seen[key] != point.axis:
                raise InputError(
                    f"{where}: both {seen[key]} and {point.axis} set {key}: leave it to one of them"
                )
            seen[key] = point.axis


def _in_words(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{axis} {label}" for axis, label in labels.items())


def list_studies() -> list[dict[str, str]]:
    """Return the studies that the package has, each with the fields of its head."""
    return [
        {"name": path.stem, **head(path.read_text(encoding="utf-8"))}
        for path in sorted(STUDIES.glob("*.yaml"))
    ]
