"""Results are frozen and become JSON as it is documented: plain values, no NaN."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from vitkit.notes import Note, kind_of
from vitkit.results import Result, from_json


class Bad(NamedTuple):
    image: str
    reason: str


@dataclass(frozen=True)
class Row(Result):
    name: str = field(metadata={"json": "class"})
    score: float


@dataclass(frozen=True)
class Found(Result):
    rows: tuple[Row, ...]
    folder: Path
    values: np.ndarray
    unreadable: list[Bad]
    notes: tuple[str, ...]
    best: Row | None = None


FOUND = Found(
    (Row("cat", 0.5), Row("dog", float("nan"))),
    Path("runs/a"),
    np.array([1.0, np.inf]),
    [Bad("a.png", "empty")],
    (Note("estimated time: 3 s", "estimate"),),
)


def test_a_result_becomes_plain_json() -> None:
    document = FOUND.to_json()
    assert document == {
        "rows": [{"class": "cat", "score": 0.5}, {"class": "dog", "score": None}],
        "folder": "runs/a",
        "values": [1.0, None],
        "unreadable": [{"image": "a.png", "reason": "empty"}],
        "notes": ["estimated time: 3 s"],
        "best": None,
    }
    assert type(document["notes"][0]) is str
    assert json.loads(json.dumps(document, allow_nan=False)) == document


@dataclass(frozen=True)
class Mean(Result):
    mean: float


@dataclass(frozen=True)
class Kept(Result):
    row: Row | None
    by_name: Mapping[str, Row]
    rows: tuple[Row, ...] | tuple[Mean, ...] = ()
    best: float | None = None


def test_a_result_is_read_back_from_its_json() -> None:
    row = Row("cat", 0.5)
    for kept in (
        Kept(row, {"a": row}, (row, row), 0.25),
        Kept(None, {}),
        Kept(None, {}, (Mean(0.5),)),
    ):
        assert from_json(Kept, {**kept.to_json(), "of another program": 1}) == kept
    assert from_json(Kept, {"row": None, "by_name": {}}) == Kept(None, {})


def test_a_result_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        FOUND.best = FOUND.rows[0]  # type: ignore[misc]


def test_a_note_is_text_with_a_kind() -> None:
    note = Note("a GPU would be faster", "advice")
    assert note == "a GPU would be faster" and kind_of(note) == "advice"
    assert kind_of("plain text") == "info"
