"""The paper's suite: every data set of its tables that is here, fine-tuned by its protocol, beside what it reports."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitkit.data.sources.vtab import TASKS
from vitkit.data.splits import counted
from vitkit.errors import InputError
from vitkit.evaluation.features import mean_and_spread
from vitkit.evaluation.run import evaluate
from vitkit.files import write_file
from vitkit.models.configs import ModelConfig
from vitkit.predictor import choose_device
from vitkit.results import as_json
from vitkit.runs import ROOT, named_path, run_name
from vitkit.training.estimate import in_words
from vitkit.training.log import Listener, Silent
from vitkit.transfer.config import part_changes
from vitkit.transfer.finetune import HEAD_ALONE, finetune
from vitkit.transfer.forecast import seconds_for
from vitkit.transfer.plan import Plan, make_plan
from vitkit.transfer.published import ROWS, published_columns
from vitkit.transfer.suite_data import (
    SETS,
    VTAB,
    Here,
    duration_of,
    find_real,
    find_root,
    find_sets,
    find_vtab,
)
from vitkit.transfer.suite_table import as_markdown
from vitkit.transfer.vtab.protocols import operations_of
from vitkit.transfer.vtab.run import Without, vtab
from vitkit.transfer.vtab.tasks import Exercise
from vitkit.weights.load import load_model

SEEDS = 3
RESULT, TABLE = "suite.json", "suite.md"
ONE_MODEL = "the fitted head was kept for every seed: one model, so there is no deviation"
ONE_NUMBER = "every seed gave the same number"
ONE = (ONE_MODEL, ONE_NUMBER)


@dataclass(frozen=True)
class Job:
    """One row of the table before it is known: what makes it, and the operations that this takes."""

    run: Callable[[], dict[str, Any] | None]
    "Returns the row; None after a request to stop."
    flops: float = 0.0
    seconds: float = 0.0
    "Of a job that is given a time."


def run_suite(
    model: str,
    suite: str = "paper",
    folder: str | None = None,
    changes: Sequence[str] = (),
    *,
    seeds: int = SEEDS,
    run: str | None = None,
    device: str = "auto",
    force: bool = False,
    listener: Listener | None = None,
) -> dict[str, Any]:
    """Fine-tune a model on every data set of a suite; return what `vit finetune --suite paper --json` prints.

    folder: where the data sets are: folders by their names, torchvision's, real.json, vtab; left open, the cache.
    changes: settings of every fine-tuning, VTAB's too. The protocol is the paper's unless they say protocol=quick.
    A row that fails is reported, and the others are still made.
    """
    if suite != "paper":
        raise InputError(f"unknown suite {suite!r}; expected paper")
    if seeds < 1:
        raise InputError(f"seeds must be at least 1, not {seeds}")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("a suite runs in one process: start it without torchrun")
    request = {"model": model, "suite": suite, "data": folder, "changes": list(changes), "seeds": seeds}
    path = Path(ROOT, run_name(f"suite-{suite}", request)) if run is None else named_path(run)
    root, listener, on = find_root(folder), listener or Silent(), choose_device(device)
    settings = with_protocol(changes)
    here, absent = find_sets(root)
    tasks, absent["vtab"] = find_vtab(root, settings)
    if not here and not tasks:
        hint = ": name a folder, as in vit finetune MODEL ./data --suite paper" if folder is None else ""
        raise InputError(f"{root} holds no data set of the suite; expected {', '.join(SETS)} or {VTAB}{hint}")
    within = Without(listener, "shorter: ", "estimated time: ")  # the suite has said it of all
    options: dict[str, Any] = {"seeds": seeds, "device": device, "force": force, "listener": within}
    config = load_model(model).model.config
    jobs: dict[str, Job] = {}
    results: dict[str, dict[str, Any]] = {}
    refused: dict[str, InputError] = {}
    for name, found in here.items():
        try:
            plan = make_plan(model, found.data, settings, device)
        except InputError as error:
            refused[name], absent[name] = error, str(error)
            continue
        jobs[name] = _set_job(name, found, plan, settings, path, options)
    if refused and not jobs:  # what is wrong is not the data
        raise next(iter(refused.values()))
    real = find_real(root, here.get("imagenet") if "imagenet" in jobs else None)
    if isinstance(real, Path):
        jobs["real"] = Job(lambda: _real_row(path, results["imagenet"], real, device, force))
    else:
        absent["real"] = real
    if tasks:
        jobs["vtab"] = _vtab_job(model, root / VTAB, tasks, config, settings, path, options)
    absent = {name: absent[name] for name in ROWS if name in absent and name not in jobs}
    for line in (
        *(f"left out {name}: {why}" for name, why in absent.items()),
        *_announcement(jobs, seeds, on),
    ):
        listener.note(line)
    failures, is_stopped = _run_jobs(jobs, results, listener)
    document = {
        "status": "stopped" if is_stopped else "failed" if failures else "done",
        "run": str(path),
        "model": model,
        "seeds": seeds,
        "protocol": part_changes(settings)[0].protocol,
        "changes": stated(settings),
        "results": results,
        "failures": failures,
        "absent": absent,
        "device_hours": sum(row["device_hours"] for row in results.values()),
        "published": as_json(published_columns(config)),
    }
    write_file(path / RESULT, json.dumps(document, indent=2, allow_nan=False) + "\n")
    write_file(path / TABLE, as_markdown(document))
    return document


def _announcement(jobs: dict[str, Job], seeds: int, device: torch.device) -> list[str]:
    """Say how long all of it will take, and how it would take less."""
    seconds = sum(job.seconds for job in jobs.values())
    seconds += seconds_for(sum(job.flops for job in jobs.values()), device)
    return [
        "",
        f"estimated time: {in_words(seconds)} in all on {device.type}: {', '.join(jobs)}, each {counted(seeds, 'seed')}",
        "shorter: duration=STEPS, image_size=224, --seeds 1, protocol=quick minutes=10, a smaller model",
        "",
    ]


def _run_jobs(
    jobs: dict[str, Job], results: dict[str, dict[str, Any]], listener: Listener
) -> tuple[dict[str, str], bool]:
    """Fill in the rows; return why some failed, and whether someone asked to stop."""
    failures: dict[str, str] = {}
    for name in (row for row in ROWS if row in jobs):
        if name == "real" and "imagenet" not in results:
            failures[name] = "it is measured with imagenet, which failed"
            continue
        listener.note(f"{name}:")
        try:
            row = jobs[name].run()
        except Exception as error:  # one row must not take the others down; it is told of and tried again
            words = (str(error).strip() or type(error).__name__).splitlines()[0]
            failures[name] = words if isinstance(error, InputError) else f"{type(error).__name__}: {words}"
            listener.note(f"{name} failed: {failures[name]}")
            continue
        if row is None:
            return failures, True
        results[name] = row
        if row.get("failed"):
            failures[name] = row["failed"]
    return failures, False


def with_protocol(changes: Sequence[str]) -> list[str]:
    """Return the changes with the paper's protocol, unless they name another."""
    own, rest = part_changes(changes)
    for change in rest:
        if change.partition("=")[0] in ("data.evaluate", "seed"):
            raise InputError(f"{change} is one data set's or one run's; a suite has several: leave it out")
    if own.protocol != "auto":
        return list(changes)
    return ["protocol=paper", *(change for change in changes if change != "protocol=auto")]


def stated(changes: Sequence[str]) -> list[str]:
    """Return the changes that the name of the protocol doesn't say."""
    return [change for change in changes if not change.startswith("protocol=")]


def _set_job(
    name: str,
    found: Here,
    plan: Plan,
    changes: Sequence[str],
    path: Path,
    options: dict[str, Any],
) -> Job:
    """Return the fine-tuning on one data set."""

    def run() -> dict[str, Any] | None:
        result = finetune(plan.model, found.data, changes, run=str(path / name), **options)
        return (
            None if result["status"] == "stopped" else _row(result, changes, _unofficial(name, found.counts))
        )

    if not plan.has_duration:
        return Job(run, seconds=plan.minutes * 60 * options["seeds"])
    return Job(run, plan.operations(options["seeds"]))


def _unofficial(name: str, counts: tuple[int, int, int]) -> list[str]:
    """Say that these are not the images of the paper, by their numbers."""
    if counts == SETS[name]:
        return []
    shown, official = (
        f"{counted(classes, 'class')}, {train:,} and {test:,} images"
        for classes, train, test in (counts, SETS[name])
    )
    return [f"not the official data: {shown}; official are {official}"]


def _row(result: dict[str, Any], changes: Sequence[str], remarks: Sequence[str]) -> dict[str, Any]:
    """Return what the table says of a data set."""
    values = result["values"]
    said = ["protocol quick, not the paper's"] if result["protocol"] != "paper" else []
    said += [f"changed: {', '.join(changed)}"] if (changed := stated(changes)) else []
    return {
        **_spread(values, result["kept"], [*said, *remarks]),
        "protocol": result["protocol"],
        "changes": stated(changes),
        "kept": result["kept"],
        "device_hours": result["device_hours"],
        "run": result["run"],
        "measured_on": result["measured_on"],
        "models": result["models"],
    }


def _spread(values: list[float], kept: str, remarks: Sequence[str]) -> dict[str, Any]:
    """Return mean and deviation of the seeds; where they gave one model, it isn't counted several times."""
    said = list(remarks)
    mean, std = mean_and_spread(values)
    if len(values) > 1 and len(set(values)) == 1:
        if kept == HEAD_ALONE:
            std = None
            said.append(ONE_MODEL)
        else:
            said.append(ONE_NUMBER)
    return {"accuracy": mean, "std": std, "values": values, "remarks": said}


def _real_row(path: Path, imagenet: dict[str, Any], labels: Path, device: str, force: bool) -> dict[str, Any]:
    """Return ImageNet's row by reassessed labels; what was measured is kept."""
    file = path / "real-accuracy.json"
    values = None
    if file.is_file() and not force:
        known = json.loads(file.read_text(encoding="utf-8"))
        values = known["values"] if known["imagenet"] == imagenet["values"] else None
    if values is None:
        found = [
            evaluate(model, imagenet["measured_on"], real=labels, device=device)["real"]["accuracy"]
            for model in imagenet["models"]
        ]
        values = [value for value in found if value is not None]
        if not values:
            raise InputError(f"{labels} has no label for any image of {imagenet['measured_on']}")
        write_file(file, json.dumps({"imagenet": imagenet["values"], "values": values}) + "\n")
    return {
        **imagenet,
        **_spread(values, imagenet["kept"], [said for said in imagenet["remarks"] if said not in ONE]),
        "device_hours": 0.0,
    }


def _vtab_job(
    model: str,
    folder: Path,
    tasks: Sequence[Exercise],
    config: ModelConfig,
    changes: Sequence[str],
    path: Path,
    options: dict[str, Any],
) -> Job:
    """Return all of VTAB."""
    steps = None if (duration := duration_of(changes)) is None else int(duration)
    rest = [change for change in stated(changes) if not change.startswith("duration=")]
    how: dict[str, Any] = {"seeds": options["seeds"], "steps": steps, "changes": rest}

    def run() -> dict[str, Any] | None:
        result = vtab(model, str(folder), run=str(path / VTAB), **{**options, **how})
        return None if result["status"] == "stopped" else _vtab_row(result, changes)

    flops = sum(operations_of("vit", task, config, sweep=None, **how) for task in tasks)
    return Job(run, flops)


def _vtab_row(result: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    failed = [
        f"{entry['task']}: {entry['reason']}" for entry in result["tasks"] if entry["status"] == "failed"
    ]
    overall = result["overall"]
    if overall is None:
        raise InputError(f"no task was done; {failed[0]}")
    said = [] if overall["name"] == "VTAB-1k" else [f"{overall['name']}; the paper's is of all {len(TASKS)}"]
    said += [f"changed: {', '.join(changed)}"] if (changed := stated(changes)) else []
    said += [f"{counted(len(failed), 'task')} failed"] if failed else []
    return {
        **{name: overall[name] for name in ("accuracy", "std", "values", "tasks")},
        "protocol": result["words"],
        "changes": stated(changes),
        "remarks": said,
        "failed": "; ".join(failed) or None,
        "device_hours": result["device_hours"],
        "run": result["run"],
    }
