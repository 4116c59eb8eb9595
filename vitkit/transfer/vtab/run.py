"""`vtab`: a model on every task of VTAB-1k that is there, or on practice tasks, beside the paper's results."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from vitkit.data.splits import counted
from vitkit.errors import InputError
from vitkit.files import write_file
from vitkit.models.configs import ModelConfig
from vitkit.predictor import choose_device
from vitkit.runs import ROOT, named_path, run_name
from vitkit.training.estimate import in_words
from vitkit.training.log import Listener, Silent
from vitkit.transfer.forecast import seconds_for
from vitkit.transfer.vtab.document import describe_task, draw, make_document, protocol_words
from vitkit.transfer.vtab.protocols import (
    FEWSHOT,
    GRID,
    PROTOCOLS,
    changes_of,
    check_protocol,
    operations_of,
)
from vitkit.transfer.vtab.tasks import (
    SHAPES,
    Exercise,
    Missing,
    choose_tasks,
    find_tasks,
)

SETTINGS, RESULTS, FIGURE = "vtab.json", "results.json", "vtab.png"
Finetune = Callable[..., dict[str, Any]]
Learn = Callable[[Exercise], dict[str, Any]]


class Stopped(Exception):
    """Someone asked a task's run to stop."""


class Without:
    """Passes on what a run says, but for notes that begin so: those that name settings which aren't here."""

    def __init__(self, listener: Listener, *beginnings: str) -> None:
        self.listener, self.beginnings = listener, beginnings
        self.start, self.stepped = listener.start, listener.stepped
        self.metrics, self.stop = listener.metrics, listener.stop

    def note(self, line: str) -> None:
        if not line.startswith(self.beginnings):
            self.listener.note(line)


def vtab(
    model: str,
    data: str,
    *,
    protocol: str = "vit",
    tasks: str | None = None,
    seeds: int = 1,
    sweep: str | None = None,
    steps: int | None = None,
    changes: Sequence[str] = (),
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
    changes: `key=value` settings of every task's run beside the protocol's; the table names them.
    finetune: what does one run, in place of vitkit's own.
    """
    changes = [change for change in changes if change != "protocol=paper"]
    check_protocol(protocol, steps=steps, seeds=seeds, sweep=sweep, changes=changes)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("VTAB runs in one process; several share a run folder by --tasks of their own")
    data = _check_data(data)
    chosen = choose_tasks(data, tasks)
    on = choose_device(device)
    listener = listener or Silent()
    settings: dict[str, Any] = {
        "model": model,
        "data": data,
        "protocol": protocol,
        "seeds": seeds,
        "sweep": sweep,
        "steps": steps,
        **({"changes": changes} if changes else {}),
    }
    folder = _run_folder(settings, run)
    found = find_tasks(data)
    _check_found(found, chosen, data, tasks is not None)
    for line in _inventory(found, data):
        listener.note(line)
    learn, config = _learner(model, settings, folder, device, listener, finetune)
    _open_folder(folder, settings, force)
    errors: dict[str, str] = {}
    is_stopped = False
    todo = [task for name in chosen if isinstance(task := found[name], Exercise)]
    for line in _announcement([task for task in todo if not _read(folder, task)], config, settings, on):
        listener.note(line)
    for number, task in enumerate(todo, 1):
        if _read(folder, task) is not None:
            listener.note(f"{task.name} ({number} of {len(todo)}): done already")
            continue
        listener.note(f"{task.name} ({number} of {len(todo)})")
        try:
            result = learn(task)
        except (Stopped, KeyboardInterrupt):
            is_stopped = True
            break
        except Exception as error:  # one task must not take the others down; it is told of and tried again
            errors[task.name] = _reason(error)
            listener.note(f"{task.name} failed: {errors[task.name]}")
            continue
        _write(folder / f"{task.name}.json", result)
        listener.note(f"{task.name}: {result['accuracy']:.2%}")
    entries = [describe_task(found[name], _read(folder, found[name]), errors.get(name)) for name in found]
    document = make_document(
        settings, folder, entries, [name for name in found if name in chosen], is_stopped
    )
    title = f"{document['overall']['name']}: {model}, {document['words']}" if document["overall"] else ""
    if title:
        draw(document, title, folder / FIGURE)
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
    lines = [f"{data}: {len(here)} of {len(found)} tasks are there: {', '.join(task.name for task in here)}"]
    for task in found.values():
        if isinstance(task, Missing):
            lines.append(f"{task.name}: {'unusable' if task.is_failure else 'absent'}: {task.reason}")
        else:
            lines += task.notes
    return lines


def _announcement(
    tasks: Sequence[Exercise], config: ModelConfig, settings: dict[str, Any], device: torch.device
) -> list[str]:
    """Say what will be done, how long all of it will take, and how it would take less."""
    lines = ["", f"protocol {protocol_words(settings)}"]
    if not tasks:
        return lines
    how = {name: settings.get(name, ()) for name in ("steps", "seeds", "sweep", "changes")}
    flops = sum(operations_of(settings["protocol"], task, config, **how) for task in tasks)
    parts = [counted(len(tasks), "task")]
    shorter = ["--tasks A,B", "a smaller model", *([] if device.type == "cuda" else ["a GPU"])]
    if settings["protocol"] != FEWSHOT:
        steps = settings["steps"] or PROTOCOLS[settings["protocol"]].steps
        parts += [f"each {counted(settings['seeds'], 'seed')}"]
        parts += [f"and {len(GRID)} learning rates tried"] if settings["sweep"] else []
        quicker = "fewshot" if settings["protocol"] == "light" else "light or fewshot"
        shorter = [f"--steps N (now {steps:,})", f"--protocol {quicker}", *shorter]
    words = in_words(seconds_for(flops, device))
    lines.append(f"estimated time: {words} in all on {device.type}: {', '.join(parts)}")
    return [*lines, f"shorter: {', '.join(shorter)}", ""]


def _check_found(
    found: dict[str, Exercise | Missing], chosen: Sequence[str], data: str, is_asked: bool
) -> None:
    missing = {name: task.reason for name in chosen if isinstance(task := found[name], Missing)}
    if is_asked and missing:
        raise InputError(next(iter(missing.values())))
    if len(missing) == len(chosen):
        broken = [task.reason for task in found.values() if isinstance(task, Missing) and task.is_failure]
        raise InputError(
            broken[0]
            if broken
            else f"{data} holds no task of VTAB; expected folders such as dtd/ with train800val200.txt and test.txt, "
            "or raw data as torchvision lays it out"
        )


def _learner(
    model: str,
    settings: dict[str, Any],
    folder: Path,
    device: str,
    listener: Listener,
    finetune: Finetune | None,
) -> tuple[Learn, ModelConfig]:
    """Return what learns one task, and the model's config; one that can't be loaded is an error here, before any task."""
    if settings["protocol"] == FEWSHOT:
        from vitkit.evaluation.features import load_frozen
        from vitkit.transfer.vtab.frozen import fit_frozen

        predictor = load_frozen(model, device, None)
        for line in predictor.notes:
            listener.note(line)
        return lambda task: fit_frozen(predictor, task, listener), predictor.model.config
    from vitkit.weights.load import load_model

    config = load_model(model).model.config
    if finetune is None:
        from vitkit.transfer.finetune import finetune as own

        finetune = own
    call = finetune
    # Of finetune's own protocol and settings; the time of all tasks is told already.
    within = Without(listener, "protocol ", "shorter: ", "estimated time: ")

    def run_once(data: str, measured: str, changes: list[str], path: Path, seeds: int) -> dict[str, Any]:
        # JSON's quotes are YAML's: a folder's name may hold what YAML would read otherwise.
        changes = [*changes, f"data.evaluate={json.dumps(measured)}"]
        result = call(model, data, changes, seeds=seeds, run=str(path), device=device, listener=within)
        if result.get("status") == "stopped":
            raise Stopped
        return result

    return lambda task: _train(task, config, settings, folder, run_once, listener), config


def _train(
    task: Exercise,
    config: ModelConfig,
    settings: dict[str, Any],
    folder: Path,
    run_once: Finetune,
    listener: Listener,
) -> dict[str, Any]:
    """Choose the learning rate by train800 and val200, if asked; then train on both and measure on test."""
    changes = changes_of(settings["protocol"], task, config, settings["steps"], settings.get("changes", ()))
    tried: list[dict[str, Any]] = []
    for rate in GRID if settings["sweep"] else ():
        path = folder / "tuning" / task.name / f"{rate:g}"
        result = run_once(task.splits["train800"], task.splits["val200"], [*changes, _rate(rate)], path, 1)
        tried.append({"learning_rate": rate, "accuracy": result["accuracy"], "seconds": result["seconds"]})
        listener.note(f"{task.name}: learning rate {rate:g}: {result['accuracy']:.2%} on val200")
    if tried:
        changes.append(_rate(max(tried, key=lambda row: row["accuracy"])["learning_rate"]))
    result = run_once(
        task.splits["train800val200"], task.splits["test"], changes, folder / task.name, settings["seeds"]
    )
    kept = ("accuracy", "std", "values", "learning_rate", "run", "model")
    return {
        **{key: result[key] for key in kept if key in result},
        "seconds": result["seconds"] + sum(row["seconds"] for row in tried),
        "tuning": tried,
        "changes": changes,
    }


def _rate(rate: float) -> str:
    return f"optimizer.learning_rate={rate:g}"


def _run_folder(settings: dict[str, Any], run: str | None) -> Path:
    if run is None:
        return Path(ROOT, run_name(f"vtab-{settings['protocol']}", settings))
    return named_path(run)


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
        known = dict(json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError):
        raise InputError(f"{file} is damaged: name another run, or begin anew with --force") from None
    for name in settings | known:
        there, here = (json.dumps(those.get(name)) for those in (known, settings))
        if there != here:
            raise InputError(
                f"{folder} holds a run with other settings: {name} is {there} there, {here} here; "
                "name another run, or begin anew with --force"
            )


def _read(folder: Path, task: Exercise | Missing) -> dict[str, Any] | None:
    """Return the result of a task that is done."""
    try:
        result = json.loads((folder / f"{task.name}.json").read_bytes())
        return result if isinstance(result["accuracy"], float | int) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, document: dict[str, Any]) -> None:
    write_file(path, json.dumps(document, indent=2, allow_nan=False) + "\n")


def _reason(error: Exception) -> str:
    words = (str(error).strip() or type(error).__name__).splitlines()[0]
    return words if isinstance(error, InputError) else f"{type(error).__name__}: {words}"
