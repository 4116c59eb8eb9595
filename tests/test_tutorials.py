"""The tutorials, run from top to bottom as they stand: commands, Python and the notebook."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from vitkit.models.names import default_preprocessing
from vitkit.weights.convert import save
from vitkit.weights.load import LoadedModel

TUTORIALS = Path(__file__).parents[1] / "docs" / "tutorials"
# What takes a download, a GPU or hours -> what stands for it here.
INSTEAD = {
    "vit pack 'cifar10[download=true]' ./cifar10": "vit pack digits ./digits",
    "compile=graphs evaluate_every=10%": "compile=graphs evaluate_every=10% --explain",
    "protocol=paper image_size=224 data.cache=device compile=true": "protocol=paper image_size=32 duration=2",
    "Ti/16@": "mu/16@",  # any weights will do
    "@pretrained": "@weights.safetensors",
    "[11]": "[0]",  # mu/16 has one layer
}


def photo(path: Path, number: int, size: tuple[int, int] = (40, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (*size[::-1], 3), np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the tutorials name; pictures and weights are random."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    model = vitkit.create_model("mu/16")
    torch.nn.init.normal_(model.head.weight)  # an untrained head is zero, and nothing has a gradient
    loaded = LoadedModel(model, default_preprocessing(model.config), None, "mu/16")
    save(loaded, tmp_path / "weights.safetensors", "timm")
    for place, name in enumerate(("cat", "deer", "dog")):
        for number in range(12):
            photo(tmp_path / "photos" / name / f"{name}-{number:03}.jpg", 100 * place + number)
    photo(tmp_path / "holidays" / "first.jpg", 1000)
    photo(tmp_path / "eagle.jpg", 1001)
    labels = ("cat;deer;dog", "deer;dog", "", "cat")
    for number in range(24):
        photo(tmp_path / "pictures" / f"{number:03}.jpg", 2000 + number)
    rows = [f"pictures/{number:03}.jpg,{labels[number % 4]}" for number in range(24)]
    (tmp_path / "labels.csv").write_text("\n".join(["image_path,label", *rows, ""]))
    return tmp_path


def make_cifar10(folder: Path) -> None:
    """Write as many pictures as the tutorial's slices and shots ask for."""
    for split, images in (("train", 140), ("test", 100)):
        for place in range(10):
            for number in range(images):
                photo(folder / split / f"class {place}" / f"{number}.png", number, (8, 8))


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each code block, in the order of the page; those of a list are indented."""
    found = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", page, re.DOTALL | re.MULTILINE)
    return [(language, textwrap.dedent(text)) for _, language, text in found]


def commands(text: str) -> list[list[str]]:
    """Arguments of each `vit` command; what a shell would write to a file is printed."""
    lines = text.replace("\\\n", " ").splitlines()
    found = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("vit ")]
    return [words[: words.index(">")] if ">" in words else words for words in found]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["photos", "paper", "inside"])
def test_a_tutorial_runs(vit: Callable[..., Any], desk: Path, name: str) -> None:
    text = (TUTORIALS / f"{name}.md").read_text(encoding="utf-8")
    if name == "paper":
        make_cifar10(desk / "cifar10")
    for full, shorter in INSTEAD.items():
        text = text.replace(full, shorter)
    names: dict[str, Any] = {}
    done = 0
    for language, block in blocks(text):
        if language == "python":
            exec(block, names)
            done += 1
        for words in commands(block) if language == "sh" else ():
            answer = vit(*words)
            assert answer.status == 0, (words, answer.err)
            done += 1
    assert done >= 6


def test_what_stands_for_commands_is_in_the_tutorials() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in TUTORIALS.glob("*.md"))
    assert all(full in text for full in INSTEAD)


def test_every_tutorial_is_run() -> None:
    assert {page.name for page in TUTORIALS.iterdir()} == {
        "photos.md",
        "paper.md",
        "inside.md",
        "photos.ipynb",
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*unclosed file")  # a cell shows a picture by opening it
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Next to photos of the reader's own, which it leaves alone."""
    monkeypatch.chdir(tmp_path)
    photo(tmp_path / "photos" / "cat" / "1.jpg", 1)
    notebook = json.loads((TUTORIALS / "photos.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["result"].accuracy > 0.7
    assert sorted(path.name for path in Path("photos").rglob("*")) == ["1.jpg", "cat"]
    assert Path("runs/example/report/index.html").is_file() and Path("seen/index.html").is_file()
