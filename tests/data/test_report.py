"""The report on data: what is counted, what can't be read, which images are the same, and what the sheet shows."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.pytorch_data import Digits
from vitkit.data import open as opening
from vitkit.data.open import open_data, open_splits
from vitkit.data.pack import pack
from vitkit.data.report import ClassSize, Overlap, Range, describe_data, draw_sheet, look_at
from vitkit.data.sources.source import Source
from vitkit.data.spec import DataSpec, parse_spec
from vitkit.errors import InputError
from vitkit.figures import sheets


def draw(number: int, height: int = 6, width: int = 8) -> Image.Image:
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8))


def save(image: Image.Image, path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
    return str(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Six cats and two dogs to train with, one of each to test with, all different."""
    root = tmp_path / "photos"
    for number in range(6):
        save(draw(number), root / f"train/cat/{number}.png")
    for number in range(6, 8):
        save(draw(number), root / f"train/dog/{number}.png")
    save(draw(8), root / "test/cat/8.png")
    save(draw(9), root / "test/dog/9.png")
    return root


def test_a_source_and_a_data_set_of_pytorch_are_data() -> None:
    source, data = open_data("digits:val"), Digits("digits:test")
    report = describe_data(source, against=data)
    assert (report.data, [part.images for part in report.splits]) == ("digits:val", [len(source)])
    assert report.against is not None and report.against.images == len(data)
    assert describe_data(data).data.startswith("torch:Digits-")


def test_heic_is_reported_with_its_reader_and_without(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heif = pytest.importorskip("pillow_heif")
    heif.from_pillow(draw(20, 64, 80)).save(photos / "train/dog/20.HEIC")
    assert describe_data(str(photos)).splits[0].formats == {"PNG": 8, "HEIF": 1}
    packed = pack(str(photos), photos.parent / "packed", size=64)
    assert [part.images for part in packed.splits] == [9, 2]
    assert describe_data(photos.parent / "packed").splits[0].formats == {"PNG": 9}
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    [entry] = describe_data(str(photos)).splits[0].unreadable
    assert (entry.image, entry.reason) == (
        str(photos / "train/dog/20.HEIC"),
        'HEIC needs pillow-heif: pip install "vitkit[heic]"',
    )


def test_sound_data_is_counted(photos: Path) -> None:
    save(draw(10, 20, 30).convert("L"), photos / "train/dog/10.jpg")
    save(draw(11, 4, 50).convert("P"), photos / "train/dog/11.gif")
    report = describe_data(str(photos))
    train, test = report.splits
    assert (report.data, report.num_classes, train.split, test.split) == (
        str(photos),
        2,
        "train",
        "test",
    )
    assert (train.images, train.read, train.labels) == (10, 10, 10)
    assert train.classes == {"cat": 6, "dog": 4} and test.classes == {"cat": 1, "dog": 1}
    assert train.smallest == ClassSize("dog", 4)
    assert train.largest == ClassSize("cat", 6)
    assert train.height == Range(4, 6, 20)
    assert train.width == Range(8, 8, 50)
    assert train.modes == {"RGB": 8, "L": 1, "P": 1} and train.formats == {
        "PNG": 8,
        "JPEG": 1,
        "GIF": 1,
    }
    assert not train.unreadable and not report.duplicates.groups
    assert report.against is report.sheet is None and report.compared == []
    assert report.notes == [f"{photos}: 2 classes, sorted by name: cat, dog"]
    document = report.to_json()
    assert document["splits"][0]["smallest"] == {"class": "dog", "images": 4}
    assert document["duplicates"]["across"] == [{"split": "test", "in": "train", "images": 0}]
    json.dumps(document, allow_nan=False)


@pytest.mark.parametrize(
    ("counts", "balance"),
    [([5, 5, 5], 1.0), ([7], 0.0), ([9, 0], 0.0), ([1, 3], 0.8113), ([2, 2, 0, 0], 0.5)],
)
def test_balance_is_one_where_classes_are_alike(tmp_path: Path, counts: list[int], balance: float) -> None:
    save(draw(0), tmp_path / "1.png")
    lines = [f"1.png,c{number},test" for number, count in enumerate(counts) for _ in range(count)]
    lines += [f"1.png,c{number},train" for number in range(len(counts))]
    (tmp_path / "t.csv").write_text("image_path,label,split\n" + "\n".join(lines))
    [test] = describe_data(f"{tmp_path}/t.csv:test").splits
    assert test.balance == pytest.approx(balance, abs=1e-4)
    assert math.copysign(1, test.balance) == 1


def test_what_cannot_be_read_is_named_and_the_rest_is_done(photos: Path) -> None:
    (photos / "train/cat/0.png").write_bytes((photos / "train/cat/0.png").read_bytes()[:80])
    (photos / "train/dog/text.jpg").write_text("no picture")
    (photos / "test/dog/9.png").write_bytes(b"")
    train, test = describe_data(str(photos)).splits
    assert [entry.image for entry in train.unreadable] == [
        f"{photos}/train/cat/0.png",
        f"{photos}/train/dog/text.jpg",
    ]
    assert train.unreadable[1].reason.startswith("it is not an image in a known format")
    assert test.unreadable == [(f"{photos}/test/dog/9.png", "it is empty", f"{photos}:test")]
    assert sum(train.modes.values()) == 7 and (train.images, train.read) == (9, 7)


def test_a_split_of_which_nothing_can_be_read_has_no_sizes(photos: Path) -> None:
    for path in (photos / "test").rglob("*.png"):
        path.write_bytes(b"")
    test = describe_data(f"{photos}:test").splits[0]
    assert test.height is test.width is None and test.modes == {}


def test_copies_are_found_in_and_across_splits_in_any_file(photos: Path) -> None:
    first = photos / "train/cat/0.png"
    shutil.copy(first, photos / "train/cat/again.png")
    Image.open(first).save(photos / "test/cat/other.bmp")
    Image.open(photos / "train/cat/1.png").save(photos / "test/dog/lossless.webp", lossless=True)
    found = describe_data(str(photos)).duplicates
    assert found.within == {"train": 1, "test": 0}
    assert found.across == [Overlap("test", "train", 2)]
    assert found.with_different_classes == 1
    assert [[member.image.removeprefix(f"{photos}/") for member in group] for group in found.groups] == [
        ["train/cat/0.png", "train/cat/again.png", "test/cat/other.bmp"],
        ["train/cat/1.png", "test/dog/lossless.webp"],
    ]
    assert found.groups[1][1].classes == ["dog"] and found.groups[1][1].split == "test"


def test_one_pixel_more_or_less_is_another_image(png: Callable[[int], bytes]) -> None:
    array = np.array(draw(1))
    other = array.copy()
    other[2, 3, 0] ^= 1
    turned = array.reshape(8, 6, 3)
    digests = {look_at(pixels).digest for pixels in (array, other, turned)}
    assert len(digests) == 3
    assert look_at(png(3)).digest == look_at(png(3)).digest != look_at(png(4)).digest


def test_a_split_that_is_asked_for_is_compared_with_the_others(photos: Path) -> None:
    Image.open(photos / "train/cat/2.png").save(photos / "test/cat/copy.bmp")
    shutil.copy(photos / "train/cat/3.png", photos / "train/cat/again.png")
    report = describe_data(f"{photos}:test")
    assert [part.split for part in report.splits] == ["test"] and report.compared == ["train"]
    assert report.duplicates.across == [Overlap("test", "train", 1)]
    assert len(report.duplicates.groups) == 1
    train = describe_data(f"{photos}:train[:2]")
    assert train.splits[0].images == 2 and train.duplicates.across[0].images == 0
    assert train.duplicates.across[0].split == "test"
    everything = describe_data(f"{photos}:all")
    assert everything.duplicates.within == {"all": 2} and everything.duplicates.across == []


def test_slices_and_shots_are_of_each_split(photos: Path) -> None:
    assert [part.images for part in describe_data(f"{photos}[:50%]").splits] == [4, 1]
    assert [part.images for part in describe_data(f"{photos}[1shot,seed=3]").splits] == [2, 2]
    with pytest.raises(InputError, match="seed= needs shots or a slice"):
        describe_data(f"{photos}[seed=3]")


def test_data_without_a_split_is_looked_at_as_it_will_be_split(tmp_path: Path) -> None:
    for number in range(20):
        save(draw(number), tmp_path / f"a/{number}.png")
    shutil.copy(tmp_path / "a/0.png", tmp_path / "a/copy.png")
    report = describe_data(str(tmp_path))
    assert [part.images for part in report.splits] == [17, 2, 2]
    assert all(pair.images == 0 for pair in report.duplicates.across)
    assert len(report.duplicates.groups) == 1
    few = tmp_path / "few"
    save(draw(1), few / "a/1.png")
    save(draw(2), few / "a/2.png")
    assert [part.split for part in describe_data(str(few)).splits] == ["train", "test"]


def test_images_limits_what_is_read_and_says_so(photos: Path) -> None:
    told: list[tuple[int, int]] = []
    report = describe_data(str(photos), images=3, progress=lambda done, total: told.append((done, total)))
    train, test = report.splits
    assert (train.images, train.read, test.read) == (8, 3, 2)
    assert train.classes == {"cat": 6, "dog": 2}
    assert report.notes[-1] == (
        f"{photos}: read 3 of the 8 images of train, evenly spaced: only these are checked for unreadable images and copies"
    )
    assert told == [(number, 5) for number in range(1, 6)]
    assert report == describe_data(str(photos), images=3)
    with pytest.raises(InputError, match="images must be at least 1, not 0"):
        describe_data(str(photos), images=0)


def test_images_of_another_set_are_found(photos: Path, tmp_path: Path) -> None:
    bench = tmp_path / "bench"
    save(draw(2), bench / "test/pets/same.bmp")
    save(draw(8), bench / "test/pets/both.png")
    save(draw(99), bench / "test/pets/new.png")
    save(draw(3), bench / "train/pets/unasked.png")
    (bench / "test/pets/broken.png").write_bytes(b"")
    save(draw(8), photos / "train/dog/leak.png")
    found = describe_data(str(photos), against=str(bench)).against
    assert (found.data, found.split) == (f"{bench}:test", "test")
    assert (found.images, found.read, found.found) == (4, 3, 2)
    assert found.unreadable == [(f"{bench}/test/pets/broken.png", "it is empty", f"{bench}:test")]
    both, same = found.matches
    assert both.image == f"{bench}/test/pets/both.png" and both.classes == ["pets"]
    assert [(member.split, member.image) for member in both.found] == [
        ("train", f"{photos}/train/dog/leak.png"),
        ("test", f"{photos}/test/cat/8.png"),
    ]
    assert [member.image for member in same.found] == [f"{photos}/train/cat/2.png"]
    assert describe_data(f"{photos}:test", against=f"{bench}:train").against.found == 0
    assert describe_data(f"{photos}:test", against=str(bench)).against.found == 1


def test_pixels_that_are_no_files_have_no_format() -> None:
    report = describe_data("digits:test")
    [test] = report.splits
    assert (test.images, test.height.max, test.formats) == (382, 8, {"array": 382})
    assert report.compared == ["train", "val"]


def test_images_with_multi_label_count_for_each(tmp_path: Path) -> None:
    for number in range(3):
        save(draw(number), tmp_path / f"{number}.png")
    (tmp_path / "t.csv").write_text(
        "image_path,label,split\n0.png,a;b,train\n1.png,b,train\n2.png,,train\n0.png,b,test\n"
    )
    report = describe_data(f"{tmp_path}/t.csv", out=tmp_path / "sheet.png")
    train = report.splits[0]
    assert (train.images, train.labels, train.classes) == (3, 3, {"a": 1, "b": 2})
    assert (train.multi_label, train.unlabelled) == (True, 1)
    assert [member.classes for member in report.duplicates.groups[0]] == [["a", "b"], ["b"]]
    assert report.duplicates.with_different_classes == 1


def test_an_error_of_a_later_split_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        save(draw(number), tmp_path / f"photos/a/{number}.png")
    spec = parse_spec(f"{tmp_path}/photos")
    assert [source.split for source in open_splits(spec)] == ["train", "val", "test"]
    opened = opening.open_data

    def broken(spec: DataSpec, **settings: Any) -> Source:
        if spec.split == "val":
            raise InputError("the disk is gone")
        return opened(spec, **settings)

    monkeypatch.setattr(opening, "open_data", broken)
    with pytest.raises(InputError, match="the disk is gone"):
        open_splits(spec)


def test_a_split_that_cannot_be_opened_does_not_hide_the_others(photos: Path) -> None:
    save(draw(20), photos / "test/bird/20.png")
    fault = f"{photos}/test/bird/20.png has class 'bird', which {photos}/train lacks; add it there"
    for spec in (str(photos), f"{photos}:train"):
        report = describe_data(spec)
        assert [part.split for part in report.splits] == ["train"] and report.faults == [fault]
    with pytest.raises(InputError, match="has class 'bird'"):
        describe_data(f"{photos}:test")


def test_a_split_with_too_few_images_is_left_out(tmp_path: Path) -> None:
    for number in range(2):
        save(draw(number), tmp_path / f"photos/a/{number}.png")
    assert [source.split for source in open_splits(parse_spec(f"{tmp_path}/photos"))] == ["train", "test"]


def test_the_sheet_has_a_row_for_each_class(photos: Path, tmp_path: Path) -> None:
    (photos / "train/dog/7.png").write_bytes(b"")
    path = tmp_path / "sheet.png"
    assert describe_data(str(photos), out=path).sheet == str(path)
    with Image.open(path) as image:
        width = 2 * sheets.MARGIN + sheets.NAMES + sheets.TILES * (sheets.TILE + sheets.GAP) - sheets.GAP
        assert image.format == "PNG" and image.size == (
            width,
            2 * sheets.MARGIN + sheets.HEAD + 2 * sheets.TILE + sheets.GAP,
        )
        pixels = np.asarray(image.convert("RGB"))
    left, top = sheets.MARGIN + sheets.NAMES, sheets.MARGIN + sheets.HEAD
    middle = pixels[top + sheets.TILE // 2, left + sheets.TILE // 2]
    assert middle.tolist() in np.asarray(draw(0)).reshape(-1, 3).tolist()  # few pixels are not blurred
    assert pixels[top, left].tolist() == [0xF0, 0xF2, 0xF5]  # 6x8 pixels leave a strip above and below
    beyond = pixels[top : top + sheets.TILE, left + 6 * (sheets.TILE + sheets.GAP) :]
    assert (beyond == 255).all()  # six cats
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "sheet.png"]


def test_the_sheet_of_many_classes_shows_some(tmp_path: Path) -> None:
    for number in range(30):
        save(draw(number), tmp_path / f"photos/train/c{number:02d}/1.png")
    source = open_splits(parse_spec(f"{tmp_path}/photos:train"))[0]
    assert (
        draw_sheet(source).height
        == 2 * sheets.MARGIN + sheets.HEAD + 24 * (sheets.TILE + sheets.GAP) - sheets.GAP
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sheet.jpg", "the contact sheet is a PNG, not 'sheet.jpg': name it sheet.png"),
        ("no/sheet.png", "no folder "),
        ("photos.png", "photos.png is a folder; expected a file to write"),
        ("there.png", "there.png exists; --force overwrites it"),
    ],
)
def test_a_sheet_that_cannot_be_written_is_told_before_anything_is_read(
    photos: Path, tmp_path: Path, name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos.png").mkdir()
    (tmp_path / "there.png").write_bytes(b"mine")
    with monkeypatch.context() as patch:
        patch.setattr("vitkit.data.report._read", lambda *_: pytest.fail("images were read"))
        with pytest.raises(InputError, match=message):
            describe_data(str(photos), out=tmp_path / name)
    assert (tmp_path / "there.png").read_bytes() == b"mine"
    describe_data(str(photos), out=tmp_path / "there.png", force=True)
    assert (tmp_path / "there.png").read_bytes().startswith(b"\x89PNG")


SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "cifar100"


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/data/cifar100")
def test_cifar_100_holds_copies() -> None:
    found: dict[str, Any] = describe_data(str(SHARED)).duplicates
    assert found.across == [Overlap("test", "train", 10)]
