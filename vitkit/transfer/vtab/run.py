"""`vitkit.vtab`: a model on every VTAB-1k task found, or on practice tasks, next to the paper's results."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Unpack

import numpy as np
import torch

from vitkit.config import Change, Changes, as_changes
from vitkit.data.open import named_data
from vitkit.data.splits import counted
from vitkit.data.threads import Unreadable
from vitkit.data.unreadable import BadImageRule, BadImages, skipped_notes
from vitkit.errors import InputError, first_line
from vitkit.evaluation.features import frozen_features, load_frozen
from vitkit.evaluation.fewshot import FewShot
from vitkit.figures.numbers import rough_duration
from vitkit.files import write_json
from vitkit.models.configs import ModelConfig
from vitkit.notes import Note, kind_of
from vitkit.predictor import AnyModel, Predictor, choose_device, named_model
from vitkit.progress import Listener, following
from vitkit.results import from_json
from vitkit.runs import ROOT, RunFolder, accepts_data, binding, named_path, run_name
from vitkit.runs.records import KINDS, read_result
from vitkit.settings import TaskSettings
from vitkit.training.estimate import seconds_for
from vitkit.transfer.finetune import (
    FinetuneRequest,
    FinetuneResult,
    TriedRate,
    arguments,
    choose_rate,
    run_finetuning,
)
from vitkit.transfer.head import FeatureNotes
from vitkit.transfer.plan import Plan, Start, load_start, make_plan, start_notes
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
Learn = Callable[[Exercise], TaskResult]


def vtab(
    model: AnyModel | None = None,
    data: str | os.PathLike[str] | None = None,
    /,
    *,
    protocol: str = "vit",
    tasks: str | Sequence[str] | None = None,
    seeds: int = 1,
    sweep: str | None = None,
    steps: int | None = None,
    changes: Changes = (),
    run: str | os.PathLike[str] | None = None,
    device: str = "auto",
    bad_images: BadImages = "skip",
    force: bool = False,
    accept: str | Sequence[str] = (),
    progress: bool = True,
    listener: Listener | None = None,
    **settings: Unpack[TaskSettings],
) -> VtabResult:
    """Run VTAB's tasks in a folder, or those on `shapes`. The same call again resumes.

    protocol: vit, bit, light, or fewshot, which trains only a ridge head.
    tasks: names, as a list or separated by commas; the default is every task there is. A run folder keeps the results of
    earlier calls.
    sweep: "lr" chooses each task's learning rate by train800 and val200; the last run always trains on train800val200.
    steps: number of steps, for a run shorter than the protocol's.
    settings: settings of every task's run that differ from the protocol's, as in `batch_size=256`; the table names them.
    changes: the same as a mapping of dotted names, or as strings, `["batch_size=256"]`.
    bad_images: "skip", "error" or "any", for unreadable images.
    accept: "data" resumes tasks although training images were added or removed.
    progress: False shows none. listener: follows the runs instead of a progress bar.
    """
    given: dict[str, object] = {**settings}
    model, data = arguments("vtab", model, data, given)
    made = [change for change in as_changes(changes, given) if change != "protocol=paper"]
    model, named = named_model(model)
    asked = VtabSettings(named, named_data(data)[1], protocol, seeds, sweep, steps, tuple(made))
    tasks = tasks if tasks is None or isinstance(tasks, str) else ",".join(tasks)
    with following(progress, listener) as follower:
        return run_vtab(
            *(model, asked),
            tasks=tasks,
            run=run,
            device=device,
            rule=BadImageRule(bad_images, "option"),
            force=force,
            accept_data=accepts_data(accept),
            listener=follower,
        )


def run_vtab(
    model: str | os.PathLike[str] | Predictor | Start,
    asked: VtabSettings,
    *,
    tasks: str | None = None,
    run: str | os.PathLike[str] | None = None,
    device: str = "auto",
    rule: BadImageRule = BadImageRule("skip", "option"),  # noqa: B008 (frozen)
    force: bool = False,
    accept_data: bool = False,
    listener: Listener,
    found: Mapping[str, Exercise | Missing] | None = None,
    introduce: bool = True,
) -> VtabResult:
    """Do what was asked in its run folder.

    found: the tasks of the folder, where the caller has opened them.
    introduce: whether to say what will be done, with which model, and how long it takes.
    """
    data = asked.data
    check_protocol(
        asked.protocol, steps=asked.steps, seeds=asked.seeds, sweep=asked.sweep, changes=asked.changes
    )
    check_alone(
        "VTAB runs in one process; several processes can share a run folder, each with its own --tasks"
    )
    _check_data(data)
    chosen = choose_tasks(data, tasks)
    on = choose_device(device)
    settings = replace(asked, changes=tuple(binding(asked.changes)))
    name = run_name(f"vtab-{asked.protocol}", settings.to_json())
    folder = Path(ROOT, name) if run is None else named_path(run)
    found = find_tasks(data) if found is None else found
    _check_found(found, chosen, data, tasks is not None)
    for line in _inventory(found, data):
        listener.note(line)
    learn, config, about_model = _learner(model, asked, folder, device, rule, accept_data, listener)
    for line in about_model if introduce else ():
        listener.note(line)
    reads = [*paths_in(asked.model), *([] if data == SHAPES else [Path(data).expanduser()])]
    todo = [task for name in chosen if isinstance(task := found[name], Exercise)]
    for name, task in found.items():
        if isinstance(task, Exercise) and name not in chosen:
            task.opened.clear()  # may hold whole sets of pixels
    with RunFolder(
        folder,
        asked.to_json(),
        kind="vtab",
        force=force,
        keeps=reads,
        parts=task_names(data),
        is_shared=True,
        complete=lambda known: from_json(VtabSettings, known, folder / KINDS["vtab"].record).to_json(),
    ) as own:
        own.clear()
        own.update(status="running", message="")
        left = [task for task in todo if _read(folder, task) is None]
        for line in _announcement(left, config, asked, on) if introduce else ():
            listener.note(line)
        errors, is_stopped = _run_tasks(todo, learn, folder, listener)
        rows = [describe_task(task, _read(folder, task), errors.get(name)) for name, task in found.items()]
        document = make_document(asked, folder, rows, chosen, is_stopped)
        if document.overall:
            draw(document, f"{document.overall.name}: {asked.model}, {document.words}", folder / FIGURE)
            document = replace(document, figure=str(folder / FIGURE))
        own.update(**document.to_json())
    for line in skipped_notes(chain.from_iterable(row.unreadable for row in rows)):
        listener.note(line)
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
        except Exception as error:  # one task must not take the others down; it is reported and tried again
            errors[task.name] = what_failed(error)
            listener.note(Note(f"{task.name} failed: {errors[task.name]}", "warning"))
            continue
        write_json(folder / f"{task.name}.json", result.to_json())
        listener.note(Note(f"{task.name}: {result.accuracy:.2%}", "progress"))
    return errors, False


def _check_data(data: str) -> None:
    if data == SHAPES:
        return
    if not Path(data).expanduser().is_dir():
        raise InputError(
            f"{data} is not a folder; expected shapes, or the folder of VTAB's tasks, such as a folder with "
            "cifar/train800val200.txt in it"
        )
    if set(data) & set(",[]"):
        raise InputError(f"the folder {data} has a comma or bracket in its name: rename it, or link to it")


def _inventory(found: Mapping[str, Exercise | Missing], data: str) -> list[Note]:
    """Say which tasks are there and which not, and why."""
    here = [task for task in found.values() if isinstance(task, Exercise)]
    text = f"{data}: {len(here)} of {len(found)} tasks are there: {', '.join(task.name for task in here)}"
    lines = [Note(text, "data")]
    for task in found.values():
        if not isinstance(task, Missing):
            lines += task.notes
        elif task.is_failure:
            lines.append(Note(f"{task.name} can't be used: {task.reason}", "warning"))
        else:
            lines.append(Note(f"{task.name}: absent: {task.reason}", "data"))
    return lines


def _announcement(
    tasks: Sequence[Exercise], config: ModelConfig, settings: VtabSettings, device: torch.device
) -> list[Note]:
    """Say what will be done, how long all of it will take, and how it would take less."""
    if not tasks:
        return []
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
    what = f"{settings.model} on {settings.data}, protocol {settings.words}: {', '.join(parts)}"
    words = rough_duration(seconds_for(flops, device))
    return [
        Note(f"shorter: {', '.join(shorter)}", "advice"),
        Note(f"{what}; roughly {words} on {device.type}", "summary"),
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
    rule: BadImageRule,
    accept_data: bool,
    listener: Listener,
) -> tuple[Learn, ModelConfig, tuple[Note, ...]]:
    """Return what learns one task, and the model's config and notes; one that can't be loaded is an error before any task."""
    if settings.protocol == FEWSHOT:
        assert not isinstance(model, Start)
        predictor = load_frozen(model, device, None)
        notes = tuple(Note(line, kind_of(line)) for line in predictor.notes)
        return lambda task: fit_frozen(predictor, task, rule, listener), predictor.model.config, notes
    start = model if isinstance(model, Start) else load_start(model)
    learn = partial(
        train_task, start=start, settings=settings, folder=folder, device=device, listener=listener
    )
    notes = start_notes(start, start.loaded.preprocessing)
    return partial(learn, rule=rule, accept_data=accept_data), start.config, notes


def fit_frozen(predictor: Predictor, task: Exercise, rule: BadImageRule, listener: Listener) -> TaskResult:
    """Return the accuracy of a ridge head, solved in closed form; features come from the cache if they are there."""
    began, progress = time.perf_counter(), FeatureNotes(listener)
    compute = partial(frozen_features, predictor, progress=progress, bad_images=rule)
    train = compute(task.open("train800val200"))
    test = compute(task.open("test"), classes=train.class_names)
    answers = FewShot().fit(train.x, train.labels).predict(test.x)
    skipped = (*train.bad.values(), *test.bad.values())
    accuracy = float(np.mean(answers == test.labels))
    return TaskResult(accuracy, time.perf_counter() - began, unreadable=skipped)


def train_task(
    task: Exercise,
    start: Start,
    settings: VtabSettings,
    folder: Path,
    device: str,
    listener: Listener,
    rule: BadImageRule,
    accept_data: bool,
) -> TaskResult:
    """Choose the learning rate by train800 and val200, if asked; then train on both and measure on test."""
    changes = changes_of(settings.protocol, task, start.config, settings.steps, settings.changes)
    opened = cache(task.open)
    bad_images = [] if rule.choice == "skip" else [f"data.bad_images={rule.choice}"]
    skipped: list[Unreadable] = []

    def run_once(
        train: str, test: str, extra: Sequence[str], path: Path, seeds: int, is_first: bool = True
    ) -> FinetuneResult:
        every = [*changes, *extra, Change("data.evaluate", task.splits[test]), *bad_images]

        def make() -> Plan:
            plan = make_plan(start, opened(train), every, device, measured=opened(test))
            # Its protocol and settings have other names here, and are said at the start for all tasks.
            for note in plan.notes if is_first else ():
                if kind_of(note) != "protocol":
                    listener.note(note)
            return plan

        result = run_finetuning(
            *(FinetuneRequest(start.spec, task.splits[train], tuple(every), seeds=seeds), make),
            path,
            device=device,
            accept_data=accept_data,
            listener=listener,
            introduce=False,
        )
        skipped.extend(result.unreadable)
        if result.status == "stopped":
            raise KeyboardInterrupt
        return result

    tried: list[TriedRate] = []
    for rate in GRID if settings.sweep else ():
        path = folder / "tuning" / task.name / f"{rate:g}"
        result = run_once("train800", "val200", [_rate(rate)], path, 1, rate == GRID[0])
        assert result.accuracy is not None
        tried.append(TriedRate(rate, result.accuracy, result.seconds, result.kept))
        text = f"{task.name}: learning rate {rate:g}: {result.accuracy:.2%} on val200"
        listener.note(Note(text, "progress"))
    if tried:
        changes.append(_rate(choose_rate(tried)))
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
        unreadable=tuple(dict.fromkeys(skipped)),
    )


def _rate(rate: float) -> str:
    return f"optimizer.learning_rate={rate:g}"


def _read(folder: Path, task: Exercise | Missing) -> TaskResult | None:
    """Return the result of a task that is done."""
    return read_result(TaskResult, folder / f"{task.name}.json")


def what_failed(error: Exception) -> str:
    """Return what went wrong in one line; for other errors than InputError, with the type."""
    words = first_line(error)
    return words if isinstance(error, InputError) else f"{type(error).__name__}: {words}"
