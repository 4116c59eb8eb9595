"""`vit runs` prints a table, or as JSON what Python returns; what is broken stops nothing."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from vitkit.runs import RunFolder, list_runs


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs in ./runs: one that is done, one that failed, one that is broken."""
    monkeypatch.chdir(tmp_path)
    with closing(RunFolder("runs/digits-1", {"seed": 1})) as folder:
        best = {"metric": "val/accuracy", "value": 0.98765, "step": 900}
        folder.update(status="done", step=1000, steps=1000, seconds=3725.4, best=best)
        for step in (500, 1000):
            folder.append({"step": step, "loss": 1.0, "images_per_second": 2.4 * step})
            folder.append({"step": step, "val/accuracy": 0.5, "val/loss": 1.5 / step, "val_ema/loss": 7.0})
    with closing(RunFolder("runs/digits-2", {"seed": 2})) as folder:
        best = {"metric": "val/loss", "value": 0.123456, "step": 10}
        folder.update(status="failed", step=12, steps=1000, best=best, message="loss is nan at step 12")
    Path("runs/digits-3").mkdir()
    Path("runs/digits-3/run.json").write_text("{")


def test_json_is_what_python_returns(vit) -> None:
    answer = vit("runs", "--json")
    assert (answer.status, answer.err) == (0, "")
    assert json.loads(answer.out) == [row.to_json() for row in list_runs()]
    assert len(list_runs()) == 3


def test_the_table(vit) -> None:
    answer = vit("runs", "runs")
    assert answer.status == 0
    heads, first, second, third = (
        line.split() for line in answer.out.splitlines() if line.strip() and "─" not in line
    )
    assert heads == ["name", "status", "step", "best", "loss", "images/s", "time", "updated"]
    rows = {row[0]: row[1:] for row in (first, second, third)}
    done = "done 1,000 / 1,000 val/accuracy 98.77% at step 900 val/loss 0.0015 1,800 1:02:05".split()
    assert rows["digits-1"][:-2] == done
    failed = "failed 12 / 1,000 val/loss 0.1235 at step 10 0:00".split()
    assert rows["digits-2"][:-2] == failed
    assert rows["digits-3"] == ["unreadable"]
    notes = answer.err.splitlines()
    assert notes[0] == "digits-2: loss is nan at step 12"
    assert notes[1].startswith("digits-3: ") and notes[1].endswith(
        "run.json is damaged: expected one JSON object"
    )


def test_no_runs_yet(vit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fresh").mkdir()
    monkeypatch.chdir(tmp_path / "fresh")
    assert vit("runs") == (0, "", "no runs in runs; `vit train RECIPE` makes one\n")
    assert vit("runs", "--json") == (0, "[]\n", "")


def test_a_folder_that_is_not_there(vit) -> None:
    answer = vit("runs", "rusn", "--json")
    assert answer == (2, "", "error: rusn is no folder; expected one that holds runs, such as runs\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content"),
    [("run.json", "{"), ("run.json", "[" * 9999), ("config.yaml", "a: ["), ("config.yaml", "[" * 9999)],
)
def test_damaged_files_are_one_line(vit, name: str, content: str) -> None:
    Path("runs/digits-1", name).write_text(content)
    for verb in ("report", "train"):
        answer = vit(verb, "runs/digits-1")
        assert (answer.status, answer.out, answer.err.count("\n")) == (2, "", 1)
    answer = vit("runs", "runs/digits-1")
    assert (answer.status, answer.err.count("\n")) == (0, name == "run.json")


def test_a_refused_run_folder_keeps_nothing(vit, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for run in (str(tmp_path), ".", "runs/.."):
        for extra in ((), ("--force",)):
            answer = vit("train", "digits", "--run", run, *extra)
            assert answer.status == 2
            assert "holds 'bin' and no config.yaml: not a training run" in answer.err
    assert sorted(tmp_path.rglob("*")) == before
