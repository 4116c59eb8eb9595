"""Which images are inspected: what is photos, and what is data."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

import vitkit
from tests.pytorch_data import Digits
from vitkit.data.spec import DataSpec
from vitkit.errors import InputError
from vitkit.inspection.findings import open_images


def test_paths_are_photos_tables_are_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for number in range(7):
        Image.new("RGB", (3, 2)).save(f"photos/{number}.png")
    assert len(open_images("photos")) == len(open_images("./photos:all")) == 7
    assert len(open_images(["photos/0.png", Path("photos")])) == 8
    (tmp_path / "list.csv").write_text("image,label,split\nphotos/0.png,a,test\nphotos/1.png,b,test\n")
    assert len(open_images(DataSpec("./photos", "all"))) == 7
    source = open_images("list.csv")
    assert (len(source), source.class_names) == (2, ("a", "b"))
    vitkit.pack("digits:test[:5]", tmp_path / "packed")
    assert len(open_images("packed")) == 5


def test_an_empty_folder_holds_no_photos(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no images in .*empty") as raised:
        open_images(str(tmp_path / "empty"))
    assert "CLASS" not in str(raised.value)


def test_open_data_stays_as_it_is() -> None:
    source = vitkit.open_data("digits:test[:5]")
    assert open_images(source) is source


def test_a_pytorch_data_set_is_data() -> None:
    source = open_images(Digits("digits:test[:5]"))
    assert (len(source), source.name, source.num_classes) == (5, "torch:Digits", 10)
