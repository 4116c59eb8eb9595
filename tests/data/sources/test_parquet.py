"""Parquet files: bytes or the hub's struct, numbers or texts, rows in any order and in any process."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from vitkit.data.decode import decode
from vitkit.data.open import open_data
from vitkit.data.sources import parquet
from vitkit.errors import InputError

SHARED = Path(__file__).parents[3].parent / "shared" / "data"


def write(path: Path, labels: Any, group: int = 3, start: int = 0, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [f"image {start + number}".encode() for number in range(len(labels))]
    table = pyarrow.table({"image": images, "label": labels, **columns})
    pyarrow.parquet.write_table(table, path, row_group_size=group)


def error(spec: str) -> str:
    with pytest.raises(InputError) as caught:
        open_data(spec, default="train")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("source", ["", "/*.parquet", "/x-train-{0..1}.parquet"])
def test_rows_are_read_by_index_over_files_and_groups(tmp_path: Path, source: str) -> None:
    write(tmp_path / "x-train-0.parquet", [0, 1, 2, 3, 0, 1, 2])
    write(tmp_path / "x-train-1.parquet", [3, 3], start=7)
    if "{" not in source:
        write(tmp_path / "x-test.parquet", [1])
    train = open_data(str(tmp_path) + source, default="train")
    assert train.labels.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 3]
    assert train.class_names == ("0", "1", "2", "3")
    order = np.random.default_rng(0).permutation(9)
    for reader in (train, pickle.loads(pickle.dumps(train))):
        assert [reader.read(int(index)) for index in order] == [f"image {index}".encode() for index in order]
    assert train.where(8) == f"{tmp_path}/x-train-1.parquet, row 1"
    with pytest.raises(IndexError):
        train.read(9)


def test_threads_share_the_kept_groups_and_few_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "train.parquet", list(range(60)), group=4)
    monkeypatch.setattr(parquet, "KEPT_BYTES", 100)
    source = open_data(str(tmp_path), default="train")
    with ThreadPoolExecutor(4) as pool:
        order = np.random.default_rng(0).integers(0, 60, 300).tolist()
        assert list(pool.map(source.read, order)) == [f"image {index}".encode() for index in order]
    assert 1 <= len(source._kept) <= 3  # type: ignore[attr-defined]
    assert source.notes[-1].endswith("so tar shards are faster")


def test_the_hubs_layout_and_names_are_understood(tmp_path: Path) -> None:
    struct = pyarrow.array([{"bytes": b"one", "path": "1.png"}, {"bytes": b"two", "path": None}])
    features = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    table = pyarrow.table({"image": struct, "label": [1, 0]})
    table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    (tmp_path / "data").mkdir()
    for name in ("train-00000-of-00001", "validation-00000-of-00001"):
        pyarrow.parquet.write_table(table, tmp_path / f"data/{name}.parquet")
    source = open_data(str(tmp_path), default="measure")
    assert (source.split, source.class_names, source.labels.tolist()) == ("val", ("cat", "dog"), [1, 0])
    assert [source.read(0), source.read(1)] == [b"one", b"two"]


def test_texts_are_classes_too_and_the_same_for_every_split(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", ["dog", "cat", "ant"])
    write(tmp_path / "test.parquet", pyarrow.array(["dog"]).dictionary_encode())
    test = open_data(str(tmp_path), default="measure")
    assert (test.class_names, test.labels.tolist()) == (("ant", "cat", "dog"), [2])
    assert open_data(str(tmp_path), default="measure", classes=["dog"]).labels.tolist() == [0]


def test_names_may_lie_beside(tmp_path: Path) -> None:
    write(tmp_path / "train" / "0.parquet", [1, 0])
    (tmp_path / "my-classes.txt").write_text("zebra\nant\n")
    source = open_data(str(tmp_path), default="train")
    assert (source.class_names, source.labels.tolist()) == (("zebra", "ant"), [1, 0])
    assert source.notes[-1] == f"{tmp_path}: 2 classes, as in {tmp_path}/my-classes.txt: zebra, ant"
    assert open_data(str(tmp_path), default="train", classes=["ant", "zebra"]).labels.tolist() == [0, 1]


def test_one_file_without_a_split_is_split_by_content(tmp_path: Path) -> None:
    write(tmp_path / "all.parquet", [0, 1] * 20)
    parts = [
        open_data(f"{tmp_path}/all.parquet:{split}", default="train") for split in ("train", "val", "test")
    ]
    assert [len(part) for part in parts] == [32, 4, 4]
    assert len({part.read(index) for part in parts for index in range(len(part))}) == 40


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": [0, -1]}, "train.parquet, row 1 has label -1; {root}/train.parquet gives 1 classes"),
        ({"label": [0, None]}, "train.parquet, row 1, has no label"),
        ({"label": [0.5, 1.0]}, "labels in {root}/train.parquet are of type double; expected whole numbers or texts"),
        ({"image": ["a", "b"], "label": [0, 1]}, "images in {root}/train.parquet are of type string; expected bytes"),
        ({"picture": [b"a"], "label": [0]}, "train.parquet has columns picture, label; expected one named image or img"),
        ({"image": [b"a"]}, "train.parquet has columns image; expected one named label or labels or fine_label or class"),
        ({"image": pyarrow.array([], "binary"), "label": pyarrow.array([], "int64")}, "{root} has no rows in its split"),
    ],
)  # fmt: skip
def test_a_table_of_another_kind_is_an_error(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    if "image" not in columns and "picture" not in columns:
        columns = {"image": [b"a", b"b"], **columns}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "train.parquet")
    assert message.replace("{root}", str(tmp_path)) in error(str(tmp_path))


def test_a_label_beyond_the_names_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", [0, 2])
    (tmp_path / "classes.txt").write_text("a\nb\n")
    assert error(str(tmp_path)) == (
        f"{tmp_path}/train.parquet, row 1 has label 2; {tmp_path}/classes.txt gives 2 classes, 0 to 1"
    )


def test_a_file_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", [0, 1])
    data = (tmp_path / "train.parquet").read_bytes()
    (tmp_path / "train.parquet").write_bytes(data[:-20])
    assert error(str(tmp_path)).startswith(f"cannot read {tmp_path}/train.parquet: ")
    assert error(str(tmp_path)).endswith("; if it is cut off, copy it again")


def test_an_image_without_bytes_is_an_error(tmp_path: Path) -> None:
    struct = pyarrow.array([{"bytes": None, "path": "/etc/passwd"}])
    pyarrow.parquet.write_table(pyarrow.table({"image": struct, "label": [0]}), tmp_path / "train.parquet")
    with pytest.raises(InputError, match="images in .*train.parquet are of type null"):
        open_data(str(tmp_path), default="train")
    struct = pyarrow.array([{"bytes": None, "path": "/etc/passwd"}, {"bytes": b"1", "path": ""}])
    pyarrow.parquet.write_table(pyarrow.table({"image": struct, "label": [0, 0]}), tmp_path / "train.parquet")
    source = open_data(str(tmp_path), default="train")
    with pytest.raises(
        InputError, match="row 0 has no bytes: only images stored in the file itself are read"
    ):
        source.read(0)


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/data")
def test_cifar_100_is_read_whole_with_its_names() -> None:
    train = open_data(f"{SHARED}/cifar100", default="train")
    test = open_data(f"{SHARED}/cifar100", default="measure")
    assert (len(train), len(test), train.num_classes) == (50_000, 10_000, 100)
    assert np.bincount(train.labels).tolist() == [500] * 100
    assert train.class_names == test.class_names and train.class_names[:2] == ("apple", "aquarium_fish")
    assert decode(train.read(49_999)).shape == (3, 32, 32)
