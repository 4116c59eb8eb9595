"""`vitkit.finetune`: a trained model and a data set become a model for that data, by the paper's protocol or a quick one."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from vitkit.config import Bounds, merge
from vitkit.data.open import Data
from vitkit.data.pipeline import parse_pipeline
from vitkit.data.sources.source import Source
from vitkit.data.spec import as_spec
from vitkit.data.splits import counted
from vitkit.errors import InputError
from vitkit.evaluation.metrics import mean_and_spread
from vitkit.evaluation.run import Evaluation, evaluate
from vitkit.files import folder_written_whole
from vitkit.notes import Kind, Note
from vitkit.predictor import Predictor, choose_device
from vitkit.results import Result, from_json
from vitkit.runs import CONFIG, RECORD, ROOT, RunFolder, named_path, read_config, read_record, run_name
from vitkit.training.build import Inputs, build
from vitkit.training.config import TrainConfig
from vitkit.training.estimate import seconds_for, time_in_words, wait
from vitkit.training.graphs import WARM
from vitkit.training.log import Listener, Silent
from vitkit.training.loop import train_step
from vitkit.training.run import train_config
from vitkit.training.stop import listening, obey
from vitkit.transfer.head import fit_head
from vitkit.transfer.plan import Plan, TrainDev, make_plan
from vitkit.transfer.protocols import QUICK_EPOCHS, part_changes
from vitkit.weights.load import paths_in
from vitkit.world import World, check_alone

HEAD_ALONE = "the fitted head alone"
TRIALS = 2
"Steps whose time a quick run's length is settled by."
SAID: tuple[Kind, ...] = ("data", "model", "untrained", "protocol", "estimate", "advice")
"What a plan says of all its runs, so that none of them says it again."


@dataclass(frozen=True)
class FinetuneRequest(Result):
    """What was asked for: the same request is the same run."""

    model: str
    data: str
    changes: tuple[str, ...] = ()
    sweep: Literal["lr"] | None = None
    seeds: int = 1


@dataclass(frozen=True)
class TriedRate(Result):
    """A learning rate of a sweep."""

    learning_rate: float
    accuracy: float
    "On the dev split."
    seconds: float
    kept: str = ""


@dataclass(frozen=True)
class FinetuneResult(Result):
    """What `vit finetune --json` prints; of one that was stopped, the first three fields."""

    request: FinetuneRequest
    status: Literal["done", "stopped"]
    run: str
    model: str = ""
    models: tuple[str, ...] = ()
    "Of each seed."
    protocol: str = ""
    rule: str = ""
    departures: tuple[str, ...] = ()
    train_images: int = 0
    test_images: int = 0
    measured_on: str = ""
    kept: str = ""
    learning_rate: float = 0.0
    steps: int = 0
    batch_size: int = 0
    image_size: tuple[int, ...] = ()
    metric: str = ""
    accuracy: float | None = None
    "Mean of the seeds."
    mean_average_precision: float | None = None
    "In place of accuracy, for multi-label data."
    std: float | None = None
    values: tuple[float, ...] = ()
    seconds: float = 0.0
    device_hours: float = 0.0
    evaluation: Evaluation | None = None
    "Of the first seed."
    notes: tuple[str, ...] = ()
    sweep_results: tuple[TriedRate, ...] = ()

    def to_json(self) -> dict[str, Any]:
        document = super().to_json()
        if self.status == "stopped":
            return {name: document[name] for name in ("request", "status", "run")}
        other = "accuracy" if self.accuracy is None else "mean_average_precision"
        return {name: value for name, value in document.items() if name != other}


@dataclass(frozen=True)
class ProtocolRun:
    """What doing the protocol once gave."""

    model: str
    kept: str
    dev_accuracy: float | None
    seconds: float
    steps: int
    batch_size: int
    learning_rate: float
    image_size: tuple[int, int]


class NestedRun:
    """Passes on what runs inside another say: each warning once, and no kind of note that the outer one has said."""

    def __init__(self, listener: Listener, said: Collection[Kind]) -> None:
        self.listener, self.said = listener, frozenset(said)
        self.start, self.stepped = listener.start, listener.stepped
        self.metrics, self.stop = listener.metrics, listener.stop
        self._warnings: set[str] = set()

    def note(self, line: Note) -> None:
        if line.kind in self.said or line in self._warnings:
            return
        if line.kind == "warning":  # runs that differ in a seed or a rate alone would repeat it
            self._warnings.add(line)
        self.listener.note(line)


def finetune(
    model: str | os.PathLike[str] | Predictor,
    data: Data,
    changes: Sequence[str] = (),
    *,
    sweep: str | None = None,
    seeds: int = 1,
    run: str | None = None,
    device: str = "auto",
    force: bool = False,
    listener: Listener | None = None,
) -> FinetuneResult:
    """Fine-tune a model on new data; the same call again resumes.

    changes: `key=value`, settings of TransferConfig and of TrainConfig.
    sweep: "lr" tries the protocol's learning rates on a part of train, then trains on all of train with the best.
    seeds: how often the last run is done, with seeds 0, 1, ...; the result is their mean and deviation.
    """
    if sweep not in (None, "lr"):
        raise InputError(f"sweep is {sweep!r}; expected lr")
    named = model.spec if isinstance(model, Predictor) else os.fspath(model)
    asked = data.data_name if isinstance(data, Source) else str(data)
    request = FinetuneRequest(named, asked, tuple(changes), "lr" if sweep else None, seeds)
    return run_finetuning(
        request,
        lambda: make_plan(model, data, changes, device, sweep is not None),
        finetuning_path(request) if run is None else named_path(run),
        device=device,
        force=force,
        listener=listener,
    )


def run_finetuning(
    request: FinetuneRequest,
    make: Callable[[], Plan],
    path: Path,
    *,
    device: str = "auto",
    force: bool = False,
    listener: Listener | None = None,
) -> FinetuneResult:
    """Carry out a request in its folder; `make` returns its plan, and is not called for one that is finished."""
    Bounds(at_least=1).check("seeds", request.seeds)
    check_alone("finetune runs in one process; several share the work by seeds or data sets, one --run each")
    listener = listener or Silent()
    reads = [*paths_in(request.model), *data_paths(request)]
    try:
        with (
            listening(),
            RunFolder(path, request.to_json(), kind="finetune", force=force, keeps=reads) as folder,
        ):
            if folder.record["status"] == "done":
                listener.note(Note(f"{path} is already finished; --force starts over", "progress"))
                return from_json(FinetuneResult, folder.record)
            plan = make()
            folder.clear()  # not before the new one is known to be possible
            folder.update(status="running", message="")
            for note in plan.notes:
                listener.note(note)
            with keeping_what_was_trained(path):
                result = run_plan(plan, path, request, device, listener)
            folder.update(**result.to_json())
            return result
    except KeyboardInterrupt:
        return FinetuneResult(request, "stopped", str(path))


@contextmanager
def keeping_what_was_trained(path: Path) -> Iterator[None]:
    """Add to an error, such as of a file that can't be read, that the same command resumes."""
    try:
        yield
    except InputError as error:
        if not any(path.glob("*/**/checkpoints/*")):
            raise
        advice = "what was trained is kept: put that right, and the same command resumes"
        raise InputError(f"{error}; {advice}") from error


def data_paths(request: FinetuneRequest) -> list[Path]:
    """Return the files and folders that a request's data lies in."""
    evaluate = merge({}, part_changes(request.changes)[1]).get("data", {}).get("evaluate")
    return [path for data in (request.data, evaluate) if data is not None for path in as_spec(data).paths]


def run_plan(
    plan: Plan, path: Path, request: FinetuneRequest, device: str, listener: Listener
) -> FinetuneResult:
    """Do the sweep, if any, then the last run with each seed."""
    trials = {rate: path / "sweep" / f"{rate:g}" for rate in (plan.rule.grid if plan.tuning else ())}
    last = [path / f"seed-{seed}" for seed in range(request.seeds)]
    left = sum(not is_done(folder) for folder in (*trials.values(), *last))
    steps = settle_steps(plan, path, device, listener, runs=left)
    within = NestedRun(listener, SAID)
    tried: list[TriedRate] = []
    for rate, folder in trials.items():
        assert plan.tuning and plan.tuning.dev
        found = run_once(plan, plan.tuning, folder, device, within, steps, rate)
        assert found.dev_accuracy is not None
        tried.append(TriedRate(rate, found.dev_accuracy, found.seconds, found.kept))
        text = f"learning rate {rate:g}: {found.dev_accuracy:.2%} on {plan.tuning.dev.data_name}"
        listener.note(Note(text, "progress"))
    best = choose_rate(tried, listener) if tried else None
    # Without images of its own to choose by, the last run keeps what the sweep did.
    kept = {row.learning_rate: row.kept for row in tried}
    head_alone = best is not None and plan.whole.dev is None and kept[best] == HEAD_ALONE
    base = int(merge({}, plan.changes).get("seed", 0))
    runs: list[ProtocolRun] = []
    evaluations: list[Evaluation] = []
    for seed, folder in enumerate(last):
        found = run_once(plan, plan.whole, folder, device, within, steps, best, base + seed, head_alone)
        out = path / "evaluation" if seed == 0 else None
        evaluations.append(
            evaluate(found.model, plan.measured, device=device, out=out, force=True, progress=obey)
        )
        runs.append(found)
    with folder_written_whole(path / "model") as part:
        shutil.copytree(runs[0].model, part, dirs_exist_ok=True)
    return summarise(plan, path, request, runs, evaluations, tried)


def choose_rate(tried: Sequence[TriedRate], listener: Listener) -> float:
    """Return the learning rate that did best; of equals the middle one, and what the sweep leaves open is told."""
    top = max(row.accuracy for row in tried)
    equal = [row for row in tried if row.accuracy == top]
    rates = [row.learning_rate for row in equal]
    best: float = rates[len(rates) // 2]
    if all(row.kept == HEAD_ALONE for row in equal):
        listener.note(Note("the head alone did best on the dev split, which no learning rate changes"))
    elif len(rates) > 1:
        text = f"{len(rates)} learning rates did equally well on the dev split; the middle one, {best:g}, is taken"
        listener.note(Note(text))
    elif best in (tried[0].learning_rate, tried[-1].learning_rate):
        text = f"the best learning rate, {best:g}, is at the end of the grid: a better one may lie beyond"
        listener.note(Note(text, "warning"))
    return best


def run_once(
    plan: Plan,
    data: TrainDev,
    path: Path,
    device: str,
    listener: Listener,
    steps: int | None,
    rate: float | None = None,
    seed: int = 0,
    head_alone: bool = False,
) -> ProtocolRun:
    """Do the protocol once in a folder of its own, or its head alone; a request to stop is a KeyboardInterrupt."""
    changes = [] if rate is None else [f"optimizer.learning_rate={rate}"]
    changes.append(f"seed={seed}")
    settings: dict[str, Any] = {} if steps is None else {"duration": steps}
    inputs, head = plan.inputs(data), None
    if plan.head_first:
        config = plan.config(data, changes, **settings)
        head = fit_head(config, inputs, data.dev, path / "head", device, listener)
        fitted = {name: value for name, value in plan.settings["model"].items() if name != "new_head"}
        settings["model"] = {**fitted, "name": str(head.path)}
        inputs = plan.inputs(data, head.loaded)
    config = plan.config(data, changes, **settings)
    size = parse_pipeline(config.data.pipeline).size or plan.start.config.size

    def made(model: Path, kept: str, accuracy: float | None, seconds: float, steps: int) -> ProtocolRun:
        rate = config.optimizer.learning_rate
        return ProtocolRun(str(model), kept, accuracy, seconds, steps, config.batch_size, rate, size)

    if head and head_alone:
        return made(head.path, HEAD_ALONE, head.accuracy, head.seconds, 0)
    found = train_config(config, path / "run", inputs=inputs, device=device, listener=listener)
    assert found is not None  # one process
    if found.status != "done":
        raise KeyboardInterrupt
    obey()
    weights = "weights" if config.average is None else "average of weights"
    chosen, kept, accuracy = path / "run" / "model", f"{weights} of step {found.steps}", None
    if data.dev is not None:
        assert found.best is not None
        accuracy = found.best.value
        if config.select == "best":
            kept = f"{weights} of step {found.best.step}"
        else:
            accuracy = found.metrics[found.best.metric] or 0.0
        if head and accuracy is not None and head.accuracy is not None and head.accuracy > accuracy:
            text = f"the head alone did better on {data.dev.data_name}, {head.accuracy:.2%}, so it is kept"
            listener.note(Note(text))
            chosen, accuracy, kept = head.path, head.accuracy, HEAD_ALONE
    seconds = found.seconds + (head.seconds if head else 0.0)
    return made(chosen, kept, accuracy, seconds, found.steps)


def is_done(path: Path) -> bool:
    """Say whether a run in a folder of its own has trained to its end."""
    return (path / "run" / RECORD).is_file() and read_record(path / "run")["status"] == "done"


def settle_steps(plan: Plan, path: Path, device: str, listener: Listener, runs: int) -> int | None:
    """Return how many steps of a quick run fit its time; None where the length is given. Say how long all will take.

    A fine-tuning that has begun keeps its number.
    """
    on = choose_device(device)
    if plan.has_duration:
        if runs:
            words = time_in_words(seconds_for(plan.operations(runs), on))
            listener.note(
                Note(f"estimated time: {words} in all on {on.type}: {counted(runs, 'run')}", "estimate")
            )
            listener.note(Note("shorter: duration=STEPS, image_size=PIXELS, a smaller MODEL", "advice"))
        return None
    for begun in sorted(path.glob(f"*/**/run/{CONFIG}")):
        return int(read_config(begun.parent)["duration"])
    config = plan.config(plan.whole, duration=1000)
    listener.note(Note("timing a few steps", "progress"))
    step = seconds_per_step(config, plan.inputs(plan.whole), on)
    images = len(plan.whole.train)
    most = max(1, QUICK_EPOCHS * images // config.batch_size)
    steps = max(2, min(most, int(plan.minutes * 60 / step)))  # the first of a warm-up changes nothing
    shares = {
        "features": plan.head_first * images / config.batch_size * step / 3,  # forward only
        f"{counted(steps, 'step')} of {config.batch_size} images": steps * step,
    }
    listed = " and ".join(
        f"{time_in_words(seconds)} for {what}" for what, seconds in shares.items() if seconds
    )
    if runs > 1:
        listed = f"{time_in_words(runs * sum(shares.values()))} in all: {runs} runs, each {listed}"
    epochs = steps * config.batch_size / images
    listener.note(Note(f"estimated time: {listed} ({step:.2g} s a step, {epochs:.1f} epochs)", "estimate"))
    return steps


def seconds_per_step(config: TrainConfig, inputs: Inputs, device: torch.device) -> float:
    """Return how long a step of a run takes once it is warm: data, both passes and the update."""
    world = World(0, 1, device)
    parts = build(config, world, inputs)
    size = config.micro_batch if isinstance(config.micro_batch, int) else config.batch_size
    warm = WARM if config.compile == "graphs" else 0
    began = 0.0
    for step, batch in enumerate(parts.loader.steps(0, warm + 1 + TRIALS)):
        train_step(config, parts, batch, step, size, world)
        if step == warm:
            wait(device)
            began = time.perf_counter()
    wait(device)
    return (time.perf_counter() - began) / TRIALS


def summarise(
    plan: Plan,
    path: Path,
    request: FinetuneRequest,
    runs: Sequence[ProtocolRun],
    evaluations: Sequence[Evaluation],
    tried: Sequence[TriedRate],
) -> FinetuneResult:
    """Return the result of all seeds; details are the first's."""
    metric = "mean_average_precision" if plan.is_multi_label else "accuracy"
    values = [getattr(evaluation, metric) for evaluation in evaluations]
    mean, std = mean_and_spread(values)
    seconds = sum(run.seconds for run in runs) + sum(rate.seconds for rate in tried)
    first, notes = runs[0], [str(note) for note in plan.notes]
    if len(runs) > 1 and all(run.kept == HEAD_ALONE for run in runs):
        notes.append(
            "the fitted head was kept for every seed, which is the same each time: there is no spread"
        )
    return FinetuneResult(
        request=request,
        status="done",
        run=str(path),
        model=str(path / "model"),
        models=tuple(run.model for run in runs),
        protocol=plan.protocol,
        rule=plan.rule.origin,
        departures=plan.departures,
        train_images=plan.num_images,
        test_images=len(plan.measured),
        measured_on=plan.test,
        kept=first.kept,
        learning_rate=first.learning_rate,
        steps=first.steps,
        batch_size=first.batch_size,
        image_size=first.image_size,
        metric=metric,
        accuracy=mean if metric == "accuracy" else None,
        mean_average_precision=None if metric == "accuracy" else mean,
        std=std,
        values=tuple(values),
        seconds=seconds,
        device_hours=seconds / 3600,
        evaluation=evaluations[0],
        notes=tuple(notes),
        sweep_results=tuple(tried),
    )


def finetuning_path(request: FinetuneRequest) -> Path:
    """Return where a fine-tuning without a name lives: by its model, its data and a hash of what was asked."""
    model, data = request.model, re.split(r"[:\[]", request.data.removeprefix("hf-hub:"))[0]
    model = model.partition("@")[0] if "@" in model else Path(model).name if Path(model).exists() else model
    name = "-".join(re.sub(r"[^A-Za-z0-9_]+", "", word) or "model" for word in (model, Path(data).name))
    return Path(ROOT, run_name(f"finetune-{name}", request.to_json()))
