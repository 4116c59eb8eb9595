"""The paper's suite: fine-tune on each of its data sets that is available, in a table next to the paper's results."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from vitkit.config import Bounds, Change, Changes, as_changes
from vitkit.data.sources.source import Source
from vitkit.data.sources.vtab import TASKS
from vitkit.data.splits import counted
from vitkit.data.threads import Unreadable
from vitkit.data.unreadable import BadImageRule, skipped_notes
from vitkit.errors import InputError
from vitkit.evaluation.metrics import mean_and_spread
from vitkit.evaluation.run import evaluate
from vitkit.figures.numbers import rough_duration
from vitkit.files import write_file, write_json
from vitkit.notes import Note
from vitkit.predictor import AnyModel, choose_device, named_model
from vitkit.progress import Listener, Silent
from vitkit.results import Result
from vitkit.runs import ROOT, RunFolder, accepts_data, binding, named_path, run_name
from vitkit.runs.records import read_result
from vitkit.training.estimate import seconds_for
from vitkit.transfer.finetune import (
    HEAD_ALONE,
    FinetuneRequest,
    FinetuneResult,
    run_finetuning,
)
from vitkit.transfer.plan import Plan, load_start, make_plan, start_notes
from vitkit.transfer.protocols import part_changes
from vitkit.transfer.published import ROWS, PublishedAccuracy, published_columns
from vitkit.transfer.suite_data import SETS, VTAB, duration_of, find_real, find_root, find_sets, find_vtab
from vitkit.transfer.vtab.document import VtabResult, VtabSettings
from vitkit.transfer.vtab.protocols import operations_of
from vitkit.transfer.vtab.run import run_vtab, what_failed
from vitkit.transfer.vtab.tasks import Exercise
from vitkit.weights.load import paths_in
from vitkit.world import check_alone

SEEDS = 3
TABLE, REAL_VALUES = "suite.md", "real-accuracy.json"
ONE_MODEL = "the fitted head was kept for every seed: one model, so there is no deviation"
ONE_NUMBER = "every seed gave the same number"
CAPTION = (
    "Top-1 accuracy in percent, mean and sample standard deviation of seeds. The paper's are ViT's tables 2 and 5; "
    "ImageNet in table 2 was fine-tuned at 512 px (H/14: 518) with averaged weights. * see below."
)


@dataclass(frozen=True)
class SuiteRow(Result):
    """What the table says of a data set."""

    accuracy: float
    std: float | None
    values: tuple[float, ...]
    remarks: tuple[str, ...]
    "What makes it another number than the paper's."
    protocol: str
    changes: tuple[str, ...]
    device_hours: float
    run: str
    unreadable: tuple[Unreadable, ...]
    "Images that were skipped."


@dataclass(frozen=True)
class FinetunedRow(SuiteRow):
    """A data set of its own."""

    kept: str
    measured_on: str
    models: tuple[str, ...]
    "Of each seed."


@dataclass(frozen=True)
class VtabRow(SuiteRow):
    """All of VTAB."""

    tasks: int
    failed: str | None


@dataclass(frozen=True)
class SuiteResult(Result):
    """What `vit finetune --suite paper --json` prints."""

    status: Literal["done", "failed", "stopped"]
    run: str
    model: str
    seeds: int
    protocol: str
    changes: tuple[str, ...]
    results: Mapping[str, SuiteRow]
    failures: Mapping[str, str]
    absent: Mapping[str, str]
    device_hours: float
    published: Mapping[str, Mapping[str, PublishedAccuracy]]


@dataclass(frozen=True)
class SuiteJob:
    """One row of the table before it is known: what makes it, and the operations that this takes."""

    run: Callable[[], SuiteRow | None]
    "Returns the row; None after a request to stop."
    flops: float = 0.0
    seconds: float = 0.0
    "Of a job that is given a time."


def run_suite(
    model: AnyModel,
    suite: str = "paper",
    folder: str | os.PathLike[str] | None = None,
    changes: Changes = (),
    *,
    seeds: int = SEEDS,
    run: str | None = None,
    device: str = "auto",
    force: bool = False,
    accept: str | Sequence[str] = (),
    listener: Listener | None = None,
) -> SuiteResult:
    """Fine-tune a model on every data set of a suite; the same call again resumes.

    folder: where the data sets are: folders by their names, torchvision's, real.json, vtab; the default is the cache.
    changes: settings of every fine-tuning, VTAB's too. The protocol is the paper's unless they say protocol=quick.
    accept: "data" resumes rows whose training data has gained or lost images.
    A row that fails is reported, and the others are still made.
    """
    if suite != "paper":
        raise InputError(f"unknown suite {suite!r}; expected paper")
    Bounds(at_least=1).check("seeds", seeds)
    check_alone("a suite runs in one process: start it without torchrun")
    model, named = named_model(model)
    folder, changes = None if folder is None else os.fspath(folder), as_changes(changes)
    request = {"model": named, "suite": suite, "data": folder, "changes": list(changes), "seeds": seeds}
    own_name = run_name(f"suite-{suite}", {**request, "changes": binding(changes)})
    path = Path(ROOT, own_name) if run is None else named_path(run)
    root, listener, on = find_root(folder), listener or Silent(), choose_device(device)
    settings = with_protocol(changes)
    here, absent = find_sets(root)
    tasks, absent["vtab"] = find_vtab(root, settings)
    if not here and not tasks:
        hint = ": name a folder, as in vit finetune MODEL ./data --suite paper" if folder is None else ""
        raise InputError(f"{root} holds no data set of the suite; expected {', '.join(SETS)} or {VTAB}{hint}")
    start = load_start(model)
    jobs: dict[str, SuiteJob] = {}
    plans: dict[str, Plan] = {}
    results: dict[str, SuiteRow] = {}
    refused: dict[str, InputError] = {}

    def finetune_job(name: str, data: str, plan: Plan) -> SuiteJob:
        request = FinetuneRequest(start.spec, data, tuple(settings), seeds=seeds)

        def make() -> Plan:
            for note in plan.notes:
                listener.note(note)
            return plan

        def finetuned() -> SuiteRow | None:
            own = path / name
            result = run_finetuning(
                *(request, make, own),
                device=device,
                force=force,
                accept_data=accepts_data(accept),
                listener=listener,
                introduce=False,
            )
            return None if result.status == "stopped" else finetuned_row(name, result, plan, settings)

        if not plan.has_duration:
            return SuiteJob(finetuned, seconds=plan.minutes * 60 * seeds)
        return SuiteJob(finetuned, plan.operations(seeds))

    for name, found in here.items():
        try:
            plan = make_plan(start, found.train, settings, device, measured=found.measured)
        except InputError as error:
            refused[name], absent[name] = error, str(error)
            continue
        plans[name] = plan
        jobs[name] = finetune_job(name, found.data, plan)
    if refused and not jobs:  # what is wrong is not the data
        raise next(iter(refused.values()))
    real = find_real(root, here.get("imagenet") if "imagenet" in jobs else None)
    if isinstance(real, Path):
        measured = here["imagenet"].measured

        def real_values() -> SuiteRow:
            row = results["imagenet"]
            assert isinstance(row, FinetunedRow)
            rule = plans["imagenet"].bad_images
            return real_row(path / REAL_VALUES, row, real, measured, device, rule, force)

        jobs["real"] = SuiteJob(real_values)
    else:
        absent["real"] = real
    if tasks:
        steps = None if (duration := duration_of(settings)) is None else int(duration)
        rest = [change for change in stated(settings) if not change.startswith("duration=")]

        def vtab_values() -> SuiteRow | None:
            asked = VtabSettings(start.spec, str(root / VTAB), "vit", seeds, None, steps, tuple(rest))
            result = run_vtab(
                *(start, asked),
                run=path / VTAB,
                device=device,
                force=force,
                accept_data=accepts_data(accept),
                listener=listener,
                found=tasks,
                introduce=False,
            )
            return None if result.status == "stopped" else vtab_row(result, settings)

        flops = (
            operations_of("vit", task, start.config, steps=steps, seeds=seeds, sweep=None, changes=rest)
            for task in tasks.values()
            if isinstance(task, Exercise)
        )
        jobs["vtab"] = SuiteJob(vtab_values, sum(flops))
    absent = {name: absent[name] for name in ROWS if name in absent and name not in jobs}
    for line in (
        *start_notes(start, start.loaded.preprocessing),
        *(Note(f"skipped {name}: {why}", "data") for name, why in absent.items()),
        *announcement(start.spec, jobs, seeds, on),
    ):
        listener.note(line)
    reads = [root, *paths_in(start.spec)]
    with RunFolder(
        path, request, kind="suite", force=force, keeps=reads, complete=_with_changes_as_now
    ) as own:
        own.clear()
        own.update(status="running", message="")
        failures, is_stopped = run_jobs(jobs, results, listener)
        document = SuiteResult(
            status="stopped" if is_stopped else "failed" if failures else "done",
            run=str(path),
            model=start.spec,
            seeds=seeds,
            protocol=part_changes(settings)[0].protocol,
            changes=stated(settings),
            results=results,
            failures=failures,
            absent=absent,
            device_hours=sum(row.device_hours for row in results.values()),
            published=published_columns(start.config),
        )
        write_file(path / TABLE, as_markdown(document))
        own.update(**document.to_json())
    finetuned = (row for row in results.values() if isinstance(row, FinetunedRow))  # VTAB has said its own
    for line in skipped_notes(entry for row in finetuned for entry in row.unreadable):
        listener.note(line)
    return document


def announcement(model: str, jobs: Mapping[str, SuiteJob], seeds: int, device: torch.device) -> list[Note]:
    """Say what will be done, how long all of it will take, and how it would take less."""
    seconds = sum(job.seconds for job in jobs.values())
    seconds += seconds_for(sum(job.flops for job in jobs.values()), device)
    what = f"{model} on {', '.join(jobs)}, each with {counted(seeds, 'seed')}"
    shorter = "duration=STEPS, image_size=224, --seeds 1, protocol=quick minutes=10, a smaller model"
    return [
        Note(f"shorter: {shorter}", "advice"),
        Note(f"{what}; roughly {rough_duration(seconds)} on {device.type}", "summary"),
    ]


def run_jobs(
    jobs: Mapping[str, SuiteJob], results: dict[str, SuiteRow], listener: Listener
) -> tuple[dict[str, str], bool]:
    """Fill in the rows; return why some failed, and whether someone asked to stop."""
    failures: dict[str, str] = {}
    for name in (row for row in ROWS if row in jobs):
        if name == "real" and "imagenet" not in results:
            failures[name] = "it is measured with imagenet, which failed"
            continue
        listener.note(Note(f"{name}:", "progress"))
        try:
            row = jobs[name].run()
        except Exception as error:  # one row must not take the others down; it is reported and tried again
            failures[name] = what_failed(error)
            listener.note(Note(f"{name} failed: {failures[name]}", "warning"))
            continue
        if row is None:
            return failures, True
        results[name] = row
        if isinstance(row, VtabRow) and row.failed:
            failures[name] = row.failed
    return failures, False


def _with_changes_as_now(request: dict[str, Any]) -> dict[str, Any]:
    """Return an older suite's request with its changes as they are written today."""
    return {**request, "changes": as_changes(request["changes"])}


def with_protocol(changes: Sequence[Change]) -> list[Change]:
    """Return the changes with the paper's protocol, unless they name another."""
    own, rest = part_changes(changes)
    for change in rest:
        if change.key in ("data.evaluate", "seed"):
            raise InputError(f"{change} is one data set's or one run's; a suite has several: leave it out")
    if own.protocol != "auto":
        return list(changes)
    return [Change("protocol", "paper"), *(change for change in changes if change != "protocol=auto")]


def stated(changes: Sequence[str]) -> tuple[str, ...]:
    """Return the changes that the name of the protocol doesn't say."""
    return tuple(change for change in changes if not change.startswith("protocol="))


def finetuned_row(name: str, result: FinetuneResult, plan: Plan, changes: Sequence[str]) -> FinetunedRow:
    """Return what the table says of a data set."""
    said = ["protocol quick, not the paper's"] if result.protocol != "paper" else []
    said += [f"changed: {', '.join(changed)}"] if (changed := stated(changes)) else []
    said += unofficial(name, (plan.measured.num_classes, plan.num_images, len(plan.measured)))
    accuracy, std, same = seed_spread(result.values, result.kept)
    return FinetunedRow(
        accuracy=accuracy,
        std=std,
        values=result.values,
        remarks=(*said, *same),
        protocol=result.protocol,
        changes=stated(changes),
        device_hours=result.device_hours,
        run=result.run,
        unreadable=result.unreadable,
        kept=result.kept,
        measured_on=result.measured_on,
        models=result.models,
    )


def unofficial(name: str, counts: tuple[int, int, int]) -> list[str]:
    """Say that these are not the images of the paper, by their numbers."""
    if counts == SETS[name]:
        return []
    shown, official = (
        f"{counted(classes, 'class')}, {train:,} and {test:,} images"
        for classes, train, test in (counts, SETS[name])
    )
    return [f"not the official data: {shown}; official are {official}"]


def seed_spread(values: Sequence[float], kept: str) -> tuple[float, float | None, list[str]]:
    """Return mean and deviation of the seeds and what is to be said: one model isn't counted several times."""
    mean, std = mean_and_spread(list(values))
    if len(values) < 2 or len(set(values)) > 1:
        return mean, std, []
    return (mean, None, [ONE_MODEL]) if kept == HEAD_ALONE else (mean, std, [ONE_NUMBER])


@dataclass(frozen=True)
class Reassessed(Result):
    """Accuracies by reassessed labels, and those by ImageNet's own of the same models, in order of seeds."""

    imagenet: tuple[float, ...]
    values: tuple[float, ...]


def real_row(
    file: Path,
    imagenet: FinetunedRow,
    labels: Path,
    measured: Source,
    device: str,
    rule: BadImageRule,
    force: bool,
) -> FinetunedRow:
    """Return ImageNet's row by reassessed labels; what was measured is kept in a file."""
    known = None if force else read_result(Reassessed, file)
    if known is None or known.imagenet != imagenet.values:
        measure = partial(
            evaluate, data=measured, real=labels, device=device, bad_images=rule, progress=False
        )
        found = [measure(model).real for model in imagenet.models]
        values = tuple(real.accuracy for real in found if real and real.accuracy is not None)
        if not values:
            raise InputError(f"{labels} has no label for any image of {imagenet.measured_on}")
        known = Reassessed(imagenet.values, values)
        write_json(file, known.to_json())
    accuracy, std, same = seed_spread(known.values, imagenet.kept)
    said = [remark for remark in imagenet.remarks if remark not in (ONE_MODEL, ONE_NUMBER)]
    return dataclasses.replace(
        imagenet,
        accuracy=accuracy,
        std=std,
        values=known.values,
        remarks=(*said, *same),
        device_hours=0.0,
    )


def vtab_row(result: VtabResult, changes: Sequence[str]) -> VtabRow:
    """Return what the table says of VTAB."""
    failed = [f"{row.task}: {row.reason}" for row in result.tasks if row.status == "failed"]
    overall = result.overall
    if overall is None:
        raise InputError(f"no task was done; {failed[0]}")
    said = [] if overall.name == "VTAB-1k" else [f"{overall.name}; the paper's is of all {len(TASKS)}"]
    said += [f"changed: {', '.join(changed)}"] if (changed := stated(changes)) else []
    said += [f"{counted(len(failed), 'task')} failed"] if failed else []
    return VtabRow(
        accuracy=overall.accuracy,
        std=overall.std,
        values=overall.values,
        remarks=tuple(said),
        protocol=result.words,
        changes=stated(changes),
        device_hours=result.device_hours,
        run=result.run,
        unreadable=tuple(entry for row in result.tasks for entry in row.unreadable),
        tasks=overall.tasks,
        failed="; ".join(failed) or None,
    )


def table_cells(document: SuiteResult) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the table: ours first, then the paper's; a number with a remark has a star."""
    published = document.published
    names = list(dict.fromkeys(row for column in published.values() for row in column))
    rows = []
    for name in names:
        row = document.results.get(name)
        theirs = [with_spread(column[name]) if name in column else "-" for column in published.values()]
        if row is None:
            rows.append([name, "-", "", *theirs])
        else:
            star = "*" if row.remarks else ""
            rows.append([name, with_spread(row) + star, row.protocol.partition(":")[0], *theirs])
    return ["data", document.model, "protocol", *published], rows


def with_spread(number: SuiteRow | PublishedAccuracy) -> str:
    """Return a mean with its deviation."""
    spread = "" if number.std is None else f" ± {number.std * 100:.2f}"
    return f"{number.accuracy * 100:.2f}{spread}"


def table_remarks(document: SuiteResult) -> list[str]:
    """Return a line for each data set of which something must be said."""
    lines = [f"* {name}: {'; '.join(row.remarks)}" for name, row in document.results.items() if row.remarks]
    lines += [f"{name} failed: {why}" for name, why in document.failures.items()]
    return lines + [f"skipped {name}: {why}" for name, why in document.absent.items()]


def table_title(document: SuiteResult) -> str:
    seeds = counted(document.seeds, "seed")
    return f"{document.run}: {document.status}, {seeds}, {document.device_hours:.2f} device-hours"


def as_markdown(document: SuiteResult) -> str:
    """Return the table as a file."""
    columns, rows = table_cells(document)
    lines = [columns, ["---"] * len(columns), *rows]
    table = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
    notes = "".join(f"\n- {line.replace('*', chr(92) + '*', 1)}" for line in table_remarks(document))
    return f"# {table_title(document)}\n\n{table}\n\n{CAPTION.replace('* see', chr(92) + '* see')}\n{notes}\n"
