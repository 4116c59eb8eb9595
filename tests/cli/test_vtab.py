"""`vit vtab`: the table beside the paper's rows, one JSON document, exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vitkit
from vitkit.data.sources.vtab import TASKS
from vitkit.runs import RunFolder
from vitkit.transfer.finetune import FinetuneRequest, FinetuneResult

Vit = Callable[..., Any]


@pytest.fixture(autouse=True)
def finetune(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Stand in for what trains: a task named in the list it returns fails."""
    failing: list[str] = []

    def run(request: FinetuneRequest, make: object, path: Path, **options: Any) -> FinetuneResult:
        if any(name in request.data for name in failing):
            raise RuntimeError("no luck")
        return FinetuneResult(request, "done", str(path), accuracy=0.5, std=0.01, seconds=1.0)

    monkeypatch.setattr("vitkit.transfer.vtab.run.run_finetuning", run)
    monkeypatch.setattr("vitkit.training.estimate.matrix_rate", lambda *_: 1e11)
    monkeypatch.chdir(tmp_path)
    for name in ("dtd", "eurosat"):
        task = TASKS[name]
        (tmp_path / "vtab" / name / "images").mkdir(parents=True)
        for split, count in {"train800val200": 1000, "test": task.sizes[2] if name == "dtd" else 7}.items():
            (tmp_path / "vtab" / name / "images" / f"{split}.jpg").touch()
            lines = [f"images/{split}.jpg {number % task.num_classes}" for number in range(count)]
            (tmp_path / "vtab" / name / f"{split}.txt").write_text("\n".join(lines))
    return failing


def test_the_table_has_tasks_groups_and_the_papers_rows(vit: Vit) -> None:
    answer = vit("vtab", "Ti/16", "vtab", "--run", "mine", "--verbose")
    assert answer.status == 0, answer.err
    assert "vtab: 2 of 19 tasks are there: dtd, eurosat" in answer.err
    assert "sun397: absent: vtab/sun397 is not in vtab: expected vtab/sun397/" in answer.err
    assert "Ti/16 on vtab, vit: 2,500 steps of 512 images, learning rate 0.01, 384 px" in answer.out
    for row in (
        r"task +group +accuracy +ViT-H/14 \(JFT\) +ViT-L/16 \(JFT\) +ViT-L/16 \(I21k\)",
        r"dtd +Natural +50.0 ± 1.0 +75.2 +74.3 +74.1",
        r"eurosat +Specialized +50.0 ± 1.0 +96.7 +96.5 +95.6 +not the official images",
        r"Natural +50.0 +75.2 +74.3 +74.1 +1 of 7 tasks",
        r"mean of 2 tasks, not the official images +50.0 +8[56]",
    ):
        assert re.search(row, answer.out), row
    assert "Absent: caltech101, cifar100, " in answer.out
    assert "figure: runs/mine/vtab.png" in answer.err


def test_json_is_one_document(vit: Vit) -> None:
    answer = vit("vtab", "Ti/16", "vtab", "--tasks", "dtd", "--json", "--steps", "3")
    document = json.loads(answer.out)
    assert (document["steps"], document["mean"], document["overall"]["name"]) == (3, 0.5, "mean of 1 task")
    assert "NaN" not in answer.out


def test_a_failing_task_is_exit_1(vit: Vit, finetune: list[str]) -> None:
    finetune.append("eurosat")
    answer = vit("vtab", "Ti/16", "vtab", "--run", "mine")
    assert answer.status == 1
    assert "eurosat failed: RuntimeError: no luck" in answer.err
    assert re.search(r"eurosat +Specialized +96.7 +96.5 +95.6 +failed", answer.out)


def test_bad_input_is_exit_2(vit: Vit) -> None:
    answer = vit("vtab", "Ti/16", "nowhere")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith(
        "error: nowhere is not a folder; expected shapes, or the folder of VTAB's tasks"
    )


def test_a_folder_of_other_things_is_one_line(vit: Vit, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    answer = vit("vtab", "Ti/16", "./photos")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == (
        "error: ./photos holds no task of VTAB; expected folders such as dtd/ with train800val200.txt and test.txt, "
        "or raw data as torchvision lays it out\n"
    )


def test_practice_has_no_paper_beside_it(vit: Vit) -> None:
    answer = vit("vtab", "Ti/16", "shapes", "--protocol", "light", "--run", "mine")
    assert answer.status == 0, answer.err
    assert "ViT-H/14" not in answer.out and "not the official images" not in answer.out
    assert "practice on shapes, mean of 6 tasks" in answer.out
    assert "1 of 1 task " in answer.out and "1 of 1 tasks" not in answer.out


def test_force_removes_what_the_run_wrote_and_nothing_else(vit: Vit, tmp_path: Path) -> None:
    assert vit("vtab", "Ti/16", "vtab", "--run", "mine").status == 0
    (tmp_path / "runs" / "mine" / "notes.txt").write_text("mine")
    assert vit("vtab", "Ti/16", "vtab", "--run", "mine", "--force", "--protocol", "light").status == 0
    assert (tmp_path / "runs" / "mine" / "notes.txt").read_text() == "mine"
    stranger = tmp_path / "runs" / "stranger"
    (stranger / "src").mkdir(parents=True)
    (stranger / "vtab.json").write_text("{}")
    answer = vit("vtab", "Ti/16", "vtab", "--run", "stranger", "--force")
    assert answer.status == 2 and "so --force will not delete it" in answer.err
    assert (stranger / "src").is_dir()


def test_force_keeps_the_model_that_it_starts_from(vit: Vit, tmp_path: Path) -> None:
    assert vit("vtab", "Ti/16", "shapes", "--tasks", "count", "--run", "v1").status == 0
    vitkit.save(vitkit.create_model("Ti/16", depth=1, num_classes=3), "runs/v1/count/model")
    answer = vit("vtab", "runs/v1/count/model", "shapes", "--tasks", "x", "--run", "v1", "--force")
    assert (answer.status, answer.out) == (2, "")
    assert "which this run reads and would overwrite: choose another --run" in answer.err
    assert (tmp_path / "runs" / "v1" / "count" / "model" / "config.json").is_file()


def test_force_does_not_pull_a_live_run_away(vit: Vit, tmp_path: Path) -> None:
    assert vit("vtab", "Ti/16", "shapes", "--tasks", "count", "--run", "mine").status == 0
    record = json.loads((tmp_path / "runs" / "mine" / "vtab.json").read_text())
    with RunFolder("runs/mine", record["settings"], kind="vtab", is_shared=True):
        answer = vit("vtab", "Ti/16", "shapes", "--tasks", "count", "--run", "mine", "--force")
    assert answer.status == 2 and "runs/mine is in use" in answer.err
    assert (tmp_path / "runs" / "mine" / "count.json").is_file()
