"""`vit report`: paths or JSON on standard output, bad input in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Vit = Callable[..., Any]


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of two lines in ./runs/digits."""
    monkeypatch.chdir(tmp_path)
    path = Path("runs/digits")
    path.mkdir(parents=True)
    lines = [{"step": 10, "loss": 2.0, "accuracy": 0.25}, {"step": 10, "val/accuracy": 0.5}]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "run.json").write_text('{"name": "digits", "status": "running", "step": 10, "steps": 20}')
    return path


def test_paths(vit: Vit) -> None:
    answer = vit("report", "runs/digits")
    assert answer == (0, "runs/digits/report/index.html\nruns/digits/report/curves.png\n", "")
    assert all(Path(line).is_file() for line in answer.out.split())


def test_json(vit: Vit) -> None:
    answer = vit("report", "runs/digits", "--out", "there", "--json")
    assert (answer.status, answer.err) == (0, "")
    result = json.loads(answer.out)
    assert (result["html"], result["png"]) == ("there/index.html", "there/curves.png")
    (summary,) = result["runs"]
    assert (summary["status"], summary["step"]) == ("interrupted", 10)  # no process is at work in it
    assert summary["final"] == {"val/accuracy": 0.5, "train/loss": 2.0}


def test_bad_input_is_one_line(vit: Vit) -> None:
    answer = vit("report", "digits")
    assert answer == (2, "", "error: no folder 'digits'; did you mean 'runs/digits'?\n")
    assert vit("report", "runs/digits").status == 0
    answer = vit("report", "runs/digits")
    assert answer == (2, "", "error: runs/digits/report/index.html exists; --force overwrites it\n")
    assert vit("report", "runs/digits", "--force").status == 0
    assert vit("report").status == 2
