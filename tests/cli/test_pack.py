"""`vit pack`: a table or JSON of what was written, the same command going on, and its exit statuses."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitkit.data import pack as module
from vitkit.data.open import open_data

Vit = Callable[..., Any]


@pytest.fixture(autouse=True)
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six images to train with and two to test with, in ./photos, one of them larger than 16 pixels."""
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for number in range(8):
        side = 24 if number == 0 else 12
        pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)
        folder = Path("photos", "train" if number < 6 else "test", "cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return Path("photos")


def names() -> list[str]:
    return sorted(path.name for path in Path("packed").iterdir())


@pytest.mark.parametrize("to", ["tar", "parquet"])
def test_table(vit: Vit, to: str) -> None:
    answer = vit("pack", "./photos", "packed", "--size", "16", "--to", to, "--images-per-shard", "4")
    assert answer.status == 0
    assert not answer.err
    out = [line.split() for line in answer.out.splitlines() if line.strip(" ─")]
    assert out[0] == f"packed: {to}, shorter side 16, JPEG 95".split()
    assert [row[:4] for row in out[2:]] == [["train", "2", "6", "1"], ["test", "1", "2", "0"]]
    assert names() == [
        "classes.txt",
        "pack.json",
        f"test-000000.{to}",
        f"train-000000.{to}",
        f"train-000001.{to}",
    ]
    assert open_data("./packed", default="train").labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_json_is_what_python_returns(vit: Vit) -> None:
    answer = vit("pack", "./photos", "packed", "--json")
    assert answer.status == 0
    document = json.loads(answer.out)
    assert document == {**module.pack("./photos", "other").to_json(), "target": "packed"}
    assert (document["size"], document["quality"], document["to"]) == (256, 95, "tar")


def test_the_same_command_goes_on_after_an_interrupt(vit: Vit, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["pack", "./photos", "packed", "--images-per-shard", "2"]

    def interrupted(path: Path, rows: Any, class_names: Any) -> None:
        if (path.parent / "train-000001.tar").exists():
            path.write_bytes(b"half")
            raise KeyboardInterrupt
        module.write_tar(path, rows, class_names)

    with monkeypatch.context() as patch:
        patch.setitem(module.WRITERS, "tar", interrupted)
        answer = vit(*command)
    assert (answer.status, answer.out) == (130, "")
    assert answer.err.splitlines()[-1] == "stopped; run the same command again to resume"
    assert names() == ["classes.txt", "pack.json", "train-000000.tar", "train-000001.tar"]
    answer = vit(*command)
    assert answer.status == 0
    assert answer.err.splitlines()[-1] == "2 of 4 shards were already finished"
    assert len(names()) == 6


def test_other_settings_need_force(vit: Vit) -> None:
    assert vit("pack", "./photos", "packed").status == 0
    assert vit("pack", "./photos", "packed", "--size", "16") == (
        2,
        "",
        "error: packed holds a packed data set with other settings: size is 256 there, 16 here; choose another folder, "
        "or start over with --force\n",
    )
    assert vit("pack", "./photos", "packed", "--size", "16", "--force").status == 0
    assert json.loads(Path("packed/pack.json").read_text())["settings"]["size"] == 16


def test_a_bad_image_is_skipped_or_stops_it(vit: Vit, photos: Path) -> None:
    (photos / "train/cat/1.png").write_bytes(b"")
    answer = vit("pack", "./photos", "packed", "--bad-images", "error")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == (
        "error: cannot read ./photos/train/cat/1.png: it is empty; --bad-images skip (bad_images='skip' in Python) skips "
        "unreadable images\n"
    )
    answer = vit("pack", "./photos", "packed", "--json")
    assert answer.status == 0
    assert answer.err.splitlines()[-1] == (
        "warning: skipped 1 unreadable image of ./photos:train: ./photos/train/cat/1.png (it is empty); `vit data ./photos` lists "
        "them all"
    )
    assert json.loads(answer.out)["unreadable"] == [
        {"image": "./photos/train/cat/1.png", "reason": "it is empty", "data": "./photos:train"}
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["./nowhere", "packed"], "no such file or folder: ./nowhere"),
        (["./photos", "packed", "--to", "zip"], "--to"),
        (["./photos", "packed", "--bad-images", "keep"], "--bad-images"),
        (["./photos", "packed", "--size", "0"], "size must be at least 1 and at most 65536, not 0"),
        (["./photos", "photos/packed"], "is inside the other: pack into another folder"),
    ],
)
def test_bad_input(vit: Vit, arguments: list[str], message: str) -> None:
    answer = vit("pack", *arguments)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("error: ") and message in answer.err and answer.err.count("\n") == 1
    assert not Path("packed").exists()


def test_progress_on_a_terminal_only(vit: Vit, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "packing" not in vit("pack", "./photos", "packed").err
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = vit("pack", "./photos", "other", "--json")
    assert "packing" in shown.err and "8/8" in shown.err
    assert json.loads(shown.out)["shards"] == 2


def test_the_page_runs(vit: Vit, photos: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    shutil.copytree(photos, "pretraining")
    commands = [
        line
        for kind, block in blocks
        if kind == "sh"
        for line in block.splitlines()
        if line.startswith(("vit data", "vit pack"))
    ]
    assert len(commands) == 8
    for command in commands:
        answer = vit(*shlex.split(command, comments=True)[1:])
        assert answer.status == 0 and answer.out, answer.err
    for kind, block in blocks:
        if kind == "python":
            exec(block, {})
    assert len(open_data("./small", default="train")) == 6
