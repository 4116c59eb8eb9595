"""The tiny variants of the shipped studies, from the first step to the page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vitkit import finetune, show_study
from vitkit.studies.config import file_word, list_studies, read_study
from vitkit.studies.jobs import Job, carry_out

TINY = [study["name"] for study in list_studies() if study["name"].endswith("_tiny")]


def test_a_tiny_study_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    changes = ["settings.duration=2", "settings.data.evaluate='shapes:test[:50,size=16]'"]
    study = read_study("optimisers_tiny", changes)
    for run in study.runs[:2]:
        path = Path("runs/optimisers_tiny", run.name)
        job = Job(run.name, path, run.config, study.config.measure, "cpu")
        assert carry_out(job, lambda kind, **values: None, finetune) == "done"
    report = show_study("optimisers_tiny", changes)
    assert [row.name for row in report.runs] == ["small_adam", "small_sgd"]
    assert [state.status for state in report.unfinished] == ["waiting", "waiting"]
    table = (Path(report.html).parent / "table-model-optimizer.csv").read_text().splitlines()
    assert table[0] == "model,adam,sgd" and table[1].startswith("small,")


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_tiny_study(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "vitkit", "study", "run", name, "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    report = show_study(name, paper=True)
    assert report.unfinished == ()
    study = read_study(name)
    assert len(report.runs) == len(study.runs)
    written = {Path(file).name for file in report.files}
    assert {f"table-{'-'.join(map(file_word, axes))}.csv" for axes in study.config.tables} <= written
