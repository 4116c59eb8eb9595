"""`vtab`: a model on every task of VTAB-1k that is there, or on practice tasks, beside the paper's results."""

from __future__ import annotations

import json
import os
import shutil
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitkit.data.sources.vtab import UNOFFICIAL
from vitkit.data.vtab import TASKS
from vitkit.errors import InputError
from vitkit.models.configs import ModelConfig
from vitkit.predictor import choose_device
from vitkit.report.bars import Bar, bars
from vitkit.train.log import Listener, Silent
from vitkit.train.runs import ROOT, run_name
from vitkit.transfer.vtab.protocols import FEWSHOT, GRID, changes_of, check_protocol, in_words
from vitkit.transfer.vtab.tasks import (
    GROUPS,
    PUBLISHED,
    SHAPES,
    Exercise,
    Missing,
    choose_tasks,
    find_exercise,
    group_means,
    task_names,
)

SETTINGS, RESULTS, FIGURE = "vtab.json", "results.json", "vtab.png"
Finetune = Callable[..., dict[str, Any]]
Learn = Callable[[Exercise], dict[str, Any]]


class Stopped(Exception):
    """Someone asked a task's run to stop."""


def vtab(
    model: str,
    data: str,
    *,
    protocol: str = "vit",
    tasks: str | None = None,
    seeds: int = 1,
    sweep: str | None = None,
    steps: int | None = None,
    run: str | None = None,
    device: str = "auto",
    force: bool = False,
    listener: Listener | None = None,
    finetune: Finetune | None = None,
) -> dict[str, Any]:
    """Run the tasks in a folder, or on `shapes`; return what `vit vtab --json` prints.

    protocol: vit, bit, light, or fewshot, which trains nothing but a ridge head.
    tasks: names with commas between; left open, all that are there. A run folder keeps what other calls did.
    sweep: "lr" chooses each task's learning rate by train800 and val200; the last run is always on train800val200.
    steps: a shorter run than the protocol's.
    finetune: what does one run, in place of vitkit's own.
    """
    check_protocol(protocol, steps=steps, seeds=seeds, sweep=sweep)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("VTAB runs in one process; several share a run folder by --tasks of their own")
    data = _check_data(data)
    chosen = choose_tasks(data, tasks)
    choose_device(device)
    listener = listener or Silent()
    settings = {
        "model": model,
        "data": data,
        "protocol": protocol,
        "seeds": seeds,
        "sweep": sweep,
        "steps": steps,
    }
    folder = _run_folder(settings, run)
    found = {name: find_exercise(data, name) for name in task_names(data)}
    for line in _inventory(found, data):
        listener.note(line)
    _check_found(found, chosen, data, tasks is not None)
    learn = _learner(model, settings, folder, device, listener, finetune)
    _open_folder(folder, settings, force)
    errors: dict[str, str] = {}
    is_stopped = False
    todo = [task for name in chosen if isinstance(task := found[name], Exercise)]
    for number, task in enumerate(todo, 1):
        if _read(folder, task) is not None:
            listener.note(f"{task.title} ({number} of {len(todo)}): done already")
            continue
        listener.note(f"{task.title} ({number} of {len(todo)})")
        try:
            result = learn(task)
        except Stopped:
            is_stopped = True
            break
        except Exception as error:  # one task must not take the others down; it is told of and tried again
            errors[task.name] = _reason(error)
            listener.note(f"{task.title} failed: {errors[task.name]}")
            continue
        _write(folder / f"{task.name}.json", result)
        listener.note(f"{task.title}: {result['accuracy']:.2%}")
    entries = [_entry(found[name], _read(folder, found[name]), errors.get(name)) for name in found]
    document = _document(settings, folder, entries, [name for name in found if name in chosen], is_stopped)
    title = f"{document['overall']['name']}: {model}, {document['words']}" if document["overall"] else ""
    if title:
        _draw(document, title, folder / FIGURE)
        document["figure"] = str(folder / FIGURE)
    _write(folder / RESULTS, document)
    return document


def _check_data(data: str) -> str:
    if data == SHAPES:
        return data
    if not Path(data).expanduser().is_dir():
        raise InputError(
            f"{data} is no folder; expected shapes, or the folder of VTAB's tasks, such as one with "
            "cifar/train800val200.txt in it"
        )
    if set(data) & set(",[]"):
        raise InputError(f"the folder {data} has a comma or bracket in its name: rename it, or link to it")
    return data


def _inventory(found: dict[str, Exercise | Missing], data: str) -> list[str]:
    """Say which tasks are there and which not, and why."""
    here = [task for task in found.values() if isinstance(task, Exercise)]
    lines = [f"{data}: {len(here)} of {len(found)} tasks are there: {', '.join(task.title for task in here)}"]
    for task in found.values():
        if isinstance(task, Missing):
            lines.append(f"{task.title}: {'unusable' if task.is_failure else 'absent'}: {task.reason}")
        else:
            lines += task.notes
    return lines


def _check_found(
    found: dict[str, Exercise | Missing], chosen: Sequence[str], data: str, is_asked: bool
) -> None:
    missing = {name: task.reason for name in chosen if isinstance(task := found[name], Missing)}
    if is_asked and missing:
        raise InputError(next(iter(missing.values())))
    if len(missing) == len(chosen):
        broken = [task.reason for task in found.values() if isinstance(task, Missing) and task.is_failure]
        raise InputError(broken[0] if broken else f"{data} holds no task of VTAB: {missing[chosen[0]]}")


def _learner(
    model: str,
    settings: dict[str, Any],
    folder: Path,
    device: str,
    listener: Listener,
    finetune: Finetune | None,
) -> Learn:
    """Return what learns one task; a model that can't be loaded is an error here, before any task."""
    if settings["protocol"] == FEWSHOT:
        from vitkit.evaluate.features import load_frozen
        from vitkit.transfer.vtab.frozen import fit_frozen

        predictor = load_frozen(model, device, None)
        for line in predictor.notes:
            listener.note(line)
        return lambda task: fit_frozen(predictor, task, listener)
    from vitkit.weights.load import load_model

    config = load_model(model).model.config
    if finetune is None:
        from vitkit.transfer.finetune import finetune as own

        finetune = own
    call = finetune

    def run_once(data: str, measured: str, changes: list[str], path: Path, seeds: int) -> dict[str, Any]:
        # JSON's quotes are YAML's: a folder's name may hold what YAML would read otherwise.
        changes = [*changes, f"data.evaluate={json.dumps(measured)}"]
        result = call(model, data, changes, seeds=seeds, run=str(path), device=device, listener=listener)
        if result.get("status") == "stopped":
            raise Stopped
        return result

    return lambda task: _train(task, config, settings, folder, run_once, listener)


def _train(
    task: Exercise,
    config: ModelConfig,
    settings: dict[str, Any],
    folder: Path,
    run_once: Finetune,
    listener: Listener,
) -> dict[str, Any]:
    """Choose the learning rate by train800 and val200, if asked; then train on both and measure on test."""
    changes = changes_of(settings["protocol"], task, config, settings["steps"])
    tried: list[dict[str, Any]] = []
    for rate in GRID if settings["sweep"] else ():
        path = folder / "tuning" / task.name / f"{rate:g}"
        result = run_once(task.splits["train800"], task.splits["val200"], [*changes, _rate(rate)], path, 1)
        tried.append({"learning_rate": rate, "accuracy": result["accuracy"]})
        listener.note(f"{task.title}: learning rate {rate:g}: {result['accuracy']:.2%} on val200")
    if tried:
        changes.append(_rate(max(tried, key=lambda row: row["accuracy"])["learning_rate"]))
    result = run_once(
        task.splits["train800val200"], task.splits["test"], changes, folder / task.name, settings["seeds"]
    )
    kept = ("accuracy", "std", "values", "learning_rate", "seconds", "run", "model")
    return {**{key: result[key] for key in kept if key in result}, "tuning": tried, "changes": changes}


def _rate(rate: float) -> str:
    return f"optimizer.learning_rate={rate:g}"


def _run_folder(settings: dict[str, Any], run: str | None) -> Path:
    if run is None:
        return Path(ROOT, run_name(f"vtab-{settings['protocol']}", settings))
    return Path(run) if Path(run).name != run else Path(ROOT, run)


def _open_folder(folder: Path, settings: dict[str, Any], force: bool) -> None:
    """Make the run's folder, or go on in it with the same settings."""
    file = folder / SETTINGS
    if force and file.is_file():
        shutil.rmtree(folder)
    if not file.is_file():
        if folder.is_dir() and (others := sorted(path.name for path in folder.iterdir())):
            raise InputError(
                f"{folder} holds {others[0]!r} and no {SETTINGS}: it is no VTAB run; name another"
            )
        _write(file, settings)
        return
    try:
        known = json.loads(file.read_bytes())
    except (OSError, ValueError):
        raise InputError(f"{file} is damaged: name another run, or begin anew with --force") from None
    for name, value in settings.items():
        if known.get(name) != value:
            raise InputError(
                f"{folder} holds a run with other settings: {name} is {json.dumps(known.get(name))} there, "
                f"{json.dumps(value)} here; name another run, or begin anew with --force"
            )


def _read(folder: Path, task: Exercise | Missing) -> dict[str, Any] | None:
    """Return the result of a task that is done."""
    try:
        result = json.loads((folder / f"{task.name}.json").read_bytes())
        return result if isinstance(result["accuracy"], float | int) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, document: dict[str, Any]) -> None:
    """Write JSON, aside and then renamed."""
    aside = path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        raise InputError(f"{path} can't be written: {error.strerror or error}") from None


def _reason(error: Exception) -> str:
    words = (str(error).strip() or type(error).__name__).splitlines()[0]
    return words if isinstance(error, InputError) else f"{type(error).__name__}: {words}"


def _entry(task: Exercise | Missing, result: dict[str, Any] | None, error: str | None) -> dict[str, Any]:
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


def _document(
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
        **settings,
        "words": in_words(settings["protocol"], settings["steps"])
        + (f", mean of {settings['seeds']} seeds" if settings["seeds"] > 1 else "")
        + (", learning rate chosen by val200" if settings["sweep"] else ""),
        "run": str(folder),
        "status": "stopped" if is_stopped else "failed" if failed else "done",
        "official_images": is_official,
        "tasks": entries,
        "groups": [
            {
                "group": group,
                "accuracy": means[group],
                "tasks": sum(entry["group"] == group for entry in done.values()),
                "of": sum(entry["group"] == group for entry in entries),
            }
            for group in GROUPS
            if group in means
        ],
        "mean": mean,
        "overall": _overall(mean, len(done), is_official, is_practice),
        "published": [] if is_practice else [_beside(model, done) for model in PUBLISHED],
        "seconds": seconds,
        "device_hours": seconds / 3600,
        "figure": None,
    }


def _overall(mean: float | None, count: int, is_official: bool, is_practice: bool) -> dict[str, Any] | None:
    """Return the mean over tasks; it is VTAB-1k's only with all of its tasks and their official images."""
    if mean is None:
        return None
    name = f"mean of {count} {'task' if count == 1 else 'tasks'}"
    if is_practice:
        name = f"practice on shapes, {name}"
    elif not is_official:
        name = f"{name}, {UNOFFICIAL}"
    elif count == len(TASKS):
        name = "VTAB-1k"
    return {"name": name, "accuracy": mean, "tasks": count}


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


def _draw(document: dict[str, Any], title: str, path: Path) -> None:
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
            None,
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
            None,
            [row["overall"] for row in published],
        )
    )
    caption = f"* {UNOFFICIAL}" if published and not document["official_images"] else ""
    picture = bars(title, groups, tasks, [f"{row['model']}, {row['source']}" for row in published], caption)
    try:
        path.write_bytes(picture)
    except OSError as error:
        raise InputError(f"{path} can't be written: {error.strerror or error}") from None
