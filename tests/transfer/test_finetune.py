"""Fine-tuning: both protocols to the end, sweeps, seeds, stops, and the head that comes first."""

from __future__ import annotations

import json
import os
import signal
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitkit
from vitkit.errors import InputError
from vitkit.evaluate.features import frozen_features
from vitkit.evaluate.probe import Probe
from vitkit.train.log import Silent
from vitkit.train.runs import read_config, read_metrics
from vitkit.transfer.finetune import finetune
from vitkit.transfer.head import fit_head
from vitkit.transfer.plan import Part

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


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_the_papers_protocol_to_the_end(model: str) -> None:
    result = finetune(model, DATA, PAPER, device="cpu")
    assert (result["status"], result["protocol"], result["steps"], result["kept"]) == (
        "done",
        "paper",
        4,
        "all weights",
    )
    assert result["run"].startswith("runs/finetune-tiny-digits-")
    predictor = vitkit.load(result["run"], device="cpu")
    assert predictor.class_names == tuple(map(str, range(10)))
    assert predictor.model.config.pre_logits == 0
    test = vitkit.open_data("digits:test")
    right = [
        row[0]["index"] == label
        for row, label in zip(predictor.predict(test.images), test.labels, strict=True)
    ]
    assert result["accuracy"] == pytest.approx(np.mean(right), abs=0.01)
    assert {path.name for path in Path(result["run"], "evaluation").iterdir()} >= {
        "confusion.png",
        "mistakes.png",
    }
    said: list[str] = []
    again = finetune(model, DATA, PAPER, device="cpu", listener=Noting(said))
    assert again == result
    assert said == [f"{result['run']} is done already; --force begins anew"]


def test_a_new_head_is_zero_and_test_is_measured_once(model: str) -> None:
    changes = [*PAPER, "optimizer.learning_rate=1e-12"]
    result = finetune(model, DATA, changes, run="run", device="cpu")
    weights = vitkit.load(result["model"], device="cpu").model.state_dict()
    assert weights["head.weight"].abs().max() < 1e-6
    measured = [line for line in read_metrics("runs/run/seed-0/run") if "test/accuracy" in line]
    assert [line["step"] for line in measured] == [4]


def test_a_quick_run_is_never_worse_than_its_head_on_what_it_chooses_by(model: str) -> None:
    result = finetune(model, DATA, [*QUICK, "optimizer.learning_rate=100", "evaluate_every=4"], device="cpu")
    assert result["kept"] == "head"
    predictor = vitkit.load(model, device="cpu")
    predictor.model.reset_head(10)
    train, test = (frozen_features(predictor, data, default="train") for data in (DATA, "digits:test"))
    probe = Probe().fit(train.x, train.labels)
    expected = float((probe.predict(test.x) == test.labels).mean())
    assert result["accuracy"] == pytest.approx(expected, abs=0.003)


def test_quick_steps_fit_the_time_and_are_kept_on_resume(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitkit.transfer import finetune as module

    pace = 6.0
    monkeypatch.setattr("vitkit.transfer.finetune.seconds_per_step", lambda *_: pace)
    result = finetune(model, DATA, ["protocol=quick", "minutes=0.5"], run="run", device="cpu")
    assert result["steps"] == 5
    pace = 1e-9
    plan = module.make_plan(model, DATA, ["protocol=quick", "minutes=0.5"], "cpu")
    options: Any = (["seed=0"], {}, "cpu", Silent())
    assert module.quick_steps(plan, plan.whole, Path("runs/run/seed-0/run"), *options) == 5
    most = module.quick_steps(plan, plan.whole, Path("runs/other"), *options)
    assert most == 20 * 300 // 32


def test_a_sweep_chooses_on_a_part_of_train_and_then_takes_all_of_it(model: str) -> None:
    result = finetune(model, "digits", [*PAPER, "duration=3"], sweep="lr", run="run", device="cpu")
    assert [row["learning_rate"] for row in result["sweep_results"]] == [0.001, 0.003, 0.01, 0.03]
    best = max(result["sweep_results"], key=lambda row: row["accuracy"])
    assert result["learning_rate"] == best["learning_rate"]
    swept = read_config("runs/run/sweep/0.01/run")["data"]
    assert (swept["train"], swept["evaluate"]) == ("digits:train[:90%,seed=0]", "digits:train[90%:,seed=0]")
    last = read_config("runs/run/seed-0/run")
    assert (last["data"]["train"], last["data"]["evaluate"]) == ("digits:train", "digits:test")
    assert last["optimizer"]["learning_rate"] == best["learning_rate"]
    with pytest.raises(InputError) as raised:
        finetune(model, DATA, PAPER, sweep="lr", device="cpu")
    assert str(raised.value) == (
        f"a sweep cuts its dev split from train, and {DATA} is a slice or shots: leave them out"
    )


def test_seeds_give_mean_and_deviation(model: str) -> None:
    result = finetune(model, DATA, [*PAPER, "optimizer.learning_rate=0.5"], seeds=2, run="run", device="cpu")
    values = result["values"]
    assert [read_config(f"runs/run/seed-{seed}/run")["seed"] for seed in (0, 1)] == [0, 1]
    assert (result["accuracy"], result["std"]) == (statistics.mean(values), statistics.stdev(values))
    first, second = (
        vitkit.load(f"runs/run/seed-{seed}/run", device="cpu").model.state_dict()["head.weight"]
        for seed in (0, 1)
    )
    assert not torch.equal(first, second)


def test_a_stopped_run_goes_on_to_the_same_end(model: str) -> None:
    straight = finetune(model, DATA, QUICK, run="straight", device="cpu")
    stopped = finetune(model, DATA, QUICK, run="stopped", device="cpu", listener=Stopping(2))
    assert stopped["status"] == "stopped"
    resumed = finetune(model, DATA, QUICK, run="stopped", device="cpu")
    assert resumed["values"] == straight["values"]
    theirs = vitkit.load(straight["model"], device="cpu").model.state_dict()
    for name, tensor in vitkit.load(resumed["model"], device="cpu").model.state_dict().items():
        assert torch.equal(tensor, theirs[name])


def test_another_request_in_the_same_run_is_refused(model: str) -> None:
    finetune(model, DATA, PAPER, run="run", device="cpu")
    with pytest.raises(
        InputError, match=r"^runs/run holds another fine-tuning: changes is .* name another run, or"
    ):
        finetune(model, DATA, [*PAPER, "seed=3"], run="run", device="cpu")
    Path("runs/busy").mkdir()
    Path("runs/busy/notes.txt").write_text("mine")
    with pytest.raises(InputError, match="^runs/busy exists and holds no fine-tuning: name another run$"):
        finetune(model, DATA, PAPER, run="busy", device="cpu", force=True)
    assert Path("runs/busy/notes.txt").read_text() == "mine"


def test_freezing_leaves_weights_as_they_were(model: str) -> None:
    result = finetune(
        model, DATA, [*PAPER, 'optimizer.freeze=["blocks.*", "patch_embed.*"]'], run="run", device="cpu"
    )
    before = vitkit.load(model, device="cpu").model.state_dict()
    after = vitkit.load(result["model"], device="cpu").model.state_dict()
    for name, tensor in before.items():
        if name.startswith(("blocks.", "patch_embed.")):
            assert torch.equal(tensor, after[name])
    assert not torch.equal(before["norm.weight"], after["norm.weight"])


@pytest.mark.parametrize("name", ["CCT-2/3x2", "BiT-R50x1"])
def test_a_head_first_of_every_family_answers_as_the_probe(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    size = {"image_size": 32}
    vitkit.save(vitkit.create_model(name, num_classes=3, **size), tmp_path / "model")
    part = Part("shapes:train[:40,label=class,size=32]".replace("label=class,", ""), None)
    fitted = fit_head(str(tmp_path / "model"), part, tmp_path / "head", "cpu", Silent())
    predictor = vitkit.load(fitted.path, device="cpu")
    found = frozen_features(predictor, part.train, default="train")
    probe = Probe().fit(found.x, found.labels)
    logits = predictor.model.classify(torch.from_numpy(np.array(found.x))).detach().numpy()
    assert np.array_equal(logits.argmax(1), probe.predict(found.x))


class Noting(Silent):
    """Keeps what is said."""

    def __init__(self, said: list[str]) -> None:
        self.said = said

    def note(self, line: str) -> None:
        self.said.append(line)


class Stopping(Silent):
    """Asks the run to stop at a step, as a scheduler would."""

    def __init__(self, at: int) -> None:
        self.at = at

    def stepped(self, step: int) -> None:
        if step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)

    def metrics(self, line: Mapping[str, Any]) -> None:
        json.dumps(line)
