"""Hub data sets through a stand-in for the `datasets` library: splits, columns, names and errors."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from vitkit.data.open import open_data
from vitkit.errors import InputError

ROWS = {
    "train": [
        {"img": {"bytes": b"1", "path": None}, "label": 1},
        {"img": {"bytes": b"2", "path": "x"}, "label": 0},
    ],
    "validation": [{"img": {"bytes": None, "path": "/cache/3.png"}, "label": 1}],
}


class Table(list[dict[str, Any]]):
    """As much of datasets.Dataset as is used."""

    features: dict[str, Any]
    decodes = True

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return [row[key] for row in self]
        assert not self.decodes
        return super().__getitem__(key)

    def cast_column(self, column: str, kind: Any) -> Table:
        assert column == "img"
        self.decodes = kind.decode
        return self


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Stand in for the library, and note how its data is loaded."""
    made: list[tuple[Any, ...]] = []

    def load_dataset(*arguments: Any, **options: Any) -> Table:
        made.append((*arguments, options))
        table = Table(row for split in options["split"].split("+") for row in ROWS[split])
        names = None if arguments == ("org/texts",) else ["cat", "dog"]
        if names is None:
            table[:] = [{**row, "label": "ab"[row["label"]]} for row in list(iter(table))]
        if arguments == ("org/unlabelled",):
            table[:] = [{**row, "label": row["label"] or None} for row in list(iter(table))]
        table.features = {"img": object(), "label": SimpleNamespace(names=names)}
        if arguments == ("org/other",):
            table.features = {"audio": object()}
        return table

    def split_names(name: str) -> list[str]:
        if name == "org/missing":
            raise FileNotFoundError("Dataset 'org/missing' doesn't exist on the Hub\nor is private")
        return list(ROWS)

    library = SimpleNamespace(
        get_dataset_split_names=split_names,
        load_dataset=load_dataset,
        __version__="4.1.0",
        Image=lambda decode: SimpleNamespace(decode=decode),
    )
    monkeypatch.setitem(sys.modules, "datasets", library)  # type: ignore[arg-type]
    return made


def test_a_split_is_loaded_by_the_hubs_own_name(calls: list[tuple[Any, ...]]) -> None:
    train = open_data("hf-hub:org/name", default="train")
    assert (train.class_names, train.labels.tolist(), train.read(0)) == (("cat", "dog"), [1, 0], b"1")
    val = open_data("hf-hub:org/name", default="measure", classes=["dog", "cat"])
    assert (val.split, val.labels.tolist(), val.read(0)) == ("val", [0], "/cache/3.png")
    assert len(open_data("hf-hub:org/name:all", default="train")) == 3
    assert open_data("hf-hub:org/texts", default="train").class_names == ("a", "b")
    assert [call[1] for call in calls] == [
        {"split": split} for split in ("train", "validation", "train+validation", "train")
    ]


def test_classes_are_those_of_train(calls: list[tuple[Any, ...]]) -> None:
    val = open_data("hf-hub:org/texts:val", default="train")
    assert (val.class_names, val.labels.tolist()) == (("a", "b"), [1])
    given = open_data("hf-hub:org/texts:val", default="train", classes=["b", "a"])
    assert given.labels.tolist() == [0]
    assert [call[1]["split"] for call in calls] == ["validation", "train", "validation"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hf-hub:org/name:test", "hf-hub:org/name has no split 'test'; it has train, val, all"),
        (
            "hf-hub:org/missing",
            "cannot read hf-hub:org/missing: Dataset 'org/missing' doesn't exist on the Hub",
        ),
        ("hf-hub:org/other", "hf-hub:org/other has columns audio; expected one named image or img"),
        ("hf-hub:org/unlabelled", "hf-hub:org/unlabelled:train, image 1, has no label"),
        ("hf-hub:name", "'hf-hub:name' names no data set of the hub; expected hf-hub:ORG/NAME"),
    ],
)
def test_what_is_not_on_the_hub_is_an_error(calls: list[tuple[Any, ...]], spec: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        open_data(spec, default="train")
    assert str(error.value) == message


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError) as error:
        open_data("hf-hub:org/name", default="train")
    assert str(error.value) == 'hub data sets need the datasets library: pip install "vitkit[hub]"'


def test_a_library_that_runs_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(__version__="3.6.0"))  # type: ignore[arg-type]
    with pytest.raises(InputError) as error:
        open_data("hf-hub:org/name", default="train")
    assert str(error.value) == "datasets 3.6.0 may run code from the hub: pip install 'datasets>=4'"


def test_splits_of_two_names_for_one_keep_their_own(
    calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ROWS, "val", ROWS["train"])
    assert len(open_data("hf-hub:org/name:val")) == 2
    assert calls[-1][-1] == {"split": "val"}
    monkeypatch.delitem(ROWS, "val")
    monkeypatch.setitem(ROWS, "dev", ROWS.pop("validation"))
    try:
        assert len(open_data("hf-hub:org/name:val")) == 1 and calls[-1][-1] == {"split": "dev"}
    finally:
        ROWS["validation"] = ROWS["dev"]
