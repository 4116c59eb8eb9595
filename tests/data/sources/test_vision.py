"""torchvision's data sets by name give torchvision's own images and labels, from roots laid out as on disk."""

from __future__ import annotations

import io
import json
import pickle
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from vitkit.data.decode import decode
from vitkit.data.open import open_data
from vitkit.data.sources.source import Absent, Files
from vitkit.data.sources.vision import DATA_SETS
from vitkit.errors import InputError

RANDOM = np.random.default_rng(0)


def pixels(*shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, shape, np.uint8)


def save(path: Path, kind: str = "PNG") -> None:
    """Write a picture; PNG inside whatever the name says, so that pixels stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    Image.fromarray(pixels(5, 7, 3)).save(buffer, kind)
    path.write_bytes(buffer.getvalue())


def text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def cifar(root: Path, folder: str, key: str, meta: tuple[str, str, list[str]], names: list[str]) -> None:
    (root / folder).mkdir(parents=True)
    for name in names:
        data = {"data": pixels(4, 3072), key: [3, 0, 1, 2]}
        (root / folder / name).write_bytes(pickle.dumps(data))
    (root / folder / meta[0]).write_bytes(pickle.dumps({meta[1]: meta[2]}))


def cifar10(root: Path) -> None:
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    cifar(
        root,
        "cifar-10-batches-py",
        "labels",
        ("batches.meta", "label_names", [*"abcdefghij"]),
        [*batches, "test_batch"],
    )


def cifar100(root: Path) -> None:
    names = [f"c{number}" for number in range(100)]
    cifar(root, "cifar-100-python", "fine_labels", ("meta", "fine_label_names", names), ["train", "test"])


def mnist(root: Path, name: str = "MNIST") -> None:
    folder = root / name / "raw"
    folder.mkdir(parents=True)
    for split in ("train", "t10k"):
        images = struct.pack(">IIII", 2051, 6, 28, 28) + pixels(6, 28, 28).tobytes()
        (folder / f"{split}-images-idx3-ubyte").write_bytes(images)
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(
            struct.pack(">II", 2049, 6) + bytes([5, 0, 4, 1, 9, 2])
        )


def svhn(root: Path) -> None:
    from scipy.io import savemat

    for split in ("train", "test", "extra"):
        savemat(
            root / f"{split}_32x32.mat",
            {"X": pixels(32, 32, 3, 4), "y": np.array([[10], [1], [9], [3]], np.uint8)},
        )


def stl10(root: Path) -> None:
    folder = root / "stl10_binary"
    folder.mkdir()
    for split in ("train", "test", "unlabeled"):
        (folder / f"{split}_X.bin").write_bytes(pixels(3, 3, 96, 96).tobytes())
        (folder / f"{split}_y.bin").write_bytes(bytes([10, 1, 2]))
    text(folder / "class_names.txt", "\n".join("abcdefghij"))


def flowers102(root: Path) -> None:
    from scipy.io import savemat

    for number in range(1, 7):
        save(root / f"flowers-102/jpg/image_{number:05}.jpg")
    savemat(root / "flowers-102/imagelabels.mat", {"labels": np.array([[3, 1, 102, 4, 5, 6]])})
    savemat(root / "flowers-102/setid.mat", {"trnid": [[5, 1]], "valid": [[2, 3]], "tstid": [[4, 6]]})


def pets(root: Path) -> None:
    names = [f"{breed}_{number}" for breed in ("Abyssinian", "great_pyrenees") for number in (1, 2, 10)]
    for name in names:
        save(root / f"oxford-iiit-pet/images/{name}.jpg")
    rows = [f"{name} {1 + name.startswith('great')} 1 1" for name in names]
    text(root / "oxford-iiit-pet/annotations/trainval.txt", "\n".join(rows[::2]))
    text(root / "oxford-iiit-pet/annotations/test.txt", "\n".join(rows[1::2]))


def dtd(root: Path) -> None:
    for place, split in enumerate(("train", "val", "test")):
        names = [f"{kind}/{kind}_{place}.jpg" for kind in ("woven", "banded")]
        for name in names:
            save(root / "dtd/dtd/images" / name)
        text(root / f"dtd/dtd/labels/{split}1.txt", "\n".join(names))


def food101(root: Path) -> None:
    for split in ("train", "test"):
        lists = {kind: [f"{kind}/{split}{number}" for number in range(2)] for kind in ("pizza", "apple_pie")}
        for name in (*lists["pizza"], *lists["apple_pie"]):
            save(root / f"food-101/images/{name}.jpg")
        text(root / f"food-101/meta/{split}.json", json.dumps(lists))


def eurosat(root: Path) -> None:
    for kind in ("River", "Forest"):
        for number in range(10):
            save(root / f"eurosat/2750/{kind}/{kind}_{number}.jpg")


def caltech101(root: Path) -> None:
    for kind in ("ant", "Faces", "BACKGROUND_Google"):
        for number in range(1, 11):
            save(root / f"caltech101/101_ObjectCategories/{kind}/image_{number:04}.jpg")


def sun397(root: Path) -> None:
    for kind in ("/a/abbey", "/b/bar/indoor"):
        for number in range(10):
            save(root / f"SUN397{kind}/sun_{number}{kind.count('/')}.jpg")
    text(root / "SUN397/ClassName.txt", "/a/abbey\n/b/bar/indoor\n")


def aircraft(root: Path) -> None:
    data = root / "fgvc-aircraft-2013b/data"
    text(data / "variants.txt", "707-320\nA300B4\n")
    for place, split in enumerate(("train", "val", "test")):
        text(data / f"images_variant_{split}.txt", f"00{place} A300B4\n10{place} 707-320\n")
        for name in (f"00{place}", f"10{place}"):
            save(data / f"images/{name}.jpg")
    text(data / "images_variant_trainval.txt", "000 A300B4\n100 707-320\n001 A300B4\n101 707-320\n")


def gtsrb(root: Path) -> None:
    for label in range(43):
        save(root / f"gtsrb/GTSRB/Training/{label:05}/1.ppm", "PPM")
    for name in ("0.ppm", "1.ppm"):
        save(root / f"gtsrb/GTSRB/Final_Test/Images/{name}", "PPM")
    text(root / "gtsrb/GT-final_test.csv", "Filename;Width;ClassId\n0.ppm;7;16\n1.ppm;7;42\n")


def imagenet(root: Path) -> None:
    names = {"n01440764": ("tench", "Tinca tinca"), "n01443537": ("goldfish",)}
    torch.save((names, ["n01440764"]), root / "meta.bin")
    for split in ("train", "val"):
        for wnid in names:
            save(root / f"{split}/{wnid}/{split}.JPEG")


def pcam(root: Path) -> None:
    h5py = pytest.importorskip("h5py")
    (root / "pcam").mkdir()
    for split in ("train", "test", "valid"):
        stem = f"camelyonpatch_level_2_split_{split}"
        with h5py.File(root / f"pcam/{stem}_x.h5", "w") as file:
            file["x"] = pixels(3, 96, 96, 3)
        with h5py.File(root / f"pcam/{stem}_y.h5", "w") as file:
            file["y"] = np.array([1, 0, 1], np.uint8).reshape(3, 1, 1, 1)


ROOTS: dict[str, Callable[[Path], None]] = {
    "aircraft": aircraft,
    "caltech101": caltech101,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "dtd": dtd,
    "eurosat": eurosat,
    "fashion_mnist": lambda root: mnist(root, "FashionMNIST"),
    "flowers102": flowers102,
    "food101": food101,
    "gtsrb": gtsrb,
    "imagenet": imagenet,
    "mnist": mnist,
    "pcam": pcam,
    "pets": pets,
    "stl10": stl10,
    "sun397": sun397,
    "svhn": svhn,
}


@pytest.fixture(autouse=True)
def no_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake files have no official checksums."""
    for module in ("cifar", "svhn", "stl10", "flowers102"):
        monkeypatch.setattr(
            f"torchvision.datasets.{module}.check_integrity", lambda path, md5=None: Path(path).exists()
        )


def same(label: int, image: Any) -> tuple[int, bytes]:
    return label, np.asarray(image).tobytes()


@pytest.mark.parametrize("name", DATA_SETS)
def test_images_and_labels_are_torchvisions(name: str, tmp_path: Path) -> None:
    ROOTS[name](tmp_path)
    row = DATA_SETS[name]
    total = 0
    for split, arguments in (row.splits or {"all": {}}).items():
        theirs = getattr(datasets, row.kind)(tmp_path, **arguments)
        ours = open_data(f"{name}:{split}[root={tmp_path}]", default="train")
        pairs = map(theirs.__getitem__, range(len(theirs)))
        expected = [same(label, image.convert("RGB")) for image, label in pairs]
        found = [
            same(int(label), decode(ours.read(index)).permute(1, 2, 0))
            for index, label in enumerate(ours.labels)
        ]
        if name == "sun397":  # torchvision's order is the file system's
            expected, found = sorted(expected), sorted(found)
        assert found == expected
        assert len(set(ours.class_names)) == ours.num_classes > max(ours.labels)
        assert (ours.name, ours.split, ours.labels.dtype) == (name, split, np.int64)
        total += 0 if split == "trainval" else len(ours)
        again = pickle.loads(pickle.dumps(ours))
        assert np.array_equal(decode(again.read(0)), decode(ours.read(0)))
    assert len(open_data(f"{name}:all[root={tmp_path}]", default="train")) == total


def test_class_names_are_torchvisions_but_for_imagenets_ids(tmp_path: Path) -> None:
    imagenet(tmp_path)
    assert open_data(f"imagenet:val[root={tmp_path}]", default="train").class_names == (
        "n01440764",
        "n01443537",
    )
    pets(tmp_path)
    source = open_data(f"pets[root={tmp_path}]", default="measure")
    assert source.class_names == ("Abyssinian", "Great Pyrenees")
    assert source.notes == (
        "pets: using split 'test' (also: train)",
        "pets: 2 classes, in torchvision's order: Abyssinian, Great Pyrenees",
    )


@pytest.mark.parametrize("name", ["caltech101", "eurosat", "sun397"])
def test_where_torchvision_has_no_split_one_is_made(name: str, tmp_path: Path) -> None:
    ROOTS[name](tmp_path)
    parts = [
        open_data(f"{name}:{split}[root={tmp_path}]", default="train") for split in ("train", "val", "test")
    ]
    assert [part.labels.tolist() for part in parts] == [[0] * 8 + [1] * 8, [0, 1], [0, 1]]
    assert parts[0].notes[-1] == f"{name}: this split is vitkit's own; there is no official one"


@pytest.mark.parametrize("name", DATA_SETS)
def test_data_that_is_not_there_says_how_to_get_it(name: str, tmp_path: Path) -> None:
    if name == "pcam":
        pytest.importorskip("h5py")
    for root in (tmp_path, tmp_path / "no"):
        with pytest.raises(InputError) as error:
            open_data(f"{name}:train[root={root}]", default="train")
        expected = LAYOUTS.get(name, "").format(root=root)
        advice = (
            "put ImageNet's own archives into root=FOLDER, or open a folder of it as './imagenet:val'"
            if name == "imagenet"
            else f"add [download=true] to fetch it ({DATA_SETS[name].size}), or say where it is: [root=FOLDER]"
        )
        assert re.fullmatch(f"{name} is not in {root}: expected .*; {re.escape(advice)}", str(error.value))
        assert expected in str(error.value)


LAYOUTS = {
    "dtd": "expected {root}/dtd/dtd/ with images and labels, or these in {root} itself; ",
    "flowers102": "expected {root}/flowers-102/ with jpg, imagelabels.mat and setid.mat, or these in {root} itself; ",
    "imagenet": "expected train and val with a folder for each class, and meta.bin; ",
    "pets": "expected {root}/oxford-iiit-pet/ with images and annotations, or these in {root} itself; ",
    "svhn": "expected {root}/train_32x32.mat; ",
}


@pytest.mark.parametrize("name", [name for name, row in DATA_SETS.items() if row.folder])
def test_a_root_is_found_as_people_unpack_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "root").mkdir()
    ROOTS[name](tmp_path / "root")
    folder = DATA_SETS[name].folder
    whole = tmp_path / "root" / folder
    expected = content(f"{name}:all[root={tmp_path}/root]")
    assert content(f"{name}:all[root={whole}]") == expected, "the folder itself"
    for part in Path(folder).parents:
        assert content(f"{name}:all[root={tmp_path / 'root' / part}]") == expected
    (tmp_path / "mine").mkdir()
    shutil.move(whole, tmp_path / "mine/unpacked here")
    monkeypatch.chdir(tmp_path / "mine")
    source = open_data(f"{name}:all[root=unpacked here]")
    assert content(f"{name}:all[root=unpacked here]") == expected, "by any name"
    if isinstance(source, Files):
        assert source.where(0).startswith("unpacked here/")
    shutil.move("unpacked here", Path(folder).name)
    assert content(f"{name}:all[root=.]") == expected, "without the folders above it"
    assert content(f"{name}:all[root={Path(folder).name}]") == expected


def content(spec: str) -> list[tuple[int, bytes]]:
    """Labels and pixels."""
    source = open_data(spec)
    return [
        same(int(label), decode(source.read(index)).permute(1, 2, 0))
        for index, label in enumerate(source.labels)
    ]


def test_what_is_missing_is_named_where_it_is(tmp_path: Path) -> None:
    pets(tmp_path)
    shutil.move(tmp_path / "oxford-iiit-pet", tmp_path / "unpacked")
    (tmp_path / "unpacked/annotations/test.txt").unlink()
    with pytest.raises(InputError) as error:
        open_data(f"pets:test[root={tmp_path}/unpacked]")
    assert str(error.value).startswith(f"cannot open pets in {tmp_path}/unpacked: ")
    assert str(error.value).endswith(f"'{tmp_path}/unpacked/annotations/test.txt' is missing")


def test_a_download_happens_only_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def download(self: datasets.CIFAR10) -> None:
        print("Downloading")
        cifar10(Path(self.root))

    monkeypatch.setattr(datasets.CIFAR10, "download", download)
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with pytest.raises(InputError, match=f"cifar10 is not in {tmp_path}/data: expected "):
        open_data("cifar10", default="train")
    assert len(open_data("cifar10[download=true]", default="train")) == 20
    assert capsys.readouterr().out == ""
    assert len(open_data("cifar10:test[2:]", default="train")) == 2
    with pytest.raises(InputError, match="imagenet can't be downloaded; put ImageNet's own archives"):
        open_data("imagenet[download=true]", default="train")


def test_offline_nothing_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.CIFAR10, "download", lambda self: pytest.fail("it connects"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    spec = f"cifar10[root={tmp_path}/data,download=true]"
    message = (
        f"cifar10 is not in {tmp_path}/data, and HF_HUB_OFFLINE is set, so nothing is downloaded: unset it"
    )
    for _ in range(2):
        with pytest.raises(Absent) as error:
            open_data(spec)
        assert str(error.value) == message
        (tmp_path / "data").mkdir(exist_ok=True)
    cifar10(tmp_path / "data")
    assert len(open_data(spec)) == 20, "what is there opens"


def test_a_download_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(self: datasets.CIFAR10) -> None:
        raise OSError("no network\nat all")

    monkeypatch.setattr(datasets.CIFAR10, "download", download)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with pytest.raises(InputError) as error:
        open_data(f"cifar10[root={tmp_path},download=true]", default="train")
    assert str(error.value) == f"cannot open cifar10 in {tmp_path}: no network"


def test_labels_out_of_range_are_an_error(tmp_path: Path) -> None:
    cifar(
        tmp_path,
        "cifar-100-python",
        "fine_labels",
        ("meta", "fine_label_names", ["a", "b"]),
        ["train", "test"],
    )
    with pytest.raises(InputError, match="cifar100 has labels 0 to 3; expected 0 to 1"):
        open_data(f"cifar100[root={tmp_path}]", default="train")
