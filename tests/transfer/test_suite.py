"""The paper's suite: what is here is run, what isn't is named, and the paper's rows stand beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from vitkit.errors import InputError
from vitkit.transfer.suite import PUBLISHED, ROWS, run_suite

CHANGES = ["protocol=paper", "image_size=8", "duration=2", "schedule.warmup=1", "batch_size=8"]
TINY: dict[str, Any] = {"width": 16, "depth": 1, "heads": 2, "mlp_width": 16, "patch": 4, "image_size": 8}


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    vitkit.save(vitkit.create_model("Ti/16", num_classes=3, **TINY), tmp_path / "model")


def write_photos(root: Path) -> None:
    pixels = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (root / split / name).mkdir(parents=True)
            for number in range(8):
                Image.fromarray(pixels.integers(0, 256, (8, 8, 3), np.uint8)).save(
                    root / split / name / f"{number}.png"
                )


def test_what_is_here_is_run_and_what_is_not_is_named(tmp_path: Path) -> None:
    write_photos(tmp_path / "data" / "cifar10")
    result = run_suite("./model", "paper", "./data", CHANGES, seeds=2, device="cpu")
    assert result["status"] == "done"
    assert list(result["results"]) == ["cifar10"]
    row = result["results"]["cifar10"]
    assert len(row["values"]) == 2
    assert row["std"] == pytest.approx(np.std(row["values"], ddof=1))
    assert list(result["absent"]) == ["imagenet", "cifar100", "pets", "flowers102"]
    assert result["device_hours"] > 0
    assert result["published"]["L/16 I21k, table 2"]["cifar10"] == 0.9915
    again = run_suite("./model", "paper", "./data", CHANGES, seeds=2, device="cpu")
    assert again["results"] == result["results"]


def test_without_any_data_the_reasons_are_told() -> None:
    Path("data").mkdir()
    with pytest.raises(InputError, match="^no data set of the suite is here: imagenet is not in data"):
        run_suite("./model", "paper", "./data", CHANGES, device="cpu")
    with pytest.raises(InputError, match="^unknown suite 'imagenet'; expected paper$"):
        run_suite("./model", "imagenet", "./data", device="cpu")


def test_the_papers_rows_are_whole() -> None:
    assert all(len(values) == len(ROWS) for values in PUBLISHED.values())
    assert PUBLISHED["H/14 JFT, table 2"] == (88.55, 90.72, 99.50, 94.55, 97.56, 99.68, 77.63)
