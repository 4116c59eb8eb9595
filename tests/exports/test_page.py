"""The page on export: its commands and its Python, run as they stand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit

PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_page_runs(vit: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    files = [Path("photos", name, f"{number}.png") for name in ("cat", "dog") for number in range(60)]
    for file in (*files, *map(Path, ("holiday.jpg", "a.jpg", "b.jpg"))):
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 255, (40, 30, 3), np.uint8)).save(file)
    torch.manual_seed(0)
    model = vitkit.create_model("Ti/16", num_classes=2)
    torch.nn.init.normal_(model.get_submodule("head").weight)
    vitkit.save(model, "runs/photos/model", class_names=["cat", "dog"])
    [commands] = blocks("sh")
    for line in commands.replace("\\\n", " ").splitlines():
        verb, *words = shlex.split(line, comments=True)
        if verb == "vit":
            answer = vit(*words)
            assert answer.status == 0, (line, answer.err)
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(block.replace("data=", "force=True, data="), names)
    assert names["logits"].shape == (1, 2) and names["features"].shape == (1, 192)


def test_its_limits_are_those_of_the_code() -> None:
    from vitkit.exports.check import TOLERANCES

    for precision, limit in TOLERANCES.items():
        assert f"| `{precision}` | {limit.error:.1%} |".replace(".0%", "%") in PAGE
        assert f"| {limit.accuracy:.2%} |".replace(".50%", ".5%").replace(".00%", "%") in PAGE
