"""`vitkit.train`: a recipe, or a run to resume, becomes a trained model in its run folder."""

from __future__ import annotations

import gc
import os
import platform
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch

from vitkit.config import Changes, as_changes, from_dict, merge, to_dict
from vitkit.data.decode import decode
from vitkit.data.open import Data, named_data
from vitkit.data.sources.source import Source, fingerprint
from vitkit.data.spec import as_spec
from vitkit.data.splits import counted
from vitkit.data.threads import Unreadable, work_through
from vitkit.data.unreadable import skipped_notes
from vitkit.display import png_files
from vitkit.errors import InputError
from vitkit.notes import Note
from vitkit.predictor import AnyModel, Predictor, choose_device, named_model
from vitkit.progress import Listener, Silent, following
from vitkit.results import Result, as_json, from_json
from vitkit.runs import (
    CONFIG,
    FREE,
    RECORD,
    ROOT,
    Evaluated,
    RunFolder,
    accepts_data,
    data_facts,
    named_path,
    read_config,
    read_metrics,
    read_record,
    run_name,
    speed,
)
from vitkit.runs.folder import flatten
from vitkit.settings import DataSettings, ModelSection, TrainSettings
from vitkit.training import microbatch
from vitkit.training.build import Inputs, RunParts, build, compute_dtype
from vitkit.training.checkpoints import on_first_rank
from vitkit.training.config import TrainConfig
from vitkit.training.estimate import estimate, introduction
from vitkit.training.loop import fit
from vitkit.training.pictures import drawn
from vitkit.training.recipes import resolve
from vitkit.training.results import Results
from vitkit.weights.load import paths_in
from vitkit.world import World, is_first_process, join_world


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

    _leads = ("status", "step", "steps", "best", "seconds", "run", "model")
    _tables = ("metrics",)

    def _pictures(self) -> list[tuple[str, bytes]]:
        return png_files(self.pictures)


def train(
    recipe: str | os.PathLike[str],
    changes: Changes = (),
    *,
    model: AnyModel | ModelSection | None = None,
    data: Data | DataSettings | None = None,
    evaluate: Data | None = None,
    run: str | os.PathLike[str] | None = None,
    device: str = "auto",
    force: bool = False,
    accept: str | Sequence[str] = (),
    progress: bool = True,
    listener: Listener | None = None,
    **settings: Unpack[TrainSettings],
) -> TrainResult:
    """Train a recipe with other settings, or resume a run; return what `vit train --json` prints.

    settings: those of TrainConfig, as in `duration="2ep", optimizer={"learning_rate": 1e-3}`. A mapping changes only
    what it names.
    changes: settings as a mapping of dotted names, `{"optimizer.learning_rate": 1e-3}`, or as strings,
    `["optimizer.learning_rate=1e-3"]`.
    model, data, evaluate: replace the recipe's model.name, data.train and data.evaluate. They are strings, paths or
    objects: what `vitkit.load`, `wrap`, `create_model` and `open_data` return, or PyTorch data sets. A copy of the model
    is trained. As mappings, model and data are settings of these sections, as in `model={"stochastic_depth": 0.1}`.
    run: name of the run folder in runs/, or a path; by default the recipe's name and a hash of its config.
    force: start over, deleting the existing run.
    accept: "data" resumes a run although training images were added or removed.
    progress: False shows none. listener: follows the run instead of a progress bar.
    """
    given: dict[str, object] = {}
    if isinstance(model, Mapping):
        given["model"] = model
    elif model is not None:
        model, given["model.name"] = named_model(model)
    if isinstance(data, Mapping):
        given["data"] = data
    elif data is not None:
        data, given["data.train"] = named_data(data)
    if evaluate is not None:
        evaluate, given["data.evaluate"] = named_data(evaluate)
    made = as_changes(changes, {**given, **settings})
    inputs = Inputs(
        data if isinstance(data, Source) else None,
        evaluate if isinstance(evaluate, Source) else None,
        model.as_loaded() if isinstance(model, Predictor) else None,
    )
    if Path(recipe, CONFIG).is_file():
        own = read_config(recipe)
        known = flatten(own)
        for change in made:
            if change.key not in FREE and known.get(change.key, change) != change.value:
                raise InputError(
                    f"a run resumes with its own settings, not with {change}; to change some, train its recipe "
                    "as another run"
                )
        if run is not None:
            raise InputError(f"{recipe} is a run and resumes where it is: leave out --run {run}")
        path, config = Path(recipe), from_dict(TrainConfig, merge(own, made), f"{recipe}/{CONFIG}")
    else:
        config = resolve(recipe, made)
        path = run_path(config, run)
    with following(progress, listener) as follower:
        result = train_config(
            *(config, path),
            inputs=inputs,
            device=device,
            force=force,
            accept_data=accepts_data(accept),
            listener=follower,
        )
        for line in skipped_notes(result.unreadable) if is_first_process() else ():
            follower.note(line)
        return result


def train_config(
    config: TrainConfig,
    path: Path,
    *,
    inputs: Inputs = Inputs(),  # noqa: B008 (frozen)
    device: str = "auto",
    force: bool = False,
    accept_data: bool = False,
    listener: Listener | None = None,
    introduce: bool = True,
) -> TrainResult:
    """Train a config in a run folder, from where it stands.

    inputs: sources that are open and the model that is loaded already, for what the config names.
    accept_data: whether a run resumes whose training data has gained or lost images.
    introduce: whether to say what will be done and how long it takes; a command of several runs says it for all.
    """
    with join_world(choose_device(device)) as world:
        listener = listener if listener and world.is_first else Silent()
        folder: RunFolder | None = None

        def open_folder() -> None:
            nonlocal folder
            data = [as_spec(data).paths for data in (config.data.train, config.data.evaluate) if data]
            keeps = [*paths_in(config.model["name"]), *chain(*data)]
            folder = RunFolder(path, to_dict(config), force=force, keeps=keeps, complete=completed)

        on_first_rank(open_folder)
        try:
            with folder or nullcontext():
                return _train(config, path, inputs, folder, accept_data, world, listener, introduce)
        finally:
            listener.stop()


def _train(
    config: TrainConfig,
    path: Path,
    inputs: Inputs,
    folder: RunFolder | None,
    accept_data: bool,
    world: World,
    listener: Listener,
    introduce: bool,
) -> TrainResult:
    num_images = on_first_rank(lambda: folder.began_with if folder else None)
    parts = build(config, world, inputs, num_images)

    def take_folder() -> dict[int, Unreadable]:
        found: dict[int, Unreadable] = {}
        if folder:
            folder.clear()  # not before the new run can be built
            measured = parts.inputs.measured
            now = {
                "data": identity(parts.source, parts.class_names),
                "measured": identity(measured, measured.class_names) if measured else {},
            }
            changes = list(_other_than_before(folder.record, now, world))
            folder.check_data(now["data"], accept=accept_data)
            folder.update(measured=now["measured"])
            for line in changes:
                listener.note(Note(line, "warning"))
            if not was_done:
                images = {entry["image"] for entry in folder.record["unreadable"]}
                found = still_unreadable(parts.source, images)
        return found

    was_done = on_first_rank(lambda: folder is not None and folder.is_done)
    skipped = on_first_rank(take_folder)
    parts.loader.skipped.add(skipped)
    images = parts.periods.total * config.batch_size
    cost = estimate(parts.objective, images, world.device, compute_dtype(config, world.device), world.ranks)
    faster = "a GPU" if world.device.type != "cuda" else "" if config.compile else "compile=true"
    notes = (
        *parts.notes,
        *cost.notes(config.duration, faster),
        *introduction(config, parts, world, cost.seconds),
    )
    for line in dict.fromkeys(notes) if introduce else ():
        listener.note(line)
    micro_batch = microbatch.choose(config, parts, folder, world)
    if micro_batch is None:
        micro_batch = microbatch.largest_that_fits(parts, world)
        opened = parts.inputs
        del parts
        gc.collect()
        torch.cuda.empty_cache()
        parts = build(
            config, world, opened, num_images
        )  # with the weights of a run that searched for nothing
        parts.loader.skipped.add(skipped)
    if folder:
        folder.update(
            command=folder.record["command"] or command_line(world.ranks),
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
    if folder and not was_done:
        folder.update(unreadable=as_json(parts.unreadable))
    return on_first_rank(lambda: summary(path, parts))


def completed(settings: dict[str, object]) -> dict[str, object]:
    """Return a run's settings with those that have come since, as they were then."""
    return to_dict(from_dict(TrainConfig, settings, CONFIG))


def run_path(config: TrainConfig, run: str | os.PathLike[str] | None) -> Path:
    """Return the folder of a run, whose own name leaves open what may change on the way (FREE)."""
    if run is not None:
        return named_path(run)
    settings = merge(to_dict(config), [f"{name}={value}" for name, value in FREE.items()])
    return Path(ROOT, run_name(config.name, settings))


def identity(source: Source, class_names: Sequence[str]) -> dict[str, str | int]:
    """Return what tells a run's data from another's: how many images, which classes, and its fingerprint.

    Training data with another number of images, unless that is accepted, or with other classes is refused on resume.
    Another fingerprint is only a warning, since copied files have other times.
    """
    printed = fingerprint(source, labelled=bool(class_names))
    return {**data_facts(len(source), class_names), "fingerprint": printed}


def still_unreadable(source: Source, images: Collection[str]) -> dict[int, Unreadable]:
    """Return those images, of which an earlier part of the run says that they can't be read, that still can't."""
    places = [index for index in range(len(source)) if source.where(index) in images] if images else []
    looked = work_through(source, np.array(places, np.int64), lambda picture: decode(picture).shape)
    return {index: found for index, found in looked if isinstance(found, Unreadable)}


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
            "the training data has changed since the run started (labels, files or modification times); resuming with "
            "the current data"
        )
    if changed["measured"]:
        yield (
            "the evaluation data has changed since the run started (labels, files or modification times); if images or "
            "labels differ, results from before and after this step can't be compared"
        )


def command_line(ranks: int = 1) -> str:
    """Return the command that runs this process, as people type it."""
    program, *arguments = sys.argv
    words = ["vit", *arguments] if Path(program).name in ("__main__.py", "vit") else sys.argv
    if ranks > 1:
        words = [
            "torchrun",
            f"--nproc-per-node={os.environ.get('LOCAL_WORLD_SIZE', ranks)}",
            "-m",
            "--",
        ]
        words += ["vitkit", *arguments]
    return shlex.join(words)


def environment(world: World) -> dict[str, str | int]:
    """Return what the run's numbers depend on, besides its config."""
    import vitkit

    return {
        "vitkit": vitkit.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": world.device_name,
        "processes": world.ranks,
        "threads": torch.get_num_threads(),
    }


def summary(path: Path, parts: RunParts) -> TrainResult:
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
        best=None if best is None else from_json(Evaluated, best, path / RECORD),
        cost=record["cost"],
        environment=record["environment"],
        metrics={key: value for key, value in last.items() if key not in ("step", "seconds")},
        run=str(path),
        model=str(path / "model") if (path / "model").is_dir() else None,
        pictures=tuple(str(file) for file in drawn(path)),
        classes=len(parts.class_names),
        pool=getattr(parts.model.config, "pool", None),
        unreadable=tuple(Unreadable(**entry) for entry in record["unreadable"]),
    )
