"""CSV tables: names of columns, multi-label rows, splits, and errors that name the line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitkit.data.open import open_data
from vitkit.errors import InputError


def table(tmp_path: Path, text: str, images: str = "1 2 3") -> str:
    for name in images.split():
        (tmp_path / f"{name}.png").write_bytes(name.encode())
    (tmp_path / "table.csv").write_text(text, encoding="utf-8")
    return str(tmp_path / "table.csv")


def error(spec: str) -> str:
    with pytest.raises(InputError) as caught:
        open_data(spec, default="train")
    return str(caught.value)


@pytest.mark.parametrize("header", ["image_path,label", "path,class", "Image, LABEL", "\ufefffile,labels"])
def test_columns_go_by_any_of_their_names(tmp_path: Path, header: str) -> None:
    path = table(tmp_path, f'{header}\n1.png,dog\n"2.png","cat, big"\n\n{tmp_path}/3.png,dog\n')
    source = open_data(path + ":all", default="train")
    assert source.class_names == ("cat, big", "dog")
    assert source.labels.tolist() == [1, 0, 1]
    assert source.where(1) == str(tmp_path / "2.png")
    assert source.notes == (f"{path}: 2 classes, sorted by name: cat, big, dog",)


def test_multi_label_make_a_matrix(tmp_path: Path) -> None:
    source = open_data(table(tmp_path, "path,label\n1.png,a;b\n2.png,\n3.png,b\n") + ":all", default="train")
    assert source.is_multi_label
    assert np.array_equal(source.labels, [[True, True], [False, False], [False, True]])
    mapped = open_data(f"{tmp_path}/table.csv:all", default="train", classes=["b", "c", "a"])
    assert np.array_equal(mapped.labels, [[True, False, True], [False, False, False], [True, False, False]])


def test_splits_may_have_a_column(tmp_path: Path) -> None:
    path = table(tmp_path, "path,label,split\n1.png,a,train\n2.png,b,train\n3.png,b,validation\n")
    val = open_data(path, default="measure")
    assert (val.split, val.class_names, val.labels.tolist()) == ("val", ("a", "b"), [1])
    assert len(open_data(path, default="train")) == 2
    assert len(open_data(path + ":all", default="train")) == 3
    assert error(path + ":test") == f"{path} has no split 'test'; it has train, val, all"


def test_without_such_a_column_a_split_is_made(tmp_path: Path) -> None:
    names = " ".join(map(str, range(20)))
    rows = "".join(f"{name}.png,{'ab'[int(name) % 2]}\n" for name in names.split())
    path = table(tmp_path, "path,label\n" + rows, names)
    assert [len(open_data(f"{path}:{split}", default="train")) for split in ("train", "val", "test")] == [
        16,
        2,
        2,
    ]
    several = table(tmp_path, "path,label\n" + rows.replace(",a", ",a;b"), names)
    assert [len(open_data(f"{several}:{split}", default="train")) for split in ("train", "val", "test")] == [
        16,
        2,
        2,
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "table.csv has columns none; expected a header such as image_path,label"),
        ("name,label\n1.png,a\n", "table.csv has columns name, label; expected a header such as image_path,label (the "
         "image may be called image_path, path, image, file)"),
        ("path,image,label\n", "table.csv has columns path and image: keep one of them"),
        ("path,label\n", "table.csv has a header but no images"),
        ("path,label\nno.png,a\n", "no.png; none of its files is there"),
        ("path,label\n1.png,a\n2.png,\n", "table.csv, line 3, has no label"),
        ("path,label\n1.png,a\n2\0.png,a\n", "table.csv, line 3: the path has a NUL character"),
        ("path,label\n1.png,a,b\n", "table.csv, line 2, has 3 fields, its header 2: a field with a comma needs quotes"),
        ("path,label\n,a\n", "table.csv, line 2, has no image"),
        ('path,label\n1.png,"a\n', "table.csv, line 2: unexpected end of data"),
        ("path,label,split\n1.png,a,\n", "table.csv, line 2, has no split"),
        ("path,label,split\n1.png,a,train\n2.png,b,val\n", "table.csv, line 3, has class 'b', which its split train"),
    ],
)  # fmt: skip
def test_a_broken_table_is_an_error_that_says_where(tmp_path: Path, text: str, message: str) -> None:
    assert message in error(table(tmp_path, text) + ":all")


def test_files_that_are_missing_are_counted_in_one_error(tmp_path: Path) -> None:
    path = table(tmp_path, "path,label\n1.png,a\nno.png,a\nnor.png,b\n")
    missing = f"line 3: no such file: {tmp_path}/no.png"
    fault = f"{path}: 2 of 3 files are missing, the first in {missing}; put them there, or remove the lines"
    assert error(f"{path}:all") == fault
    source = open_data(f"{path}:all", tolerate=True)
    assert len(source) == 3 and source.class_names == ("a", "b") and source.faults == (fault,)
    assert sum(len(open_data(f"{path}:{split}", tolerate=True)) for split in ("train", "test")) == 3


def test_a_single_missing_file_is_an_unreadable_image(tmp_path: Path) -> None:
    source = open_data(table(tmp_path, "path,label\n1.png,a\nno.png,a\n2.png,b\n") + ":all")
    assert len(source) == 3 and not source.faults


def test_numbers_are_sorted_as_numbers(tmp_path: Path) -> None:
    assert open_data(table(tmp_path, "path,label\n1.png,10\n2.png,2\n") + ":all").class_names == ("2", "10")


def test_a_table_in_another_encoding_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes("path,label\n1.png,é\n".encode("latin-1"))
    assert error(f"{tmp_path}/table.csv") == f"{tmp_path}/table.csv is not UTF-8 text"
