"""The README's commands and Python, run as they stand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import vitkit
from vitkit.models.names import default_preprocessing
from vitkit.weights.convert import save
from vitkit.weights.load import LoadedModel

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the README names; a file of random weights stands for the download."""
    monkeypatch.chdir(tmp_path)
    for name, file, to in (("Ti/16", "weights.safetensors", "timm"), ("mu/16", "ViT-B_16.npz", "npz")):
        model = vitkit.create_model(name)
        save(LoadedModel(model, default_preprocessing(model.config), None, name), tmp_path / file, to)  # type: ignore[arg-type]
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
    photos = [f"photos/{name}/{number}.jpg" for name in ("cat", "dog") for number in range(6)]
    for number, path in enumerate((*photos, "holiday.jpg", "a.jpg", "b.jpg")):
        Image.new("RGB", (40, 30), (200, 15 * number, 0)).save(tmp_path / path)
    return tmp_path


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_commands_run(vit: Callable[..., Any], desk: Path) -> None:
    commands = [
        line
        for block in blocks("")
        for line in block.splitlines()
        if line.startswith("vit ") and "VERB" not in line
    ]
    assert len(commands) >= 4
    for command in commands:
        words = shlex.split(command.replace("@pretrained", "@weights.safetensors"), comments=True)
        answer = vit(*words[1:])
        assert answer.status == 0, (command, answer.err)


@pytest.mark.slow
def test_the_python_runs(desk: Path) -> None:
    names: dict[str, Any] = {"images": torch.zeros(1, 3, 384, 384)}
    for block in blocks("python"):
        exec(block.replace("@pretrained", "@weights.safetensors"), names)
    assert names["classifier"].embed("a.jpg").shape == (1, 192)
    assert names["record"].attention[11].shape == (1, 12, 577, 577)


def test_it_is_short() -> None:
    assert len(README.splitlines()) < 200
