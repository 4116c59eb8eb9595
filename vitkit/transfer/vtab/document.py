"""What a VTAB run says of itself: tasks, groups and the overall mean next to the paper's, as a document and a figure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vitkit.config import as_changes
from vitkit.data.sources.vtab import TASKS, UNOFFICIAL, Group
from vitkit.data.splits import counted
from vitkit.data.threads import Unreadable
from vitkit.display import png_files
from vitkit.figures.bars import Bar, bars
from vitkit.files import write_file
from vitkit.results import Result
from vitkit.transfer.finetune import TriedRate
from vitkit.transfer.vtab.protocols import protocol_in_words
from vitkit.transfer.vtab.tasks import GROUPS, PUBLISHED, SHAPES, Exercise, Missing, group_means


@dataclass(frozen=True)
class VtabSettings(Result):
    """What was asked for: the same settings are the same run."""

    model: str
    data: str
    protocol: str
    seeds: int
    sweep: str | None
    steps: int | None
    changes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "changes", tuple(as_changes(self.changes)))

    @property
    def words(self) -> str:
        """What tables say of how tasks are learned."""
        return (
            protocol_in_words(self.protocol, self.steps, self.sweep is not None)
            + (f", mean of {self.seeds} seeds" if self.seeds > 1 else "")
            + (f"; changed: {', '.join(self.changes)}" if self.changes else "")
        )

    def to_json(self) -> dict[str, Any]:
        """Return the settings; runs from before there were changes have none."""
        return {name: value for name, value in super().to_json().items() if name != "changes" or value}


@dataclass(frozen=True)
class TaskResult(Result):
    """What a task's own file keeps; a ridge head on features has no more than the first two."""

    accuracy: float
    seconds: float
    std: float | None = None
    values: tuple[float, ...] | None = None
    learning_rate: float | None = None
    run: str | None = None
    model: str | None = None
    tuning: tuple[TriedRate, ...] = ()
    "By train800 and val200."
    changes: tuple[str, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    "Images that were skipped."


@dataclass(frozen=True)
class TaskRow(Result):
    """A task in the document."""

    task: str
    title: str
    group: Group
    status: Literal["done", "failed", "absent", "not run"]
    reason: str | None
    official_images: bool | None
    test_images: int | None
    accuracy: float | None = None
    std: float | None = None
    values: tuple[float, ...] | None = None
    learning_rate: float | None = None
    tuning: tuple[TriedRate, ...] = ()
    seconds: float | None = None
    run: str | None = None
    model: str | None = None
    unreadable: tuple[Unreadable, ...] = ()
    "Images that were skipped."


@dataclass(frozen=True)
class GroupMean(Result):
    """The mean over the tasks of a group that are done, and how many these are."""

    group: Group
    accuracy: float
    std: float | None
    tasks: int
    of: int


@dataclass(frozen=True)
class OverallMean(Result):
    """The mean over all tasks that are done; its name says whether it is VTAB-1k's."""

    name: str
    accuracy: float
    std: float | None
    values: tuple[float, ...]
    "Of each seed."
    tasks: int


@dataclass(frozen=True)
class PublishedTasks(Result):
    """The paper's results; their means are over the tasks that ours are over."""

    model: str
    source: str
    tasks: Mapping[str, float]
    groups: Mapping[Group, float]
    overall: float | None


@dataclass(frozen=True)
class VtabResult(Result):
    """What `vit vtab --json` prints."""

    model: str
    data: str
    protocol: str
    seeds: int
    sweep: str | None
    steps: int | None
    changes: tuple[str, ...]
    words: str
    run: str
    status: Literal["done", "failed", "stopped"]
    official_images: bool
    tasks: tuple[TaskRow, ...]
    groups: tuple[GroupMean, ...]
    mean: float | None
    overall: OverallMean | None
    published: tuple[PublishedTasks, ...]
    seconds: float
    device_hours: float
    figure: str | None = None

    _leads = ("status", "overall", "groups", "model", "data", "words", "run")
    _tables = ("groups", "tasks")

    def _pictures(self) -> list[tuple[str, bytes]]:
        return png_files([self.figure] if self.figure else [])


def describe_task(task: Exercise | Missing, result: TaskResult | None, error: str | None) -> TaskRow:
    """Return what the document says of a task."""
    if isinstance(task, Missing):
        status: Literal["failed", "absent"] = "failed" if task.is_failure else "absent"
        return TaskRow(task.name, task.title, task.group, status, task.reason, None, None)
    if result is None:
        return TaskRow(
            *(task.name, task.title, task.group, "failed" if error else "not run"),
            *(error, task.is_official, task.num_test),
        )
    return TaskRow(
        *(task.name, task.title, task.group, "done", None, task.is_official, task.num_test),
        *(result.accuracy, result.std, result.values, result.learning_rate, result.tuning),
        *(result.seconds, result.run, result.model, result.unreadable),
    )


def make_document(
    settings: VtabSettings, folder: Path, rows: Sequence[TaskRow], chosen: Sequence[str], is_stopped: bool
) -> VtabResult:
    """Return the whole of a run, as far as it is."""
    done = [row for row in rows if row.status == "done"]
    accuracies = {row.task: row.accuracy for row in done if row.accuracy is not None}
    means = group_means(accuracies, {row.task: row.group for row in rows})
    is_practice = settings.data == SHAPES
    is_official = bool(done) and all(row.official_images for row in done)
    has_failed = any(row.status == "failed" for row in rows if row.task in chosen)
    seconds = sum(row.seconds or 0.0 for row in done)
    mean = statistics.fmean(accuracies.values()) if accuracies else None
    groups = []
    for group in GROUPS:
        if group in means:
            own = [row for row in done if row.group == group]
            of = sum(row.group == group for row in rows)
            groups.append(GroupMean(group, means[group], seed_means(own)[1], len(own), of))
    return VtabResult(
        **vars(settings),
        words=settings.words,
        run=str(folder),
        status="stopped" if is_stopped else "failed" if has_failed else "done",
        official_images=is_official,
        tasks=tuple(rows),
        groups=tuple(groups),
        mean=mean,
        overall=None if mean is None else overall_mean(mean, done, is_official, is_practice),
        published=() if is_practice else tuple(published_tasks(model, accuracies) for model in PUBLISHED),
        seconds=seconds,
        device_hours=seconds / 3600,
    )


def seed_means(rows: Sequence[TaskRow]) -> tuple[tuple[float, ...], float | None]:
    """Return the mean over tasks of each seed, and their sample standard deviation, where there are several seeds."""
    values = [row.values or (row.accuracy or 0.0,) for row in rows]
    if len({len(row) for row in values}) != 1:
        return (), None
    means = tuple(statistics.fmean(seed) for seed in zip(*values, strict=True))
    return means, statistics.stdev(means) if len(means) > 1 else None


def overall_mean(mean: float, done: Sequence[TaskRow], is_official: bool, is_practice: bool) -> OverallMean:
    """Return the mean over tasks; it is VTAB-1k's only with all of its tasks and their official images."""
    count, (values, std) = len(done), seed_means(done)
    name = f"mean of {counted(count, 'task')}"
    if is_practice:
        name = f"practice on shapes, {name}"
    elif not is_official:
        name = f"{name}, {UNOFFICIAL}"
    elif count == len(TASKS):
        name = "VTAB-1k"
    return OverallMean(name, mean, std, values, count)


def published_tasks(model: str, done: Mapping[str, float]) -> PublishedTasks:
    """Return a row of the paper's table 9."""
    row = PUBLISHED[model]
    same = {name: row[name] for name in done}
    groups = group_means(same, {name: task.group for name, task in TASKS.items()})
    overall = statistics.fmean(same.values()) if same else None
    return PublishedTasks(model, "ViT, table 9", row, groups, overall)


def draw(document: VtabResult, title: str, path: Path) -> None:
    """Write the figure: a bar for each task, group and all of it, with the paper's as marks."""
    published, overall = document.published, document.overall
    assert overall is not None
    tasks = [
        Bar(
            row.title + ("" if row.official_images or not published else "*"),
            row.group,
            row.accuracy,
            row.std,
            [theirs.tasks[row.task] for theirs in published],
        )
        for row in document.tasks
        if row.accuracy is not None
    ]
    groups = [
        Bar(
            f"{group.group}\n{group.tasks} of {group.of}",
            group.group,
            group.accuracy,
            group.std,
            [theirs.groups[group.group] for theirs in published],
        )
        for group in document.groups
    ]
    groups.append(
        Bar(
            f"All\n{overall.tasks} of {len(document.tasks)}",
            "",
            overall.accuracy,
            overall.std,
            [theirs.overall for theirs in published if theirs.overall is not None],
        )
    )
    caption = f"* {UNOFFICIAL}" if published and not document.official_images else ""
    picture = bars(title, groups, tasks, [f"{row.model}, {row.source}" for row in published], caption)
    write_file(path, picture)
