"""Packing: what comes out opens as what went in, a stopped run goes on, and nothing is half written or mixed."""

from __future__ import annotations

import gc
import io
import json
import os
import tarfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import webdataset
from PIL import Image

from tests.pytorch_data import Digits
from vitkit.data.decode import decode
from vitkit.data.open import open_data
from vitkit.data.pack import pack, shrink
from vitkit.errors import InputError
from vitkit.files import written_whole

FORMATS = ["tar", "parquet"]


def draw(number: int, height: int = 20, width: int = 30) -> Image.Image:
    coarse = np.random.default_rng(number).integers(0, 256, (3, 4, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str, **settings: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return buffer.getvalue()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Seven images to train with and two to test with, some larger than 16 pixels."""
    root = tmp_path / "photos"
    for number in range(9):
        folder = root / ("train" if number < 7 else "test") / ("cat" if number % 3 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        height, width = (20, 30) if number % 2 else (16, 12)
        draw(number, height, width).save(folder / f"{number}.{'png' if number % 4 else 'jpg'}")
    return root


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def error(*arguments: Any, **settings: Any) -> str:
    with pytest.raises(InputError) as caught:
        pack(*arguments, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_source_and_a_data_set_of_pytorch_are_packed(tmp_path: Path) -> None:
    for data in (open_data("digits:val"), Digits("digits:val")):
        target = tmp_path / type(data).__name__ / str(isinstance(data, Digits))
        pack(data, target)
        packed = open_data(f"{target}:all")
        assert packed.labels.tolist() == open_data("digits:val").labels.tolist()


@pytest.mark.parametrize("to", FORMATS)
def test_what_is_packed_opens_as_what_it_was(photos: Path, tmp_path: Path, to: Any) -> None:
    target = tmp_path / "packed"
    result = pack(str(photos), target, size=16, to=to, images_per_shard=3)
    names = [f"test-000000.{to}", *(f"train-{number:06d}.{to}" for number in range(3))]
    assert sorted(contents(target)) == sorted(["classes.txt", "pack.json", *names])
    assert [(part.split, part.shards, part.images, part.shrunk) for part in result.splits] == [
        ("train", 3, 7, 3),
        ("test", 1, 2, 1),
    ]
    sizes = sum((target / name).stat().st_size for name in names)
    assert sum(part.bytes for part in result.splits) == sizes
    assert json.loads((target / "pack.json").read_text())["complete"] is True
    for split in ("train", "test"):
        before = open_data(f"{photos}:{split}", default="train")
        after = open_data(f"{target}:{split}", default="train")
        assert after.class_names == before.class_names == ("cat", "dog")
        assert after.labels.tolist() == before.labels.tolist()
        for index in range(len(before)):
            old, new = decode(before.read(index)), after.read(index)
            if old.shape[1] > 16:
                pixels = Image.fromarray(old.permute(1, 2, 0).numpy())
                assert new == encoded(pixels.resize((24, 16), Image.Resampling.BICUBIC), "JPEG", quality=95)
            else:
                assert new == Path(str(before.read(index))).read_bytes()


def test_webdataset_reads_the_tar_files(photos: Path, tmp_path: Path) -> None:
    pack(str(photos), tmp_path / "packed", size=16, images_per_shard=4)
    pattern = f"{tmp_path}/packed/train-{{000000..000001}}.tar"
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ResourceWarning
        )  # webdataset leaves its files to the garbage collector
        reader = webdataset.WebDataset(pattern, shardshuffle=False).decode("rgb8")
        samples = [(sample.get("jpg", sample.get("png")), sample["cls"]) for sample in reader]
        del reader
        gc.collect()
    source = open_data(f"{photos}:train", default="train")
    assert [label for _, label in samples] == source.labels.tolist()
    assert all(min(pixels.shape[:2]) <= 16 for pixels, _ in samples)


def test_parquet_is_as_the_hubs_library_writes_it(photos: Path, tmp_path: Path) -> None:
    pack(str(photos), tmp_path / "packed", to="parquet")
    table = pyarrow.parquet.read_table(tmp_path / "packed/train-000000.parquet")
    assert table.schema.field("label").type == "int64"
    assert {field.name for field in table.schema.field("image").type} == {"bytes", "path"}
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features == {
        "image": {"_type": "Image"},
        "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
    }
    first = table.column("image")[0].as_py()
    assert Image.open(io.BytesIO(first["bytes"])).size and first["path"] == "000000000.png"
    (tmp_path / "packed/classes.txt").unlink()
    assert open_data(f"{tmp_path}/packed", default="train").class_names == ("cat", "dog")


def test_row_groups_are_small(tmp_path: Path) -> None:
    pack("digits:val", tmp_path / "packed", to="parquet")
    file = pyarrow.parquet.ParquetFile(tmp_path / "packed/val-000000.parquet")
    assert [file.metadata.row_group(number).num_rows for number in range(3)] == [100, 100, 58]
    before, after = (
        open_data("digits:val", default="train"),
        open_data(f"{tmp_path}/packed:val", default="train"),
    )
    assert after.labels.tolist() == before.labels.tolist() and after.class_names == before.class_names
    assert all((decode(after.read(n)) == decode(before.read(n))).all() for n in range(0, 258, 10))


@pytest.mark.parametrize("to", FORMATS)
def test_the_same_input_gives_the_same_bytes(photos: Path, tmp_path: Path, to: Any) -> None:
    for name in ("a", "b"):
        pack(str(photos), tmp_path / name, size=16, to=to, images_per_shard=3)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def broken_writer(after: int) -> Any:
    """A writer that is interrupted in the middle of a shard, once some are done."""
    from vitkit.data.pack import write_tar

    calls = 0

    def write(path: Path, rows: Any, names: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            next(iter(rows))
            path.write_bytes(b"half a shard")
            raise KeyboardInterrupt
        write_tar(path, rows, names)

    return write


def test_a_stopped_run_goes_on(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"size": 16, "images_per_shard": 3}
    pack(str(photos), tmp_path / "straight", **settings)
    target = tmp_path / "packed"
    with monkeypatch.context() as patch:
        patch.setitem(pack.__globals__["WRITERS"], "tar", broken_writer(1))
        with pytest.raises(KeyboardInterrupt):
            pack(str(photos), target, **settings)
    assert sorted(contents(target)) == ["classes.txt", "pack.json", "train-000000.tar"]
    assert json.loads((target / "pack.json").read_text())["complete"] is False
    first = (target / "train-000000.tar").stat().st_mtime_ns
    told: list[tuple[int, int]] = []
    result = pack(str(photos), target, **settings, progress=lambda done, total: told.append((done, total)))
    assert (result.resumed_shards, result.shards) == (1, 4)
    assert told == [
        (number, 6) for number in range(1, 7)
    ]  # the three images of the first shard are not read again
    assert (target / "train-000000.tar").stat().st_mtime_ns == first
    assert contents(target) == contents(tmp_path / "straight")
    assert pack(str(photos), target, **settings).resumed_shards == 4


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_shard_that_is_cut_or_gone_is_written_again(photos: Path, tmp_path: Path, damage: str) -> None:
    target = tmp_path / "packed"
    pack(str(photos), target, images_per_shard=3)
    before, shard = contents(target), target / "train-000001.tar"
    shard.unlink() if damage == "gone" else shard.write_bytes(shard.read_bytes()[:-100])
    assert pack(str(photos), target, images_per_shard=3).resumed_shards == 3
    assert contents(target) == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"size": 15},
            "size is 16 there, 15 here; choose another folder, or start over with --force",
        ),
        ({"quality": 80}, "quality is 95 there, 80 here"),
        ({"images_per_shard": 5}, "images_per_shard is 3 there, 5 here"),
        ({"to": "parquet"}, 'to is "tar" there, "parquet" here'),
    ],
)
def test_other_settings_are_an_error_unless_forced(
    photos: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    target, same = tmp_path / "packed", {"size": 16, "images_per_shard": 3}
    pack(str(photos), target, **same)
    before = contents(target)
    assert f"{target} holds a packed data set with other settings: {message}" in error(
        str(photos), target, **{**same, **settings}
    )
    assert contents(target) == before
    pack(str(photos), target, **{**same, **settings}, force=True)
    pack(str(photos), tmp_path / "new", **{**same, **settings})
    assert contents(target) == contents(tmp_path / "new")


@pytest.mark.parametrize("change", ["image", "label", "split"])
def test_a_source_that_has_changed_is_an_error(photos: Path, tmp_path: Path, change: str) -> None:
    target = tmp_path / "packed"
    pack(str(photos), target)
    if change == "image":
        draw(77).save(photos / "train/cat/1.png")
    elif change == "label":
        (photos / "train/cat/1.png").rename(photos / "train/dog/1.png")
    else:
        (photos / "val/cat").mkdir(parents=True)
        draw(77).save(photos / "val/cat/1.png")
    answer = error(str(photos), target)
    assert answer.startswith(
        f"{target} was packed from {photos}, but the source is different or has changed: choose"
    )


def test_a_run_that_wrote_nothing_binds_to_nothing(photos: Path, tmp_path: Path) -> None:
    (photos / "train/cat/1.png").write_bytes(b"")
    assert "it is empty; --bad-images skip (bad_images='skip' in Python) skips unreadable images" in error(
        str(photos), tmp_path / "packed", bad_images="error"
    )
    draw(1).save(photos / "train/cat/1.png")
    assert pack(str(photos), tmp_path / "packed", size=16).splits[0].images == 7


def test_bad_images_are_skipped_and_named_or_stop_it(photos: Path, tmp_path: Path) -> None:
    bad = photos / "train/cat/5.png"
    bad.write_bytes(bad.read_bytes()[:60])
    target, settings = tmp_path / "packed", {"images_per_shard": 3}
    answer = error(str(photos), target, **settings, bad_images="error")
    assert answer.startswith(f"cannot read {bad}: ") and answer.endswith(
        "; --bad-images skip (bad_images='skip' in Python) skips unreadable images"
    )
    assert sorted(contents(target)) == ["classes.txt", "pack.json", "train-000000.tar"]
    result = pack(str(photos), target, **settings)
    assert result.resumed_shards == 1 and [entry.image for entry in result.unreadable] == [str(bad)]
    assert result.notes[-1].startswith(f"skipped 1 unreadable image of {photos}:train: {bad} (")
    before, after = (open_data(f"{root}:train", default="train") for root in (photos, target))
    kept = [index for index in range(7) if before.where(index) != str(bad)]
    assert after.labels.tolist() == before.labels[kept].tolist() and len(kept) == 6
    again = pack(str(photos), target, **settings)
    assert again.unreadable == result.unreadable and again.resumed_shards == 4
    assert error(str(photos), target, **settings, bad_images="error") == answer


def test_too_many_bad_images_stop_packing_and_any_number_may_be_skipped(photos: Path, tmp_path: Path) -> None:
    for bad in ("train/cat/1.png", "train/cat/5.png"):
        (photos / bad).write_bytes(b"")
    target = tmp_path / "packed"
    for number_of_shards in (3, 2):  # over shards and runs
        answer = error(str(photos), target, images_per_shard=number_of_shards, force=number_of_shards == 2)
        assert answer.startswith(f"2 of 7 images of {photos}:train can't be read, so results would mislead: ")
        assert answer.endswith("continue without them: --bad-images any (bad_images='any' in Python)")
    assert error(str(photos), target, images_per_shard=2) == answer
    result = pack(str(photos), target, images_per_shard=2, bad_images="any")
    assert result.resumed_shards > 0 and [part.images for part in result.splits] == [5, 2]
    assert error(str(photos), target, images_per_shard=2) == answer


def test_a_class_without_a_readable_image_stops_packing(photos: Path, tmp_path: Path) -> None:
    (photos / "train/owl").mkdir()
    (photos / "train/owl/only.png").write_bytes(b"")
    assert f"no image of class 'owl' of {photos}:train can be read" in error(str(photos), tmp_path / "packed")


def test_after_a_file_is_removed_the_advice_works(photos: Path, tmp_path: Path) -> None:
    bad, target = photos / "train/cat/5.png", tmp_path / "packed"
    bad.write_bytes(b"")
    error(str(photos), target, images_per_shard=3, bad_images="error")
    bad.unlink()
    assert error(str(photos), target, images_per_shard=3).endswith("or start over with --force (force=True)")
    result = pack(str(photos), target, images_per_shard=3, force=True)
    assert not result.unreadable and [part.images for part in result.splits] == [6, 2]


def test_a_link_to_nothing_is_skipped(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / "photos/a").mkdir(parents=True, exist_ok=True)
        draw(number).save(tmp_path / f"photos/a/{number}.png")
    (tmp_path / "photos/a/broken.png").symlink_to("nowhere")
    assert "broken.png: No such file or directory; --bad-images" in error(
        tmp_path / "photos", tmp_path / "p", bad_images="error"
    )
    result = pack(tmp_path / "photos", tmp_path / "p")
    assert [entry.image for entry in result.unreadable] == [f"{tmp_path}/photos/a/broken.png"]
    assert sum(part.images for part in result.splits) == 6


def test_only_folders_of_its_own_are_written_to(photos: Path, tmp_path: Path) -> None:
    target = tmp_path / "mine"
    target.mkdir()
    (target / "train-000000.tar").write_bytes(b"precious")
    for force in (False, True):
        answer = error(str(photos), target, force=force)
        why = "holds 'train-000000.tar' and no pack.json: not a packed data set; choose another folder"
        assert answer == f"{target} {why}"
        assert why in error(str(photos), photos.parent / "photos" / ".." / "mine", force=force)
    (target / "pack.json").write_text("[]")
    assert error(str(photos), target, force=True) == (
        f"{target}/pack.json is damaged: expected one JSON object; not a packed data set of vitkit, so --force will not "
        "delete it: choose another folder"
    )
    assert (target / "train-000000.tar").read_bytes() == b"precious"
    file = tmp_path / "file"
    file.write_text("x")
    assert "file can't be written: File exists" in error(str(photos), file)


def test_the_source_is_never_written_to(photos: Path, tmp_path: Path) -> None:
    for target in (photos, photos / "packed", tmp_path):
        assert "is inside the other: pack into another folder" in error(str(photos), target, force=True)
    packed = tmp_path / "packed"
    pack(str(photos), packed, size=16)
    before = contents(packed)
    for spec in (str(packed), f"{packed}/train-*.tar"):
        assert "is inside the other" in error(spec, packed, size=8, force=True)
    assert contents(packed) == before


def test_a_split_or_a_part_is_packed_alone(photos: Path, tmp_path: Path) -> None:
    pack(f"{photos}:test", tmp_path / "test")
    assert sorted(contents(tmp_path / "test")) == ["classes.txt", "pack.json", "test-000000.tar"]
    result = pack(f"{photos}[:50%]", tmp_path / "half")
    assert [part.images for part in result.splits] == [3, 1]
    everything = pack(f"{photos}:all", tmp_path / "every")
    assert (
        everything.notes[-1] == "the shards' names say neither train, val nor test: open them as 'FOLDER:all'"
    )
    assert (
        open_data(f"{tmp_path}/every:all", default="train").labels.tolist()
        == open_data(f"{photos}:all", default="train").labels.tolist()
    )


def test_a_split_that_is_made_stays_the_same(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / "photos/a").mkdir(parents=True, exist_ok=True)
        draw(number).save(tmp_path / f"photos/a/{number}.png")
    pack(f"{tmp_path}/photos", tmp_path / "packed")
    for split in ("train", "val", "test"):
        before, after = (
            open_data(f"{tmp_path}/{name}:{split}", default="train") for name in ("photos", "packed")
        )
        assert [Path(str(before.read(n))).read_bytes() for n in range(len(before))] == [
            after.read(n) for n in range(len(after))
        ]


def test_splits_of_other_names_are_packed_alone(tmp_path: Path) -> None:
    draw(1).save(tmp_path / "1.png")
    table = tmp_path / "t.csv"
    table.write_text("path,label,split\n1.png,a,train\n1.png,a,extra\n")
    result = pack(str(table), tmp_path / "packed")
    assert [part.split for part in result.splits] == ["train"]
    assert result.notes[-1] == f"{table}: skipped extra; pack it alone, as '{table}:extra'"
    assert [part.split for part in pack(f"{table}:extra", tmp_path / "extra").splits] == ["extra"]
    table.write_text("path,label,split\n1.png,a,x\n1.png,a,y\n")
    assert error(str(table), tmp_path / "no") == (
        f"{table} has no train, val or test, only x, y: name the split to pack, such as '{table}:x'"
    )


def test_multi_label_are_refused(tmp_path: Path) -> None:
    draw(1).save(tmp_path / "1.png")
    (tmp_path / "t.csv").write_text("path,label,split\n1.png,a;b,train\n")
    answer = error(f"{tmp_path}/t.csv", tmp_path / "packed")
    assert (
        answer == f"{tmp_path}/t.csv is multi-label, and shards hold one label per image: it can't be packed"
    )
    assert not (tmp_path / "packed").exists()


@pytest.mark.parametrize("to", FORMATS)
def test_classes_named_by_numbers_keep_their_labels(tmp_path: Path, to: Any) -> None:
    names = tuple(map(str, range(1, 13)))  # label 0 is class 1
    for number in names:
        (tmp_path / f"photos/train/{number}").mkdir(parents=True)
        draw(int(number)).save(tmp_path / f"photos/train/{number}/1.png")
    result = pack(f"{tmp_path}/photos", tmp_path / "packed", to=to)
    before, after = (open_data(f"{tmp_path}/{name}", default="train") for name in ("photos", "packed"))
    assert after.class_names == before.class_names == names
    assert after.labels.tolist() == before.labels.tolist()
    assert (result.notes[-1].startswith("class names are numbers that differ from the class numbers")) == (
        to == "tar"
    )


def test_class_names_that_no_line_can_hold_are_refused(tmp_path: Path) -> None:
    (tmp_path / "photos/train/ a").mkdir(parents=True)
    draw(1).save(tmp_path / "photos/train/ a/1.png")
    assert "a class name starts or ends with a space" in error(f"{tmp_path}/photos", tmp_path / "packed")


def exif(orientation: int) -> Image.Exif:
    found = Image.Exif()
    found[0x0112] = orientation
    return found


@pytest.mark.parametrize(
    ("data", "suffix"),
    [
        (encoded(draw(1), "JPEG"), "jpg"),
        (encoded(draw(1), "PNG"), "png"),
        (encoded(draw(1), "WEBP"), "webp"),
        (encoded(draw(1).convert("L"), "JPEG", exif=exif(1)), "jpg"),
    ],
)
def test_a_small_plain_file_is_kept_as_it_is(data: bytes, suffix: str) -> None:
    assert shrink(data, 20, 95) == (data, suffix, False)


@pytest.mark.parametrize(
    "data",
    [
        encoded(draw(1), "JPEG", exif=exif(6)),
        encoded(draw(1), "BMP"),
        encoded(draw(1).convert("P"), "GIF", comment=b"by me"),
        encoded(draw(1).convert("CMYK"), "JPEG"),
        encoded(draw(1).convert("RGBA"), "PNG"),
        encoded(Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100), "PNG"),
        encoded(draw(1), "WEBP", save_all=True, append_images=[draw(2)]),
    ],
)
def test_another_small_file_keeps_its_pixels_as_png(data: bytes) -> None:
    packed = shrink(data, 20, 95)
    assert (packed.suffix, packed.is_shrunk) == ("png", False)
    assert (decode(packed.data) == decode(data)).all()
    image = Image.open(io.BytesIO(packed.data))
    image.load()
    assert (image.mode, image.info) == ("RGB", {})


@pytest.mark.parametrize(
    ("height", "width", "size"), [(20, 30, 10), (30, 20, 10), (21, 64, 20), (300, 2, 1), (257, 257, 256)]
)
def test_the_shorter_side_gets_the_size(height: int, width: int, size: int) -> None:
    packed = shrink(np.asarray(draw(1, height, width)), size, 95)
    image = Image.open(io.BytesIO(packed.data))
    assert (image.format, packed.suffix, packed.is_shrunk) == ("JPEG", "jpg", True)
    assert min(image.size) == size
    assert image.size == (int(size * width / min(height, width)), int(size * height / min(height, width)))


def test_quality_is_that_of_the_jpeg() -> None:
    large = np.random.default_rng(0).integers(0, 256, (90, 90, 3), np.uint8)
    sizes = [len(shrink(large, 60, quality).data) for quality in (30, 60, 95)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[2] / 2


def test_a_grey_array_is_packed(tmp_path: Path) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (8, 8, 1), np.uint8)
    assert (decode(shrink(grey, 8, 95).data) == decode(grey)).all()
    assert decode(shrink(grey, 4, 95).data).shape == (3, 4, 4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size must be at least 1 and at most 65536, not 0"),
        ({"quality": 101}, "quality must be at least 1 and at most 100, not 101"),
        ({"images_per_shard": 0}, "images_per_shard must be at least 1 and at most 1000000000, not 0"),
        ({"to": "zip"}, "cannot pack to 'zip'; expected tar or parquet"),
    ],
)
def test_settings_out_of_range(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    assert message in error("digits", tmp_path / "packed", **settings)
    assert not (tmp_path / "packed").exists()


def test_generated_images_are_packed_and_told_apart_by_their_spec(tmp_path: Path) -> None:
    pack("shapes:val[:20,size=16]", tmp_path / "packed", size=16)
    before = open_data("shapes:val[:20,size=16]", default="train")
    after = open_data(f"{tmp_path}/packed:val", default="train")
    assert after.labels.tolist() == before.labels.tolist()
    assert all((decode(after.read(n)) == decode(before.read(n))).all() for n in range(20))
    assert "the source is different" in error("shapes:val[:20,size=32]", tmp_path / "packed", size=16)


def test_headers_of_tar_files_say_nothing_of_time_and_owner(photos: Path, tmp_path: Path) -> None:
    pack(str(photos), tmp_path / "packed")
    with tarfile.open(tmp_path / "packed/train-000000.tar") as tar:
        members = tar.getmembers()
    assert [member.name for member in members[:4]] == [
        "000000000.png",
        "000000000.cls",
        "000000001.png",
        "000000001.cls",
    ]
    assert {(member.mtime, member.uid, member.uname, member.mode) for member in members} == {
        (0, 0, "", 0o644)
    }


def test_a_disk_that_is_full_is_an_error_and_leaves_no_part(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, rows: Any, names: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(pack.__globals__["WRITERS"], "tar", full)
    assert error(str(photos), tmp_path / "packed") == (
        f"{tmp_path}/packed/train-000000.tar can't be written: No space left on device"
    )
    assert not (tmp_path / "packed").exists()


def test_a_second_run_into_the_same_folder_is_refused(photos: Path, tmp_path: Path) -> None:
    target, answers = tmp_path / "packed", []

    def start_another(done: int, total: int) -> None:
        if done == 1:
            answers.append(error(str(photos), target))

    pack(str(photos), target, progress=start_another)
    (answer,) = answers
    assert answer.startswith(f"{target} is in use by process {os.getpid()} on ")
    assert len(open_data(f"{target}:train", default="train")) == 7


def test_two_writers_of_one_file_have_a_part_each(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with written_whole(path) as first, written_whole(path) as second:
        first.write_bytes(b"first")
        second.write_bytes(b"second")
        assert first.read_bytes() == b"first"
    assert contents(tmp_path) == {"file": b"first"}


@pytest.mark.parametrize("name", ["file/inside", "x" * 250])
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(InputError, match=f"{name[-6:]} can't be written: "),
        written_whole(tmp_path / name) as part,
    ):
        part.write_bytes(b"")


def test_what_a_killed_run_left_is_removed(photos: Path, tmp_path: Path) -> None:
    target = tmp_path / "packed"
    target.mkdir()
    (target / ".pack.json.0123abcd.part").write_bytes(b"{")
    pack(str(photos), target)
    (target / ".train-000000.tar.0123abcd.part").write_bytes(b"half")
    pack(str(photos), target)
    assert [name for name in contents(target) if name.endswith(".part")] == []


def test_what_is_not_packed_to_the_end_says_so(photos: Path, tmp_path: Path) -> None:
    target = tmp_path / "packed"

    def stop(done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(str(photos), target, images_per_shard=2, progress=stop)
    note = f"{target}: packing was not finished, images are missing; the same `vit pack` resumes"
    assert note in open_data(f"{target}:train", default="train").notes
    pack(str(photos), target, images_per_shard=2)
    assert note not in open_data(f"{target}:train", default="train").notes
    (target / "train-000001.tar").unlink()
    note = f"{target}: without train-000001.tar, images are missing; the same `vit pack` resumes"
    assert note in open_data(f"{target}:train").notes


def test_a_folder_of_an_earlier_version_is_gone_on_with(photos: Path, tmp_path: Path) -> None:
    target = tmp_path / "packed"
    pack(str(photos), target, images_per_shard=3)
    manifest, before = json.loads((target / "pack.json").read_text()), contents(target)
    for name in ("format", "kind", "status", "message"):
        del manifest[name]
    (target / "pack.json").write_text(json.dumps(manifest))
    (target / "train-000001.tar").unlink()
    assert pack(str(photos), target, images_per_shard=3).resumed_shards == 3
    assert contents(target) == before
