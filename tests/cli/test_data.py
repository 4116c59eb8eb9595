"""`vit data`: tables, JSON, the contact sheet, and every unreadable image by name."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitkit.data.report import describe_data

Vit = Callable[..., Any]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight images to train with and four to test with, in ./photos."""
    monkeypatch.chdir(tmp_path)
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 256, (6, 8, 3), np.uint8)
        folder = Path("photos", "train" if number < 8 else "test", "cat" if number % 4 else "[b]dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return Path("photos")


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip(" ─")]


def test_tables(vit: Vit, photos: Path) -> None:
    answer = vit("data", "./photos")
    assert answer.status == 0
    out = lines(answer.out)
    assert out[0] == ["./photos"]
    assert out[2] == ["train", "8", "2", "[b]dog:", "2", "cat:", "6", "0.811"]
    assert out[3] == ["test", "4", "2", "[b]dog:", "1", "cat:", "3", "0.811"]
    assert out[5] == ["train", "8", "0", "6x8", "6x8", "6x8", "RGB", "8", "PNG", "8"]
    assert answer.out.splitlines()[-1] == "copies: none"
    assert answer.err.splitlines() == [
        "./photos: 2 classes, sorted by name: [b]dog, cat",
        "--out FILE.png draws a contact sheet",
    ]
    assert sorted(path.name for path in Path().iterdir()) == ["photos"]


def test_verbose_names_every_class_and_every_copy(vit: Vit, photos: Path) -> None:
    for number in range(1, 8):
        shutil.copy(next(Path("photos/train/cat").iterdir()), f"photos/train/cat/copy{number}.png")
    short, full = vit("data", "./photos").out, vit("data", "./photos", "-v").out
    assert " and 3 more" in short and "more" not in full
    assert all(f"copy{number}.png" in full for number in range(1, 8))
    assert ["cat", "13", "3"] in lines(full) and ["cat", "13", "3"] not in lines(short)


def test_copies_are_told(vit: Vit, photos: Path) -> None:
    for number in range(1, 8):
        shutil.copy(
            photos / f"train/{'cat' if number % 4 else '[b]dog'}/{number}.png",
            photos / f"test/cat/c{number}.png",
        )
    shutil.copy(photos / "train/cat/1.png", photos / "train/cat/twice.png")
    answer = vit("data", "./photos")
    assert answer.status == 0
    said = answer.out.splitlines()
    assert "images of test that are also in train: 7" in said
    assert "images of train that repeat another one there: 1" in said
    assert "pictures that are in several classes: 1" in said
    assert "  ./photos/train/cat/1.png = ./photos/train/cat/twice.png = ./photos/test/cat/c1.png" in said
    assert said[-1] == "  and 2 more; --verbose names all"
    shutil.copy(photos / "test/cat/9.png", photos / "test/cat/last.png")  # no leak, and still told of
    assert vit("data", "./photos").out.splitlines()[-1] == "  and 3 more; --verbose names all"


def test_of_many_copies_some_are_named(vit: Vit, photos: Path) -> None:
    for number in range(7):
        shutil.copy(photos / "train/cat/1.png", photos / f"train/cat/1-{number}.png")
    assert vit("data", "./photos:train").out.splitlines()[-1].endswith("1-4.png and 3 more")


def test_a_title_is_not_read_as_an_emoji(vit: Vit, photos: Path) -> None:
    Path("photos").rename("train")
    assert vit("data", "./train:train:").status == 2
    assert vit("data", "./train:train").out.splitlines()[0] == "./train:train"
    shutil.copytree("train/train", "flat")
    assert vit("data", "./flat:train").out.splitlines()[0] == "./flat:train"


def test_multi_label_data_is_reported(vit: Vit, photos: Path) -> None:
    Path("t.csv").write_text(
        "path,label\nphotos/train/cat/1.png,a;b\nphotos/train/cat/2.png,\nphotos/train/cat/3.png,b\n"
    )
    line = "all: multi-label, 1.00 labels per image on average; images without any: 1"
    assert line in vit("data", "./t.csv:all").out.splitlines()
    assert "multi-label" not in vit("data", "./photos").out


def test_a_split_that_cannot_be_opened_is_told(vit: Vit, photos: Path) -> None:
    (photos / "test/cat").rename(photos / "test/bird")
    answer = vit("data", "./photos")
    assert answer.status == 1 and lines(answer.out)[2][0] == "train"
    fault = answer.err.splitlines()[-1]
    assert fault.startswith("can't be opened: ./photos/test/bird/") and "has class 'bird'" in fault


def test_all_unreadable_images_are_named(vit: Vit, photos: Path) -> None:
    (photos / "test/cat/9.png").write_bytes(b"")
    answer = vit("data", "./photos")
    assert answer.status == 0
    assert "can't be read: ./photos/test/cat/9.png: it is empty" in answer.out.splitlines()
    assert answer.err.splitlines()[-1] == "1 image can't be read; other commands skip such images"
    assert "can't be read" not in vit("data", "./photos:train").err


def test_unreadable_images_at_which_other_commands_stop(vit: Vit, photos: Path) -> None:
    """As they say themselves: too many, or all of a class."""
    (photos / "test/[b]dog/8.png").write_bytes(b"")
    for number in (1, 2):
        (photos / f"train/cat/{number}.png").write_bytes(b"")
    answer = vit("data", "./photos", "--json")
    refused = [
        "2 of 8 images of ./photos:train can't be read",
        "no image of class '[b]dog' of ./photos:test can be read",
    ]
    assert json.loads(answer.out)["refused"] == refused
    end = "other commands stop; --bad-images any continues"
    assert answer.err.splitlines()[-1] == f"{'; '.join(refused)}: {end}"
    for path in photos.rglob("train/cat/*.png"):
        path.write_bytes(b"")
    answer = vit("data", "./photos:train", "--against", "./photos")
    named = [line for line in answer.out.splitlines() if line.startswith("can't be read: ")]
    assert answer.status == 0 and len(named) == 7


def test_json_is_what_python_returns(vit: Vit, photos: Path) -> None:
    (photos / "test/[b]dog/8.png").write_bytes(b"")
    answer = vit("data", "./photos", "--json", "--images", "3", "--against", "./photos:test")
    assert answer.status == 0
    assert json.loads(answer.out) == describe_data("./photos", images=3, against="./photos:test").to_json()
    assert "read 3 of the 8 images of train" in answer.err


def test_against_another_set(vit: Vit, photos: Path) -> None:
    answer = vit("data", "./photos:train", "--against", "./photos")
    assert "images of ./photos:test that are also here: 0 of 4" in answer.out.splitlines()
    assert "./photos: using split 'test' (also: train)" in answer.err.splitlines()
    shutil.copy(photos / "train/cat/1.png", photos / "test/cat/leak.png")
    said = vit("data", "./photos:train", "--against", "./photos").out.splitlines()
    assert said[-2:] == [
        "images of ./photos:test that are also here: 1 of 5",
        "  ./photos/test/cat/leak.png = ./photos/train/cat/1.png",
    ]


def test_the_contact_sheet_is_written_once(vit: Vit, photos: Path) -> None:
    answer = vit("data", "./photos", "--out", "sheet.png")
    assert answer.status == 0 and answer.err.splitlines()[-1] == "contact sheet: sheet.png"
    with Image.open("sheet.png") as sheet:
        assert sheet.format == "PNG"
    again = vit("data", "./photos", "--out", "sheet.png")
    assert again == (2, "", "error: sheet.png exists; --force overwrites it\n")
    assert vit("data", "./photos", "--out", "sheet.png", "--force").status == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["./nowhere"], "no such file or folder: ./nowhere"),
        (["./photos:tset"], "./photos has no split 'tset'; did you mean 'test'?"),
        (["./photos", "--images", "0"], "--images"),
        (["./photos", "--out", "sheet.jpg"], "the contact sheet is a PNG"),
        (["./photos", "--against", "nowhere"], "unknown data source 'nowhere'"),
    ],
)
def test_bad_input(vit: Vit, photos: Path, arguments: list[str], message: str) -> None:
    answer = vit("data", *arguments)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("error: ") and message in answer.err and answer.err.count("\n") == 1


def test_odd_things_in_a_folder_are_told_and_stop_nothing(vit: Vit, photos: Path) -> None:
    for name in ("train/cow", "val"):
        (photos / name).mkdir()
    for name in (".DS_Store", "train/cat/Thumbs.db", "train/cat/.DS_Store"):
        (photos / name).touch()
    (photos / "train/cat/old").mkdir()
    shutil.copy(photos / "train/[b]dog/0.png", photos / "train/cat/old/0.png")
    answer = vit("data", "photos")
    assert answer.status == 0
    assert answer.err.splitlines()[:-1] == [
        "./photos: skipped ./photos/val: no images in class folders",
        "./photos/train: skipped 1 file, not images: 1 .db",
        "./photos/train: skipped 1 class folder without images: cow",
        "warning: './photos/train/cat/old' is inside the class 'cat' and became a class of its own ('cat/old'); "
        "move its images up if that was not intended",
        "./photos: 3 classes, sorted by name: [b]dog, cat, cat/old",
    ]


def test_a_link_to_nothing_is_unreadable(vit: Vit, photos: Path) -> None:
    shutil.copytree("photos/train", "flat")
    Path("flat/cat/broken.png").symlink_to("nowhere")
    answer = vit("data", "./flat")
    assert answer.status == 0
    assert "can't be read: ./flat/cat/broken.png: No such file or directory" in answer.out.splitlines()


def test_missing_files_of_a_table_are_unreadable(vit: Vit, photos: Path) -> None:
    rows = "".join(f"photos/train/cat/{number}.png,cat\n" for number in range(8))
    Path("t.csv").write_text("path,label\n" + rows)  # 0 and 4 are dogs
    answer = vit("data", "./t.csv")
    assert answer.status == 1
    assert answer.err.splitlines()[-1].endswith("other commands stop; --bad-images any continues")
    assert "2 of 8 files are missing, the first in line 2: " in answer.err


def test_progress_on_a_terminal_only(vit: Vit, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = vit("data", "./photos", "--json")
    assert "reading" not in quiet.err
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = vit("data", "./photos", "--json")
    assert "reading" in shown.err and "12/12" in shown.err
    assert shown.out == quiet.out


def test_long_work_says_how_far_it_is_in_a_pipe(
    vit: Vit, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=4)  # seconds from one image to the next
    monkeypatch.setattr("vitkit.progress.time", SimpleNamespace(monotonic=lambda: next(clock)))
    said = [line for line in vit("data", "./photos", "--json").err.splitlines() if "reading" in line]
    assert said == [
        "reading: 3 of 12, 0:36 left",
        "reading: 6 of 12, 0:24 left",
        "reading: 9 of 12, 0:12 left",
        "reading: 12 of 12",
    ]
