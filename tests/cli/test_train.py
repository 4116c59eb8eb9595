"""`vit train`: exit codes, lines and bars, one JSON document, errors of one line."""

from __future__ import annotations

import io
import json
import re
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training import tiny_runs
from vitkit.runs import RunFolder, read_config

Vit = Callable[..., Any]


@pytest.fixture(autouse=True)
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("vitkit.training.estimate.matrix_rate", lambda *_: 1e11)
    monkeypatch.chdir(tmp_path)
    path: Path = tiny_runs.write_recipe(tmp_path)
    return path


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def signal_at(monkeypatch: pytest.MonkeyPatch, step: int, number: signal.Signals) -> None:
    """Let whoever follows the run send a signal when a step is done."""
    from vitkit.progress import Lines

    def stepped(_: Lines, done: int) -> None:
        if done == step:
            signal.raise_signal(number)

    monkeypatch.setattr(Lines, "stepped", stepped)


def test_time_left_follows_training_time_not_compilation(capsys: pytest.CaptureFixture[str]) -> None:
    from vitkit.progress import Lines

    lines = Lines()
    lines.start(0, 1000)
    lines.metrics({"step": 100, "loss": 1.0, "learning_rate": 0.1, "seconds": 10.0})
    assert "1:30 left" in capsys.readouterr().err


def test_from_start_to_end(vit: Vit) -> None:
    answer = vit("train", "tiny.yaml", "--run", "mine", "--device", "cpu")
    assert answer.status == 0, answer.err
    number = r"[0-9.]+"
    line = (
        rf"step 5/12: loss {number}, accuracy {number}%, lr [0-9.e-]+, [0-9,]+ images/s, "
        rf"[0-9]+% waiting for data, [0-9:]+ left"
    )
    assert re.search(rf"^{line}$", answer.err, re.MULTILINE), answer.err
    names = ", ".join(
        rf"{name}/loss {number}, {name}/accuracy {number}%(, {name}/top_5_accuracy {number}%)?"
        for name in ("test", "test_ema")
    )
    assert re.search(rf"^step 6/12: {names}$", answer.err, re.MULTILINE), answer.err
    assert "cost: " not in answer.err and "shorter: " not in answer.err
    assert "runs/mine: done" in answer.out
    for row in (
        "steps",
        "loss",
        "test_ema/accuracy",
        "best test_ema/accuracy",
        "images per second",
        "training time",
    ):
        assert re.search(rf"^ +{re.escape(row)} ", answer.out, re.MULTILINE), row
    assert "model: runs/mine/model; use it with: vit predict runs/mine IMAGES" in answer.err

    again = vit("train", "tiny.yaml", "--run", "mine", "--device", "cpu")
    assert again.status == 0
    assert "the run is already finished" in again.err.splitlines()
    assert "step 12/12" not in again.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_is_130_and_the_run_goes_on(
    vit: Vit, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    with monkeypatch.context() as patch:
        signal_at(patch, 7, number)
        answer = vit("train", "tiny.yaml", "--run", "mine", "--device", "cpu", "--json")
    assert answer.status == 130
    document = json.loads(answer.out)
    assert (document["status"], document["step"]) == ("stopped", 7)
    answer = vit("train", "runs/mine", "--device", "cpu")
    assert answer.status == 0
    assert "resumes at step 7 of 12" in answer.err.splitlines()
    assert "runs/mine: done" in answer.out


def test_the_name_of_a_run_follows_its_settings(vit: Vit) -> None:
    paths = []
    for changes in ([], ["seed=0"], ["seed=1"]):
        answer = vit("train", "tiny.yaml", "duration=2", *changes, "--device", "cpu", "--json")
        assert answer.status == 0, answer.err
        paths.append(json.loads(answer.out)["run"])
    assert paths[0] == paths[1] != paths[2]
    assert all(re.fullmatch(r"runs/tiny-[0-9a-f]{8}", path) for path in paths)


def test_json_is_one_document(vit: Vit) -> None:
    answer = vit("train", "tiny.yaml", "--device", "cpu", "--json")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    document = json.loads(answer.out, parse_constant=refuse)
    assert document["status"] == "done"
    assert 0 <= document["metrics"]["test/accuracy"] <= 1
    assert Path(document["model"]).is_dir()
    assert "step 5/12" in answer.err


@pytest.mark.parametrize(
    ("pool", "added"), [("mean", []), pytest.param("none", ["model.pool=mean"], marks=pytest.mark.slow)]
)
def test_what_comes_after_a_run_without_labels_works(vit: Vit, pool: str, added: list[str]) -> None:
    changes = (
        "objective=masked_patches",
        "data.evaluate=null",
        f"model.pool={pool}",
        "duration=2",
        "average=null",
    )
    answer = vit("train", "tiny.yaml", *changes, "data.pipeline=flip", "--run", "start", "--device", "cpu")
    assert answer.status == 0
    command = ["finetune", "runs/start", "DATA", *added]
    assert answer.err.endswith(f"to train one: vit {' '.join(command)}\n")
    named = [word.replace("DATA", "digits:train[:40]") for word in command]
    given = ("duration=2", "protocol=paper", "batch_size=8", "data.evaluate=digits:test[:20]")
    assert vit(*named, *given, "--device", "cpu").status == 0


def test_explain(vit: Vit) -> None:
    answer = vit("train", "tiny.yaml", "seed=7", "--explain", "--json")
    assert answer.status == 0
    rows = {row["name"]: row["value"] for row in json.loads(answer.out)["settings"]}
    assert (rows["seed"], rows["model.width"], rows["optimizer.learning_rate"]) == (7, 16, 3e-3)
    answer = vit("train", "tiny.yaml", "--explain")
    assert re.search(r"^ +optimizer.learning_rate +0.003 +Peak learning rate\.", answer.out, re.MULTILINE)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digit"], "unknown recipe 'digit'; did you mean 'digits'? `vit recipes` lists them all"),
        (
            ["tiny.yaml", "optimizer.learning_rat=1"],
            "unknown setting 'learning_rat' in optimizer; did you mean 'learning_rate'?",
        ),
        (["tiny.yaml", "model.droput=0.1"], None),
        (["tiny.yaml", "batch_size=many"], "batch_size in the config is 'many'; expected a whole number"),
        (["tiny.yaml", "average=2"], "average must be above 0 and below 1, not 2"),
        (["tiny.yaml", "data.train=digitz"], None),
        (["tiny.yaml", "--device", "tpu"], None),
        (
            ["tiny.yaml", "--run", "/proc/nowhere/run"],
            "/proc/nowhere/run can't be written: No such file or directory",
        ),
    ],
)
def test_errors_are_one_line(vit: Vit, arguments: list[str], message: str | None) -> None:
    answer = vit("train", *arguments)
    assert (answer.status, answer.out) == (2, "")
    [line] = [line for line in answer.err.splitlines() if line.startswith("error: ")]
    assert message is None or line == f"error: {message}"
    assert "Traceback" not in answer.err


def test_a_run_takes_no_settings_and_one_process(vit: Vit) -> None:
    vit("train", "tiny.yaml", "duration=2", "--run", "mine", "--device", "cpu")
    answer = vit("train", "runs/mine", "seed=1")
    assert answer.status == 2
    assert (
        answer.err
        == "error: a run resumes with its own settings, not with seed=1; to change some, train its recipe as another run\n"
    )
    with closing(RunFolder("runs/mine", read_config("runs/mine"))):
        answer = vit("train", "runs/mine", "--device", "cpu")
    assert answer.status == 2
    assert re.match(r"error: runs/mine is in use by process \d+ on ", answer.err)


def test_what_is_not_finite_is_2(vit: Vit) -> None:
    answer = vit(
        "train", "tiny.yaml", "optimizer.learning_rate=1e30", "optimizer.name=sgd", "--device", "cpu"
    )
    assert answer.status == 2
    assert "error: loss or gradient is not finite at step " in answer.err


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from vitkit.progress import Bar

    def shown_at(width: int) -> str:
        screen = io.StringIO()
        bar = Bar(Console(file=screen, force_terminal=True, width=width))
        tiny_runs.run_tiny(Path(f"runs/bar-{width}"), listener=bar)
        bar.stop()
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())

    shown = shown_at(160)
    loss = r"12/12, 0:00 left, loss [0-9.]+"
    numbers = r", accuracy [0-9.]+%, lr [0-9.e-]+, [0-9,]+ images/s, \d+% waiting for data"
    assert re.search(loss + numbers, shown)
    narrow = shown_at(50)  # shows fewer numbers, each of them whole
    assert re.search(loss + r"\s", narrow) and "accuracy" not in narrow.split("step 12")[0].split("left")[-1]
    assert "…" not in narrow
    assert re.search(r"^.*step 6: test/loss", shown, re.MULTILINE)


def test_one_line_before_the_work_unless_more_is_asked_for(vit: Vit) -> None:
    def before_the_first_step(*flags: str) -> list[str]:
        answer = vit(
            "train", "tiny.yaml", "average=null", "--device", "cpu", "--force", "--run", "mine", *flags
        )
        lines: list[str] = answer.err.splitlines()
        return lines[: next(place for place, line in enumerate(lines) if line.startswith("step "))]

    [line] = before_the_first_step()
    assert re.fullmatch(r"Ti/16 \(.*\) on digits:.*: 128 images, 10 classes; 12 steps of 16 images, .*", line)
    for flag in ("-v", "--verbose"):
        cost, shorter, last = before_the_first_step(flag)
        assert cost.startswith("cost: 5,530 parameters, ") and shorter.startswith("shorter: ")
        assert last == line


def test_recipes_by_pattern(vit: Vit) -> None:
    answer = vit("recipes", "cifar*", "--json")
    assert [row["name"] for row in json.loads(answer.out)] == ["cifar100_cct7", "cifar10_cct7"]
    assert vit("recipes", "cifr10_cct7").err.startswith(
        "error: no recipe matches 'cifr10_cct7'; did you mean 'cifar10_cct7'"
    )
