"""A VTAB task opens from the shared lists or from raw data; what is wrong with either is said in one line."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitkit.data.open import open_data
from vitkit.data.sources import vtab
from vitkit.data.sources.source import Files, Source, Subset
from vitkit.data.sources.vision import Patches, Pixels
from vitkit.data.sources.vtab import TASKS, part_sizes
from vitkit.data.spec import DataSpec
from vitkit.errors import InputError


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many images as the largest task here has: one file under many names."""
    folder = tmp_path_factory.mktemp("images")
    Image.new("RGB", (4, 3), (10, 20, 30)).save(folder / "0.png")
    for name in range(1, 2880):
        os.link(folder / "0.png", folder / f"{name}.png")
    return folder


def write_lists(folder: Path, images: Path, classes: int = 47, test: int = 1880) -> None:
    """Write a task in the shared layout."""
    folder.mkdir(parents=True)
    (folder / "images").symlink_to(images)
    first = 0
    lists: dict[str, list[str]] = {}
    for split, count in {"train800": 800, "val200": 200, "test": test}.items():
        names = range(first, first + count)
        lists[split] = [f"images/{name}.png {name % classes}" for name in names]
        first += count
    lists["train800val200"] = lists["train800"] + lists["val200"]
    for split, lines in lists.items():
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def root(tmp_path: Path, images: Path) -> Path:
    write_lists(tmp_path / "dtd", images)
    return tmp_path


def test_every_split_of_the_shared_layout(root: Path) -> None:
    sizes = {"train800": 800, "val200": 200, "train800val200": 1000, "test": 1880, "all": 2880}
    for split, size in sizes.items():
        source = open_data(f"vtab/dtd:{split}[root={root}]")
        assert (source.name, source.split, len(source), source.num_classes) == ("vtab/dtd", split, size, 47)
        assert source.notes == ()
        assert source.labels.dtype == np.int64
    source = open_data(f"vtab/dtd:val200[root={root}]")
    assert source.where(0) == str(root / "dtd" / "images" / "800.png")
    assert source.labels[0] == 800 % 47
    assert len(open_data(f"vtab/dtd:train800[root={root},:10]")) == 10


def test_without_a_split_training_takes_both_and_measuring_test(root: Path) -> None:
    train = open_data(f"vtab/dtd[root={root}]")
    assert (train.split, train.notes) == ("train800val200", ("vtab/dtd: using split 'train800val200'",))
    assert open_data(f"vtab/dtd[root={root}]", default="measure").split == "test"


def test_folders_have_the_shared_name_or_ours(tmp_path: Path, images: Path) -> None:
    write_lists(tmp_path / "a" / "cifar", images, 100, 3)
    write_lists(tmp_path / "b" / "cifar100", images, 100, 3)
    for folder in "ab":
        for name in ("cifar", "cifar100"):
            assert len(open_data(f"vtab/{name}:train800[root={tmp_path / folder}]")) == 800


def test_two_lists_make_the_third(root: Path) -> None:
    (root / "dtd" / "train800val200.txt").unlink()
    both = open_data(f"vtab/dtd:train800val200[root={root}]")
    assert len(both) == 1000 and both.where(800).endswith("/800.png")


def test_lists_of_the_last_run_are_enough(root: Path) -> None:
    for split in ("train800", "val200"):
        (root / "dtd" / f"{split}.txt").unlink()
    assert len(open_data(f"vtab/dtd:train800val200[root={root}]")) == 1000
    with pytest.raises(InputError) as error:
        open_data(f"vtab/dtd:train800[root={root}]")
    assert str(error.value) == (
        "vtab/dtd has no split 'train800'; did you mean 'train800val200'? it has train800val200, test, all"
    )


def edit(root: Path, split: str, line: int, text: str) -> None:
    path = root / "dtd" / f"{split}.txt"
    lines = path.read_text().splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("images/2.png 47", "{list}, line 3, has label 47; DTD has 47 classes, 0 to 46"),
        ("images/2.png -1", "{list}, line 3, has label -1; DTD has 47 classes, 0 to 46"),
        (
            "images/2.png cat",
            "{list}, line 3, is 'images/2.png cat'; expected a path and a label, as in 'images/000001.jpg 7'",
        ),
        ("7", "{list}, line 3, is '7'; expected a path and a label, as in 'images/000001.jpg 7'"),
        ("", "{root}/dtd: train800.txt names 799 images; VTAB's train800 has 800: restore the list"),
        (
            "images/no.png 2",
            "{list}: 1 of 800 files are missing, the first in line 3: no such file: {root}/dtd/images/no.png; "
            "put them there",
        ),
    ],
)
def test_what_is_wrong_with_a_list_is_said(root: Path, line: str, message: str) -> None:
    edit(root, "train800", 3, line)
    with pytest.raises(InputError) as error:
        open_data(f"vtab/dtd:train800[root={root}]")
    assert str(error.value) == message.format(root=root, list=root / "dtd" / "train800.txt")
    assert len(open_data(f"vtab/dtd:test[root={root}]")) == 1880


def test_names_with_spaces_and_tabs(root: Path) -> None:
    Image.new("RGB", (4, 3)).save(root / "dtd" / "a b.png")
    edit(root, "train800", 1, "a b.png\t5")
    source = open_data(f"vtab/dtd:train800[root={root}]")
    assert source.where(0).endswith("dtd/a b.png") and source.labels[0] == 5


def test_no_file_there_is_an_error_even_for_who_tolerates(root: Path) -> None:
    (root / "dtd" / "images").rename(root / "dtd" / "elsewhere")
    with pytest.raises(
        InputError, match=r"train800.txt, line 1: no such file: .*; none of its files is there"
    ):
        open_data(f"vtab/dtd:train800[root={root}]", tolerate=True)


def test_another_test_split_is_not_official(tmp_path: Path, images: Path) -> None:
    write_lists(tmp_path / "dtd", images, test=30)
    source, is_official = vtab.open_task("dtd", "test", tmp_path)
    assert not is_official
    assert source.notes == (
        "vtab/dtd: not the official images: test.txt names 30, VTAB's test split has 1,880",
    )
    assert vtab.open_task("dtd", "train800", tmp_path)[1]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "vtab/resisc45[root={root}]",
            "vtab/resisc45 is not in {root}: expected {root}/resisc45/ with train800val200.txt and test.txt",
        ),
        (
            "vtab/cifar[root={root}]",
            "vtab/cifar100 is not in {root}: expected {root}/cifar/ with train800val200.txt and test.txt, "
            "or cifar-100-python/",
        ),
        ("vtab/cfar[root={root}]", "VTAB has no task 'cfar'; did you mean 'cifar' or 'cifar100'?"),
        ("vtab/dtd:tset[root={root}]", "vtab/dtd has no split 'tset'; did you mean 'test'?"),
        ("vtab/dtd[label=x]", "data spec 'vtab/dtd[label=x]': label= is an item of shapes only"),
        ("vtab/dtd[download=true]", "download= is an item of torchvision's data sets only"),
    ],
)
def test_what_is_not_there_is_said(root: Path, spec: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        open_data(spec.format(root=root))
    assert message.format(root=root) in str(error.value)


def test_without_a_root_the_cache_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"is not in .*/data: .*; say where it is: \[root=FOLDER\]$"):
        open_data("vtab/dmlab")


class Fake(Source):
    """As many images as a stored part has, sorted by class as torchvision's folders are."""

    def __init__(self, name: str, classes: int, count: int) -> None:
        self.name, self.split = name, "stored"
        self.class_names = tuple(map(str, range(classes)))
        self.labels = np.sort(np.arange(count) % classes)

    def where(self, index: int) -> str:
        return f"{self.name} {index}"

    def read(self, index: int) -> Any:
        return np.full((2, 2, 3), index % 256, np.uint8)


VISION = {
    "cifar100": ("cifar100", {"train": "train", "test": "test"}),
    "dtd": ("dtd", {"train": "train", "val": "validation", "test": "test"}),
    "flowers102": ("flowers102", {"train": "train", "val": "validation", "test": "test"}),
    "pets": ("pets", {"train": "train", "test": "test"}),
    "svhn": ("svhn", {"train": "train", "test": "test"}),
    "camelyon": ("pcam", {"train": "train", "val": "validation", "test": "test"}),
    "eurosat": ("eurosat", {"all": "train"}),
}


@pytest.mark.parametrize("name", VISION)
def test_raw_sets_are_cut_by_the_rule_in_a_shuffled_order(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, (raw, splits) = TASKS[name], VISION[name]
    (tmp_path / vtab.RAW[name][0]).mkdir(parents=True)

    def open_raw(spec: DataSpec, default: str) -> Source:
        assert (spec.source, spec.root) == (raw, str(tmp_path))
        assert spec.split is not None
        return Fake(spec.split, task.num_classes, part_sizes(task)[splits[spec.split]])  # type: ignore[index]

    monkeypatch.setattr(vtab, "open_vision", open_raw)
    parts = {
        split: open_data(f"vtab/{name}:{split}[root={tmp_path}]") for split in ("train800", "val200", "test")
    }
    both = open_data(f"vtab/{name}:train800val200[root={tmp_path}]")
    assert [len(part) for part in parts.values()] == [800, 200, task.sizes[2]]
    where = {split: {part.where(index) for index in range(len(part))} for split, part in parts.items()}
    assert not (
        where["train800"] & where["val200"]
        | where["train800"] & where["test"]
        | where["val200"] & where["test"]
    )
    assert {both.where(index) for index in range(1000)} == where["train800"] | where["val200"]
    assert np.array_equal(both.labels, np.concatenate([parts["train800"].labels, parts["val200"].labels]))
    # Of classes stored one after the other, the first 800 would show a few only.
    assert len(np.unique(both.labels)) >= 0.99 * task.num_classes
    assert both.notes == (
        f"vtab/{name}: not the official images: cut from the raw data in {tmp_path} by VTAB's rules, "
        "in an order of our own",
    )
    again = pickle.loads(pickle.dumps(both))
    assert np.array_equal(again.read(900), both.read(900))
    assert not vtab.open_task(name, "train800", tmp_path)[1]


def test_pixels_in_memory_stay_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_raw(spec: DataSpec, default: str) -> Source:
        images = np.zeros((50000, 2, 2, 3), np.uint8)
        images[:, 0, 0, 0] = np.arange(50000) % 100
        return Pixels("cifar100", "train", tuple(map(str, range(100))), np.arange(50000) % 100, images)

    (tmp_path / "cifar-100-python").mkdir()
    monkeypatch.setattr(vtab, "open_vision", open_raw)
    both = open_data(f"vtab/cifar100:train800val200[root={tmp_path}]")
    assert both.images is not None and both.images.shape == (1000, 2, 2, 3)
    assert np.array_equal(both.images[:, 0, 0, 0], both.labels)


def patches(folder: Path, rows: Sequence[int]) -> Patches:
    """Return PCAM's images in files that nothing reads."""
    source = Patches.__new__(Patches)
    source.name, source.split = "pcam", "train"
    source.files = [str(folder / f"{number}.h5") for number in range(len(rows))]
    for file in source.files:
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_bytes(b"some")
    source.starts = np.cumsum([0, *rows])
    source.labels = np.zeros(sum(rows), np.int64)
    return source


def test_images_of_other_files_have_other_keys(tmp_path: Path) -> None:
    here, there = patches(tmp_path / "a", [3, 2]), patches(tmp_path / "b", [3, 2])
    keys = here.content_keys()
    assert len(set(keys)) == 5 and not set(keys) & set(there.content_keys())
    assert [key.startswith(str(tmp_path / "a" / "1.h5")) for key in keys] == [False] * 3 + [True] * 2
    inner = Subset(here, np.array([4, 1, 0]))
    joined = vtab.Joined([Subset(inner, np.array([2, 0])), Subset(here, np.array([3]))])
    assert joined.content_keys() == [keys[0], keys[4], keys[3]]
    os.utime(tmp_path / "a" / "0.h5", (1, 1))
    assert [old == new for old, new in zip(keys, here.content_keys(), strict=True)] == [False] * 3 + [
        True
    ] * 2


def test_too_little_raw_data_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "oxford-iiit-pet").mkdir()
    monkeypatch.setattr(vtab, "open_vision", lambda spec, default: Fake("train", 37, 100))
    with pytest.raises(InputError) as error:
        open_data(f"vtab/pets:train800[root={tmp_path}]")
    assert str(error.value) == (
        f"vtab/pets: the raw data in {tmp_path} has 100 images of 37 classes in train; VTAB's rule needs 3,680 of 37"
    )


def test_sun397_is_cut_in_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_raw(spec: DataSpec, default: str) -> Source:
        assert (spec.source, spec.split) == ("sun397", "all")
        labels = np.sort(np.arange(108754) % 397)
        return Files(
            "sun397", "all", tuple(map(str, range(397))), labels, [f"{n}.jpg" for n in range(108754)]
        )

    (tmp_path / "SUN397").mkdir()
    monkeypatch.setattr(vtab, "open_vision", open_raw)
    test = open_data(f"vtab/sun397:test[root={tmp_path}]")
    both = open_data(f"vtab/sun397:train800val200[root={tmp_path}]")
    assert (len(test), len(both)) == (21750, 1000)
    assert not {test.where(i) for i in range(len(test))} & {both.where(i) for i in range(1000)}
    keys = both.content_keys()
    assert keys is not None and len(set(keys)) == 1000


def test_clevr_labels_come_from_its_scenes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "clevr" / "CLEVR_v1.0" / "scenes"
    folder.mkdir(parents=True)
    for name in ("clevr_count", "clevr_dist"):  # as many scenes as CLEVR has would take long to write
        monkeypatch.setitem(TASKS, name, replace(TASKS[name], sizes=(900, 300, 400)))
    for split, count in (("train", 1200), ("val", 400)):
        scenes = [
            {
                "image_filename": f"CLEVR_{split}_{number}.png",
                "objects": [{"pixel_coords": [1, 2, 8.0 + number % 5]}] * (3 + number % 8),
            }
            for number in range(count)
        ]
        (folder / f"CLEVR_{split}_scenes.json").write_text(json.dumps({"scenes": scenes}))
    counts = open_data(f"vtab/clevr_count:train800[root={tmp_path}]")
    distances = open_data(f"vtab/clevr_dist:test[root={tmp_path}]")
    assert (len(counts), counts.num_classes, len(distances), distances.num_classes) == (800, 8, 400, 6)
    for source, label in ((counts, lambda n: n % 8), (distances, lambda n: [0, 2, 4, 5, 5][n % 5])):
        numbers = [int(Path(source.where(index)).stem.split("_")[-1]) for index in range(300)]
        assert [label(number) for number in numbers] == source.labels[:300].tolist()
    assert "/images/val/CLEVR_val_" in distances.where(0)
    (folder / "CLEVR_train_scenes.json").write_text("[]")
    with pytest.raises(InputError, match="CLEVR_train_scenes.json holds no scenes of CLEVR"):
        open_data(f"vtab/clevr_count:train800[root={tmp_path}]")


def test_kitti_labels_come_from_its_vehicles(tmp_path: Path) -> None:
    folder = tmp_path / "Kitti" / "raw" / "training" / "label_2"
    folder.mkdir(parents=True)
    things = [("Car", 5.0), ("Van", 15.0), ("Truck", 40.0), ("Pedestrian", 2.0)]
    for number in range(7481):
        kind, metres = things[number % 4]
        (folder / f"{number:06}.txt").write_text(f"{kind} 0 0 0 0 0 0 0 1 1 1 0 0 {metres} 0\n")
    source = open_data(f"vtab/kitti:test[root={tmp_path}]")
    assert len(source) == 711 and set(source.labels) == {0, 1, 2, 3}
    assert [int(Path(source.where(i)).stem) % 4 for i in range(711)] == source.labels.tolist()


def test_caltech101_has_thirty_of_each_class_to_train_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "caltech101" / "101_ObjectCategories"
    monkeypatch.setitem(
        TASKS, "caltech101", replace(TASKS["caltech101"], num_classes=40, sizes=(1000, 200, 50))
    )
    sizes = [31] * 39 + [41]
    for number, size in enumerate(sizes):
        (folder / f"c{number:03}").mkdir(parents=True)
        for image in range(size):
            (folder / f"c{number:03}" / f"image_{image:04}.jpg").touch()
    test = open_data(f"vtab/caltech101:test[root={tmp_path}]")
    counts = np.bincount(test.labels)
    assert len(test) == 50 and counts.tolist() == [1] * 39 + [11]
    both = open_data(f"vtab/caltech101:train800val200[root={tmp_path}]")
    assert np.bincount(both.labels).max() <= 30
