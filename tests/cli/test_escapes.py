"""Escape sequences in names of classes and files never reach a terminal: they are shown, not obeyed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import vitkit
from vitkit.cli.output import note, print_csv, print_table
from vitkit.models.configs import Preprocessing
from vitkit.notes import visible
from vitkit.progress import Bar

Vit = Callable[..., Any]
CLASSES = ["\x1b[2J", "\x07bell"]
SHOWN = [r"\x1b[2J", r"\x07bell"]


def is_clean(text: str) -> bool:
    return visible(text) == text


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    for split in ("train", "test"):
        for place, name in enumerate(CLASSES):
            folder = Path("photos", split, name)
            folder.mkdir(parents=True)
            for number in range(3):
                pixels = np.random.default_rng([place, number]).integers(0, 256, (8, 8, 3), np.uint8)
                Image.fromarray(pixels).save(folder / f"\x1b[31m{number}.png")
    return "./photos"


@pytest.fixture
def model(tmp_path: Path) -> str:
    torch.manual_seed(0)
    made = vitkit.create_model(
        "Ti/16", num_classes=2, image_size=8, patch=4, width=16, depth=1, heads=2, mlp_width=16
    )
    vitkit.save(made, tmp_path / "model", class_names=CLASSES, preprocessing=Preprocessing(8))
    return str(tmp_path / "model")


def test_predict(vit: Vit, model: str, photos: str) -> None:
    Path("photos", "\x1b[31mbad.png").write_bytes(b"no image")
    answer = vit("predict", model, photos, "--device", "cpu")
    assert answer.status == 0
    assert is_clean(answer.out) and is_clean(answer.err)
    assert all(name in answer.out for name in SHOWN)
    assert r"\x1b[31mbad.png" in answer.err
    document = json.loads(vit("predict", model, photos, "--device", "cpu", "--json").out)
    assert {guess["name"] for entry in document for guess in entry.get("top", ())} == set(CLASSES)


def test_eval(vit: Vit, model: str, photos: str) -> None:
    answer = vit("eval", model, photos, "--device", "cpu")
    assert answer.status == 0, answer.err
    assert is_clean(answer.out) and is_clean(answer.err)
    assert all(name in answer.out for name in SHOWN)


def test_data(vit: Vit, photos: str) -> None:
    answer = vit("data", photos)
    assert answer.status == 0, answer.err
    assert is_clean(answer.out) and is_clean(answer.err)
    assert all(name in answer.out for name in SHOWN)  # of classes, and of the copies' files


@pytest.mark.parametrize(
    "arguments",
    [
        ["models", "\x1b[2J\nerror: another"],
        ["predict", "./\x1b[2J\nB", "x.png"],
        ["cost", "B/16", "--\x07"],
        ["train", "./\x1b[2J.yaml"],
        ["data", "./\x1b[2J"],
        ["data", "./" + "\x1b" * 300],
    ],
    ids=lambda arguments: arguments[0],
)
def test_errors(vit: Vit, arguments: list[str]) -> None:
    answer = vit(*arguments)
    assert (answer.status, answer.out) == (2, "")
    assert is_clean(answer.err) and answer.err.count("\n") == 1


def test_csv_is_exact_in_a_file_and_visible_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_csv(["name"], [CLASSES[:1]])
    assert capsys.readouterr().out == f"name\n{CLASSES[0]}\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_csv(["name"], [CLASSES[:1]])
    assert capsys.readouterr().out == f"name\n{SHOWN[0]}\n"


def test_tables_notes_and_bars(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("\x1b[1mtitle", ["\x9bcolumn"], [["a\nb\x7f"]], "caption\u202e\nnext")
    note("a\x1b[2J\nb")
    answer = capsys.readouterr()
    assert is_clean(answer.out) and answer.err == "a\\x1b[2J\nb\n"
    assert all(
        text in answer.out for text in (r"\x1b[1mtitle", r"\x9bcolumn", r"a\nb\x7f", "caption\\u202e\n")
    )
    console = Console(stderr=True, force_terminal=True, no_color=True)
    Bar(console).note("\x1b[2J")
    assert capsys.readouterr().err == "\\x1b[2J\n"
