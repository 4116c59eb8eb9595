"""The one door: every kind of DATA opens by its string, and what is none says what was expected."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitkit.data.open import list_splits, open_data
from vitkit.data.sources.source import Subset, spread_order
from vitkit.data.spec import DataSpec
from vitkit.errors import InputError


def test_built_in_data_needs_no_files() -> None:
    digits = open_data("digits", default="measure")
    assert (digits.split, digits.num_classes) == ("test", 10)
    assert digits.notes == ("digits: using split 'test' (also: train, val)",)
    everything = open_data("digits:all", default="train")
    assert len(everything) == 1797
    assert (
        len(open_data("digits:train[:50%]", default="train"))
        == len(open_data("digits", default="train")) // 2
    )
    few = open_data(DataSpec("digits", "train", shots=2, seed=1), default="train")
    assert few.labels.tolist() == [digit for digit in range(10) for _ in range(2)]
    shapes = open_data("shapes:val[:5,size=16]", default="train")
    assert shapes.render(shapes.labels[:0] + 0) is not None and len(shapes) == 5


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cifr10", "unknown data source 'cifr10'; did you mean 'cifar10' or 'cifar100'?"),
        ("photos/a.png", "./photos/a.png is an image; data is a folder of class folders"),
        ("pots", "unknown data source 'pots'; did you mean './photos' or 'pets'?"),
        ("photoss", "unknown data source 'photoss'; did you mean './photos'?"),
        ("photos", "./photos holds 1 image but no class folders"),
        ("mnist", "say where it is: [root=FOLDER]; './mnist' is the folder of that name"),
        ("xyzzy", "unknown data source 'xyzzy'; expected digits, shapes, aircraft, "),
        ("xyzzy", "hf-hub:ORG/NAME, a URL, or the path of a file or folder"),
        ("other/*.tar", "no file matches ./other/*.tar"),
        ("digits[size=16]", "data spec 'digits[size=16]': size= is an item of shapes only"),
        ("digits[size=0]", "data spec 'digits[size=0]': size= is an item of shapes only"),
        ("cifar10[label=count]", "label= is an item of shapes only"),
        (
            "./photos[root=/x]",
            "data spec './photos[root=/x]': root= is an item of torchvision's data sets and of vtab/TASK only",
        ),
        ("shapes[download=true]", "download= is an item of torchvision's data sets only"),
        (
            "digits[seed=3]",
            "data spec 'digits[seed=3]': seed= needs shots or a slice",
        ),
        ("digits:tset", "digits has no split 'tset'; did you mean 'test'"),
        ("shapes:train[:200000]", "'shapes:train[:200000]' asks for image 200,000; shapes:train has 50,000"),
        ("digits:val[300:]", "data spec 'digits:val[300:]' asks for image 300; digits:val has 258"),
        (f"digits[:{'9' * 5000}]", "unknown item"),
        ("digits[200shot]", "200shot: class '0' has only"),
        ("pipe:cat", "pipe: runs a shell command and is refused; give the files or their URL"),
        ("pipe:curl -s http://x/y.tar", "pipe: runs a shell command and is refused"),
        ("http://host/train.parquet", "http://host/train.parquet: only tar shards are read through URLs"),
        (
            "./photos/a.png",
            "./photos/a.png is an image; data is a folder of class folders, one .csv, .parquet or .tar",
        ),
        ("./photos/b.npy", "./photos/b.npy is a file of kind .npy; data is a folder"),
        (
            "./photos/c.tar.gz",
            "./photos/c.tar.gz is compressed, and nothing is unpacked here: unpack it first",
        ),
        ("./photos/*", "./photos/* names files of several kinds, .gz, .npy, .png: name one kind"),
    ],
)
def test_what_is_no_data_says_what_was_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "mnist"):
        (tmp_path / name).mkdir()
    for name in ("a.png", "b.npy", "c.tar.gz"):
        (tmp_path / "photos" / name).write_bytes(b"")
    monkeypatch.setattr("vitkit.data.sources.files.remote", lambda url: (None, url))
    with pytest.raises(InputError) as error:
        open_data(spec, default="train")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("default", ["val", "banana", None])
def test_the_default_is_train_or_measure(default: Any) -> None:
    with pytest.raises(InputError) as error:
        open_data("digits", default=default)
    assert str(error.value).startswith(
        f"default is {default!r}; expected 'train' or 'measure'; to choose a split"
    )
    assert open_data("digits").split == "train"


def test_a_path_object_needs_no_dot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, png: Callable[[int], bytes]
) -> None:
    (tmp_path / "photos/train/a").mkdir(parents=True)
    (tmp_path / "photos/train/a/1.png").write_bytes(png(1))
    monkeypatch.chdir(tmp_path)
    source = open_data(Path("photos"))
    assert repr(source) == "<Source ./photos:train, images=1, classes=1>"
    assert len(open_data(Path("photos:train"))) == len(open_data(tmp_path / "photos")) == 1


def test_a_name_wins_over_a_folder_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, png: Callable[[int], bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("digits", "photos"):
        (tmp_path / name / "train/a").mkdir(parents=True)
        (tmp_path / name / "train/a/1.png").write_bytes(png(1))
    source = open_data("digits:train")
    assert len(source) == 1157
    assert source.notes == ("digits: using the data set; './digits' is the folder of that name",)
    assert len(open_data("./digits")) == 1
    assert [str(open_data(data).spec) for data in ("photos", "photos:all", Path("photos"))] == [
        "./photos:train",
        "./photos:all",
        "./photos:train",
    ]


def test_a_path_may_start_with_a_tilde_and_a_folder_have_a_suffix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "photos.tar" / "train" / "a").mkdir(parents=True)
    (tmp_path / "photos.tar" / "train" / "a" / "1.png").write_bytes(b"")
    assert open_data("~/photos.tar", default="train").where(0) == str(tmp_path / "photos.tar/train/a/1.png")


@pytest.mark.slow
def test_the_door_loads_no_library_before_it_is_needed() -> None:
    code = (
        "import sys, vitkit.data.open\n"
        "print([name for name in ('pyarrow', 'fsspec.core', 'torchvision.datasets', 'datasets', 'sklearn') "
        "if name in sys.modules and name not in before])"
    )
    code = "import sys, torch\nbefore = set(sys.modules)\n" + code
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@given(st.integers(2, 60), st.integers(1, 6), st.integers(0, 9), st.integers(0, 100))
def test_a_seeded_slice_and_the_rest_part_every_class_alike(
    num_images: int, num_classes: int, seed: int, percent: int
) -> None:
    labels = np.sort(np.arange(num_images) % num_classes)  # as a folder has them: class by class
    order = spread_order(labels, seed)
    cut = num_images * percent // 100
    assert sorted(order) == list(range(num_images))
    for number in np.unique(labels):
        expected = np.sum(labels == number) * cut / num_images
        assert abs(np.sum(labels[order[:cut]] == number) - expected) <= 1.5


def test_a_slice_with_a_seed_is_shuffled_and_complete() -> None:
    parts = [open_data(f"digits:train[{part},seed=3]") for part in (":90%", "90%:")]
    whole = open_data("digits:train")
    assert [len(part) for part in parts] == [1041, 116]
    assert len(
        np.unique(np.concatenate([part.indices for part in parts if isinstance(part, Subset)]))
    ) == len(whole)
    assert not np.array_equal(parts[0].labels, open_data("digits:train[:90%]").labels)
    assert np.array_equal(parts[1].labels, open_data("digits:train[90%:,seed=3]").labels)


def test_the_splits_of_every_kind_are_known_without_opening_one(tmp_path: Path) -> None:
    assert list_splits("digits") == list_splits("shapes:val[:5]") == ["train", "val", "test"]
    assert list_splits("aircraft") == ["train", "val", "test", "trainval"]
    assert list_splits("svhn[root=./nowhere]") == ["train", "test", "extra"]
    assert list_splits("vtab/dtd[root=./nowhere]") == ["train800", "val200", "train800val200", "test"]
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 4, 3), np.uint8)
    for place, folder in enumerate(("test/a", "validation/a", "made/a", "own/val/a")):
        (tmp_path / folder).mkdir(parents=True)
        Image.fromarray(pixels[place]).save(tmp_path / folder / "1.png")
    Image.fromarray(pixels[0]).save(tmp_path / "made/a/2.png")
    assert list_splits(tmp_path) == ["val", "test"], "train is not among them, and no error"
    assert list_splits(tmp_path / "made") == ["train", "test"], "two images are too few for val"
    assert list_splits(tmp_path / "own/val") == ["val"], "a folder that is a split by its name"
    (tmp_path / "made/a/2.png").unlink()
    assert list_splits(tmp_path / "made") == ["train"]
    (tmp_path / "t.csv").write_text("path,label,split\n1.png,a,trainval\n1.png,a,mine\n")
    assert list_splits(f"{tmp_path}/t.csv") == ["mine", "trainval"]
    for name in ("dev-000.tar", "train-000.tar", "other.tar"):
        (tmp_path / "made" / name).touch()
    assert list_splits(f"{tmp_path}/made/*.tar") == ["train", "val"]
    with pytest.raises(InputError, match="no such file or folder"):
        list_splits("./nowhere")
    with pytest.raises(InputError, match="did you mean 'digits'"):
        list_splits("digit")
