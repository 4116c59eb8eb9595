"""Model folders outlast damage: what a run keeps is verified on resume, and the best model is never traded for a worse."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import vitkit
from tests.training import tiny_runs
from vitkit.runs import RunFolder, read_record
from vitkit.training import checkpoints

FILES = ("config.json", "model.safetensors")


def stop_at(step: int) -> dict[int, Any]:
    return {step: lambda: signal.raise_signal(signal.SIGTERM)}


def damage(folder: Path, how: str) -> None:
    if how == "missing":
        shutil.rmtree(folder)
    elif how == "empty config":
        (folder / "config.json").write_bytes(b"")
    elif how == "no weights":
        (folder / "model.safetensors").unlink()
    elif how == "cut":
        os.truncate(folder / "model.safetensors", 500)
    elif how == "a bit":
        content = bytearray((folder / "model.safetensors").read_bytes())
        content[-1] ^= 1
        (folder / "model.safetensors").write_bytes(content)


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose best weights are the last ones."""
    run = tmp_path_factory.mktemp("done") / "run"
    tiny_runs.run_tiny(run, "duration=4", "evaluate_every=4")
    assert read_record(run)["best"]["step"] == 4
    return run


@pytest.mark.parametrize("how", ["missing", "empty config", "no weights", "cut", "a bit"])
@pytest.mark.parametrize("name", ["model", "model-last"])
def test_the_same_command_repairs_a_finished_run(done: Path, tmp_path: Path, name: str, how: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(done, run)
    before = content(run / name)
    damage(run / name, how)
    listener = tiny_runs.Listener()
    result = tiny_runs.run_tiny(run, "duration=4", "evaluate_every=4", listener=listener)
    assert result.status == "done" and result.best.step == 4
    assert content(run / name) == before
    assert tiny_runs.warnings(listener) == [
        f"{run / name} is missing or damaged: written again from the checkpoint"
    ]
    vitkit.load(run / name, device="cpu")


def test_a_whole_run_is_left_alone(done: Path, tmp_path: Path) -> None:
    run, listener = tmp_path / "run", tiny_runs.Listener()
    shutil.copytree(done, run)
    before = {name: (run / name).stat().st_ino for name in ("model", "model-last")}
    tiny_runs.run_tiny(run, "duration=4", "evaluate_every=4", listener=listener)
    assert {name: (run / name).stat().st_ino for name in before} == before
    assert tiny_runs.warnings(listener) == []


def accuracies(monkeypatch: pytest.MonkeyPatch, values: list[float]) -> None:
    """Let measurements give these accuracies, one after the other."""
    left = iter(values)
    monkeypatch.setattr(
        "vitkit.evaluation.held_out.Classification.run",
        lambda *_: {"loss": 1.0, "accuracy": next(left)},
    )


SETTINGS = ("duration=8", "evaluate_every=2", "checkpoint_every=4", "average=null")


def test_without_its_metrics_a_run_keeps_its_best_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    accuracies(monkeypatch, [0.9, 0.5, 0.6, 0.7])
    tiny_runs.run_tiny(run, *SETTINGS, at=stop_at(4))
    best = content(run / "model")
    (run / "metrics.jsonl").write_bytes(b"")
    result = tiny_runs.run_tiny(run, *SETTINGS)
    assert result.status == "done"
    assert (result.best.value, result.best.step) == (0.9, 2)
    assert content(run / "model") == best


def test_a_best_model_that_is_lost_gives_way_to_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, listener = tmp_path / "run", tiny_runs.Listener()
    accuracies(monkeypatch, [0.9, 0.5, 0.6, 0.7])
    tiny_runs.run_tiny(run, *SETTINGS, at=stop_at(4))
    damage(run / "model", "cut")
    result = tiny_runs.run_tiny(run, *SETTINGS, listener=listener)
    assert tiny_runs.warnings(listener) == [
        f"{run / 'model'} is missing or damaged: the best weights, of step 2, are lost; "
        "it now holds those of step 4"
    ]
    assert (result.best.value, result.best.step) == (0.7, 8)
    assert content(run / "model") == content(run / "model-last")


def test_a_lost_best_of_a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    accuracies(monkeypatch, [0.9, 0.5, 0.6, 0.7])
    tiny_runs.run_tiny(run, *SETTINGS)
    damage(run / "model", "missing")
    for expected in (1, 0):  # what was repaired is whole from then on
        listener = tiny_runs.Listener()
        result = tiny_runs.run_tiny(run, *SETTINGS, listener=listener)
        assert len(tiny_runs.warnings(listener)) == expected
        assert (result.best.value, result.best.step) == (0.7, 8)


def test_metrics_are_synced_before_a_checkpoint_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    sync, finish = RunFolder.sync, checkpoints._finish
    monkeypatch.setattr(RunFolder, "sync", lambda self: (order.append("metrics"), sync(self)))
    monkeypatch.setattr(
        checkpoints, "_finish", lambda *arguments: (order.append("checkpoint"), finish(*arguments))
    )
    tiny_runs.run_tiny(tmp_path / "run", "duration=4", "checkpoint_every=2")
    assert order == ["metrics", "checkpoint"] * 2


def test_a_kill_between_record_and_swap(done: Path, tmp_path: Path) -> None:
    """The record names weights that never came into place: those before them are whole."""
    run, listener = tmp_path / "run", tiny_runs.Listener()
    shutil.copytree(done, run)
    record = json.loads((run / "run.json").read_text())
    record["models"]["model"].insert(0, {"step": 4, "sha256": "0" * 64})
    (run / "run.json").write_text(json.dumps(record))
    tiny_runs.run_tiny(run, "duration=4", "evaluate_every=4", listener=listener)
    assert tiny_runs.warnings(listener) == []
