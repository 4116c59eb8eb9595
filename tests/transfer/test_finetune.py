"""Fine-tuning: both protocols to the end, sweeps, seeds, stops, and the head that comes first."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import shutil
import signal
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.pytorch_data import Digits
from vitkit.cli.finetune import print_result
from vitkit.costs import cost_of
from vitkit.data.sources.folder import open_folder
from vitkit.data.sources.source import Source
from vitkit.data.spec import DataSpec
from vitkit.errors import InputError
from vitkit.evaluation.features import frozen_features
from vitkit.evaluation.measured import measure
from vitkit.evaluation.metrics import calibration_error
from vitkit.evaluation.probe import Probe
from vitkit.evaluation.temperature import fit_temperature
from vitkit.figures.numbers import rough_duration
from vitkit.files import digest
from vitkit.notes import kind_of
from vitkit.progress import Silent
from vitkit.results import from_json
from vitkit.runs import RunFolder, read_config, read_metrics
from vitkit.runs.reading import read_runs
from vitkit.training.estimate import SHARE
from vitkit.transfer.finetune import (
    HEAD_ALONE,
    FinetuneResult,
    TriedRate,
    choose_rate,
    finetune,
    notes_on_rates,
)
from vitkit.transfer.head import FittedHead, fit_head
from vitkit.transfer.outlook import Pace
from vitkit.transfer.plan import make_plan
from vitkit.weights.folder import FILES
from vitkit.weights.load import LoadedModel, read_model

TINY = {"width": 16, "depth": 1, "heads": 2, "mlp_width": 16, "patch": 4, "image_size": 8}
PAPER = ["protocol=paper", "image_size=8", "duration=4", "schedule.warmup=1", "batch_size=16"]
QUICK = ["protocol=quick", "duration=4"]
DATA = "digits:train[:300]"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model") / "tiny"
    vitkit.save(vitkit.create_model("Ti/16", num_classes=3, pre_logits=16, **TINY), folder)
    return str(folder)


@pytest.fixture(scope="module")
def finished(model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[FinetuneResult, Path]:
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITKIT_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        return finetune(model, DATA, PAPER, run="run", device="cpu"), folder / "runs"


@pytest.fixture
def tuned(finished: tuple[FinetuneResult, Path], tmp_path: Path) -> FinetuneResult:
    """A finished fine-tuning by the paper's protocol, in a copy of runs/run."""
    result, runs = finished
    shutil.copytree(runs, tmp_path / "runs")
    return result


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("changes", "sweep"),
    [
        ([], None),
        pytest.param(["head_first=false"], None, marks=pytest.mark.slow),
        pytest.param([], "lr", marks=pytest.mark.slow),
    ],
)
def test_a_class_of_one_image_and_an_empty_one_stop_nothing(
    model: str, changes: list[str], sweep: str | None
) -> None:
    random = np.random.default_rng(0)
    for name, count in {"a": 8, "b": 8, "rare": 1, "empty": 0}.items():
        Path("photos", name).mkdir(parents=True)
        for number in range(count):
            pixels = random.integers(0, 256, (9, 9, 3), np.uint8)
            Image.fromarray(pixels).save(Path("photos", name, f"{number}.png"))
    result = finetune(model, "photos", [*QUICK, "image_size=8", *changes], sweep=sweep, device="cpu")
    assert (result.status, result.train_images, result.test_images) == ("done", 13, 2)
    assert vitkit.load(result.run, device="cpu").class_names == ("a", "b", "rare")


@pytest.mark.slow
def test_pytorch_data_sets_are_fine_tuned_on(model: str) -> None:
    train, test = Digits("digits:train[:60]"), Digits("digits:test[:20]")
    result = finetune(model, train, [*QUICK, "image_size=8"], evaluate=test, device="cpu")
    assert (result.status, result.train_images, result.test_images) == ("done", 60, 20)
    assert result.request.data.startswith("torch:Digits-")
    assert vitkit.evaluate(result.run, test, device="cpu").accuracy == result.accuracy
    again = finetune(model, train, [*QUICK, "image_size=8"], evaluate=test, device="cpu")
    assert again == result
    with pytest.raises(
        InputError, match=r"no images to measure on \(its splits: none\): .*evaluate= in Python"
    ):
        finetune(model, train, QUICK, device="cpu")


def test_what_is_reported_on_may_be_given_by_name(model: str) -> None:
    by_name = finetune(model, DATA, PAPER, evaluate="digits:val[:20]", device="cpu")
    by_setting = finetune(model, DATA, [*PAPER, "data.evaluate=digits:val[:20]"], device="cpu")
    assert (by_name.test_images, by_setting.run) == (20, by_name.run)


def test_the_papers_protocol_to_the_end(model: str) -> None:
    result = finetune(model, DATA, PAPER, device="cpu")
    assert (result.status, result.protocol, result.steps, result.kept) == (
        "done",
        "paper",
        4,
        "weights of step 4",
    )
    assert (result.train_images, result.test_images, result.image_size) == (300, 382, (8, 8))
    assert result.run.startswith("runs/finetune-tiny-digits-")
    predictor = vitkit.load(result.run, device="cpu")
    assert predictor.class_names == tuple(map(str, range(10)))
    assert predictor.model.config.pre_logits == 0
    test = vitkit.open_data("digits:test")
    right = [
        row[0].index == label for row, label in zip(predictor.predict(test.images), test.labels, strict=True)
    ]
    assert result.accuracy == pytest.approx(np.mean(right), abs=0.01)
    assert {path.name for path in Path(result.run, "evaluation").iterdir()} >= {
        "confusion.png",
        "mistakes.png",
    }
    said: list[str] = []
    again = finetune(model, DATA, PAPER, device="cpu", listener=Noting(said))
    assert again == result
    assert said == [f"{result.run} is already finished; --force starts over"]


def test_the_model_folder_is_calibrated_and_measured_as_it_is(tuned: FinetuneResult) -> None:
    found, evaluation = tuned.calibration, tuned.evaluation
    assert found is not None and evaluation is not None
    assert (found.fitted_on, found.images) == ("digits:val", 258)
    raw, kept = (
        vitkit.load(path, device="cpu") for path in (Path(tuned.run, "seed-0/run/model"), Path(tuned.model))
    )
    logits = {}
    for split in ("val", "test"):
        source = vitkit.open_data(f"digits:{split}")
        logits[split] = measure(raw.model, source, raw.preprocessing)
    assert found.temperature == pytest.approx(fit_temperature(logits["val"].logits, logits["val"].labels))
    assert found.error_before == pytest.approx(logits["test"].numbers().calibration_error, abs=1e-6)
    divided = measure(kept.model, vitkit.open_data("digits:test"), kept.preprocessing)
    np.testing.assert_allclose(
        divided.logits, logits["test"].logits / found.temperature, rtol=1e-5, atol=1e-6
    )
    assert evaluation.calibration_error == pytest.approx(found.error_after) != found.error_before
    assert evaluation.weights_sha256 == digest(Path(tuned.model, "model.safetensors"))
    assert evaluation.model == tuned.model
    written = json.loads(Path(tuned.model, "config.json").read_text())["vitkit"]["calibration"]
    assert written == {**found.to_json(), "measured_on": "digits:test"}
    card = Path(tuned.model, "README.md").read_text()
    assert (
        f"divided by a temperature of {found.temperature:.3g}, which was fitted on digits:val (258 images). "
        f"The calibration error on digits:test is {found.error_after:.1%}; without it, {found.error_before:.1%}."
    ) in card


def test_without_images_held_out_nothing_is_fitted(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    changes = [*PAPER, "data.evaluate=digits:val"]
    result = finetune(model, DATA, changes, run="run", device="cpu", listener=Noting(said))
    assert result.calibration is None and result.evaluation is not None
    assert "no temperature was fitted: no images were held out; data with a val split has some" in said
    raw, kept = (
        vitkit.load(path, device="cpu").model.state_dict() for path in ("runs/run/seed-0/run", result.model)
    )
    assert all(torch.equal(tensor, raw[name]) for name, tensor in kept.items())
    print_result(result)
    shown = f"{result.evaluation.calibration_error:.2%}, no temperature fitted"
    assert shown in capsys.readouterr().out


def test_the_table_says_what_a_temperature_did(
    tuned: FinetuneResult, capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(tuned)
    found = tuned.calibration
    assert found is not None
    assert (
        f"{found.error_after:.2%} ({found.error_before:.2%} before the head was divided by a temperature of "
        f"{found.temperature:.3g})"
    ) in capsys.readouterr().out


@pytest.mark.slow
def test_an_average_is_named_as_what_was_kept(model: str) -> None:
    result = finetune(model, DATA, [*PAPER, "average=0.5"], run="run", device="cpu")
    assert result.kept == "average of weights of step 4"
    measured = read_metrics("runs/run/seed-0/run")[-1]
    assert result.accuracy == pytest.approx(measured["test_ema/accuracy"], abs=1e-6)


@pytest.mark.slow
def test_a_new_head_is_zero_and_test_is_measured_once(model: str) -> None:
    changes = [*PAPER, "optimizer.learning_rate=1e-12"]
    result = finetune(model, DATA, changes, run="run", device="cpu")
    weights = vitkit.load(result.model, device="cpu").model.state_dict()
    assert weights["head.weight"].abs().max() < 1e-6
    measured = [line for line in read_metrics("runs/run/seed-0/run") if "test/accuracy" in line]
    assert [line["step"] for line in measured] == [4]


@pytest.mark.slow
def test_a_quick_run_is_never_worse_than_its_head_on_what_it_chooses_by(model: str) -> None:
    result = finetune(model, DATA, [*QUICK, "optimizer.learning_rate=100", "evaluate_every=4"], device="cpu")
    assert result.kept == "the fitted head alone"
    predictor = vitkit.load(model, device="cpu")
    predictor.model.reset_head(10)
    train, test = (frozen_features(predictor, data, default="train") for data in (DATA, "digits:test"))
    probe = Probe().fit(train.x, train.labels)
    expected = float((probe.predict(test.x) == test.labels).mean())
    assert result.accuracy == pytest.approx(expected, abs=0.003)
    found = result.calibration
    assert found is not None and found.fitted_on == f"held-out images of {DATA}"
    assert found.temperature == pytest.approx(probe.temperature_, rel=0.01)
    right, confidence = probe.predict(test.x) == test.labels, probe.predict_proba(test.x).max(1)
    assert found.error_after == pytest.approx(calibration_error(confidence, right), abs=0.01)
    assert {path.name for path in Path(result.model).iterdir()} <= FILES


@pytest.mark.slow
def test_quick_steps_fit_the_time_and_are_kept_on_resume(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace(step=6.0, image=0.0)
    monkeypatch.setattr("vitkit.transfer.outlook.measure_pace", lambda *_: pace)
    said: list[str] = []
    options: dict[str, Any] = {"run": "run", "device": "cpu"}
    changes = ["protocol=quick", "minutes=0.5"]
    stopped = finetune(model, DATA, changes, **options, listener=StoppingLater(said, runs=1))
    assert stopped.status == "stopped"
    pace = Pace(step=1e-9, image=0.0)
    assert finetune(model, DATA, changes, **options).steps == 4  # and two seconds to measure


@pytest.mark.slow
def test_a_sweep_chooses_on_a_part_of_train_and_then_takes_all_of_it(model: str) -> None:
    result = finetune(model, "digits", [*PAPER, "duration=3"], sweep="lr", run="run", device="cpu")
    assert [row.learning_rate for row in result.sweep_results] == [0.001, 0.003, 0.01, 0.03]
    top = max(row.accuracy for row in result.sweep_results)
    rates = [row.learning_rate for row in result.sweep_results if row.accuracy == top]
    assert result.learning_rate == rates[len(rates) // 2]
    assert result.seconds > sum(row.seconds for row in result.sweep_results)
    swept = read_config("runs/run/sweep/0.01/run")["data"]
    assert (swept["train"], swept["evaluate"]) == ("digits:train[:90%,seed=0]", "digits:train[90%:,seed=0]")
    last = read_config("runs/run/seed-0/run")
    assert (last["data"]["train"], last["data"]["evaluate"]) == ("digits:train", "digits:test")
    assert last["optimizer"]["learning_rate"] == result.learning_rate
    with pytest.raises(InputError) as raised:
        finetune(model, DATA, PAPER, sweep="lr", device="cpu")
    assert str(raised.value) == (
        f"a sweep cuts its dev split from train, and {DATA} is a slice or shots: leave them out"
    )


@pytest.mark.slow
def test_the_time_of_all_runs_is_told_first_and_of_what_is_left_later(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitkit.training.estimate.matrix_rate", lambda *_: 1e6)
    said: list[str] = []
    options: dict[str, Any] = {"sweep": "lr", "seeds": 2, "run": "run", "device": "cpu"}
    changes = [*PAPER, "head_first=true"]
    stopped = finetune(model, "digits", changes, **options, listener=StoppingLater(said, runs=2))
    assert stopped.status == "stopped"
    times = [line for line in said if kind_of(line) == "summary"]
    # 4 learning rates and 2 seeds, each 4 steps of 16 images, features of 1,157 and answers to 382.
    macs = cost_of(vitkit.load(model, device="cpu").model.config).macs
    seconds = 6 * 2 * macs * (3 * 4 * 16 + 1157 + 382) / (1e6 * SHARE)
    assert times == [
        "tiny on digits:train: 1,157 images of 10 classes, 382 to measure on in digits:test; "
        "4 learning rates tried, then 2 seeds: each a head on features, then 4 steps of 16 images; "
        f"about {rough_duration(seconds)} left on cpu"
    ]
    assert said.index(times[0]) < next(place for place, line in enumerate(said) if "features of" in line)
    assert sum(line.startswith("shorter: ") for line in said) == 1
    assert not any(line.startswith("cost: ") for line in said)
    said.clear()
    assert finetune(model, "digits", changes, **options, listener=Noting(said)).status == "done"
    [line] = [line for line in said if kind_of(line) == "summary"]
    assert "; 3 learning rates tried, then 2 seeds: each " in line


@pytest.mark.slow
@pytest.mark.parametrize("accuracy", [-1.0, 2.0])
def test_a_quick_sweep_ends_with_what_it_chose_on_all_of_train(
    model: str, accuracy: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that the dev split says is worse, or better, than all weights together."""

    def fit(*arguments: Any) -> FittedHead:
        head = fit_head(*arguments)
        return head if head.accuracy is None else replace(head, accuracy=accuracy)

    monkeypatch.setattr("vitkit.transfer.finetune.fit_head", fit)
    changes = [*QUICK, "data.evaluate=digits:val"]
    result = finetune(model, "digits", changes, sweep="lr", run="run", device="cpu")
    if accuracy < 0:
        assert (result.kept, result.steps) == ("weights of step 4", 4)
        assert read_config("runs/run/seed-0/run")["data"]["train"] == "digits:train"
        return
    assert (result.kept, result.steps) == ("the fitted head alone", 0)
    with pytest.raises(InputError, match="no step was trained: there are no curves to draw"):
        read_runs(Path("runs/run"))
    predictor = vitkit.load(model, device="cpu")
    predictor.model.reset_head(10)
    train, test = (
        frozen_features(predictor, f"digits:{split}", default="train") for split in ("train", "val")
    )
    probe = Probe().fit(train.x, train.labels)
    assert result.accuracy == pytest.approx((probe.predict(test.x) == test.labels).mean(), abs=0.005)


def test_seeds_give_mean_and_deviation(model: str) -> None:
    result = finetune(model, DATA, [*PAPER, "optimizer.learning_rate=0.5"], seeds=2, run="run", device="cpu")
    values = result.values
    assert [read_config(f"runs/run/seed-{seed}/run")["seed"] for seed in (0, 1)] == [0, 1]
    expected = (statistics.mean(values), statistics.stdev(values))
    assert (result.accuracy, result.std) == pytest.approx(expected)
    first, second = (
        vitkit.load(f"runs/run/seed-{seed}/run", device="cpu").model.state_dict()["head.weight"]
        for seed in (0, 1)
    )
    assert not torch.equal(first, second)


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_same_end(model: str) -> None:
    straight = finetune(model, DATA, QUICK, run="straight", device="cpu")
    stopped = finetune(model, DATA, QUICK, run="stopped", device="cpu", listener=Stopping(2))
    assert stopped.status == "stopped"
    resumed = finetune(model, DATA, QUICK, run="stopped", device="cpu")
    assert resumed.values == straight.values
    theirs = vitkit.load(straight.model, device="cpu").model.state_dict()
    for name, tensor in vitkit.load(resumed.model, device="cpu").model.state_dict().items():
        assert torch.equal(tensor, theirs[name])


@pytest.mark.slow
@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("when", ["the last step", "features", "measuring"])
def test_asked_to_stop_between_runs_it_stops(model: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(*_: object) -> None:
        if not asked:
            asked.append(signal.raise_signal(signal.SIGINT))

    def asking(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **options: (ask(), call(*arguments, **options))[1]

    places = {
        "features": "vitkit.transfer.head.frozen_features",
        "measuring": "vitkit.transfer.finetune.evaluate",
    }
    listener = Stopping(4, ask) if when == "the last step" else None
    if when in places:
        module, _, name = places[when].rpartition(".")
        monkeypatch.setattr(places[when], asking(getattr(importlib.import_module(module), name)))
    options: dict[str, Any] = {"seeds": 2, "run": "run", "device": "cpu"}
    stopped = finetune(model, DATA, QUICK, **options, listener=listener)
    assert asked and stopped.status == "stopped"
    assert not Path("runs/run/seed-1").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert finetune(model, DATA, QUICK, **options).status == "done"


@pytest.mark.slow
def test_too_many_unreadable_images_of_test_lose_nothing(model: str, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", ("train", "test"))
    bad = [*(tmp_path / "photos" / "test" / "cat").iterdir()]
    whole = [path.read_bytes() for path in bad]
    for path in bad:
        path.write_bytes(b"")
    with pytest.raises(
        InputError,
        match="can't be read, so .*what was trained is kept: fix this, then run the same command to resume$",
    ):
        finetune(model, str(tmp_path / "photos"), PAPER, run="run", device="cpu")
    for path, content in zip(bad, whole, strict=True):
        path.write_bytes(content)
    assert finetune(model, str(tmp_path / "photos"), PAPER, run="run", device="cpu").status == "done"


@pytest.mark.slow
def test_a_quick_run_has_a_step_that_changes_something(model: str) -> None:
    finetune(model, DATA, ["protocol=quick", "minutes=1e-9"], run="run", device="cpu")
    rates = [line["learning_rate"] for line in read_metrics("runs/run/seed-0/run") if "learning_rate" in line]
    assert max(rates) > 0


@pytest.mark.slow
@pytest.mark.usefixtures("tuned")
def test_another_request_in_the_same_run_is_refused(model: str) -> None:
    with pytest.raises(
        InputError,
        match=r"^runs/run holds a run with other settings: seed is unset there, 3 here; choose another --run, or",
    ):
        finetune(model, DATA, [*PAPER, "seed=3"], run="run", device="cpu")
    Path("runs/busy").mkdir()
    Path("runs/busy/notes.txt").write_text("mine")
    with pytest.raises(
        InputError,
        match="^runs/busy holds 'notes.txt' and no finetune.json: not a fine-tuning; choose another --run$",
    ):
        finetune(model, DATA, PAPER, run="busy", device="cpu", force=True)
    assert Path("runs/busy/notes.txt").read_text() == "mine"


def test_freezing_leaves_weights_as_they_were(model: str) -> None:
    result = finetune(
        model, DATA, [*PAPER, 'optimizer.freeze=["blocks.*", "patch_embed.*"]'], run="run", device="cpu"
    )
    before = vitkit.load(model, device="cpu").model.state_dict()
    after = vitkit.load(result.model, device="cpu").model.state_dict()
    for name, tensor in before.items():
        if name.startswith(("blocks.", "patch_embed.")):
            assert torch.equal(tensor, after[name])
    assert not torch.equal(before["norm.weight"], after["norm.weight"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CCT-2/3x2", "BiT-R50x1"])
def test_a_head_first_of_every_family_answers_as_the_probe(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    size = {"image_size": 32}
    vitkit.save(vitkit.create_model(name, num_classes=3, **size), tmp_path / "model")
    data = "shapes:train[:40,size=32]"
    changes = ["protocol=quick", "duration=1", "data.evaluate=shapes:test[:10,size=32]"]
    plan = make_plan(str(tmp_path / "model"), data, changes, "cpu")
    inputs = plan.inputs(plan.whole)
    fitted = fit_head(plan.config(plan.whole), inputs, None, tmp_path / "head", "cpu", Silent())
    predictor = vitkit.load(fitted.path, device="cpu")
    found = frozen_features(predictor, data)
    probe = Probe().fit(found.x, found.labels)
    logits = predictor.model.classify(torch.from_numpy(np.array(found.x))).detach().numpy()
    assert np.array_equal(logits.argmax(1), probe.predict(found.x))


@pytest.mark.slow
def test_test_images_choose_nothing(model: str) -> None:
    changes = [*QUICK, "head_first=false", "evaluate_every=1", "optimizer.learning_rate=0.3"]
    changes.append("data.evaluate=digits:val")
    result = finetune(model, "digits:train[5shot]", changes, run="run", device="cpu")
    measured = [
        line["val/accuracy"] for line in read_metrics("runs/run/seed-0/run") if "val/accuracy" in line
    ]
    assert result.accuracy == pytest.approx(measured[-1], abs=0.01)
    assert len(set(measured)) > 1 and result.kept == f"weights of step {result.steps}"


@pytest.mark.slow
def test_a_given_seed_is_where_seeds_begin(model: str) -> None:
    finetune(model, DATA, [*PAPER, "seed=1"], seeds=2, run="run", device="cpu")
    assert [read_config(f"runs/run/seed-{seed}/run")["seed"] for seed in (0, 1)] == [1, 2]


def test_a_sweep_ranks_what_it_keeps() -> None:
    rows = [
        TriedRate(rate, value, "weights of step 4", 1.0)
        for rate, value in ((0.1, 0.2), (0.3, 0.5), (1.0, 0.5))
    ]
    assert choose_rate(rows) == 1.0
    assert choose_rate(rows[:2]) == 0.3
    heads = [replace(row, kept=HEAD_ALONE) for row in rows]
    said = [note for tried in (rows, rows[:2], heads) for note in notes_on_rates(tried)]
    assert "2 learning rates did equally well" in said[0] and "at the end of the grid" in said[1]
    assert said[2] == "the head alone did best on the dev split, at every learning rate"


@pytest.mark.usefixtures("tuned")
def test_force_deletes_nothing_before_the_new_run_is_possible(model: str) -> None:
    with pytest.raises(InputError, match="trian"):
        finetune(model, "digits:trian", PAPER, run="run", device="cpu", force=True)
    for start in ("runs/run/model", "runs/run", "runs/run@last", "Ti/16@runs/run/model"):
        with pytest.raises(InputError, match="^runs/run holds .*, which this run reads and would overwrite"):
            finetune(start, DATA, PAPER, run="run", device="cpu", force=True)
    assert Path("runs/run/model/config.json").is_file()
    with pytest.raises(InputError, match="--run is empty"):
        finetune(model, DATA, PAPER, run="", device="cpu", force=True)


def test_a_start_that_failed_leaves_the_name_free(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("vitkit.transfer.finetune.train_config", lambda *_, **__: _raise())
        with pytest.raises(RuntimeError):
            finetune(model, DATA, PAPER, run="run", device="cpu")
    assert finetune(model, DATA, [*PAPER, "seed=3"], run="run", device="cpu").status == "done"


def _raise() -> None:
    raise RuntimeError("no memory")


@pytest.mark.slow
def test_a_head_is_new_even_where_class_names_are_the_same(model: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    names = list(map(str, range(10)))
    vitkit.save(vitkit.create_model("Ti/16", num_classes=10, **TINY), tmp_path / "ten", class_names=names)
    changes = [*PAPER, "optimizer.learning_rate=1e-12"]
    result = finetune(str(tmp_path / "ten"), DATA, changes, run="run", device="cpu")
    assert vitkit.load(result.model, device="cpu").model.state_dict()["head.weight"].abs().max() < 1e-6


@pytest.mark.slow
def test_a_quick_run_of_an_untrained_model_is_the_same_each_time() -> None:
    settings = [
        f"model.{name}={value}" for name, value in TINY.items() if name not in ("image_size", "patch")
    ]
    found = [
        finetune("Ti/16", DATA, [*QUICK, *settings, "image_size=16"], run=run, device="cpu").values
        for run in ("one", "two")
    ]
    assert found[0] == found[1]


@pytest.mark.slow
def test_multi_label_are_learned_without_a_head_first(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = []
    for number in range(24):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        lines.append(
            f"{number}.png,{'red;blue' if number % 3 else 'green'},{'test' if number > 15 else 'train'}"
        )
    (tmp_path / "labels.csv").write_text("path,label,split\n" + "\n".join(lines) + "\n")
    result = finetune(model, str(tmp_path / "labels.csv"), [*QUICK, "batch_size=4"], run="run", device="cpu")
    assert result.metric == "mean_average_precision"
    found = result.calibration
    assert found is not None and found.error_before is None and found.loss_before > 0
    assert found.loss_after == pytest.approx(result.evaluation and result.evaluation.loss, abs=1e-5)
    print_result(result)
    assert "model: runs/run/model; results: runs/run/evaluation" in capsys.readouterr().err.splitlines()
    with pytest.raises(InputError, match="head_first fits one label per image"):
        finetune(model, str(tmp_path / "labels.csv"), [*QUICK, "head_first=true"], run="other", device="cpu")


def write_photos(folder: Path, splits: Sequence[str], count: int = 4) -> None:
    for split, name in itertools.product(splits, ("cat", "dog")):
        (folder / split / name).mkdir(parents=True)
        for number in range(count):
            pixels = Image.new("RGB", (8, 8), (60 * number, 90 if name == "cat" else 200, len(split)))
            pixels.save(folder / split / name / f"{number}.png")


@pytest.mark.slow
def test_each_split_is_opened_once_and_the_start_is_loaded_once(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quick fine-tuning of two seeds with timing, a head, images to choose by, and measurement on test."""
    write_photos(tmp_path / "photos", ("train", "val", "test"))
    opened: list[str] = []
    loaded: list[str] = []

    def opening(path: str, spec: DataSpec, *arguments: Any) -> Source:
        source = open_folder(path, spec, *arguments)
        opened.append(source.split)
        return source

    def loading(path: Path, *arguments: Any) -> LoadedModel:
        loaded.append(str(path))
        return read_model(path, *arguments)

    monkeypatch.setattr("vitkit.data.sources.folder.open_folder", opening)
    monkeypatch.setattr("vitkit.weights.load.read_model", loading)
    said: list[str] = []
    changes = ["protocol=quick", "minutes=1e-9", "batch_size=4"]
    options: dict[str, Any] = {"seeds": 2, "run": "run", "device": "cpu", "listener": Noting(said)}
    result = finetune(model, str(tmp_path / "photos"), changes, **options)
    assert result.status == "done"
    assert sorted(opened) == ["test", "train", "val"]
    assert loaded.count(model) == 1
    assert not any("head" in Path(path).parts for path in loaded if path not in result.models)
    data = [line for line in said if kind_of(line) in ("data", "model")]
    assert len(set(data)) == len(data)


@pytest.mark.slow
def test_a_model_and_a_source_are_taken_by_value(model: str) -> None:
    by_name = finetune(model, DATA, PAPER, run="name", device="cpu")
    loaded, source = vitkit.load(model, device="cpu"), vitkit.open_data(DATA)
    before = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    by_value = finetune(loaded, source, PAPER, run="value", device="cpu")
    assert by_value.values == by_name.values and by_value.request == by_name.request
    assert all(torch.equal(tensor, before[name]) for name, tensor in loaded.model.state_dict().items())


def test_the_model_card_says_what_was_reported(tuned: FinetuneResult, model: str) -> None:
    lines = Path(tuned.model, "README.md").read_text().splitlines()
    assert f"- Trained on `{DATA}`, 300 images, starting from `{model}`." in lines
    assert f"- Measured: accuracy {tuned.accuracy:.2%} on digits:test, 382 images." in lines


def test_a_result_reads_as_it_was_written(tuned: FinetuneResult) -> None:
    written = json.loads(Path("runs/run/finetune.json").read_text())
    assert from_json(FinetuneResult, written) == tuned
    assert tuned.to_json() == {name: written[name] for name in tuned.to_json()}
    assert "mean_average_precision" not in tuned.to_json()
    del written["evaluation"]["weights_sha256"]  # as the first versions wrote it
    assert from_json(FinetuneResult, written).accuracy == tuned.accuracy


def test_what_two_seeds_have_in_common_is_said_once(model: str) -> None:
    said: list[str] = []
    changes = [*PAPER, "average=0.99"]
    finetune(model, DATA, changes, seeds=2, run="run", device="cpu", listener=Noting(said))
    kinds = [kind_of(line) for line in said]
    assert (kinds.count("summary"), kinds.count("estimate"), kinds.count("protocol")) == (1, 0, 1)
    assert sum("the average of the weights spans" in line for line in said) == 1


@pytest.mark.slow
def test_force_keeps_photos_that_lie_in_the_run(model: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"run": "./ft", "device": "cpu"}
    finetune(model, DATA, PAPER, **options)
    write_photos(tmp_path / "ft" / "photos", ("train", "test"))
    result = finetune(model, "./ft/photos", PAPER, **options, force=True)
    assert result.status == "done"
    assert len(list((tmp_path / "ft" / "photos").rglob("*.png"))) == 16
    write_photos(tmp_path / "ft" / "evaluation" / "mine", ("train", "test"))
    with pytest.raises(InputError, match="which this run reads and would overwrite: choose another --run"):
        finetune(model, "./ft/evaluation/mine", PAPER, **options, force=True)
    assert len(list((tmp_path / "ft" / "evaluation" / "mine").rglob("*.png"))) == 16


@pytest.mark.usefixtures("tuned")
def test_force_does_not_pull_a_live_run_away(model: str) -> None:
    settings = json.loads(Path("runs/run/finetune.json").read_text())["settings"]
    with (
        RunFolder("runs/run", settings, kind="finetune"),
        pytest.raises(InputError, match="^runs/run is in use by process"),
    ):
        finetune(model, DATA, PAPER, run="run", device="cpu", force=True)
    assert Path("runs/run/model/config.json").is_file()


class Noting(Silent):
    """Keeps what is said."""

    def __init__(self, said: list[str]) -> None:
        self.said = said

    def note(self, line: str) -> None:
        self.said.append(line)


class StoppingLater(Noting):
    """Asks to stop in the second step of a later run."""

    def __init__(self, said: list[str], runs: int) -> None:
        super().__init__(said)
        self.left = runs

    def start(self, step: int, total: int) -> None:
        self.left -= 1

    def stepped(self, step: int) -> None:
        if not self.left and step == 2:
            os.kill(os.getpid(), signal.SIGTERM)


class Stopping(Silent):
    """Asks the run to stop at a step, as a scheduler would."""

    def __init__(
        self, at: int, ask: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    ) -> None:
        self.at, self.ask = at, ask

    def stepped(self, step: int) -> None:
        if step == self.at:
            self.ask()

    def metrics(self, line: Mapping[str, Any]) -> None:
        json.dumps(line)
