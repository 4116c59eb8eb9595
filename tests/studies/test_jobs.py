"""One run of a study: what it reports, what it leaves behind, and what is done when the study's measures change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.training import tiny_runs
from vitkit import finetune, run_study
from vitkit.errors import InputError
from vitkit.studies.board import Board
from vitkit.studies.config import read_study
from vitkit.studies.jobs import Job, carry_out
from vitkit.studies.records import read_state

TEXT = """\
# One tiny run.
recipe: ./tiny.yaml
settings: {duration: 6}
grid: {seed: [0]}
"""
TUNED = "{by: finetune, data: 'digits:train[:60]', evaluate: 'digits:test[:40]', settings: {protocol: quick, duration: %d, batch_size: 8}}"
KNN = "{by: knn, data: 'digits:train[:40]', evaluate: 'digits:test[:40]'}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose one run is trained, without measures."""
    root = tmp_path_factory.mktemp("job")
    tiny_runs.write_recipe(root)
    (root / "mine.yaml").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        assert measure_run() == []
    return root


@pytest.fixture
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run's folder in a copy of the study."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Path("runs/mine/seed-0")


def measure_run(*measures: str) -> list[tuple[str, dict[str, Any]]]:
    """Carry out the run of the study with these measures; return what it reported of them."""
    heard = list[tuple[str, dict[str, Any]]]()
    study = read_study("mine.yaml", [f"measure=[{', '.join(measures)}]"])
    run = study.runs[0]
    job = Job(run.name, Path("runs/mine", run.name), run.config, study.config.measure, "cpu")
    assert carry_out(job, lambda kind, **values: heard.append((kind, values)), finetune) == "done"
    state = read_state(run, Path("runs/mine"), study.config.measure)
    assert state.status == "done" and len(state.measured) == len(measures)
    return [(kind, values) for kind, values in heard if measures]


def test_fine_tuning_is_reported_as_measuring(folder: Path) -> None:
    heard = measure_run(TUNED % 3)
    steps = [values for kind, values in heard if kind == "measuring" and values.get("of") == 3]
    assert steps[0] == {"name": "digits fine-tuning", "done": 0, "of": 3}
    assert not [values for kind, values in heard if kind == "step" and values["of"] == 3]
    board = Board({"seed-0": 1.0}, set(), lambda line: None)
    board.start("seed-0")
    board.hear("seed-0", "step", {"step": 6, "of": 6})
    for kind, values in heard:
        board.hear("seed-0", kind, values)
    assert board.at_work["seed-0"].share == 1.0


def test_fine_tuning_leaves_records_and_no_weights(folder: Path) -> None:
    measure_run(TUNED % 3)
    made = folder / "measured" / "digits-fine-tuning"
    assert (made / "finetune.json").is_file() and (made / "seed-0/run/metrics.jsonl").is_file()
    assert not [path for path in made.rglob("*") if path.suffix in (".safetensors", ".distcp")]
    assert (folder / "model" / "model.safetensors").is_file()  # of the run itself


def test_fine_tuning_with_other_settings_measures_again(folder: Path) -> None:
    file = folder / "measured" / "digits-fine-tuning.json"
    measure_run(TUNED % 3)
    measure_run(TUNED % 4)
    assert json.loads(file.read_text())["measure"]["settings"]["duration"] == 4
    record = json.loads((folder / "measured" / "digits-fine-tuning" / "finetune.json").read_text())
    assert record["steps"] == 4
    file.unlink()  # the same again: its record says what was found
    measure_run(TUNED % 4)
    assert json.loads(file.read_text())["accuracy"] == record["accuracy"]


def test_a_finished_run_without_weights_is_not_trained_for_another_measure(folder: Path) -> None:
    measure_run(KNN)
    for name in ("model", "model-last", "checkpoints"):
        shutil.rmtree(folder / name)
    assert measure_run(KNN) == []  # nothing is left to do
    before = (folder / "run.json").read_bytes()
    probe = KNN.replace("knn", "probe")
    message = (
        "runs/mine/seed-0 is finished but has no weights, so 'digits probe' can't be measured: copy its model/ here, "
        "remove the measure, or remove runs/mine/seed-0 to train it again"
    )
    with pytest.raises(InputError) as error:
        measure_run(KNN, probe)
    assert str(error.value) == message
    with pytest.raises(InputError) as error:
        run_study("mine.yaml", [f"measure=[{KNN}, {probe}]"], device="cpu", progress=False)
    assert str(error.value) == message
    assert (folder / "run.json").read_bytes() == before


def test_a_finished_run_with_its_model_alone_is_measured(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoints")
    before = (folder / "metrics.jsonl").read_bytes()
    assert [kind for kind, _ in measure_run(KNN) if kind == "step"] == []
    assert (folder / "metrics.jsonl").read_bytes() == before
