"""What a fine-tuning says before it starts: one line with what it does and how long it takes, counted from its parts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitkit
from vitkit.data.sources.source import Subset
from vitkit.evaluation.features import frozen_features
from vitkit.evaluation.probe import cut_dev
from vitkit.figures.numbers import rough_duration
from vitkit.notes import kind_of
from vitkit.progress import Silent
from vitkit.training.build import resolve_periods
from vitkit.training.schedules import build_schedule
from vitkit.transfer import outlook
from vitkit.transfer.outlook import (
    MEASURING,
    STARTING,
    Pace,
    RunLeft,
    fitting_steps,
    measure_pace,
    settle_steps,
    total_seconds,
)
from vitkit.transfer.plan import Plan, make_plan

TINY = {"width": 16, "depth": 1, "heads": 2, "mlp_width": 16, "patch": 4, "image_size": 8}
CPU = torch.device("cpu")
# digits: 1,157 images to learn from, 258 to choose by, 382 to report on.
PACE = Pace(step=2.0, image=0.01, fitting=1.5, write=0.5, checkpoint=0.75, features=7.0)


class Noting(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def note(self, line: Any) -> None:
        self.said.append(line)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model(tmp_path: Path) -> str:
    torch.manual_seed(0)
    vitkit.save(vitkit.create_model("Ti/16", num_classes=3, **TINY), tmp_path / "tiny")
    return str(tmp_path / "tiny")


def plan_of(model: str, *changes: str, sweep: bool = False) -> Plan:
    return make_plan(model, "digits", ["protocol=quick", *changes], "cpu", sweep=sweep)


def test_all_that_a_run_does_is_counted(model: str) -> None:
    plan = plan_of(model)
    dev, test = len(plan.whole.dev or ()), 382
    temperature = dev * 0.01
    features = 7.0 + 1.5 + 0.5
    # Five evaluations, of which each may write a model, twenty checkpoints, and the last weights.
    training = STARTING + 100 * 2.0 + 5 * dev * 0.01 + (5 + 1) * 0.5 + 20 * 0.75
    measuring = test * 0.01 + 0.5 + MEASURING
    once = total_seconds(plan, [RunLeft(plan.whole, True)], PACE, 100)
    assert once == pytest.approx(features + training + measuring + temperature)
    resumed = total_seconds(plan, [RunLeft(plan.whole, True, done=60)], PACE, 100)
    assert resumed == pytest.approx(once - 60 * 2.0 - 3 * dev * 0.01 - 3 * 0.5 - 12 * 0.75)


def test_features_are_computed_and_a_temperature_is_fitted_once(model: str) -> None:
    plan = plan_of(model)
    one, two = (total_seconds(plan, [RunLeft(plan.whole, True)] * seeds, PACE, 10) for seeds in (1, 2))
    assert two == pytest.approx(2 * one - PACE.features - len(plan.held_out or ()) * PACE.image)


def test_a_sweep_measures_on_its_dev_split_alone(model: str) -> None:
    plan = plan_of(model, "head_first=false", sweep=True)
    assert plan.tuning is not None and plan.tuning.dev is not None
    tried = total_seconds(plan, [RunLeft(plan.tuning, False)], PACE, 10)
    writes = (5 + 1) * 0.5 + 10 * 0.75  # a checkpoint at every step of ten
    held_out = len(plan.held_out or ()) * 0.01  # of the last run, whose time is counted with any
    training = STARTING + 10 * 2.0 + 5 * len(plan.tuning.dev) * 0.01 + writes
    assert tried == pytest.approx(training + held_out + 7.0)


def test_minutes_are_those_of_the_whole_run(model: str) -> None:
    plan = plan_of(model, "minutes=4")
    run = [RunLeft(plan.whole, True)]
    steps = fitting_steps(plan, PACE, 240.0)
    assert total_seconds(plan, run, PACE, steps) <= 240 < total_seconds(plan, run, PACE, steps + 1)
    assert fitting_steps(plan, Pace(1e-6, 1e-9), 240.0) == 20 * 1157 // 32  # later epochs add little
    assert fitting_steps(plan, Pace(2.0, 10.0), 240.0) == 1  # reading the images takes all the time


def test_minutes_start_with_the_call_and_too_few_are_a_warning(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlook, "measure_pace", lambda *_: PACE)
    plan, listener = plan_of(model, "minutes=4"), Noting()
    left = [RunLeft(plan.whole, True)]
    at_once = settle_steps(plan, left, Path("runs/new"), CPU, listener)
    late = settle_steps(plan, left, Path("runs/new"), CPU, listener, began=time.perf_counter() - 60)
    assert at_once and late and 25 <= at_once - late <= 31  # a minute of steps of two seconds
    assert not any(kind_of(line) == "warning" for line in listener.said)
    few = plan_of(model, "minutes=0.1")
    assert settle_steps(few, left, Path("runs/new"), CPU, listener) == 1
    [warning] = [line for line in listener.said if kind_of(line) == "warning"]
    needed = rough_duration(total_seconds(few, left, PACE, 1))
    assert (
        warning
        == f"minutes=0.1 is too short: even with one step, the whole run takes about {needed} from its start"
    )


def test_fitting_a_head_is_timed_by_its_turns(model: str) -> None:
    plan = plan_of(model, "duration=5")
    net = plan.start.loaded.model
    few = plan_of(model, "duration=5").whole.train
    part = Subset(few, np.arange(60))
    fits = [len(cut_dev(source.labels, 0.1, 0)) * 7 + 1 for source in (few, part)]
    assert fits[1] > fits[0]  # few images are held out in more turns
    assert 0 < outlook.seconds_to_fit(part, net) < 60


@pytest.mark.parametrize(
    ("changes", "sweep", "seeds", "work"),
    [
        (["minutes=4"], False, 1, "a head on features, then 95 steps of 32 images"),
        (
            ["duration=10"],
            False,
            2,
            "2 seeds: each a head on features, then 10 steps of 32 images",
        ),
        (
            ["duration=1", "head_first=false"],
            True,
            1,
            "4 learning rates tried, then 1 seed: each 1 step of 32 images",
        ),
    ],
)
def test_one_line_says_what_is_done_and_how_long_it_takes(
    model: str, changes: list[str], sweep: bool, seeds: int, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlook, "measure_pace", lambda *_: PACE)
    plan, listener = plan_of(model, *changes, sweep=sweep), Noting()
    left = [RunLeft(plan.tuning, False)] * 4 if plan.tuning else []
    left += [RunLeft(plan.whole, True)] * seeds
    steps = settle_steps(plan, left, Path("runs/new"), CPU, listener)
    [line] = [line for line in listener.said if kind_of(line) == "summary"]
    data = "tiny on digits:train: 1,157 images of 10 classes, 382 to measure on in digits:test"
    time = rough_duration(total_seconds(plan, left, PACE, steps))
    assert line == f"{data}; {work}; about {time} left on cpu"
    assert listener.said[-1] is line  # after the notes that --verbose shows


def test_a_pace_is_measured_on_a_copy(model: str) -> None:
    plan = plan_of(model, "duration=5")
    before = {name: tensor.clone() for name, tensor in plan.start.loaded.model.state_dict().items()}
    Path("runs").mkdir()
    pace = measure_pace(plan, Path("runs"), CPU)
    assert min(pace.step, pace.image, pace.fitting, pace.write, pace.checkpoint) > 0
    assert plan.whole.dev is not None
    assert pace.features == pytest.approx((1157 + len(plan.whole.dev)) * pace.image)
    for source in (plan.whole.train, plan.whole.dev):
        frozen_features(vitkit.load(model, device="cpu"), source)
    assert measure_pace(plan, Path("runs"), CPU).features == 0  # they are in the cache
    after = plan.start.loaded.model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert not any(Path("runs").iterdir())


def test_the_first_step_of_a_quick_run_learns(model: str) -> None:
    """With a warm-up from 0 it would change nothing, and a quick run may have few steps."""

    def rates(*changes: str) -> list[float]:
        plan = plan_of(model, "duration=20", *changes)
        config = plan.config(plan.whole)
        periods = resolve_periods(config, 1157)
        schedule = build_schedule(config.schedule, config.optimizer.learning_rate, periods.total, 36.0)
        return [schedule(step) for step in (0, 1, 2)]

    assert rates() == pytest.approx([0.0002, 0.0011, 0.002])
    assert rates("optimizer.learning_rate=1e-5") == pytest.approx([1e-6, 5.5e-6, 1e-5])
    assert rates("schedule.warmup_from=0.001") == pytest.approx([0.001, 0.0015, 0.002])
    assert rates("schedule.warmup=0")[0] == pytest.approx(0.002)
    paper = make_plan(model, "digits", ["protocol=paper", "image_size=8"], "cpu")
    assert paper.config(paper.whole).schedule.warmup_from == 0  # as in the official code
