"""Folders of images: any tree of classes, with splits or without, and every footgun a clear error or a note."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitkit.data.decode import decode
from vitkit.data.open import list_splits, open_data
from vitkit.data.sources.source import Source
from vitkit.errors import InputError

SHARED = Path(__file__).parents[3].parent / "shared" / "data"
Png = Callable[[int], bytes]


def write(root: Path, files: dict[str, bytes]) -> str:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return str(root)


def found(source: Source) -> list[tuple[str, str]]:
    """Class and file name of each image."""
    return [
        (source.class_names[label], os.path.basename(source.where(index)))
        for index, label in enumerate(source.labels)
    ]


def error(spec: str, **arguments: object) -> str:
    with pytest.raises(InputError) as caught:
        open_data(spec, **{"default": "train", **arguments})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("word", ["val", "valid", "validation", "dev"])
def test_splits_go_by_any_of_their_words(tmp_path: Path, word: str) -> None:
    root = write(tmp_path, {f"{split}/{c}/{split}.png": b"" for split in ("train", word) for c in "ba"})
    train = open_data(root, default="train")
    assert found(train) == [("a", "train.png"), ("b", "train.png")]
    assert train.notes == (
        f"{root}: using split 'train' (also: val)",
        f"{root}: 2 classes, sorted by name: a, b",
    )
    for asked in ("", ":val", f":{word}"):
        source = open_data(root + asked, default="measure")
        assert source.split == "val"
        assert found(source) == [("a", f"{word}.png"), ("b", f"{word}.png")]
    assert len(open_data(root + ":all", default="train")) == 4
    assert "has no split 'test'; it has train, val, all" in error(root + ":test")


def test_a_folder_named_like_a_split_is_that_split_and_not_cut(tmp_path: Path, png: Png) -> None:
    files = {f"{c}/{number}.png": png(number + 20 * (c == "b")) for c in "ab" for number in range(20)}
    val = write(tmp_path / "val", files)
    for asked in ("", ":val"):
        source = open_data(val + asked, default="measure")
        assert (source.split, len(source)) == ("val", 40)
    assert source.notes[0] == f"{val}: using all of it as 'val', because of its name"
    assert len(open_data(val, default="train")) == 32  # whoever trains on it has splits made
    train = write(tmp_path / "train", files)
    assert (open_data(train).split, len(open_data(train))) == ("train", 40)


def test_classes_are_those_of_train_and_matched_by_name(tmp_path: Path) -> None:
    root = write(tmp_path, {f"train/{c}/1.png": b"" for c in ("ant", "bee", "cat")} | {"test/cat/1.png": b""})
    test = open_data(root, default="measure")
    assert test.class_names == ("ant", "bee", "cat")
    assert test.labels.tolist() == [2]
    mapped = open_data(root, default="measure", classes=["cat", "bee", "ant"])
    assert mapped.labels.tolist() == [0]
    assert mapped.notes[-1] == f"{root}: no image of 2 of the 3 classes"
    assert "has class 'cat', which is none of the 2 expected" in error(root + ":test", classes=["ant", "bee"])
    write(tmp_path, {"test/dog/1.png": b""})
    assert (
        error(root + ":test")
        == f"{root}/test/dog/1.png has class 'dog', which {root}/train lacks; add it there"
    )


def test_hidden_files_and_folders_are_no_classes(tmp_path: Path) -> None:
    files = {
        "a/1.png": b"",
        "b/2.JPEG": b"",
        ".ipynb_checkpoints/3.png": b"",
        "a/.hidden.png": b"",
        "a/._1.png": b"",
    }
    assert found(open_data(write(tmp_path, files) + ":all", default="train")) == [
        ("a", "1.png"),
        ("b", "2.JPEG"),
    ]


def test_nested_classes_are_named_by_the_folder_that_holds_the_image(tmp_path: Path) -> None:
    files = {"dogs/poodle/1.png": b"", "dogs/husky/2.png": b"", "cats/3.png": b"", "dogs/4.png": b""}
    source = open_data(write(tmp_path, files) + ":all", default="train")
    assert source.class_names == ("cats", "dogs", "dogs/husky", "dogs/poodle")
    assert found(source) == [
        ("cats", "3.png"), ("dogs", "4.png"), ("dogs/husky", "2.png"), ("dogs/poodle", "1.png"),
    ]  # fmt: skip


def test_a_class_may_be_called_like_a_split(tmp_path: Path) -> None:
    files = {"train/1.png": b"", "bus/2.png": b"", "test/3.png": b""}
    assert open_data(write(tmp_path, files) + ":all", default="train").class_names == ("bus", "test", "train")


def test_other_folders_beside_splits_are_left_out_and_told(tmp_path: Path) -> None:
    files = {
        "train/a/1.png": b"",
        "val/a/2.png": b"",
        "labels/a/3.png": b"",
        "train/a/notes.txt": b"",
        "train/x.XML": b"",
    }
    source = open_data(write(tmp_path, files) + ":train", default="train")
    assert found(source) == [("a", "1.png")]
    assert source.notes == (
        f"{tmp_path}: skipped labels, next to the folders of its splits",
        f"{tmp_path}/train: skipped 2 files, not images: 1 .xml, 1 .txt",
        f"{tmp_path}: 1 class, sorted by name: a",
    )


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            ["1.png", "2.png"],
            "{root} holds 2 images but no class folders; expected FOLDER/CLASS/image.jpg, or",
        ),
        (["a/1.txt", "a/2.png.1"], "no images in {root}: only 1 .txt, 1 .1; expected FOLDER/CLASS/image.jpg"),
        (["Data/train/a/1.png", "read.me"], "{root} holds its splits one folder deeper: open {root}/Data"),
        (
            ["train/a/1.png", "val/a/1.png", "valid/a/1.png"],
            "{root}/val and {root}/valid are the same split: keep",
        ),
    ],
)
def test_a_layout_that_is_not_meant_is_an_error(tmp_path: Path, files: list[str], message: str) -> None:
    root = write(tmp_path, dict.fromkeys(files, b""))
    assert error(root).startswith(message.format(root=root))


def test_a_folder_without_anything_is_an_error(tmp_path: Path) -> None:
    assert error(str(tmp_path)).startswith(f"no images in {tmp_path}; expected FOLDER/CLASS/image.jpg")
    assert error(str(tmp_path / "no")) == f"no such file or folder: {tmp_path}/no"


def test_shards_that_are_compressed_are_told(tmp_path: Path) -> None:
    root = write(tmp_path, {"train-0.tar.gz": b""})
    assert error(root).endswith("or .tar files: gunzip makes them of .tar.gz")


def test_a_class_without_images_is_skipped_and_told(tmp_path: Path) -> None:
    root = write(
        tmp_path, {"train/a/1.png": b"", "train/b/1.txt": b"", "val/a/1.png": b"", "val/b/1.txt": b""}
    )
    train, val = open_data(f"{root}:train"), open_data(f"{root}:val")
    assert train.class_names == val.class_names == ("a",)
    told = f"{root}/train: skipped 1 class folder without images: b"
    assert told in train.notes and not train.faults
    assert not any("without images" in note for note in val.notes), "what is not measured need not be there"
    (tmp_path / "val/b/1.png").touch()
    assert "has class 'b', which" in error(f"{root}:val"), "a class that can't be learned can't be measured"


def test_what_systems_leave_in_folders_is_no_data(tmp_path: Path) -> None:
    files = ["a/1.png", "b/2.png", ".DS_Store", "a/.DS_Store", "a/Thumbs.db", "b/desktop.ini", "read.me"]
    files += ["__MACOSX/a/._1.png", "__MACOSX/a/x.png", "a/@eaDir/1.png/thumb.jpg", "$RECYCLE.BIN/3.png"]
    source = open_data(write(tmp_path, dict.fromkeys(files, b"")) + ":all")
    assert found(source) == [("a", "1.png"), ("b", "2.png")]
    assert source.notes == (
        f"{tmp_path}: skipped 3 files, not images: 1 .me, 1 .db, 1 .ini",
        f"{tmp_path}: 2 classes, sorted by name: a, b",
    )


def test_a_folder_inside_a_class_is_a_class_and_warned_of(tmp_path: Path) -> None:
    root = write(tmp_path, {"train/Springer Spaniel/1.png": b"", "train/b/2.png": b"", "val/b/3.png": b""})
    write(tmp_path, {"train/Springer Spaniel/more/2019/1.png": b""})
    source = open_data(root)
    folder = f"{root}/train/Springer Spaniel/more/2019"
    assert source.class_names == ("Springer Spaniel", "Springer Spaniel/more/2019", "b")
    [warning] = [note for note in source.notes if note.kind == "warning"]
    assert warning == (
        f"'{folder}' is inside the class 'Springer Spaniel' and became a class of its own "
        "('Springer Spaniel/more/2019'); move its images up if that was not intended"
    )
    assert not any(note.kind == "warning" for note in open_data(f"{root}:val").notes)
    write(tmp_path, {f"train/b/{number}/1.png": b"" for number in range(3)})
    [warning] = [note for note in open_data(root).notes if note.kind == "warning"]
    assert warning == (
        f"4 folders are inside a class and became classes of their own ('{folder}', '{root}/train/b/0', "
        f"'{root}/train/b/1' and 1 more); move their images up if that was not intended"
    )


def test_folders_of_folders_are_no_accident(tmp_path: Path) -> None:
    root = write(tmp_path, {"train/dogs/poodle/1.png": b"", "train/dogs/husky/1.png": b""})
    assert not any(note.kind == "warning" for note in open_data(root).notes)


def test_a_class_of_one_image_is_learned_from_alone(tmp_path: Path, png: Png) -> None:
    files = {f"a/{number}.png": png(number) for number in range(10)} | {
        "b/1.png": png(50),
        "c/1.png": png(51),
    }
    root = write(tmp_path, files)
    told = f"{root}: too few images to measure 2 classes, used for training only: b, c"
    counts = {}
    for split in ("train", "val", "test"):
        source = open_data(f"{root}:{split}")
        assert source.notes[-1] == told and source.class_names == ("a", "b", "c")
        counts[split] = [int((source.labels == number).sum()) for number in range(3)]
    assert counts == {"train": [8, 1, 1], "val": [1, 0, 0], "test": [1, 0, 0]}


@pytest.mark.parametrize("files", [["test/a/b/"], ["test/"], ["test/read.me"], ["test/a/b/", "test/9.png"]])
def test_a_split_without_images_in_class_folders_is_skipped_and_told(
    tmp_path: Path, files: list[str]
) -> None:
    root = write(tmp_path, {"train/a/b/1.png": b"", "val/a/b/2.png": b""})
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()
    assert f"{root}: skipped {root}/test: no images in class folders" in open_data(root).notes
    assert list_splits(root) == ["train", "val"]
    assert open_data(root, default="measure").split == "val"
    held = "holds 1 image but no class folders" if "test/9.png" in files else "no images in"
    assert held in error(f"{root}:test")


def test_without_images_to_train_on_the_rest_can_still_be_measured(tmp_path: Path) -> None:
    root = write(tmp_path, {"val/a/1.png": b"", "val/b/2.png": b""})
    (tmp_path / "train/a").mkdir(parents=True)
    assert open_data(root, default="measure").class_names == ("a", "b")
    for asked in ("", ":train"):
        assert error(root + asked).startswith(f"no images in {root}/train; expected FOLDER/CLASS/")
    shutil.rmtree(tmp_path / "val")
    write(tmp_path, {"train/a/1.png": b"", "test/1.png": b""})
    with pytest.raises(InputError) as caught:
        open_data(root, default="measure")
    assert str(caught.value) == (
        f"{root} has no test or val split, only train: name the one to take, such as '{root}:train' "
        f"({root}/test: no images in class folders)"
    )


def labelling(root: str) -> str:
    """What an error on a folder of images without classes says after the layout."""
    return error(root).partition("with val or test next to train; ")[2]


def test_a_flat_folder_says_how_to_label_it(tmp_path: Path) -> None:
    root = write(tmp_path / "flat", {"1.png": b"", "n01440764_2.JPEG": b""})
    assert labelling(root) == f"or list them in {root}/labels.csv, columns image,label, and open that"
    write(tmp_path / "flat", {"mine.csv": b"image,label\n1.png,cat\n"})
    assert labelling(root) == f"if {root}/mine.csv labels them, open that"
    assert open_data(f"{root}/mine.csv:all").class_names == ("cat",)
    val = write(tmp_path / "val", {"ILSVRC2012_val_00000001.JPEG": b""})
    assert labelling(f"{val}:val").startswith(
        "names of ImageNet's validation images hold no label: list them"
    )


def test_the_command_for_files_with_wordnet_ids_labels_them(tmp_path: Path, png: Png) -> None:
    files = {"n01440764_10026.JPEG": png(1), "n01443537_7.JPEG": png(2), "n01440764_tench b.png": png(3)}
    root = write(tmp_path / "some images", files)
    start, command = labelling(root).split(": ", 1)
    command, _, then = command.partition("; then open ")
    assert start == "or label them by the WordNet ids in their names"
    subprocess.run(["sh", "-c", command], check=True)
    source = open_data(then.strip("'"))
    assert found(source) == [
        ("n01440764", "n01440764_10026.JPEG"),
        ("n01440764", "n01440764_tench b.png"),
        ("n01443537", "n01443537_7.JPEG"),
    ]


def test_numbers_are_sorted_as_numbers(tmp_path: Path) -> None:
    source = open_data(write(tmp_path, {f"train/{name}/1.png": b"" for name in ("10", "2", "007", "7")}))
    assert source.class_names == ("2", "007", "7", "10")
    assert source.notes[-1] == f"{tmp_path}: 4 classes, sorted as numbers: 2, 007, 7, 10"


@pytest.mark.parametrize("target", ["nowhere", "3.png"])
@pytest.mark.parametrize("root", ["photos/", "photos/train/"])
def test_a_broken_link_is_an_image_that_cannot_be_read(
    tmp_path: Path, png: Png, root: str, target: str
) -> None:
    write(tmp_path, {f"{root}{name}/{number}.png": png(number) for number in range(3) for name in "ab"})
    (tmp_path / root / "a/3.png").symlink_to(target)
    source = open_data(tmp_path / "photos")
    assert ("a", "3.png") in found(source)
    place = [name for _, name in found(source)].index("3.png")
    with pytest.raises(InputError, match="cannot read .*/a/3.png"):
        decode(source.read(place))


def test_what_cannot_be_read_leaves_the_made_split_as_it_is(tmp_path: Path, png: Png) -> None:
    root = write(tmp_path / "photos", {f"a/{number}.png": png(number) for number in range(20)})
    before = {split: found(open_data(f"{root}:{split}")) for split in ("val", "test")}
    (tmp_path / "photos/a/0.png").rename(tmp_path / "photos/a/other.png")
    (tmp_path / "photos/a/0.png").symlink_to("nowhere")
    for split, images in before.items():
        renamed = [(name, "other.png" if file == "0.png" else file) for name, file in images]
        assert sorted(found(open_data(f"{root}:{split}"))) == sorted(renamed)
    (tmp_path / "photos/a/0.png").unlink()
    write(tmp_path / "photos", {"a/0.png": png(99)})  # its hash was not kept
    assert sum(len(open_data(f"{root}:{split}")) for split in ("train", "val", "test")) == 21


def test_a_link_to_a_folder_above_the_root_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path, {"elsewhere/1.png": b"", "photos/a/1.png": b""})
    (tmp_path / "photos/loop").symlink_to("..")
    assert open_data(f"{tmp_path}/photos:all").class_names == ("a",)


def test_an_empty_class_is_fine_where_it_is_measured(tmp_path: Path) -> None:
    root = write(tmp_path, {"train/a/1.png": b"", "train/b/1.png": b"", "val/a/1.png": b""})
    (tmp_path / "val" / "b").mkdir()
    assert found(open_data(root + ":val", default="measure")) == [("a", "1.png")]


def test_links_are_followed_and_loops_are_not(tmp_path: Path) -> None:
    root = write(tmp_path / "data", {"a/1.png": b""})
    write(tmp_path / "elsewhere", {"2.png": b""})
    os.symlink(tmp_path / "elsewhere", tmp_path / "data" / "b")
    os.symlink(tmp_path / "data", tmp_path / "data" / "a" / "up")
    os.symlink(tmp_path / "gone", tmp_path / "data" / "a" / "broken")
    assert found(open_data(root + ":all", default="train")) == [("a", "1.png"), ("b", "2.png")]


def test_accents_are_one_class_however_they_are_spelled(tmp_path: Path) -> None:
    root = write(tmp_path, {"train/caf\u00e9/1.png": b"", "val/cafe\u0301/2.png": b"", "train/犬/1.png": b""})
    source = open_data(root + ":val", default="measure")
    assert source.class_names == ("caf\u00e9", "犬")
    assert source.labels.tolist() == [0]


def test_a_name_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, {"a/1.png": b""})
    os.mkdir(os.fsencode(tmp_path) + b"/b\xff")
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/b\xff")) / "1.png").write_bytes(b"")
    assert "is not valid UTF-8: rename it" in error(f"{tmp_path}:all")


def test_a_split_is_made_by_content(tmp_path: Path, png: Png) -> None:
    files = {
        f"{c}/{number}.png": png(100 * place + number) for place, c in enumerate("ab") for number in range(20)
    }
    root = write(tmp_path / "one", files)
    parts = {split: open_data(f"{root}:{split}", default="train") for split in ("train", "val", "test")}
    assert [len(part) for part in parts.values()] == [32, 4, 4]
    assert [sorted(part.labels.tolist()) for part in parts.values()] == [
        [0] * 16 + [1] * 16,
        [0, 0, 1, 1],
        [0, 0, 1, 1],
    ]
    assert sorted(row for part in parts.values() for row in found(part)) == sorted(
        found(open_data(f"{root}:all", default="train"))
    )
    assert parts["test"].notes[-1] == (
        f"{root}: has no split; made one by content, always the same: train 32, val 4, test 4; ':all' is all of it"
    )
    # Other names and another place, the same contents: the same split.
    other = write(
        tmp_path / "two", {f"{name[0]}/z{hash(name) % 997}-{name[2:]}": data for name, data in files.items()}
    )
    for split, part in parts.items():
        again = open_data(f"{other}:{split}", default="train")
        assert {Path(again.where(i)).read_bytes() for i in range(len(again))} == {
            Path(part.where(i)).read_bytes() for i in range(len(part))
        }


def test_copies_stay_on_one_side_of_a_made_split(tmp_path: Path, png: Png) -> None:
    files = {
        f"{c}/{number}-{copy}.png": png(number) for c in "ab" for number in range(9) for copy in range(2)
    }
    files |= {f"b/own-{number}.png": png(50 + number) for number in range(9)}
    root = write(tmp_path, files)
    sides = []
    for split in ("train", "val", "test"):
        try:
            part = open_data(f"{root}:{split}", default="train")
        except InputError:  # all that a class has may be shared
            continue
        sides.append({Path(part.where(index)).read_bytes() for index in range(len(part))})
    assert len(sides) > 1
    assert sum(map(len, sides)) == len(set.union(*sides))


def test_too_few_images_for_a_split_is_an_error(tmp_path: Path, png: Png) -> None:
    root = write(tmp_path, {"a/1.png": png(1), "b/1.png": png(2)})
    assert error(root + ":val").startswith(
        f"{root} has too few images for a split 'val': add images, or make"
    )


def test_an_image_that_cannot_be_read_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, png: Png
) -> None:
    from PIL import Image

    source = open_data(
        write(tmp_path, {"train/a/1.png": png(1), "train/b/2.png": b""}) + ":train", default="train"
    )
    with pytest.raises(InputError, match="2.png: it is empty"):
        decode(source.read(1))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(InputError, match="1.png: .*decompression bomb.* Make it smaller"):
        decode(source.read(0))


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=6).filter(
    lambda name: not name.startswith(".") and len(name.encode()) < 100
)


@settings(max_examples=40)
@given(
    st.dictionaries(
        st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.integers(1, 3), min_size=1, max_size=6
    )
)
def test_any_tree_gives_its_classes(classes: dict[str, int]) -> None:
    folder = tempfile.mkdtemp()
    try:
        expected = set()
        for name, count in classes.items():
            for number in range(count):
                path = Path(folder, "train", name, f"{number}.png")
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(b"")
                except OSError:  # a folder where a file is
                    continue
                expected.add(str(path))
        source = open_data(folder + ":train", default="train")
        assert {source.where(index) for index in range(len(source))} == expected
        assert list(source.class_names) == sorted(source.class_names)
        for index, label in enumerate(source.labels):
            relative = os.path.relpath(os.path.dirname(source.where(index)), Path(folder, "train"))
            assert source.class_names[label] == unicodedata.normalize("NFC", relative)
    finally:
        shutil.rmtree(folder)


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/data")
def test_the_faces_are_split_into_eight_one_and_one_of_each_person() -> None:
    parts = [open_data(f"{SHARED}/faces:{split}", default="train") for split in ("train", "val", "test")]
    assert [len(part) for part in parts] == [320, 40, 40]
    assert decode(parts[2].read(0)).shape == (3, 112, 92)


def test_a_pipe_named_like_an_image_is_left_out(tmp_path: Path, png: Png) -> None:
    root = write(tmp_path / "photos", {"train/a/1.png": png(1), "train/b/2.png": png(2)})
    os.mkfifo(tmp_path / "photos/train/a/3.png")
    source = open_data(root, default="train")
    assert found(source) == [("a", "1.png"), ("b", "2.png")]
    assert f"{root}/train: skipped 1 file, not images: 1 .png" in source.notes
