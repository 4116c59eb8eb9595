"""`vit runs` prints a table, or as JSON what Python returns; what is broken stops nothing."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from vitkit.runs import Evaluated, RunFolder, list_runs
from vitkit.runs.reading import Reported


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
    assert heads == ["name", "status", "step", "result", "time", "updated"]
    rows = {row[0]: row[1:] for row in (first, second, third)}
    done = "done 1,000 / 1,000 val/accuracy 98.77% at step 900 1:02:05".split()
    assert rows["digits-1"][:-2] == done
    failed = "failed 12 / 1,000 val/loss 0.1235 at step 10 0:00".split()
    assert rows["digits-2"][:-2] == failed
    assert rows["digits-3"] == ["unreadable"]
    notes = answer.err.splitlines()
    assert notes[0] == "digits-2: loss is nan at step 12"
    assert notes[1].startswith("digits-3: ") and notes[1].endswith(
        "run.json is damaged: expected one JSON object"
    )


def test_a_fine_tuning_is_one_row_with_what_it_reported(vit) -> None:
    with closing(RunFolder("runs/photos", {"data": "./photos"}, kind="finetune")) as folder:
        with closing(RunFolder("runs/photos/seed-0/run", {"seed": 0})) as inner:
            best = {"metric": "val/accuracy", "value": 0.99, "step": 8}
            inner.update(status="done", step=10, steps=10, seconds=30.0, best=best)
            inner.append({"step": 10, "loss": 0.25})
        running = next(row for row in list_runs() if row.name == "photos")
        assert (running.status, running.step, running.results) == ("running", 10, ())
        results = {"metric": "accuracy", "accuracy": 0.9733, "measured_on": "./photos:test", "seconds": 42.0}
        folder.update(status="done", **results)
    [line] = [line for line in vit("runs").out.splitlines() if "photos" in line]
    assert line.split()[:-2] == "photos done 10 / 10 accuracy 97.33% on ./photos:test 0:42".split()
    names = {row.name: row for row in list_runs("runs/photos")}  # asked for alone, its parts are there too
    assert list(names) == ["photos", "seed-0/run"]
    assert names["seed-0/run"].best == Evaluated("val/accuracy", 0.99, 8)
    rows = {row["name"]: row["results"] for row in json.loads(vit("runs", "--json").out)}
    assert rows["photos"] == [{"metric": "accuracy", "value": 0.9733, "data": "./photos:test"}]


def test_vtab_and_a_suite_are_one_row_each(vit) -> None:
    with closing(RunFolder("runs/v", {}, kind="vtab")) as folder:
        folder.update(status="done", overall={"name": "VTAB-1k", "accuracy": 0.7}, seconds=60.0)
    with closing(RunFolder("runs/s", {}, kind="suite")) as folder:
        RunFolder("runs/s/pets", {}, kind="finetune").close()
        rows = {"pets": {"accuracy": 0.9}, "cifar10": {"accuracy": 0.98}}
        folder.update(status="failed", results=rows)
    found = {row.name: row.results for row in list_runs() if not row.name.startswith("digits")}
    assert found == {
        "v": (Reported("accuracy", 0.7, "VTAB-1k"),),
        "s": (Reported("accuracy", 0.9, "pets"), Reported("accuracy", 0.98, "cifar10")),
    }
    assert "accuracy 90.00% on pets, accuracy 98.00% on cifar10" in vit("runs").out


def test_a_damaged_fine_tuning_is_listed(vit) -> None:
    Path("runs/photos").mkdir()
    Path("runs/photos/finetune.json").write_text("{")
    [row] = [row for row in list_runs() if row.name == "photos"]
    assert row.status == "unreadable" and "finetune.json is damaged" in row.message
    assert vit("runs").status == 0


def test_no_runs_yet(vit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fresh").mkdir()
    monkeypatch.chdir(tmp_path / "fresh")
    assert vit("runs") == (0, "", "no runs in runs; `vit train RECIPE` makes one\n")
    assert vit("runs", "--json") == (0, "[]\n", "")


def test_a_folder_that_is_not_there(vit) -> None:
    answer = vit("runs", "rusn", "--json")
    assert answer == (2, "", "error: rusn is not a folder; expected one that holds runs, such as runs\n")


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
