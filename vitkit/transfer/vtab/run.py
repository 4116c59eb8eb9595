"""`vitkit.vtab`: a model on every VTAB-1k task found, or on practice tasks, next to the paper's results."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from vitkit.data.splits import counted
from vitkit.errors import InputError
from vitkit.evaluation.features import frozen_features, load_frozen
from vitkit.evaluation.fewshot import FewShot
from vitkit.files import write_file
from vitkit.models.configs import ModelConfig
from vitkit.notes import Kind, Note, kind_of
from vitkit.predictor import Predictor, choose_device
from vitkit.results import from_json
from vitkit.runs import ROOT, RunFolder, named_path, run_name
from vitkit.training.estimate import seconds_for, time_in_words
from vitkit.training.log import Listener, Silent
from vitkit.transfer.finetune import FinetuneRequest, FinetuneResult, NestedRun, TriedRate, run_finetuning
from vitkit.transfer.head import FeatureNotes
from vitkit.transfer.plan import Start, load_start, make_plan
from vitkit.transfer.vtab.document import (
    TaskResult,
    VtabResult,
    VtabSettings,
    describe_task,
    draw,
    make_document,
)
from vitkit.transfer.vtab.protocols import (
    FEWSHOT,
    GRID,
    PROTOCOLS,
    changes_of,
    check_protocol,
    operations_of,
)
from vitkit.transfer.vtab.tasks import SHAPES, Exercise, Missing, choose_tasks, find_tasks, task_names
from vitkit.weights.load import paths_in
from vitkit.world import check_alone

FIGURE = "vtab.png"
SAID: tuple[Kind, ...] = ("model", "untrained", "protocol", "estimate", "advice")
"What is said of all tasks at the start, so that no fine-tuning says it again."
Learn = Callable[[Exercise], TaskResult]


def vtab(
    model: str | os.PathLike[str] | Predictor | Start,
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
    found: Mapping[str, Exercise | Missing] | None = None,
) -> VtabResult:
    """Run the tasks in a folder, or on `shapes`; the same call again resumes.

    protocol: vit, bit, light, or fewshot, which trains nothing but a ridge head.
    tasks: names with commas between; the default is all that are there. A run folder keeps what other calls did.
    sweep: "lr" chooses each task's learning rate by train800 and val200; the last run is always on train800val200.
    steps: a shorter run than the protocol's.
    changes: `key=value` settings of every task's run beside the protocol's; the table names them.
    found: the tasks of the folder, where the caller has opened them.
    """
    changes = [change for change in changes if change != "protocol=paper"]
    check_protocol(protocol, steps=steps, seeds=seeds, sweep=sweep, changes=changes)
    check_alone("VTAB runs in one process; several share a run folder by --tasks of their own")
    data = _check_data(data)
    chosen = choose_tasks(data, tasks)
    on = choose_device(device)
    listener = listener or Silent()
    named = model.spec if isinstance(model, Predictor | Start) else os.fspath(model)
    settings = VtabSettings(named, data, protocol, seeds, sweep, steps, tuple(changes))
    name = run_name(f"vtab-{protocol}", settings.to_json())
    folder = Path(ROOT, name) if run is None else named_path(run)
    found = find_tasks(data) if found is None else found
    _check_found(found, chosen, data, tasks is not None)
    for line in _inventory(found, data):
        listener.note(line)
    learn, config = _learner(model, settings, folder, device, listener)
    reads = [*paths_in(named), *([] if data == SHAPES else [Path(data).expanduser()])]
    todo = [task for name in chosen if isinstance(task := found[name], Exercise)]
    for name, task in found.items():
        if isinstance(task, Exercise) and name not in chosen:
            task.opened.clear()  # may hold whole sets of pixels
    with RunFolder(
        folder,
        settings.to_json(),
        kind="vtab",
        force=force,
        keeps=reads,
        parts=task_names(data),
        is_shared=True,
    ) as own:
        own.clear()
        own.update(status="running", message="")
        left = [task for task in todo if _read(folder, task) is None]
        for line in _announcement(left, config, settings, on):
            listener.note(line)
        errors, is_stopped = _run_tasks(todo, learn, folder, listener)
        rows = [describe_task(task, _read(folder, task), errors.get(name)) for name, task in found.items()]
        document = make_document(settings, folder, rows, chosen, is_stopped)
        if document.overall:
            draw(document, f"{document.overall.name}: {named}, {document.words}", folder / FIGURE)
            document = replace(document, figure=str(folder / FIGURE))
        own.update(**document.to_json())
    return document


def _run_tasks(
    tasks: Sequence[Exercise], learn: Learn, folder: Path, listener: Listener
) -> tuple[dict[str, str], bool]:
    """Run the tasks that are not finished; return why some failed, and whether someone asked to stop."""
    errors: dict[str, str] = {}
    for number, task in enumerate(tasks, 1):
        if _read(folder, task) is not None:
            task.opened.clear()
            listener.note(Note(f"{task.name} ({number} of {len(tasks)}): already finished", "progress"))
            continue
        listener.note(Note(f"{task.name} ({number} of {len(tasks)})", "progress"))
        try:
            result = learn(task)
        except KeyboardInterrupt:
            return errors, True
        except Exception as error:  # one task must not take the others down; it is told of and tried again
            errors[task.name] = first_line(error)
            listener.note(Note(f"{task.name} failed: {errors[task.name]}", "warning"))
            continue
        write_file(
            folder / f"{task.name}.json", json.dumps(result.to_json(), indent=2, allow_nan=False) + "\n"
        )
        listener.note(Note(f"{task.name}: {result.accuracy:.2%}", "progress"))
    return errors, False


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


def _inventory(found: Mapping[str, Exercise | Missing], data: str) -> list[Note]:
    """Say which tasks are there and which not, and why."""
    here = [task for task in found.values() if isinstance(task, Exercise)]
    lines = [f"{data}: {len(here)} of {len(found)} tasks are there: {', '.join(task.name for task in here)}"]
    for task in found.values():
        if isinstance(task, Missing):
            lines.append(f"{task.name}: {'unusable' if task.is_failure else 'absent'}: {task.reason}")
        else:
            lines += task.notes
    return [Note(line, "data") for line in lines]


def _announcement(
    tasks: Sequence[Exercise], config: ModelConfig, settings: VtabSettings, device: torch.device
) -> list[Note]:
    """Say what will be done, how long all of it will take, and how it would take less."""
    lines = [Note(""), Note(f"protocol {settings.words}", "protocol")]
    if not tasks:
        return lines
    flops = sum(
        operations_of(
            settings.protocol,
            task,
            config,
            steps=settings.steps,
            seeds=settings.seeds,
            sweep=settings.sweep,
            changes=settings.changes,
        )
        for task in tasks
    )
    parts = [counted(len(tasks), "task")]
    shorter = ["--tasks A,B", "a smaller model", *([] if device.type == "cuda" else ["a GPU"])]
    if settings.protocol != FEWSHOT:
        steps = settings.steps or PROTOCOLS[settings.protocol].steps
        parts += [f"each {counted(settings.seeds, 'seed')}"]
        parts += [f"and {len(GRID)} learning rates tried"] if settings.sweep else []
        quicker = "fewshot" if settings.protocol == "light" else "light or fewshot"
        shorter = [f"--steps N (now {steps:,})", f"--protocol {quicker}", *shorter]
    words = time_in_words(seconds_for(flops, device))
    return [
        *lines,
        Note(f"estimated time: {words} in all on {device.type}: {', '.join(parts)}", "estimate"),
        Note(f"shorter: {', '.join(shorter)}", "advice"),
        Note(""),
    ]


def _check_found(
    found: Mapping[str, Exercise | Missing], chosen: Sequence[str], data: str, is_asked: bool
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
    model: str | os.PathLike[str] | Predictor | Start,
    settings: VtabSettings,
    folder: Path,
    device: str,
    listener: Listener,
) -> tuple[Learn, ModelConfig]:
    """Return what learns one task, and the model's config; one that can't be loaded is an error here, before any task."""
    if settings.protocol == FEWSHOT:
        assert not isinstance(model, Start)
        predictor = load_frozen(model, device, None)
        for line in predictor.notes:
            listener.note(Note(line, kind_of(line)))
        return lambda task: fit_frozen(predictor, task, listener), predictor.model.config
    start = model if isinstance(model, Start) else load_start(model)
    for line in start.loaded.notes:
        listener.note(line)
    return lambda task: train_task(task, start, settings, folder, device, listener), start.config


def fit_frozen(predictor: Predictor, task: Exercise, listener: Listener) -> TaskResult:
    """Return the accuracy of a ridge head, solved in closed form; features come from the cache if they are there."""
    began, progress = time.perf_counter(), FeatureNotes(listener)
    train = frozen_features(predictor, task.open("train800val200"), progress=progress)
    test = frozen_features(predictor, task.open("test"), classes=train.class_names, progress=progress)
    answers = FewShot().fit(train.x, train.labels).predict(test.x)
    return TaskResult(float(np.mean(answers == test.labels)), time.perf_counter() - began)


def train_task(
    task: Exercise, start: Start, settings: VtabSettings, folder: Path, device: str, listener: Listener
) -> TaskResult:
    """Choose the learning rate by train800 and val200, if asked; then train on both and measure on test."""
    changes = changes_of(settings.protocol, task, start.config, settings.steps, settings.changes)
    within = NestedRun(listener, SAID)
    opened = functools.cache(task.open)

    def run_once(train: str, test: str, extra: Sequence[str], path: Path, seeds: int) -> FinetuneResult:
        # JSON's quotes are YAML's: a folder's name may hold what YAML would read otherwise.
        every = [*changes, *extra, f"data.evaluate={json.dumps(task.splits[test])}"]
        result = run_finetuning(
            FinetuneRequest(start.spec, task.splits[train], tuple(every), seeds=seeds),
            lambda: make_plan(start, opened(train), every, device, measured=opened(test)),
            path,
            device=device,
            listener=within,
        )
        if result.status == "stopped":
            raise KeyboardInterrupt
        return result

    tried: list[TriedRate] = []
    for rate in GRID if settings.sweep else ():
        path = folder / "tuning" / task.name / f"{rate:g}"
        result = run_once("train800", "val200", [_rate(rate)], path, 1)
        assert result.accuracy is not None
        tried.append(TriedRate(rate, result.accuracy, result.seconds, result.kept))
        text = f"{task.name}: learning rate {rate:g}: {result.accuracy:.2%} on val200"
        listener.note(Note(text, "progress"))
    if tried:
        changes.append(_rate(max(tried, key=lambda row: row.accuracy).learning_rate))
    result = run_once("train800val200", "test", [], folder / task.name, settings.seeds)
    assert result.accuracy is not None
    return TaskResult(
        accuracy=result.accuracy,
        seconds=result.seconds + sum(row.seconds for row in tried),
        std=result.std,
        values=result.values,
        learning_rate=result.learning_rate,
        run=result.run,
        model=result.model,
        tuning=tuple(tried),
        changes=tuple(changes),
    )


def _rate(rate: float) -> str:
    return f"optimizer.learning_rate={rate:g}"


def _read(folder: Path, task: Exercise | Missing) -> TaskResult | None:
    """Return the result of a task that is done."""
    try:
        result = json.loads((folder / f"{task.name}.json").read_bytes())
        return from_json(TaskResult, result) if isinstance(result["accuracy"], float | int) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def first_line(error: Exception) -> str:
    """Return what went wrong in one line; who isn't told by an InputError is told its type."""
    words = (str(error).strip() or type(error).__name__).splitlines()[0]
    return words if isinstance(error, InputError) else f"{type(error).__name__}: {words}"
