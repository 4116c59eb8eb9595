"""Pairs: all of them or as many as asked for, folds that share no identity, files in LFW's format."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitkit.errors import InputError
from vitkit.evaluation import pairs as module
from vitkit.evaluation.pairs import Pairs, draw_protocol, read_protocol

LABELS = np.array([0, 1, 0, 2, 2, 0, 3, 3, 4, 4, 5, 1])


def as_set(pairs: Pairs) -> set[tuple[int, int]]:
    found = {(min(pair), max(pair)) for pair in zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)}
    assert len(found) == len(pairs)
    return found


def test_all_pairs() -> None:
    pairs = draw_protocol(LABELS).pairs
    assert as_set(pairs) == set(combinations(range(len(LABELS)), 2))
    np.testing.assert_array_equal(pairs.is_same, LABELS[pairs.first] == LABELS[pairs.second])


@pytest.mark.parametrize("listed", [10, 10**7])
def test_some_pairs(listed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_LISTED", listed)
    labels = np.random.default_rng(0).integers(0, 8, 200)
    one, same, other = (draw_protocol(labels, 500, seed).pairs for seed in (0, 0, 1))
    as_set(one)
    assert np.count_nonzero(one.is_same) == 500 and len(one) == 1000
    np.testing.assert_array_equal(one.is_same, labels[one.first] == labels[one.second])
    np.testing.assert_array_equal(one.first, same.first)
    assert as_set(one) != as_set(other)


def test_numbers_of_pairs() -> None:
    numbers = np.concatenate(
        [np.arange(5000), [x * (x - 1) // 2 + d for x in (10**8, 10**9) for d in (-1, 0, 1)]]
    )
    pairs = module._pair(numbers)
    assert (pairs[:, 0] < pairs[:, 1]).all() and (pairs[:, 0] >= 0).all()
    np.testing.assert_array_equal(pairs[:, 1] * (pairs[:, 1] - 1) // 2 + pairs[:, 0], numbers)


def test_folds_share_no_identity() -> None:
    labels = np.random.default_rng(0).integers(0, 30, 300)
    protocol = draw_protocol(labels)
    assert len(protocol.folds) == 10
    seen: set[int] = set()
    for fold in protocol.folds:
        as_set(fold)
        np.testing.assert_array_equal(fold.is_same, labels[fold.first] == labels[fold.second])
        assert 0 < fold.is_same.sum() == (~fold.is_same).sum()
        own = {*labels[fold.first].tolist(), *labels[fold.second].tolist()}
        assert not seen & own
        seen |= own
    assert len(draw_protocol(LABELS).folds) == 2
    assert draw_protocol(np.array([0, 0, 1, 1])).folds == ()


def test_unreadable_images_leave_with_their_pairs() -> None:
    protocol = draw_protocol(LABELS)
    kept = np.array([1, 3, 4, 6, 7, 11])
    left = protocol.among(kept, len(LABELS))
    assert as_set(left.pairs) == set(combinations(range(6), 2))
    np.testing.assert_array_equal(
        left.pairs.is_same, LABELS[kept][left.pairs.first] == LABELS[kept][left.pairs.second]
    )


@pytest.fixture
def lfw(tmp_path: Path) -> Path:
    for name in ("Ann_Lee", "Bob", "Cy"):
        for number in range(1, 4):
            path = tmp_path / name / (f"{name}_{number:04d}.jpg" if name != "Cy" else f"{number}.pgm")
            path.parent.mkdir(exist_ok=True)
            Image.new("L", (10, 10), number).save(path)
    return tmp_path


LINES = ["Ann_Lee\t1\t2", "Ann_Lee\t1\tBob\t3", "Cy\t1\t3", "Bob\t3\tCy\t2"]


def write(folder: Path, *lines: str) -> Path:
    path = folder / "pairs.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_file_of_pairs(lfw: Path) -> None:
    protocol, source = read_protocol(write(lfw, "2\t1", *LINES), lfw)
    names = [Path(path).relative_to(lfw).as_posix() for path in source.paths]
    found = [
        (names[first], names[second])
        for first, second in zip(protocol.pairs.first, protocol.pairs.second, strict=True)
    ]
    assert found == [
        ("Ann_Lee/Ann_Lee_0001.jpg", "Ann_Lee/Ann_Lee_0002.jpg"),
        ("Ann_Lee/Ann_Lee_0001.jpg", "Bob/Bob_0003.jpg"),
        ("Cy/1.pgm", "Cy/3.pgm"),
        ("Bob/Bob_0003.jpg", "Cy/2.pgm"),
    ]
    assert protocol.pairs.is_same.tolist() == [True, False, True, False]
    assert [fold.is_same.tolist() for fold in protocol.folds] == [[True, False]] * 2
    assert [source.class_names[label] for label in source.labels] == [name.split("/")[0] for name in names]
    alone, _ = read_protocol(write(lfw, "1", "Bob 1 2", "Bob 1 Cy 1"), lfw)
    assert len(alone.pairs) == 2 and alone.folds == ()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a b c"], "is not a file of pairs in LFW's format"),
        ([], "is not a file of pairs in LFW's format"),
        (["2 1", *LINES[:3]], "says 2 x 2 x 1 pairs in its first line, but has 3"),
        (["1", LINES[1], LINES[0]], "line 2: expected 'NAME N N'"),
        (["1", LINES[0], LINES[0]], "line 3: expected 'NAME N NAME N'"),
        (["1", "Bob 1 x", LINES[1]], "line 2: expected 'NAME N N'"),
        (["1", "Bob 1 4", LINES[1]], "line 2: no image 4 in"),
        (["1", "Dan 1 2", LINES[1]], "line 2: no folder 'Dan' in"),
        (["1", "../Bob 1 2", LINES[1]], "line 2: no folder '../Bob' in"),
        (["1", LINES[0], "Bob 1 Bob 2"], "line 3: both images are of 'Bob'"),
    ],
)
def test_damaged_files_of_pairs(lfw: Path, lines: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_protocol(write(lfw, *lines), lfw)
    with pytest.raises(InputError, match="cannot read"):
        read_protocol(lfw / "none.txt", lfw)
