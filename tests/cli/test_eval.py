"""`vit eval`: tables, JSON, files and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from vitkit.evaluation.run import evaluate
from vitkit.models.configs import Preprocessing

DATA = "digits:test[:60]"


@pytest.fixture
def model(tmp_path: Path) -> str:
    torch.manual_seed(0)
    made = vitkit.create_model(
        "Ti/16", num_classes=12, image_size=8, patch=4, width=16, depth=1, heads=2, mlp_width=16
    )
    torch.nn.init.normal_(made.head.weight)
    vitkit.save(
        made, tmp_path / "model", class_names=[str(n) for n in range(12)], preprocessing=Preprocessing(8)
    )
    return str(tmp_path / "model")


def test_tables(vit: Callable[..., Any], model: str) -> None:
    answer = vit("eval", model, DATA, "--device", "cpu")
    assert answer.status == 0
    found = evaluate(model, DATA, device="cpu")
    lines = [line.strip() for line in answer.out.splitlines() if line.strip(" ─")]
    assert lines[0] == f"{model} on {DATA}: 60 images, 12 classes"
    values = {line.rsplit(maxsplit=1)[0].strip(): line.rsplit(maxsplit=1)[1] for line in lines[2:9]}
    assert values == {
        "top-1 accuracy": f"{found.accuracy:.2%}",
        "top-5 accuracy": f"{found.top_5_accuracy:.2%}",
        "balanced accuracy": f"{found.balanced_accuracy:.2%}",
        "macro F1": f"{found.macro_f1:.2%}",
        "calibration error (15 equal bins)": f"{found.calibration_error:.2%}",
        "calibration error by chance alone": f"{found.calibration_by_chance:.2%}",
        "loss": f"{found.loss:.4f}",
    }
    assert lines[9].split() == "class images accuracy precision F1 most often predicted as".split()
    accuracies = [float(line.split("%")[0].split()[-1]) for line in lines[10:-1]]
    assert accuracies == sorted(accuracies) and len(accuracies) == 10
    assert lines[-1] == "The worst classes first."
    assert answer.err.splitlines()[-1].startswith("--out DIR writes ")
    assert "no image of 2 of the 12 classes" in answer.err


def test_precision_and_merging(vit: Callable[..., Any], model: str) -> None:
    flags = ["--device", "cpu", "--precision", "bfloat16", "--merge", "1"]
    answer = vit("eval", model, DATA, *flags)
    [title] = [line.strip() for line in answer.out.splitlines() if "60 images" in line]
    assert title.endswith("12 classes, in bfloat16, merging 1 patches in each layer")
    document = json.loads(vit("eval", model, DATA, *flags, "--json").out)
    assert (document["precision"], document["merge"]) == ("bfloat16", 1)
    assert document["loss"] != evaluate(model, DATA, device="cpu").loss


def test_json(vit: Callable[..., Any], model: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    answer = vit("eval", model, DATA, "--device", "cpu", "--json", "--out", str(out), "--classes", "data")
    assert answer.status == 0
    document = json.loads(answer.out)
    assert document["classes"] == 10
    assert document == json.loads((out / "results.json").read_text())
    assert document | {"files": []} == evaluate(model, DATA, device="cpu", classes="data").to_json()
    again = vit("eval", model, DATA, "--out", str(out))
    assert (again.status, again.out) == (2, "")
    assert again.err == f"error: {out}/confusion.png exists; --force overwrites it\n"
    assert vit("eval", model, DATA, "--device", "cpu", "--out", str(out), "--force").status == 0


def test_many_classes_are_cut(vit: Callable[..., Any], model: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(12):
        (tmp_path / "test" / str(number)).mkdir(parents=True)
        Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).save(
            tmp_path / "test" / str(number) / "a.png"
        )
    answer = vit("eval", model, str(tmp_path / "test"), "--device", "cpu", "--batch-size", "5")
    assert "The worst classes first; 2 more are in --json.\n" in answer.out


def test_multi_label(vit: Callable[..., Any], model: str, tmp_path: Path) -> None:
    rows = ["path,label"]
    for number in range(12):
        Image.new("RGB", (8, 8), (20 * number, 0, 0)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{number % 3};{3 + number % 2}")
    (tmp_path / "t.csv").write_text("\n".join(rows))
    answer = vit("eval", model, f"{tmp_path}/t.csv:all", "--device", "cpu")
    assert answer.status == 0
    assert "mean average precision" in answer.out and "top-1" not in answer.out
    assert "average precision" in answer.out.splitlines()[-9]
    assert answer.err.splitlines()[-1] == "--out DIR writes all results as JSON"


def test_errors(vit: Callable[..., Any], model: str) -> None:
    answer = vit("eval", model, DATA, "--classes", "mine")
    assert (answer.status, answer.err) == (2, "error: classes is 'mine'; expected one of head, data\n")
    answer = vit("eval", model, "shapes", "--device", "cpu")
    assert answer.status == 2
    assert answer.err.startswith("error: shapes has class ")
