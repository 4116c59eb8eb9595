"""`vit predict`: table, JSON and CSV; failures are reported and the rest is done."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

import vitkit
from tests.stand_in import stand_for_every_model
from vitkit.data import images
from vitkit.models.configs import Preprocessing

NAMES = ["tabby cat", "[bold]dog[/bold]", 'a "quoted", name', "éclair", "eel", "fox", "gnu"]


@pytest.fixture(autouse=True)
def stored(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A tiny model stands for every MODEL."""
    torch.manual_seed(0)
    model = vitkit.create_model("mu/16", image_size=32, num_classes=7).eval()
    torch.nn.init.normal_(model.head.weight, std=5)
    preprocessing = Preprocessing(32, 0.9, "bicubic")
    return stand_for_every_model(
        monkeypatch, model, "tiny model", preprocessing, tuple(NAMES), "a note on the weights"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index, colour in enumerate(["red", "green", "blue"]):
        Image.new("RGB", (40, 50), colour).save(tmp_path / f"{index}.png")
    return tmp_path


def test_table(vit: Callable[..., Any], folder: Path) -> None:
    answer = vit("predict", "M", str(folder))
    assert answer.status == 0
    assert answer.err == "a note on the weights\n"
    lines = [line.rstrip() for line in answer.out.splitlines() if line.strip(" ─")]
    assert lines[1].split() == ["image", "class", "probability", "then"]
    assert len(lines) == 2 + 3  # a row for each image
    [top] = vitkit.load("M").predict(folder / "1.png")
    [row] = [line for line in lines if str(folder / "1.png") in line]
    first, *others = (f"{guess.name} {guess.probability:.1%}" for guess in top)
    assert re.sub(" +", " ", row).strip() == f"{folder / '1.png'} {first} {', '.join(others)}"
    assert sum("[bold]dog[/bold]" in line for line in lines) > 0


def test_the_classes_of_one_image_are_below_each_other(vit: Callable[..., Any], folder: Path) -> None:
    lines = [line for line in vit("predict", "M", str(folder / "1.png")).out.splitlines() if line.strip(" ─")]
    assert lines[1].split() == ["image", "class", "probability"]
    assert len(lines) == 2 + 5 and lines[2].split()[0] == str(folder / "1.png")


def test_precision_and_merging(vit: Callable[..., Any], folder: Path, stored: SimpleNamespace) -> None:
    answer = vit(
        "predict", "M", str(folder), "--json", "--device", "cpu", "--precision", "bfloat16", "--merge", "1"
    )
    assert answer.status == 0
    assert (stored.model.precision, stored.model.merge) == ("bfloat16", 1)


def test_json(vit: Callable[..., Any], folder: Path) -> None:
    answer = vit("predict", "M", str(folder), "--json", "--device", "cpu")
    assert answer.status == 0
    document = json.loads(answer.out)
    assert document == [row.to_json() for row in vitkit.predict("M", folder, device="cpu")]
    assert [entry["image"] for entry in document] == [str(folder / f"{index}.png") for index in range(3)]
    for entry in document:
        assert len(entry["top"]) == 5
        assert all([*guess] == ["name", "index", "probability"] for guess in entry["top"])
        assert all(NAMES[guess["index"]] == guess["name"] for guess in entry["top"])


def test_csv(vit: Callable[..., Any], folder: Path) -> None:
    answer = vit("predict", "M", str(folder / "0.png"), str(folder / "2.png"), "--csv", "--top", "7")
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    expected = vitkit.predict("M", [folder / "0.png", folder / "2.png"], top=7)
    assert answer.status == 0 and len(rows) == 14
    assert [*rows[0]] == ["image", "rank", "name", "index", "probability"]
    for entry, chunk in zip(expected, (rows[:7], rows[7:]), strict=True):
        assert [row["rank"] for row in chunk] == [str(rank) for rank in range(1, 8)]
        assert {row["image"] for row in chunk} == {entry.image}
        assert entry.top is not None
        assert [row["name"] for row in chunk] == [guess.name for guess in entry.top]
        assert [float(row["probability"]) for row in chunk] == [guess.probability for guess in entry.top]


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"]])
def test_failures_are_reported_and_the_rest_is_done(
    vit: Callable[..., Any], folder: Path, form: list[str]
) -> None:
    (folder / "1.png").write_bytes((folder / "1.png").read_bytes()[:60])
    (folder / "text.jpg").write_text("not a picture")
    named = vit("predict", "M", str(folder / "0.png"), str(folder / "text.jpg"), *form)
    assert named.status == 1
    answer = vit("predict", "M", str(folder), "--top", "1", *form)
    assert answer.status == 0  # in a folder they are skipped
    summary = answer.err.splitlines()[-1]
    assert summary.startswith(f"warning: skipped 2 unreadable images: {folder / '1.png'} (")
    assert summary.endswith(f", {folder / 'text.jpg'} (it is not an image in a known format)")
    assert str(folder / "0.png") in answer.out and str(folder / "2.png") in answer.out
    if form == ["--json"]:
        document = json.loads(answer.out)
        assert [*document[1]] == ["image", "error"] and [*document[2]] == ["image", "top"]
    else:
        assert (str(folder / "1.png") in answer.out) == (not form)  # the table has the reason


def test_the_summary_says_where_all_are_listed(vit: Callable[..., Any], folder: Path) -> None:
    for number in range(4):
        (folder / f"bad {number}.jpg").touch()
    summary = vit("predict", "M", str(folder), "--csv").err.splitlines()[-1]
    assert summary.startswith("warning: skipped 4 unreadable images: ")
    assert summary.endswith(" and 1 more; --json lists them all")


def test_all_images_fail(vit: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    answer = vit("predict", "M", str(tmp_path))
    assert answer.status == 1 and "can't be read: it is empty" in answer.out
    assert answer.err.splitlines()[1:] == [
        f"warning: skipped 1 unreadable image: {tmp_path / 'a.jpg'} (it is empty)"
    ]


def test_names_and_settings_reach_the_model(
    vit: Callable[..., Any], folder: Path, stored: SimpleNamespace
) -> None:
    names = folder / "names.txt"
    names.write_text("\n".join(f"my {name}" for name in NAMES), encoding="utf-8")
    flags = ["--names", str(names), "--image-size", "32x48", "--accept", "head.*", "--accept", "norm.*"]
    answer = vit("predict", "M@file", str(folder), "--json", *flags)
    assert answer.status == 0
    guess = json.loads(answer.out)[0]["top"][0]
    assert guess["name"] == f"my {NAMES[guess['index']]}"
    asked = {key: stored.asked[key] for key in ("spec", "image_size", "accept")}
    assert asked == {"spec": "M@file", "image_size": (32, 48), "accept": ["head.*", "norm.*"]}
    vit("predict", "M", str(folder), "--image-size", "48")
    assert stored.asked["image_size"] == (48, 48)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json", "--csv"], "--json and --csv both print the result"),
        (["--top", "0"], "--top"),
        (["--top", "-2"], "--top"),
        (["--batch-size", "0"], "--batch-size"),
        (["--batch-size", "many"], "--batch-size"),
        (["--image-size", "32x"], "--image-size is '32x'; expected"),
        (["--device", "gpu"], "unknown device 'gpu'"),
        (["--names", "nowhere.txt"], "cannot read the class names in nowhere.txt"),
        (["nowhere.png"], "no such file or folder: nowhere.png"),
    ],
)
def test_bad_input(vit: Callable[..., Any], folder: Path, arguments: list[str], message: str) -> None:
    answer = vit("predict", "M", str(folder), *arguments)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("error: ") and message in answer.err and answer.err.count("\n") == 1


def test_no_images_given(vit: Callable[..., Any]) -> None:
    assert vit("predict", "M").status == 2


def test_wrong_number_of_names(vit: Callable[..., Any], folder: Path) -> None:
    (folder / "names.txt").write_text("a\nb\n")
    answer = vit("predict", "M", str(folder), "--names", str(folder / "names.txt"))
    assert (answer.status, answer.err) == (2, "error: 2 class names for the 7 classes of tiny model\n")


def test_batches_give_the_same(vit: Callable[..., Any], folder: Path) -> None:
    tops = []
    for batch_size in ("1", "2", "3"):
        document = json.loads(vit("predict", "M", str(folder), "--json", "--batch-size", batch_size).out)
        tops.append([[guess["index"] for guess in entry["top"]] for entry in document])
    assert tops[0] == tops[1] == tops[2]


def test_progress_on_a_terminal_only(
    vit: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = vit("predict", "M", str(folder), "--json", "--batch-size", "1")
    assert "predicting" not in quiet.err
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = vit("predict", "M", str(folder), "--json", "--batch-size", "1")
    assert "predicting" in shown.err and "3/3" in shown.err
    assert json.loads(shown.out) == json.loads(quiet.out)
    one_batch = vit("predict", "M", str(folder), "--json", "--batch-size", "3")
    assert "predicting" not in one_batch.err


def test_the_page_runs(
    vit: Callable[..., Any], tmp_path: Path, stored: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[2] / "docs" / "predict.md"
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("holidays").mkdir()
    Path("names.txt").write_text("\n".join(NAMES), encoding="utf-8")
    for file in ("photo.jpg", "holidays/a.png"):
        Image.new("RGB", (64, 48), "orange").save(file)
    commands = [line for kind, block in blocks if kind == "sh" for line in block.splitlines()]
    assert len(commands) == 5
    for command in commands:
        words = shlex.split(command.split(">")[0], comments=True)
        answer = vit(*words[1:])
        assert answer.status == 0 and answer.out, answer.err
    names: dict[str, Any] = {}
    for kind, block in blocks:
        if kind == "python":
            exec(block, names)
    assert names["best"][0].name in NAMES
    assert names["features"].shape == (2, 32) and len(names["answers"]) == 1


def test_images_are_looked_for_once(
    vit: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []
    find = images._images_below
    monkeypatch.setattr(images, "_images_below", lambda path: looked.append(path) or find(path))
    assert vit("predict", "M", str(folder)).status == 0
    assert looked == [folder]
