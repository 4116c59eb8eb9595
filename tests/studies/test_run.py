"""A study carried out: what is done is skipped, what fails costs no other, and kills change no bit of the results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.training import tiny_runs
from vitkit import finetune, run_study
from vitkit.errors import InputError
from vitkit.studies import run as module
from vitkit.studies import workers
from vitkit.studies.config import read_study
from vitkit.studies.jobs import Job, carry_out
from vitkit.studies.records import read_state

TEXT = """\
# Two seeds of a tiny model.
recipe: ./tiny.yaml
settings: {duration: 12}
grid:
  seed: [0, 1]
  model: {plain: {}, other: {model.width: 32}}
measure:
  - {by: knn, data: 'digits:train[:40]', evaluate: 'digits:test[:40]', neighbours: 3}
"""
NAMES = ["seed-0_plain", "seed-0_other", "seed-1_plain", "seed-1_other"]
# Speaks as a worker does, and only writes what a study reads.
WORKER = """
import json, os, pathlib, sys, time
tell = lambda kind, **values: print(json.dumps({"kind": kind, **values}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    path = pathlib.Path(job["path"])
    how = json.loads(pathlib.Path("how.json").read_text()).get(job["name"], "done")
    tell("step", step=0, of=12)
    if how == "killed":
        os.kill(os.getpid(), 9)
    if how == "slow":
        time.sleep(60)
    if how == "busy":
        pathlib.Path("how.json").write_text("{}")
    if how == "done":
        path.mkdir(parents=True)
        record = {"status": "done", "step": 12, "steps": 12, "seconds": 1.0, "best": None}
        (path / "run.json").write_text(json.dumps(record))
        for measure in job["measure"]:
            (path / "measured").mkdir()
            found = {"measure": measure, "accuracy": 0.5, "std": None, "seconds": 0.1}
            (path / "measured" / "digits-kNN.json").write_text(json.dumps(found))
    with open("order.txt", "a") as file:
        file.write(f"{job['name']} {how} {os.getpid()}\\n")
    tell(how, message="the reason")
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny_runs.write_recipe(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def pretend(study: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """Replace workers by ones that train nothing: `pretend({"seed-0_plain": "failed"})` says how runs end."""
    Path("worker.py").write_text(WORKER)
    monkeypatch.setattr(workers, "COMMAND", [sys.executable, "-S", "worker.py"])
    monkeypatch.setattr(module, "AGAIN", 0.1)

    def run(how: dict[str, str], **options: Any) -> Any:
        Path("how.json").write_text(json.dumps(how))
        Path("order.txt").write_text("")
        return run_study(study, device="cpu", progress=False, **options)

    return run


def order() -> list[str]:
    return [line.rpartition(" ")[0] for line in Path("order.txt").read_text().splitlines()]


def test_all_runs_are_carried_out_once(pretend: Any) -> None:
    result = pretend({})
    assert (result.status, result.run) == ("done", "runs/mine")
    assert order() == [f"{name} done" for name in NAMES]
    assert [(run.name, run.status, run.measured[0].accuracy) for run in result.runs] == [
        (name, "done", 0.5) for name in NAMES
    ]
    assert pretend({}).status == "done"
    assert order() == []


def test_a_failed_run_costs_the_others_nothing_and_is_tried_again(pretend: Any) -> None:
    result = pretend({"seed-0_plain": "failed", "seed-0_other": "killed"})
    assert result.status == "failed"
    assert [run.status for run in result.runs] == ["failed", "failed", "done", "done"]
    assert result.runs[0].message == "the reason"
    assert result.runs[1].message == "its process was ended by SIGKILL, perhaps for lack of memory"
    assert pretend({}).status == "done"
    assert order() == ["seed-0_plain done", "seed-0_other done"]


def test_runs_of_another_process_are_waited_for(pretend: Any) -> None:
    assert pretend({"seed-0_plain": "busy"}).status == "done"
    assert sorted(order()) == sorted(["seed-0_plain busy", *(f"{name} done" for name in NAMES)])


def test_only_some_runs(pretend: Any) -> None:
    result = pretend({}, only="seed-1*")
    assert [run.name for run in result.runs] == NAMES[2:]
    with pytest.raises(
        InputError, match=r"^no run of mine matches 'seed-1_plian'; did you mean 'seed-1_plain'"
    ):
        pretend({}, only="seed-1_plian")


def test_a_limit_stops_and_the_same_call_resumes(pretend: Any) -> None:
    result = pretend({"seed-0_other": "slow"}, limit=1.5)
    assert result.status == "stopped"
    assert [run.status for run in result.runs] == ["done", "waiting", "waiting", "waiting"]
    assert pretend({}).status == "done"
    assert order() == [f"{name} done" for name in NAMES[1:]]


def test_several_runs_at_once(pretend: Any) -> None:
    assert pretend({}, workers=2).status == "done"
    assert sorted(order()) == sorted(f"{name} done" for name in NAMES)
    processes = {line.rpartition(" ")[2] for line in Path("order.txt").read_text().splitlines()}
    assert len(processes) == 2


def test_the_command(vit: Any, pretend: Any) -> None:
    pretend({"seed-0_plain": "failed"}, only="*plain")
    Path("how.json").write_text('{"seed-0_plain": "failed"}')
    answer = vit("study", "run", "mine.yaml", "--device", "cpu")
    assert answer.status == 1
    assert "seed-0_plain: failed: the reason" in answer.err
    assert "seed-1_other: done: train[:40] kNN 50.00% (" in answer.err or "kNN 50.00%" in answer.err
    assert "3 of 4 runs are done, in runs/mine." in answer.out
    answer = vit("study", "run", "mine.yaml", "--device", "cpu", "--limit", "0m")
    assert answer.err == "error: --limit is '0m'; expected a time such as 90s, 10m or 2h\n"
    Path("how.json").write_text("{}")
    answer = vit("study", "run", "mine.yaml", "--device", "cpu", "--json")
    assert (answer.status, json.loads(answer.out)["status"]) == (0, "done")


def test_what_is_wrong_is_said_before_anything_is_spent(pretend: Any, study: Path) -> None:
    folder = Path("runs/mine/seed-0_plain")
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("name: tiny\n")
    with pytest.raises(InputError):
        pretend({})
    (folder / "config.yaml").unlink()
    study.write_text(TEXT.replace("knn, data: 'digits", "knn, data: './nowhere"))
    with pytest.raises(InputError, match=r"^'\./nowhere:train\[:40\]' isn't here"):
        pretend({})
    assert order() == []


def job_of(study: Path, folder: Path, *changes: str) -> Job:
    found = read_study(study, changes)
    run = found.runs[0]
    return Job(run.name, folder / run.name, run.config, found.config.measure, "cpu")


def test_a_job_is_an_ordinary_run_and_what_was_measured(study: Path) -> None:
    heard: list[str] = []

    def tell(kind: str, **values: Any) -> None:
        heard.append(kind)

    folder = Path("runs/mine")
    job = Job.from_json(json.loads(json.dumps(job_of(study, folder).to_json())))
    assert carry_out(job, tell, finetune) == "done"
    ours = tiny_runs.run_tiny(Path("runs/plain"))
    assert tiny_runs.differences(job.path, Path(ours.run)) == []
    found = read_study(study)
    state = read_state(found.runs[0], folder, found.config.measure)
    assert (state.status, state.step, len(state.measured)) == ("done", 12, 1)
    assert {"step", "measuring"} <= set(heard)
    # Another measure leaves the run as it is; another setting of one measures anew.
    changed = read_study(study, ["measure=[{by: knn, data: 'digits:train[:40]', neighbours: 5}]"])
    assert read_state(found.runs[0], folder, changed.config.measure).status == "stopped"


@pytest.mark.slow
def test_every_way_to_measure(study: Path) -> None:
    data = "data: 'digits:train[:60]', evaluate: 'digits:test[:40]'"
    entries = [
        f"{{by: fewshot, {data}, shots: 2, seeds: 2}}",
        f"{{by: probe, {data}}}",
        f"{{by: finetune, {data}, settings: {{duration: 3, protocol: paper, batch_size: 8}}, seeds: 2}}",
        "{by: test, data: 'digits:test[:40]'}",
    ]
    job = job_of(study, Path("runs/mine"), f"measure=[{', '.join(entries)}]")
    assert carry_out(job, lambda kind, **values: None, finetune) == "done"
    state = read_state(read_study(study).runs[0], Path("runs/mine"), job.measure)
    assert [one.name for one in state.measured] == [measure.name for measure in job.measure]
    assert all(0 <= one.accuracy <= 1 for one in state.measured)
    assert [one.std is None for one in state.measured] == [False, True, False, True]


def checkpoint_of(folder: Path) -> int:
    return max((int(path.name) for path in folder.glob("*/checkpoints/[0-9]*")), default=0)


@pytest.mark.slow
def test_killed_three_times_every_bit_is_the_same(study: Path) -> None:
    study.write_text(TEXT.replace("duration: 12", "duration: 100, checkpoint_every: 4"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "vitkit", "study", "run", "mine.yaml", "--device", "cpu"]
    subprocess.run([*command, "--run", "whole"], env=environment, check=True, capture_output=True)
    cut = Path("runs/cut")
    for number in range(3):
        process = subprocess.Popen(
            [*command, "--run", "cut"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        waited = time.monotonic()
        while process.poll() is None and time.monotonic() < waited + 60:
            if len(list(cut.glob("*/run.json"))) > number and checkpoint_of(cut):
                time.sleep(0.3)
                break
            time.sleep(0.01)
        assert process.poll() is None, "make the runs longer"
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run([*command, "--run", "cut"], env=environment, check=True, capture_output=True)
    for name in NAMES:
        assert tiny_runs.differences(cut / name, Path("runs/whole", name)) == []
        one, other = (
            json.loads(next(Path(root, name, "measured").glob("*.json")).read_text())
            for root in (cut, "runs/whole")
        )
        assert (one["accuracy"], one["measure"]) == (other["accuracy"], other["measure"])


@pytest.mark.slow
def test_a_worker_killed_while_it_measures(study: Path) -> None:
    """The run is named as failed; the same command measures it, and trains nothing again."""
    data = "data: 'digits:train[:60]', evaluate: 'digits:test[:40]'"
    settings = "{duration: 200, protocol: paper, batch_size: 8, checkpoint_every: 5}"
    measure = f"measure=[{{by: finetune, {data}, settings: {settings}}}]"
    options: dict[str, Any] = {"only": "seed-0_plain", "device": "cpu", "progress": False}
    whole = run_study(study, [measure], run="whole", **options)
    path = Path("runs/cut/seed-0_plain")
    trained: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not trained:
            if any(entry.name.isdecimal() for entry in path.glob("measured/**/checkpoints/*")):
                trained.append((path / "model" / "model.safetensors").stat().st_mtime_ns)
                os.kill(worker(), signal.SIGKILL)
            time.sleep(0.02)

    killer = threading.Thread(target=kill)
    killer.start()
    result = run_study(study, [measure], run="cut", **options)
    killer.join()
    assert result.status == "failed"
    assert result.runs[0].message == "its process was ended by SIGKILL, perhaps for lack of memory"
    again = run_study(study, [measure], run="cut", **options)
    assert again.status == "done"
    assert (path / "model" / "model.safetensors").stat().st_mtime_ns == trained[0]
    assert [one.accuracy for one in again.runs[0].measured] == [
        one.accuracy for one in whole.runs[0].measured
    ]


def worker() -> int:
    """Return the process that works for this one."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"vitkit.cli.worker" in (path / "cmdline").read_bytes():
                return int(path.name)
    raise AssertionError("no worker")


@pytest.mark.slow
def test_runs_that_really_fail_cost_the_others_nothing(study: Path) -> None:
    """One whose loss is no number, one whose images can't be read; the run between them is as without them."""
    for label in ("cat", "dog"):
        Path("photos", label).mkdir(parents=True)
        for index in range(8):
            Path("photos", label, f"{index}.png").write_bytes(b"no image")
    study.write_text(
        """\
recipe: ./tiny.yaml
runs:
  - {name: wild, optimizer.learning_rate: 1.0e+30, optimizer.clip_norm: null}
  - {name: good}
  - {name: damaged, data.train: ./photos, data.evaluate: null, data.pipeline: resize(8), data.group: 1}
"""
    )
    result = run_study(study, device="cpu", progress=False)
    assert result.status == "failed"
    assert [run.status for run in result.runs] == ["failed", "done", "failed"]
    wild, _, damaged = (run.message for run in result.runs)
    assert "not finite" in wild or "NaN" in wild
    assert "photos" in damaged
    ours = tiny_runs.run_tiny(Path("runs/plain"))
    assert tiny_runs.differences(Path("runs/mine/good"), Path(ours.run)) == []
