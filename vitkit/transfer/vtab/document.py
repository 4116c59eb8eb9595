"""What a VTAB run says of itself: tasks, groups and the overall mean beside the paper's, as a document and a figure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitkit.data.sources.vtab import TASKS, UNOFFICIAL
from vitkit.data.splits import counted
from vitkit.errors import InputError
from vitkit.figures.bars import Bar, bars
from vitkit.transfer.vtab.protocols import in_words
from vitkit.transfer.vtab.tasks import GROUPS, PUBLISHED, SHAPES, Exercise, Missing, group_means


def protocol_words(settings: dict[str, Any]) -> str:
    """Return what tables say of how tasks are learned."""
    return (
        in_words(settings["protocol"], settings["steps"], settings["sweep"] is not None)
        + (f", mean of {settings['seeds']} seeds" if settings["seeds"] > 1 else "")
        + (f"; changed: {', '.join(settings['changes'])}" if settings.get("changes") else "")
    )


def describe_task(
    task: Exercise | Missing, result: dict[str, Any] | None, error: str | None
) -> dict[str, Any]:
    """Return what the document says of a task."""
    if isinstance(task, Missing):
        status, error = ("failed" if task.is_failure else "absent"), task.reason
    else:
        status = "done" if result else "failed" if error else "not run"
    is_here = isinstance(task, Exercise)
    result = result if result and is_here else {}
    return {
        "task": task.name,
        "title": task.title,
        "group": task.group,
        "status": status,
        "reason": error if status != "done" else None,
        "official_images": task.is_official if isinstance(task, Exercise) else None,
        "test_images": task.num_test if isinstance(task, Exercise) else None,
        "accuracy": result.get("accuracy"),
        "std": result.get("std"),
        "values": result.get("values"),
        "learning_rate": result.get("learning_rate"),
        "tuning": result.get("tuning", []),
        "seconds": result.get("seconds"),
        "run": result.get("run"),
        "model": result.get("model"),
    }


def make_document(
    settings: dict[str, Any],
    folder: Path,
    entries: list[dict[str, Any]],
    chosen: Sequence[str],
    is_stopped: bool,
) -> dict[str, Any]:
    done = {entry["task"]: entry for entry in entries if entry["status"] == "done"}
    accuracies = {name: entry["accuracy"] for name, entry in done.items()}
    groups = {entry["task"]: entry["group"] for entry in entries}
    means = group_means(accuracies, groups)
    is_practice = settings["data"] == SHAPES
    is_official = bool(done) and all(entry["official_images"] for entry in done.values())
    failed = any(entry["status"] == "failed" for entry in entries if entry["task"] in chosen)
    seconds = sum(entry["seconds"] or 0.0 for entry in done.values())
    mean = statistics.fmean(accuracies.values()) if accuracies else None
    return {
        "changes": [],
        **settings,
        "words": protocol_words(settings),
        "run": str(folder),
        "status": "stopped" if is_stopped else "failed" if failed else "done",
        "official_images": is_official,
        "tasks": entries,
        "groups": [
            {
                "group": group,
                "accuracy": means[group],
                "std": _spread([entry for entry in done.values() if entry["group"] == group])[1],
                "tasks": sum(entry["group"] == group for entry in done.values()),
                "of": sum(entry["group"] == group for entry in entries),
            }
            for group in GROUPS
            if group in means
        ],
        "mean": mean,
        "overall": _overall(mean, list(done.values()), is_official, is_practice),
        "published": [] if is_practice else [_beside(model, done) for model in PUBLISHED],
        "seconds": seconds,
        "device_hours": seconds / 3600,
        "figure": None,
    }


def _spread(entries: Sequence[Mapping[str, Any]]) -> tuple[list[float], float | None]:
    """Return the mean over tasks of each seed, and their sample standard deviation, where there are several seeds."""
    rows = [entry["values"] or [entry["accuracy"]] for entry in entries]
    if len({len(row) for row in rows}) != 1:
        return [], None
    values = [statistics.fmean(seed) for seed in zip(*rows, strict=True)]
    return values, statistics.stdev(values) if len(values) > 1 else None


def _overall(
    mean: float | None, done: Sequence[Mapping[str, Any]], is_official: bool, is_practice: bool
) -> dict[str, Any] | None:
    """Return the mean over tasks; it is VTAB-1k's only with all of its tasks and their official images."""
    if mean is None:
        return None
    count, (values, std) = len(done), _spread(done)
    name = f"mean of {counted(count, 'task')}"
    if is_practice:
        name = f"practice on shapes, {name}"
    elif not is_official:
        name = f"{name}, {UNOFFICIAL}"
    elif count == len(TASKS):
        name = "VTAB-1k"
    return {"name": name, "accuracy": mean, "std": std, "values": values, "tasks": count}


def _beside(model: str, done: dict[str, Any]) -> dict[str, Any]:
    """Return the paper's results; their means are over the tasks that ours are over."""
    row = PUBLISHED[model]
    same = {name: row[name] for name in done}
    return {
        "model": model,
        "source": "ViT, table 9",
        "tasks": row,
        "groups": group_means(same, {name: task.group for name, task in TASKS.items()}),
        "overall": statistics.fmean(same.values()) if same else None,
    }


def draw(document: dict[str, Any], title: str, path: Path) -> None:
    published = document["published"]
    tasks = [
        Bar(
            entry["title"] + ("" if entry["official_images"] or not published else "*"),
            entry["group"],
            entry["accuracy"],
            entry["std"],
            [row["tasks"][entry["task"]] for row in published],
        )
        for entry in document["tasks"]
        if entry["status"] == "done"
    ]
    groups = [
        Bar(
            f"{group['group']}\n{group['tasks']} of {group['of']}",
            group["group"],
            group["accuracy"],
            group["std"],
            [row["groups"][group["group"]] for row in published],
        )
        for group in document["groups"]
    ]
    overall = document["overall"]
    groups.append(
        Bar(
            f"All\n{overall['tasks']} of {len(document['tasks'])}",
            "",
            overall["accuracy"],
            overall["std"],
            [row["overall"] for row in published],
        )
    )
    caption = f"* {UNOFFICIAL}" if published and not document["official_images"] else ""
    picture = bars(title, groups, tasks, [f"{row['model']}, {row['source']}" for row in published], caption)
    try:
        path.write_bytes(picture)
    except OSError as error:
        raise InputError(f"{path} can't be written: {error.strerror or error}") from None
