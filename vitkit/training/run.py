"""`vitkit.train`: a recipe, or a run to resume, becomes a trained model in its run folder."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from vitkit.config import from_dict, merge, to_dict
from vitkit.data.sources.source import Source, fingerprint
from vitkit.data.spec import as_spec
from vitkit.data.splits import counted
from vitkit.data.threads import Unreadable
from vitkit.errors import InputError
from vitkit.notes import Note
from vitkit.predictor import Predictor, choose_device
from vitkit.results import Result, from_json
from vitkit.runs import (
    CONFIG,
    FREE,
    ROOT,
    Evaluated,
    RunFolder,
    named_path,
    read_config,
    read_metrics,
    read_record,
    run_name,
    speed,
)
from vitkit.training import microbatch
from vitkit.training.build import Inputs, RunParts, build, compute_dtype
from vitkit.training.checkpoints import on_first_rank
from vitkit.training.config import TrainConfig
from vitkit.training.estimate import estimate, introduction
from vitkit.training.log import Listener, Silent
from vitkit.training.loop import fit
from vitkit.training.pictures import drawn
from vitkit.training.recipes import resolve
from vitkit.training.results import Results
from vitkit.weights.load import LoadedModel, paths_in
from vitkit.world import World, join_world


@dataclass(frozen=True)
class TrainResult(Result):
    """What `vit train --json` prints."""

    name: str
    status: str
    "done or stopped."
    step: int
    steps: int
    seconds: float
    best: Evaluated | None
    cost: Mapping[str, float]
    "parameters, exaflops."
    environment: Mapping[str, str | float]
    metrics: Mapping[str, float | None]
    "The last value of each; images_per_second is the median."
    run: str
    model: str | None
    pictures: tuple[str, ...]
    classes: int
    pool: str | None
    unreadable: tuple[Unreadable, ...]


def train(
    recipe: str | Path,
    changes: Sequence[str] = (),
    *,
    model: str | Predictor | None = None,
    data: str | Source | None = None,
    evaluate: str | Source | None = None,
    run: str | None = None,
    device: str = "auto",
    force: bool = False,
    listener: Listener | None = None,
) -> TrainResult | None:
    """Train a recipe with `key=value` changes, or resume a run; return what `vit train --json` prints.

    model, data, evaluate: for model.name, data.train and data.evaluate of the recipe, as strings or as what
    `vitkit.load` and `vitkit.open_data` return; the model itself stays as it is.
    run: name of the run folder in runs/, or a path; by default the recipe's name and a hash of its config.
    force: start over, deleting the existing run.
    Started by torchrun, all processes but the first return None.
    """
    changes = [changes] if isinstance(changes, str) else changes
    given = {"model.name": model, "data.train": data, "data.evaluate": evaluate}
    changes = [*changes, *(f"{key}={_named(value)}" for key, value in given.items() if value is not None)]
    inputs = Inputs(
        data if isinstance(data, Source) else None,
        evaluate if isinstance(evaluate, Source) else None,
        _as_loaded(model) if isinstance(model, Predictor) else None,
    )
    if Path(recipe, CONFIG).is_file():
        for change in changes:
            if change.partition("=")[0].strip() not in FREE:
                raise InputError(
                    f"a run resumes with its own settings, not with {change}; to change some, train its recipe "
                    "as another run"
                )
        if run is not None:
            raise InputError(f"{recipe} is a run and resumes where it is: leave out --run {run}")
        settings = merge(read_config(recipe), changes)
        path, config = Path(recipe), from_dict(TrainConfig, settings, f"{recipe}/{CONFIG}")
    else:
        config = resolve(recipe, changes)
        path = run_path(config, run)
    return train_config(config, path, inputs=inputs, device=device, force=force, listener=listener)


def _named(value: str | Source | Predictor) -> str:
    """Return the string that a config has for a source or a model."""
    if isinstance(value, Source):
        return value.data_name
    return value.spec if isinstance(value, Predictor) else value


def _as_loaded(predictor: Predictor) -> LoadedModel:
    """Return what `vitkit.load` returned as the start of a run."""
    return LoadedModel(predictor.model, predictor.preprocessing, predictor.class_names, predictor.name)


def train_config(
    config: TrainConfig,
    path: Path,
    *,
    inputs: Inputs = Inputs(),  # noqa: B008 (frozen)
    device: str = "auto",
    force: bool = False,
    listener: Listener | None = None,
) -> TrainResult | None:
    """Train a config in a run folder, from where it stands.

    inputs: sources that are open and the model that is loaded already, for what the config names.
    """
    with join_world(choose_device(device)) as world:
        listener = listener if listener and world.is_first else Silent()
        folder: RunFolder | None = None

        def open_folder() -> None:
            nonlocal folder
            data = [as_spec(data).paths for data in (config.data.train, config.data.evaluate) if data]
            keeps = [*paths_in(config.model["name"]), *chain(*data)]
            folder = RunFolder(path, to_dict(config), force=force, keeps=keeps, complete=_completed)

        on_first_rank(open_folder)
        try:
            with folder or nullcontext():
                return _train(config, path, inputs, folder, world, listener)
        finally:
            listener.stop()


def _train(
    config: TrainConfig,
    path: Path,
    inputs: Inputs,
    folder: RunFolder | None,
    world: World,
    listener: Listener,
) -> TrainResult | None:
    parts = build(config, world, inputs)

    def take_folder() -> None:
        if folder:
            folder.clear()  # not before the new run can be built
            measured = parts.inputs.measured
            now = {
                "data": identity(parts.source, parts.class_names),
                "measured": identity(measured, measured.class_names) if measured else {},
            }
            changes = list(_other_than_before(folder.record, now, world))
            folder.check_data(now["data"])
            folder.update(measured=now["measured"])
            for line in changes:
                listener.note(Note(line, "warning"))

    on_first_rank(take_folder)
    images = parts.periods.total * config.batch_size
    cost = estimate(parts.objective, images, world.device, compute_dtype(config, world.device), world.ranks)
    faster = "a GPU" if world.device.type != "cuda" else "" if config.compile else "compile=true"
    for line in dict.fromkeys(
        (*parts.notes, *introduction(config, parts, world), *cost.notes(config.duration, faster))
    ):
        listener.note(line)
    micro_batch = microbatch.choose(config, parts, folder, world)
    if micro_batch is None:
        micro_batch = microbatch.largest_that_fits(parts, world)
        opened = parts.inputs
        del parts
        gc.collect()
        torch.cuda.empty_cache()
        parts = build(config, world, opened)  # with the weights of a run that searched for nothing
    if folder:
        folder.update(
            command=folder.record["command"] or command_line(world),
            environment={**folder.record["environment"], **environment(world)},
            cost={"parameters": cost.parameters, "exaflops": cost.exaflops},
            micro_batch=micro_batch,
        )
    results = Results(config, parts, path, folder, listener, world, cost)
    try:
        is_done = fit(config, parts, micro_batch, results, world)
        results.finish(is_done)
    finally:
        results.journal.close()
    measured = () if parts.evaluator is None else (parts.evaluator,)
    bad = {
        where: reason
        for part in (parts.loader, *measured, *parts.frozen)
        for where, reason in part.bad.items()
    }
    unreadable = world.collect(bad)
    if unreadable:
        listener.note(Note(f"{counted(len(unreadable), 'image')} could not be read, left out:", "warning"))
        for where, reason in unreadable.items():
            listener.note(Note(f"  {where}: {reason}", "warning"))
    return summary(path, parts, unreadable) if world.is_first else None


def _completed(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a run's settings with those that have come since, as they were then."""
    return to_dict(from_dict(TrainConfig, settings, CONFIG))


def run_path(config: TrainConfig, run: str | None) -> Path:
    """Return the folder of a run, whose own name leaves open what may change on the way (FREE)."""
    if run is not None:
        return named_path(run)
    settings = merge(to_dict(config), [f"{name}={value}" for name, value in FREE.items()])
    return Path(ROOT, run_name(config.name, settings))


def identity(source: Source, class_names: Sequence[str]) -> dict[str, str | int]:
    """Return what tells a run's data from another's: how many images, which classes, and its fingerprint.

    Other images or classes are refused on resume. Another fingerprint is only said: files that were copied anew have
    other times.
    """
    names = hashlib.sha256(json.dumps(class_names).encode()).hexdigest()[:16]
    return {
        "images": len(source),
        "classes": len(class_names),
        "class_names": names,
        "fingerprint": fingerprint(source, labelled=bool(class_names)),
    }


def _other_than_before(
    record: Mapping[str, Any], data: Mapping[str, Mapping[str, str | int]], world: World
) -> Iterator[str]:
    """Say what is not as it was when a run that resumes was started, and what that changes."""
    if not 0 < record["step"] < record["steps"]:
        return
    before, now = record["environment"], environment(world)
    for name, what in (("processes", "process"), ("threads", "CPU thread")):
        if name == "threads" and world.device.type != "cpu":
            continue
        if before.get(name, now[name]) != now[name]:
            then, here = (counted(int(one[name]), what) for one in (before, now))
            yield (
                f"resumed with {here}, started with {then}: results differ in their last digits from those of a run "
                "that was not interrupted"
            )
    changed = {
        name: any(record[name].get(key, value) != value for key, value in now.items())
        for name, now in data.items()  # an older run's record has no fingerprint
    }
    if changed["data"]:
        yield (
            "the training data has changed since the run started, in its labels, or in its files or their times: the "
            "run resumes with what is there now"
        )
    if changed["measured"]:
        yield (
            "the evaluation data has changed since the run started, in its labels, or in its files or their times: if "
            "images or labels are others, results from before and after this step can't be compared"
        )


def command_line(world: World) -> str:
    """Return the command that runs this process, as people type it."""
    program, *arguments = sys.argv
    words = ["vit", *arguments] if Path(program).name in ("__main__.py", "vit") else sys.argv
    if world.ranks > 1:
        words = [
            "torchrun",
            f"--nproc-per-node={os.environ.get('LOCAL_WORLD_SIZE', world.ranks)}",
            "-m",
            "--",
        ]
        words += ["vitkit", *arguments]
    return shlex.join(words)


def environment(world: World) -> dict[str, str | int]:
    """Return what the run's numbers depend on beside its config."""
    import vitkit

    return {
        "vitkit": vitkit.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": world.device_name,
        "processes": world.ranks,
        "threads": torch.get_num_threads(),
    }


def summary(path: Path, parts: RunParts, unreadable: Mapping[str, str]) -> TrainResult:
    """Return the run in short: its record, and the last value of each metric."""
    last: dict[str, float | None] = {}
    lines = read_metrics(path)
    for line in lines:
        last |= line
    if (rate := speed(lines)) is not None:
        last["images_per_second"] = rate
    record = read_record(path)
    best = record["best"]
    return TrainResult(
        name=record["name"],
        status=record["status"],
        step=record["step"],
        steps=record["steps"],
        seconds=record["seconds"],
        best=None if best is None else from_json(Evaluated, best),
        cost=record["cost"],
        environment=record["environment"],
        metrics={key: value for key, value in last.items() if key not in ("step", "seconds")},
        run=str(path),
        model=str(path / "model") if (path / "model").is_dir() else None,
        pictures=tuple(str(file) for file in drawn(path)),
        classes=len(parts.class_names),
        pool=getattr(parts.model.config, "pool", None),
        unreadable=tuple(Unreadable(*entry) for entry in unreadable.items()),
    )
