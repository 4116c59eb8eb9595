"""What a fine-tuning says before it starts: what it will do, how many steps fit its minutes, and how long it takes."""

from __future__ import annotations

import math
import tempfile
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from vitkit.data.sources.source import Source, Subset
from vitkit.data.splits import counted
from vitkit.evaluation.features import is_kept
from vitkit.evaluation.passes import SourcePass
from vitkit.evaluation.probe import DEV, GRID, Probe, cut_dev
from vitkit.figures.numbers import rough_duration
from vitkit.models.model import HEAD, Model
from vitkit.notes import Note
from vitkit.predictor import Predictor
from vitkit.progress import Listener
from vitkit.runs import CONFIG, read_config
from vitkit.training import checkpoints
from vitkit.training.build import RunParts, build, resolve_periods
from vitkit.training.config import TrainConfig
from vitkit.training.estimate import seconds_for
from vitkit.training.graphs import WARM
from vitkit.training.log import Totals
from vitkit.training.loop import state_tensors, train_step
from vitkit.transfer.plan import Plan, TrainDev
from vitkit.transfer.protocols import QUICK_EPOCHS
from vitkit.weights.convert import save
from vitkit.world import World, wait

TRIAL_SECONDS, MOST_TRIALS = 3.0, 20
"Seconds for which steps are timed, at least one step, and the most steps."
IMAGES = 64
"Images whose forward pass is timed."
HEAD_ROWS, HEAD_STEPS, HEAD_TRIALS = 2048, 5, 7
"Features and iterations with which fitting a head is timed, and how often: on a busy machine, single times vary."
HEAD_ITERATIONS = 10.0
"Iterations of a fit, times the cube root of the number of classes: measured are 14 for 4 classes, 44 for 100."
STARTING = 1.0
"Seconds to build the model of a run, and to prepare its first step."
MEASURING = 2.0
"Seconds to load a model for its measurement and to draw the pictures."


@dataclass(frozen=True)
class Pace:
    """Seconds that each part of a run takes on this machine."""

    step: float
    "A training step: data, both passes and the update."
    image: float
    "Reading an image and passing it forward."
    fitting: float = 0.0
    "Fitting a head on all of train."
    write: float = 0.0
    "Writing the weights to a folder."
    checkpoint: float = 0.0
    "Writing a checkpoint: the weights and the optimiser's state."
    features: float = 0.0
    "All features that heads are fitted on, computed once for all runs; 0 if they are cached."


@dataclass(frozen=True)
class RunLeft:
    """A run that is still to be done."""

    data: TrainDev
    is_measured: bool
    "Whether what is reported on is measured with its model."
    done: int = 0
    "Steps that it has trained already."


def settle_steps(
    plan: Plan,
    left: Sequence[RunLeft],
    path: Path,
    device: torch.device,
    listener: Listener,
    began: float | None = None,
    introduce: bool = True,
) -> int | None:
    """Return the steps of a quick run that fit its minutes; None if the plan sets their number.

    A fine-tuning that has begun keeps its number. began: when its minutes began, on time.perf_counter's clock.
    introduce: whether to say what will be done and how long it takes.
    """
    began = time.perf_counter() if began is None else began
    steps = None if plan.has_duration else steps_begun(path)
    if not left:
        return steps
    if not introduce and (plan.has_duration or steps is not None):
        return steps
    if plan.protocol == "paper":
        seconds = seconds_for(plan.operations(len(left)), device)
    else:
        listener.note(Note("timing a few steps", "progress"))
        pace = measure_pace(plan, path, device)
        if not plan.has_duration and steps is None:
            budget = plan.minutes * 60 - (time.perf_counter() - began)
            steps = fitting_steps(plan, pace, budget)
            if (least := total_seconds(plan, [RunLeft(plan.whole, True)], pace, steps)) > budget:
                needed = rough_duration(least + plan.minutes * 60 - budget)
                text = f"minutes={plan.minutes:g} is too short: even with one step, the whole run takes about {needed} from its start"
                listener.note(Note(text, "warning"))
        for note in () if plan.has_duration else plan.surprises(steps):
            listener.note(note)
        if not introduce:
            return steps
        seconds = total_seconds(plan, left, pace, steps)
        detail = f"{pace.step:.2g} s a step, {pace.image * 1000:.2g} ms per image for evaluation"
        listener.note(Note(f"measured: {detail}", "estimate"))
    listener.note(Note("shorter: duration=STEPS, image_size=PIXELS, a smaller MODEL", "advice"))
    words = f"about {rough_duration(seconds)} left on {device.type}"
    listener.note(Note(f"{summary(plan, left, steps)}; {words}", "summary"))
    return steps


def steps_begun(path: Path) -> int | None:
    """Return the steps of a fine-tuning's runs, if one has begun."""
    begun = min(path.glob(f"*/**/run/{CONFIG}"), default=None)
    return None if begun is None else int(read_config(begun.parent)["duration"])


def summary(plan: Plan, left: Sequence[RunLeft], steps: int | None) -> str:
    """Say in a line what will be done."""
    config = run_config(plan, plan.whole, steps)
    total = resolve_periods(config, len(plan.whole.train)).total
    work = f"{counted(total, 'step')} of {config.batch_size} images"
    if plan.head_first:
        work = f"a head on features, then {work}"
    seeds = sum(run.is_measured for run in left)
    if seeds < len(left):
        work = (
            f"{counted(len(left) - seeds, 'learning rate')} tried, then {counted(seeds, 'seed')}: each {work}"
        )
    elif seeds > 1:
        work = f"{counted(seeds, 'seed')}: each {work}"
    return f"{plan.summary}; {work}"


def fitting_steps(plan: Plan, pace: Pace, budget: float) -> int:
    """Return the most steps with which a run fits a budget in seconds; the number of epochs is limited too."""
    config, data = plan.config(plan.whole, duration=1), plan.whole
    most = max(1, QUICK_EPOCHS * len(data.train) // config.batch_size)
    run = [RunLeft(data, True)]
    fitting = bisect_right(
        range(1, most + 1), budget, key=lambda steps: total_seconds(plan, run, pace, steps)
    )
    return max(1, fitting)


def total_seconds(plan: Plan, left: Sequence[RunLeft], pace: Pace, steps: int | None) -> float:
    """Return the seconds that all runs take: features, heads, steps, evaluations and writing."""
    seconds = pace.features
    if plan.held_out is not None:
        seconds += len(plan.held_out) * pace.image  # a temperature is fitted once
    for run in left:
        train, dev = run.data.train, run.data.dev
        if plan.head_first:
            seconds += pace.fitting * len(train) / len(plan.whole.train) + pace.write
        config = run_config(plan, run.data, steps)
        periods = resolve_periods(config, len(train))
        measured = len(plan.measured if dev is None else dev) * (1 if config.average is None else 2)
        todo = max(0, periods.total - run.done)
        evaluations = math.ceil(todo / periods.evaluate)
        seconds += STARTING + todo * pace.step + evaluations * measured * pace.image
        seconds += (evaluations + 1) * pace.write + math.ceil(todo / periods.checkpoint) * pace.checkpoint
        if run.is_measured:
            seconds += len(plan.measured) * pace.image + pace.write + MEASURING
    return seconds


def run_config(plan: Plan, data: TrainDev, steps: int | None) -> TrainConfig:
    """Return the settings of a run with this many steps, or with the plan's own number."""
    return plan.config(data) if steps is None else plan.config(data, duration=steps)


def measure_pace(plan: Plan, path: Path, device: torch.device) -> Pace:
    """Time a few steps and images of a plan on a model of its own, and writing it."""
    config, world = run_config(plan, plan.whole, None if plan.has_duration else 1000), World(0, 1, device)
    parts = build(config, world, plan.inputs(plan.whole))
    missing, fitting = 0, 0.0
    if plan.head_first:
        missing = images_without_features(plan, parts, device)
        fitting = seconds_to_fit(plan.whole.train, parts.model)
    parts.objective.train()
    step = seconds_per_step(config, parts, world)
    image = seconds_per_image(parts, world)
    return Pace(step, image, fitting, *seconds_to_write(parts, path, world), missing * image)


def seconds_per_step(config: TrainConfig, parts: RunParts, world: World) -> float:
    """Return how long a step takes once it is warm: data, both passes and the update."""
    size = config.micro_batch if isinstance(config.micro_batch, int) else config.batch_size
    warm = WARM if config.compile == "graphs" else 0
    began, trials = 0.0, 0
    for step, batch in enumerate(parts.loader.steps(0, warm + 1 + MOST_TRIALS)):
        train_step(config, parts, batch, step, size, world)
        if step < warm:
            continue
        wait(world.device)
        if step == warm:
            began = time.perf_counter()
            continue
        trials = step - warm
        if time.perf_counter() - began > TRIAL_SECONDS:
            break
    return (time.perf_counter() - began) / trials


def seconds_per_image(parts: RunParts, world: World) -> float:
    """Return how long it takes to read an image and to pass it forward."""
    places = np.linspace(0, len(parts.source) - 1, min(IMAGES, len(parts.source))).astype(np.int64)
    some = Subset(parts.source, places)
    images = SourcePass(some, parts.preprocessing, world=world, batch_size=IMAGES // 2, bad_images="any")
    began = time.perf_counter()
    images.logits(parts.model, parts.objective.dtype)
    return (time.perf_counter() - began) / len(some)


def seconds_to_fit(train: Source, model: Model) -> float:
    """Return how long fitting a head takes: a strength is chosen in several turns, and each fit takes iterations.

    Few images take many turns, in which the work next to the products counts most.
    """
    count, num_classes = min(HEAD_ROWS, len(train)), model.config.num_classes
    width = sum(p.numel() for name, p in model.named_parameters() if name.startswith(HEAD)) // num_classes
    x = np.random.default_rng(0).standard_normal((count, width), np.float32)
    trial = Probe(GRID[len(GRID) // 2], iterations=HEAD_STEPS)
    times = []
    for _ in range(HEAD_TRIALS):
        began = time.perf_counter()
        trial.fit(x, np.arange(count) % num_classes)
        times.append((time.perf_counter() - began) / trial.n_iter_)
    iteration = float(np.median(times)) * len(train) / count
    fits = len(cut_dev(train.labels, DEV, 0)) * len(GRID) + 1
    return fits * HEAD_ITERATIONS * num_classes ** (1 / 3) * iteration


def seconds_to_write(parts: RunParts, path: Path, world: World) -> tuple[float, float]:
    """Return how long it takes to write the weights where runs are kept, and to write a checkpoint there."""
    totals = Totals(parts.objective.metric_names, world)
    with tempfile.TemporaryDirectory(dir=path) as folder:
        began = time.perf_counter()
        save(parts.model, Path(folder, "model"))
        written = time.perf_counter()
        checkpoints.save(Path(folder, "checkpoints"), 1, state_tensors(parts, totals), {}, keep=1)
        return written - began, time.perf_counter() - written


def images_without_features(plan: Plan, parts: RunParts, device: torch.device) -> int:
    """Return the number of images whose features aren't cached yet; a sweep's parts are of the same train split."""
    predictor = Predictor(parts.model, parts.preprocessing, (), device=device)
    sources = [source for source in (plan.whole.train, plan.whole.dev) if source is not None]
    return sum(len(source) for source in sources if not is_kept(predictor, source))
