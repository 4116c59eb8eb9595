"""`vitkit.finetune`: a trained model and a data set become a model for that data, by the paper's protocol or a quick one."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

from vitkit.config import Bounds, Change, Changes, as_changes, from_dict, merge, to_dict
from vitkit.data.open import Data, named_data
from vitkit.data.pipeline import parse_pipeline
from vitkit.data.sources.source import Source
from vitkit.data.spec import as_spec
from vitkit.data.threads import Unreadable, opened_data
from vitkit.data.unreadable import skipped_notes
from vitkit.errors import InputError
from vitkit.evaluation.measured import Predictions
from vitkit.evaluation.metrics import mean_and_spread
from vitkit.evaluation.run import Evaluation, evaluate
from vitkit.evaluation.temperature import Calibration, FittedTemperature
from vitkit.models.own import OWN
from vitkit.notes import Note, worded
from vitkit.predictor import AnyModel, choose_device, named_model
from vitkit.progress import Listener, Silent, following
from vitkit.results import Result, from_json
from vitkit.runs import (
    CONFIG,
    FREE,
    RECORD,
    ROOT,
    RunFolder,
    accepts_data,
    binding,
    data_facts,
    named_path,
    read_config,
    read_record,
    run_name,
)
from vitkit.runs.folder import flatten
from vitkit.runs.reading import FINETUNE
from vitkit.settings import FinetuneSettings
from vitkit.training.config import TrainConfig
from vitkit.training.results import result_in_words, skipped_of
from vitkit.training.run import command_line, train_config
from vitkit.training.stop import listening, obey
from vitkit.transfer.calibrate import write_calibrated
from vitkit.transfer.head import fit_head
from vitkit.transfer.outlook import RunLeft, settle_steps
from vitkit.transfer.plan import Plan, TrainDev, make_plan
from vitkit.transfer.protocols import part_changes
from vitkit.weights.folder import Origin
from vitkit.weights.load import own_module, paths_in
from vitkit.world import check_alone

HEAD_ALONE = "the fitted head alone"


@dataclass(frozen=True)
class FinetuneRequest(Result):
    """What was asked for: the same request is the same run."""

    model: str
    data: str
    changes: tuple[str, ...] = ()
    sweep: Literal["lr"] | None = None
    seeds: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "changes", tuple(as_changes(self.changes)))


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
    calibration: Calibration | None = None
    "Of the first seed, with the temperature that its model's head is divided by; None where none was fitted."
    notes: tuple[str, ...] = ()
    sweep_results: tuple[TriedRate, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    "Images that were skipped, of train, of what it chose by and of what is reported on."

    _leads = (
        *("status", "accuracy", "mean_average_precision", "std", "values", "measured_on"),
        *("protocol", "kept", "steps", "seconds", "run", "model"),
    )
    _tables = ("sweep_results",)

    def _pictures(self) -> Iterable[tuple[str, bytes]]:
        return () if self.evaluation is None else self.evaluation._pictures()

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
    divided: FittedTemperature | None
    "The temperature that the head is divided by already."
    unreadable: tuple[Unreadable, ...]


def finetune(
    model: AnyModel | None = None,
    data: Data | None = None,
    /,
    changes: Changes = (),
    *,
    evaluate: Data | None = None,
    sweep: str | None = None,
    seeds: int = 1,
    run: str | os.PathLike[str] | None = None,
    device: str = "auto",
    force: bool = False,
    accept: str | Sequence[str] = (),
    progress: bool = True,
    listener: Listener | None = None,
    **settings: Unpack[FinetuneSettings],
) -> FinetuneResult:
    """Fine-tune a model on new data. The same call again resumes.

    settings: those of TransferConfig and of TrainConfig, as in `minutes=3, optimizer={"learning_rate": 1e-3}`. A mapping
    changes only what it names; `model={"stochastic_depth": 0.1}` and `data={"workers": 4}` are such sections too.
    changes: settings as a mapping of dotted names, `{"optimizer.learning_rate": 1e-3}`, or as strings, `["minutes=3"]`.
    evaluate: DATA to report on (the setting data.evaluate); by default the data's own test split, else val.
    sweep: "lr" tries the protocol's learning rates on a part of train, then trains on all of train with the best one.
    seeds: number of final runs, with seeds 0, 1, ...; the result has their mean and deviation.
    run: name of the run folder in runs/, or a path; by default made of model, data and a hash of the settings.
    force: start over, deleting the existing run.
    accept: "data" resumes a fine-tuning although training images were added or removed.
    progress: False shows none. listener: follows the run instead of a progress bar.
    """
    given: dict[str, object] = {**settings}
    model, data = arguments("finetune", model, data, given)
    made = as_changes(changes, given)
    if sweep not in (None, "lr"):
        raise InputError(f"sweep is {sweep!r}; expected lr")
    model, named = named_model(model)
    train, asked = named_data(data)
    measured = None
    if evaluate is not None:
        test, text = named_data(evaluate)
        made.append(Change("data.evaluate", text))
        measured = test if isinstance(test, Source) else None
    rates: Literal["lr"] | None = "lr" if sweep else None
    request = FinetuneRequest(named, asked, tuple(made), rates, seeds)
    with following(progress, listener) as follower:

        def make() -> Plan:
            plan = make_plan(model, train, made, device, sweep is not None, measured)
            for note in (*plan.start_notes, *plan.notes):
                follower.note(note)
            return plan

        result = run_finetuning(
            request,
            make,
            finetuning_path(request) if run is None else named_path(run),
            device=device,
            force=force,
            accept_data=accepts_data(accept),
            listener=follower,
        )
        for line in skipped_notes(result.unreadable):
            follower.note(line)
        return result


def arguments(verb: str, model: Any, data: Any, settings: dict[str, object]) -> tuple[Any, Any]:
    """Return a verb's MODEL and DATA, also where they are given by name, next to settings of the same names.

    As keyword arguments, `model` and `data` are sections of settings, which are mappings.
    """
    given = {"model": model, "data": data}
    for name, value in given.items():
        if value is None and name in settings and not isinstance(settings[name], Mapping):
            given[name] = settings.pop(name)
        if given[name] is None:
            raise TypeError(f"{verb}() needs a {name}, as in vitkit.{verb}('Ti/16', './photos')")
    return given["model"], given["data"]


def run_finetuning(
    request: FinetuneRequest,
    make: Callable[[], Plan],
    path: Path,
    *,
    device: str = "auto",
    force: bool = False,
    accept_data: bool = False,
    listener: Listener | None = None,
    introduce: bool = True,
) -> FinetuneResult:
    """Carry out a request in its folder; `make` returns its plan, and is not called for one that is finished.

    The caller says the plan's notes and which images were skipped: what it asks for may be several such requests.
    introduce: whether to say what will be done and how long it takes.
    """
    Bounds(at_least=1).check("seeds", request.seeds)
    check_alone(
        "finetune runs in one process; to share the work, start one process per seed or data set, each with its own --run"
    )
    listener, began = listener or Silent(), time.perf_counter()
    reads = [*paths_in(request.model), *data_paths(request)]
    try:
        with (
            listening(),
            RunFolder(
                path,
                request.to_json(),
                kind="finetune",
                force=force,
                keeps=reads,
                complete=lambda known: from_json(FinetuneRequest, known, path / FINETUNE).to_json(),
            ) as folder,
        ):
            if folder.record["status"] == "done":
                listener.note(Note(f"{path} is already finished; --force starts over", "progress"))
                return from_json(FinetuneResult, folder.record, path / FINETUNE)
            plan = make()
            folder.clear()  # not before the new one is known to be possible
            facts = data_facts(plan.num_images, plan.whole.train.class_names)
            folder.check_data(facts, accept=accept_data)
            folder.update(status="running", message="")
            with keeping_what_was_trained(path):
                result = run_plan(plan, path, request, device, listener, accept_data, began, introduce)
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
        advice = "what was trained is kept: fix this, then run the same command to resume"
        raise InputError(f"{error}; {advice}") from error


def data_paths(request: FinetuneRequest) -> list[Path]:
    """Return the files and folders that a request's data lies in."""
    evaluate = merge({}, part_changes(request.changes)[1]).get("data", {}).get("evaluate")
    return [path for data in (request.data, evaluate) if data is not None for path in as_spec(data).paths]


def run_plan(
    plan: Plan,
    path: Path,
    request: FinetuneRequest,
    device: str,
    listener: Listener,
    accept_data: bool = False,
    began: float | None = None,
    introduce: bool = True,
) -> FinetuneResult:
    """Do the sweep, if any, then the last run with each seed."""
    once = partial(run_once, plan, device=device, accept_data=accept_data)
    trials = {rate: path / "sweep" / f"{rate:g}" for rate in (plan.rule.grid if plan.tuning else ())}
    last = [path / f"seed-{seed}" for seed in range(request.seeds)]
    left = [
        RunLeft(plan.tuning, False, steps_done(folder))
        for folder in trials.values()
        if plan.tuning and not is_done(folder)
    ]
    left += [RunLeft(plan.whole, True, steps_done(folder)) for folder in last if not is_done(folder)]
    steps = settle_steps(plan, left, path, choose_device(device), listener, began, introduce)
    tried: list[TriedRate] = []
    skipped: list[Unreadable] = []
    for rate, folder in trials.items():
        assert plan.tuning and plan.tuning.dev
        found = once(plan.tuning, folder, listener=listener, steps=steps, rate=rate)
        skipped += found.unreadable
        assert found.dev_accuracy is not None
        tried.append(TriedRate(rate, found.dev_accuracy, found.seconds, found.kept))
        text = f"learning rate {rate:g}: {found.dev_accuracy:.2%} on {plan.tuning.dev.data_name}"
        listener.note(Note(text, "progress"))
    best = choose_rate(tried) if tried else None
    for note in notes_on_rates(tried):
        listener.note(note)
    # Without images of its own to choose by, the last run keeps what the sweep did.
    kept = {row.learning_rate: row.kept for row in tried}
    head_alone = best is not None and plan.whole.dev is None and kept[best] == HEAD_ALONE
    base = int(merge({}, plan.changes).get("seed", 0))
    runs: list[ProtocolRun] = []
    evaluations: list[Evaluation] = []
    for seed, folder in enumerate(last):
        found = once(
            *(plan.whole, folder),
            listener=listener,
            steps=steps,
            rate=best,
            seed=base + seed,
            head_alone=head_alone,
        )
        runs.append(found)
        if seed == 0:
            evaluation, calibration = keep_model(plan, path, request, found, device, listener)
        else:
            model = plan.open_model(found.model, device)
            evaluation = evaluate(
                model, plan.measured, device=device, bad_images=plan.bad_images, progress=obey
            )
        evaluations.append(evaluation)
        skipped += (*found.unreadable, *evaluation.unreadable)
    unreadable = still_there(plan, skipped)
    return summarise(plan, path, request, runs, evaluations, tried, calibration, unreadable)


def keep_model(
    plan: Plan, path: Path, request: FinetuneRequest, found: ProtocolRun, device: str, listener: Listener
) -> tuple[Evaluation, Calibration | None]:
    """Write a run's model, calibrated, and measure it; return what the temperature changed, if there is one."""
    own = own_module(plan.start.loaded)
    kept = write_calibrated(found.model, path / "model", plan.held_out, device, found.divided, own)
    if kept.why_not:
        listener.note(Note(kept.why_not, "progress"))
    predictions: list[Predictions] = []
    evaluation = evaluate(
        plan.open_model(str(kept.path), device),
        plan.measured,
        device=device,
        bad_images=plan.bad_images,
        out=path / "evaluation",
        force=True,
        progress=obey,
        predicted=predictions.append,
    )
    origin = origin_of(plan, request, evaluation, found.unreadable)
    return evaluation, kept.measure(predictions[0], plan.test, origin)


def still_there(plan: Plan, unreadable: Sequence[Unreadable]) -> tuple[Unreadable, ...]:
    """Return each image once, without those that were removed since an earlier part of the work met them."""
    sources = filter(None, (plan.whole.train, plan.whole.dev, plan.measured)) if unreadable else ()
    there = {source.where(index) for source in sources for index in range(len(source))}
    return tuple(dict.fromkeys(entry for entry in unreadable if entry.image in there))


def choose_rate(tried: Sequence[TriedRate]) -> float:
    """Return the learning rate that did best; of equals the middle one."""
    rates = [row.learning_rate for row in equally_best(tried)]
    return rates[len(rates) // 2]


def equally_best(tried: Sequence[TriedRate]) -> list[TriedRate]:
    top = max((row.accuracy for row in tried), default=0.0)
    return [row for row in tried if row.accuracy == top]


def notes_on_rates(tried: Sequence[TriedRate]) -> Iterator[Note]:
    """Yield a note if the sweep doesn't settle which learning rate is best."""
    equal = equally_best(tried)
    if not equal:
        return
    best = choose_rate(tried)
    if all(row.kept == HEAD_ALONE for row in equal):
        yield Note("the head alone did best on the dev split, at every learning rate")
    elif len(equal) > 1:
        text = f"{len(equal)} learning rates did equally well on the dev split; the middle one, {best:g}, is used"
        yield Note(text)
    elif best in (tried[0].learning_rate, tried[-1].learning_rate):
        text = f"the best learning rate, {best:g}, is at the end of the grid: a better one may lie beyond"
        yield Note(text, "warning")


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
    accept_data: bool = False,
) -> ProtocolRun:
    """Do the protocol once in a folder of its own, or its head alone; a request to stop is a KeyboardInterrupt.

    accept_data: whether a run resumes whose data has gained or lost images.
    """
    changes = [] if rate is None else [f"optimizer.learning_rate={rate}"]
    changes.append(f"seed={seed}")
    settings: dict[str, object] = {} if steps is None else {"duration": steps}
    inputs, head = plan.inputs(data), None
    if plan.head_first:
        config = plan.config(data, changes, **settings)
        head = fit_head(config, inputs, data.dev, path / "head", device, listener)
        fitted = {name: value for name, value in plan.settings["model"].items() if name != "new_head"}
        settings["model"] = {**fitted, "name": str(head.path)}
        inputs = plan.inputs(data, head.loaded)
    config = plan.config(data, changes, **settings)
    if (
        accept_data and (path / "run" / CONFIG).is_file()
    ):  # what follows from the number of images stays as it was
        config = resumed_config(path / "run", config)
    size = parse_pipeline(config.data.pipeline).size or plan.start.config.size

    unreadable = head.unreadable if head else ()

    def made(model: Path, kept: str, accuracy: float | None, seconds: float, steps: int) -> ProtocolRun:
        rate = config.optimizer.learning_rate
        divided = head.temperature if head and kept == HEAD_ALONE else None
        return ProtocolRun(
            *(str(model), kept, accuracy, seconds, steps, config.batch_size, rate, size, divided, unreadable)
        )

    if head and head_alone:
        return made(head.path, HEAD_ALONE, head.accuracy, head.seconds, 0)
    found = train_config(
        *(config, path / "run"),
        inputs=inputs,
        device=device,
        accept_data=accept_data,
        listener=listener,
        introduce=False,
    )
    if found.status != "done":
        raise KeyboardInterrupt
    obey()
    unreadable += found.unreadable
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


def resumed_config(run: Path, config: TrainConfig) -> TrainConfig:
    """Return the config of a run that has begun, with the settings of another that may change on resume."""
    leaves = flatten(to_dict(config))
    changes = [f"{name}={json.dumps(leaves[name])}" for name in FREE]
    return from_dict(TrainConfig, merge(read_config(run), changes), str(run / CONFIG))


def is_done(path: Path) -> bool:
    """Say whether a run in a folder of its own has trained to its end."""
    return (path / "run" / RECORD).is_file() and read_record(path / "run")["status"] == "done"


def steps_done(path: Path) -> int:
    """Return how far a run in a folder of its own has trained."""
    return int(read_record(path / "run")["step"]) if (path / "run" / RECORD).is_file() else 0


def origin_of(
    plan: Plan, request: FinetuneRequest, evaluation: Evaluation, unreadable: Sequence[Unreadable]
) -> Origin:
    """Return what the card of the model says: its data, its start, what was measured of it; in images that can be read."""
    metric = "mean_average_precision" if plan.is_multi_label else "accuracy"
    result = result_in_words(metric, getattr(evaluation, metric), plan.measured, evaluation.images)
    learned = plan.whole.train
    readable = len(learned) - skipped_of(learned, unreadable)
    return Origin(request.model, learned.data_name, readable, result, command_line())


def summarise(
    plan: Plan,
    path: Path,
    request: FinetuneRequest,
    runs: Sequence[ProtocolRun],
    evaluations: Sequence[Evaluation],
    tried: Sequence[TriedRate],
    calibration: Calibration | None,
    unreadable: tuple[Unreadable, ...],
) -> FinetuneResult:
    """Return the result of all seeds; details are the first's."""
    metric = "mean_average_precision" if plan.is_multi_label else "accuracy"
    values = [getattr(evaluation, metric) for evaluation in evaluations]
    mean, std = mean_and_spread(values)
    seconds = sum(run.seconds for run in runs) + sum(rate.seconds for rate in tried)
    first, notes = runs[0], [*map(worded, (*plan.start_notes, *plan.notes)), plan.summary]
    if len(runs) > 1 and all(run.kept == HEAD_ALONE for run in runs):
        notes.append(
            "the fitted head was kept for every seed, which is the same each time: there is no deviation"
        )
    notes += skipped_notes(unreadable)
    learned = opened_data(plan.whole.train)
    return FinetuneResult(
        request=request,
        status="done",
        run=str(path),
        model=str(path / "model"),
        models=tuple(run.model for run in runs),
        protocol=plan.protocol,
        rule=plan.rule.origin,
        departures=plan.departures,
        train_images=plan.num_images - sum(entry.data == learned for entry in unreadable),
        test_images=evaluations[0].images,
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
        calibration=calibration,
        notes=tuple(notes),
        sweep_results=tuple(tried),
        unreadable=unreadable,
    )


def finetuning_path(request: FinetuneRequest) -> Path:
    """Return where a fine-tuning without a name lives: by its model, its data and a hash of what was asked."""
    model, data = request.model.removeprefix(OWN), re.split(r"[:\[]", request.data.removeprefix("hf-hub:"))[0]
    model = model.partition("@")[0] if "@" in model else Path(model).name if Path(model).exists() else model
    name = "-".join(re.sub(r"[^A-Za-z0-9_]+", "", word) or "model" for word in (model, Path(data).name))
    settings = {**request.to_json(), "changes": binding(request.changes)}
    return Path(ROOT, run_name(f"finetune-{name}", settings))
