"""ReaL equals a reference of ten lines; its file's counts are those of ReaL's real.json."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitkit.data.sources.source import Files
from vitkit.errors import InputError
from vitkit.evaluation.real import RealAccuracy, read_real, real_accuracy, validation_numbers

REAL = Path(__file__).parents[2].parent / "shared" / "data" / "imagenet" / "real.json"


def reference(predictions: dict[str, int], lists: list[list[int]]) -> float | None:
    """ReaL as its authors describe it: file names in order, empty lists left out."""
    known = {f"ILSVRC2012_val_{i + 1:08d}.JPEG": labels for i, labels in enumerate(lists)}
    right = []
    for name, prediction in predictions.items():
        if known[name]:
            right.append(prediction in known[name])
    return float(np.mean(right)) if right else None


def files(paths: list[str]) -> Files:
    return Files("val", "all", ("a",), np.zeros(len(paths), np.int64), paths)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3, 1.0]))
def test_accuracy_is_the_references(seed: int, empty: float) -> None:
    random = np.random.default_rng(seed)
    lists = [
        [] if random.random() < empty else random.choice(9, random.integers(1, 4), replace=False).tolist()
        for _ in range(60)
    ]
    numbers = random.permutation(60)[:25]
    names = [f"ILSVRC2012_val_{number + 1:08d}.JPEG" for number in numbers.tolist()]
    predictions = random.integers(0, 9, 25)
    source = files([f"val/n0{number % 4}/{name}" for number, name in enumerate(names)])
    found = real_accuracy(predictions, validation_numbers(source), lists)
    assert found.accuracy == reference(dict(zip(names, predictions.tolist(), strict=True)), lists)
    assert found.images == sum(bool(lists[number]) for number in numbers)
    assert found.images + found.left_out == 25


@pytest.mark.skipif(not REAL.exists(), reason="needs the shared real.json")
def test_the_real_file() -> None:
    lists = read_real(REAL)
    assert len(lists) == 50_000
    counts = Counter(map(len, lists))
    # ReaL's real.json
    assert counts == {0: 3163, 1: 39394, 2: 5408, 3: 1319, 4: 411, 5: 161, 6: 88, 7: 41, 8: 13, 9: 2}
    assert sum(map(len, lists)) == 57_553
    first = [[], [970, 795], [230, 231], [809], [516, 850], [57], [334], [700], [674], [332]]
    assert lists[:10] == first
    best = np.array([labels[0] if labels else 0 for labels in lists])
    assert real_accuracy(best, np.arange(50_000), lists) == RealAccuracy(1.0, 46_837, 3163)


def write(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([[1]] * 49_999, "has 49,999 lists; expected 50,000, one for each validation image of ImageNet"),
        (
            [[1]] * 49_999 + [[3, 1000]],
            ", list 49999 of 50,000 from 0, has label 1000; expected 0 to 999",
        ),
        ([[1]] * 49_999 + [[-1]], ", list 49999 of 50,000 from 0, has label -1; expected 0 to 999"),
        ([[True]] * 50_000, ", list 0 of 50,000 from 0, has label true; expected 0 to 999"),
        ([["cat"]] * 50_000, ', list 0 of 50,000 from 0, has label "cat"; expected 0 to 999'),
        ({"a": 1}, "is not a list of lists of labels, as ReaL's real.json is"),
        ([1] * 50_000, "is not a list of lists of labels, as ReaL's real.json is"),
    ],
)
def test_wrong_files(tmp_path: Path, value: Any, message: str) -> None:
    path = write(tmp_path / "real.json", value)
    with pytest.raises(InputError) as error:
        read_real(path)
    assert str(error.value).removeprefix(str(path)).strip() == message.strip()


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the ReaL labels in .*none.json: No such file"):
        read_real(tmp_path / "none.json")
    (tmp_path / "x.json").write_bytes(b"\xff[")
    with pytest.raises(InputError, match="the ReaL labels in .*x.json are not JSON"):
        read_real(tmp_path / "x.json")


@pytest.mark.parametrize(
    "name",
    ["cat.jpg", "ILSVRC2012_val_123.JPEG", "ILSVRC2012_val_00000000.JPEG", "ILSVRC2012_val_00050001.JPEG"],
)
def test_names_without_a_number(name: str) -> None:
    with pytest.raises(InputError) as error:
        validation_numbers(files(["a/ILSVRC2012_val_00000007.JPEG", f"a/{name}"]))
    assert str(error.value) == (
        f"a/{name}: ReaL's labels belong to file names, "
        "ILSVRC2012_val_00000001.JPEG to ILSVRC2012_val_00050000.JPEG"
    )


def test_numbers_are_found_in_shards_too() -> None:
    source = files(
        ["shards/000.tar, n01440764/ILSVRC2012_val_00000293", "x/ILSVRC2012_val_00050000_n01440764.JPEG"]
    )
    assert validation_numbers(source).tolist() == [292, 49_999]
