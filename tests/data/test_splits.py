"""Splits are chosen as asked, by the names of files, or made by content: the same every time, no image on both sides."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitkit.data.cache import content_hashes
from vitkit.data.sources.source import stratified_split
from vitkit.data.splits import choose_files, choose_split, split_of_file
from vitkit.errors import InputError


def test_a_verb_takes_its_own_split_and_says_so() -> None:
    three = ["train", "val", "test"]
    assert choose_split(three, None, "train", "x") == ("train", ["x: using split 'train' (also: val, test)"])
    assert choose_split(three, None, "measure", "x")[0] == "test"
    assert choose_split(["train", "val"], None, "measure", "x")[0] == "val"
    assert choose_split(three, "validation", "measure", "x") == ("val", [])
    assert choose_split(three, "all", "measure", "x") == ("all", [])


@pytest.mark.parametrize(
    ("available", "asked", "default", "message"),
    [
        (["train", "test"], "val", "train", "x has no split 'val'; it has train, test, all"),
        (
            ["train", "test"],
            "tets",
            "train",
            "x has no split 'tets'; did you mean 'test'? it has train, test, all",
        ),
        (
            ["train"],
            None,
            "measure",
            "x has no test or val split, only train: name the one to take, such as 'x:train'",
        ),
        (
            ["val", "test"],
            None,
            "train",
            "x has no train split, only val, test: name the one to take, such as 'x:val'",
        ),
    ],
)
def test_a_split_that_is_not_there_is_an_error(
    available: list[str], asked: str | None, default: str, message: str
) -> None:
    with pytest.raises(InputError) as error:
        choose_split(available, asked, default, "x")  # type: ignore[arg-type]
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("a/cifar10-train-0.parquet", "train"),
        ("train-00000-of-00005.parquet", "train"),
        ("imagenet-val-000012.tar", "val"),
        ("data/validation-00000.parquet", "val"),
        ("x/VALID_3.tar", "val"),
        ("shards/test/000.tar", "test"),
        ("shards/Train/000.tar", "train"),
        ("train/test-0.tar", "test"),  # the name before the folder
        ("trainval-0.tar", None),
        ("train/deep/000.tar", None),
        ("latest/contest.tar", None),
        ("s3://bucket/val/7.tar", "val"),
        ("https://host/val-7.tar?signed=train/x", "val"),
    ],
)
def test_names_of_files_say_the_split(path: str, split: str | None) -> None:
    assert split_of_file(path) == split


def test_files_are_chosen_by_split() -> None:
    files = ["a/test.tar", "a/train-0.tar", "a/train-1.tar", "a/other.tar"]
    chosen = choose_files(files, None, "measure", "a")
    assert (chosen.split, chosen.files, chosen.is_made) == ("test", ["a/test.tar"], False)
    assert chosen.naming == ["a/train-0.tar", "a/train-1.tar"]
    assert chosen.notes[1] == "a: skipped a/other.tar, whose names say no split"
    assert choose_files(files, "all", "train", "a").files == ["a/train-0.tar", "a/train-1.tar", "a/test.tar"]
    without = choose_files(["b/0.tar", "b/1.tar"], None, "train", "b")
    assert (without.split, without.files, without.is_made) == ("train", ["b/0.tar", "b/1.tar"], True)
    with pytest.raises(InputError, match="names two splits, test and train: rename it"):
        choose_files(["b/train-test.tar"], None, "train", "b")


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 60)), max_size=80),
    st.sampled_from([0.1, 1 / 9, 0.2, 0.5]),
    st.randoms(use_true_random=False),
)
def test_a_made_split_is_stratified_and_keeps_copies_together(
    images: list[tuple[int, int]], share: float, random: Random
) -> None:
    labels = np.array([label for label, _ in images], np.int64)
    hashes = np.array([content for _, content in images], np.uint64)
    held = stratified_split(labels, hashes, share)
    assert not set(hashes[held]) & set(hashes[~held])
    for number in set(labels.tolist()):
        contents = set(hashes[labels == number].tolist())
        own = {content for content in contents if set(labels[hashes == content]) == {number}}
        out = set(hashes[held & (labels == number)].tolist())
        expected = min(len(contents) - 1, max(1, int(share * len(contents) + 0.5)), len(own))
        assert len(out) == expected
        assert out == set(sorted(own)[:expected])  # those of the smallest hashes
    order = list(range(len(images)))
    random.shuffle(order)
    assert (stratified_split(labels[order], hashes[order], share) == held[order]).all()


def test_contents_are_hashed_once_and_again_when_changed() -> None:
    contents = {"a": b"1", "b": b"2", "c": b"1"}
    read: list[str] = []

    def hashes(keys: list[str]) -> list[int]:
        def content(index: int) -> bytes:
            read.append(keys[index])
            return contents[keys[index][0]]

        return content_hashes("place", keys, content).tolist()

    first = hashes(["a1", "b1", "c1"])
    assert first[0] == first[2] != first[1] and sorted(read) == ["a1", "b1", "c1"]
    contents["b"] = b"3"
    second = hashes(["a1", "b2", "c1"])
    assert (second[0], second[2]) == (first[0], first[2]) and second[1] != first[1]
    assert read[3:] == ["b2"]


def test_a_cache_that_is_broken_or_read_only_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path))
    expected = content_hashes("place", ["a"], lambda index: b"1").tolist()
    [kept] = (tmp_path / "hashes").iterdir()
    kept.write_bytes(b"PK damaged")
    assert content_hashes("place", ["a"], lambda index: b"1").tolist() == expected
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "file"))
    assert content_hashes("place", ["a"], lambda index: b"1").tolist() == expected
