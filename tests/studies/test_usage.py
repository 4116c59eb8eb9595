"""How a run used its device: GPU time is shared by the runs on it, and parts of a run add up."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from tests.studies import finished
from vitkit.studies import usage
from vitkit.studies.config import read_study
from vitkit.studies.results import collect
from vitkit.studies.usage import Meter, Usage, read_usage


def test_parts_of_a_run_add_up() -> None:
    one, other = Usage(10, 1, 0.5), Usage(30, 4, 0.9)
    assert one.joined(other) == Usage(40, 3.25, pytest.approx(0.8))
    assert one.joined(Usage(30, 4)) == Usage(40, 3.25, 0.5)
    assert Usage().joined(other) == other and other.joined(Usage()) == other


def test_the_gpu_is_looked_at_while_the_run_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "utilization", lambda: 40)
    monkeypatch.setattr(usage, "EVERY", 0.01)
    (tmp_path / "run.json").write_text("{}")
    told: list[str] = []
    meter = Meter(tmp_path, lambda kind, **values: told.append(kind), "cuda", 2)
    for kind in ("step", "step", "measuring", "step"):
        meter(kind)
        time.sleep(0.05)
    found = read_usage(tmp_path)
    meter.close()
    assert told == ["step", "step", "measuring", "step"]
    assert found == read_usage(tmp_path)
    assert found.busy == pytest.approx(0.4) and found.sharing == 2 and 0.05 < found.seconds < 0.5
    again = Meter(tmp_path, lambda kind, **values: None, "cpu", 1)
    again("step")
    again.close()
    assert read_usage(tmp_path).busy == pytest.approx(0.4)
    assert 1 < read_usage(tmp_path).sharing < 2


def test_a_gpu_that_cannot_be_asked_and_a_run_that_never_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> int:
        raise ModuleNotFoundError("pynvml")

    monkeypatch.setattr(torch.cuda, "utilization", absent)
    monkeypatch.setattr(usage, "EVERY", 0.01)
    meter = Meter(tmp_path, lambda kind, **values: None, "cuda", 2)
    meter("step")
    time.sleep(0.05)
    meter.close()
    assert not (tmp_path / usage.FILE).exists()
    (tmp_path / usage.FILE).write_text('{"seconds": "many", "sharing": 0}')
    assert read_usage(tmp_path) == Usage()


def test_device_hours_are_those_of_the_run_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(finished.TEXT)
    study = read_study(tmp_path / "mine.yaml", ["grid.duration=[100]", "grid.seed=[0]"])
    folder = tmp_path / "run"
    finished.write_study(study, folder, lambda run, exaflops: 0.5)
    first, second = (folder / run.name for run in study.runs[:2])
    (first / usage.FILE).write_text(json.dumps({"seconds": 36.0, "sharing": 4.0, "busy": 0.75}))
    record = json.loads((second / "run.json").read_text())
    record["environment"]["device"] = "NVIDIA H200"
    (second / "run.json").write_text(json.dumps(record))
    lines = [{"step": step, "loss": 1.0, "waiting": waiting} for step, waiting in ((50, 0.3), (100, 0.1))]
    (second / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows, _ = collect(study, folder)
    assert [row.device_hours for row in rows[:2]] == pytest.approx([0.0025, 0.01])
    assert [row.gpu_busy for row in rows[:3]] == [0.75, pytest.approx(0.8), None]
