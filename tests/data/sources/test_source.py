"""Slices, shots and the matching of classes mean the same for every source."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitkit.data.fetch import in_memory
from vitkit.data.open import open_data
from vitkit.data.sources.source import Files, Source, fingerprint, match_classes, take
from vitkit.data.spec import parse_spec
from vitkit.errors import InputError


def files(labels: np.ndarray, names: tuple[str, ...]) -> Files:
    return Files("x", "train", names, labels, [f"{index}.png" for index in range(len(labels))])


@given(st.integers(0, 5), st.integers(1, 3))
def test_shots_follow_big_visions_rule(seed: int, shots: int) -> None:
    """As big_vision's fewshot_lsr.py draws: one generator of the seed; for each class the first k of a permutation of its indices."""
    labels = np.random.default_rng(9).permutation(np.repeat(np.arange(4), 5))
    source = take(files(labels, tuple("abcd")), parse_spec(f"x:train[{shots}shot,seed={seed}]"))
    generator = np.random.default_rng(seed)
    expected = [index for c in range(4) for index in generator.permutation(np.where(labels == c)[0])[:shots]]
    assert [source.where(index) for index in range(len(source))] == [f"{index}.png" for index in expected]
    assert source.labels.tolist() == np.repeat(np.arange(4), shots).tolist()


def test_too_few_images_for_the_shots_is_an_error() -> None:
    source = files(np.array([0, 0, 1]), ("a", "b"))
    with pytest.raises(InputError) as error:
        take(source, parse_spec("x[2shot]"))
    assert str(error.value) == "2shot: class 'b' has only 1 image; upto2 takes what there is"


@given(st.integers(0, 5), st.integers(1, 6), st.lists(st.integers(0, 6), min_size=2, max_size=5).filter(any))
def test_up_to_so_many_shots_are_what_there_is(seed: int, shots: int, counts: list[int]) -> None:
    labels = np.random.default_rng(9).permutation(np.repeat(np.arange(len(counts)), counts))
    source = files(labels, tuple("abcde"[: len(counts)]))
    spec = parse_spec(f"x[upto{shots},seed={seed}]")
    part = take(source, spec)
    assert np.bincount(part.labels, minlength=len(counts)).tolist() == [min(n, shots) for n in counts]
    if min(counts) >= shots:
        assert fingerprint(part) == fingerprint(take(source, parse_spec(f"x[{shots}shot,seed={seed}]")))


@given(st.integers(1, 30), st.integers(0, 30), st.integers(0, 30))
def test_slices_are_pythons(length: int, start: int, stop: int) -> None:
    source = files(np.zeros(length, np.int64), ("a",))
    expected = list(range(length))[start:stop]
    spec = parse_spec(f"x[{start}:{stop}]")
    if max(start, stop) > length:
        with pytest.raises(InputError, match=rf"asks for image \d+; x:train has {length}$"):
            take(source, spec)
    elif expected:
        assert [take(source, spec).read(index) for index in range(len(expected))] == [
            f"{index}.png" for index in expected
        ]
    else:
        with pytest.raises(InputError, match="selects none"):
            take(source, spec)


def test_percent_slices_share_all_images_and_tell_lost_classes() -> None:
    source = files(np.repeat([0, 1], 50), ("a", "b"))
    head, tail = take(source, parse_spec("x[:98%]")), take(source, parse_spec("x[98%:]"))
    assert (len(head), len(tail)) == (98, 2)
    assert head.notes == ()
    assert tail.notes == ("'x[98%:]' has no image of 1 of the 2 classes",)


@given(st.permutations("abcd"), st.booleans())
def test_labels_are_matched_by_name(order: list[str], several: bool) -> None:
    labels = np.eye(4, dtype=bool)[[3, 0, 1, 1, 2]] if several else np.array([3, 0, 1, 1, 2])
    matched = match_classes(files(labels, tuple("abcd")), [*order, "more"])
    assert matched.class_names == (*order, "more")
    if several:
        assert [[matched.class_names[c] for c in np.flatnonzero(row)] for row in matched.labels] == [
            *map(list, "dabbc")
        ]
    else:
        assert [matched.class_names[label] for label in matched.labels] == list("dabbc")
    assert matched.notes == ("x: no image of 1 of the 5 classes",)


def test_a_class_without_a_match_is_an_error_only_where_it_has_images() -> None:
    labels = np.array([0, 1])
    assert match_classes(files(labels, ("cat", "dog", "fish")), ["dog", "cat"]).labels.tolist() == [1, 0]
    with pytest.raises(InputError) as error:
        match_classes(files(labels, ("cat", "dgo")), ["cat", "dog"])
    assert str(error.value) == (
        "x:train has class 'dgo', which is none of the 2 expected; did you mean 'dog'? classes are matched by name: cat, dog"
    )
    with pytest.raises(InputError, match="two classes are named 'cat'"):
        match_classes(files(labels, ("cat", "dog")), ["cat", "cat"])


def test_a_source_without_notes_has_none() -> None:
    assert Source.notes == ()


def test_a_fingerprint_changes_with_the_images_alone(tmp_path: Path) -> None:
    for number, name in enumerate("aabb"):
        (tmp_path / f"train/{name}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(tmp_path / f"train/{name}/{number}.png")
    spec = f"{tmp_path}:train"
    source = open_data(spec)
    first = fingerprint(source)
    assert first == fingerprint(open_data(spec)) == fingerprint(in_memory(source))
    assert fingerprint(open_data(f"{spec}[:2]")) != first
    renamed = match_classes(source, ["b", "a"])
    assert fingerprint(renamed) != first
    assert fingerprint(renamed, labelled=False) == fingerprint(source, labelled=False)
    assert isinstance(source, Files)
    os.utime(source.paths[0], ns=(1, 1))
    assert fingerprint(open_data(spec)) != first


def test_a_fingerprint_knows_pixels_and_settings() -> None:
    specs = [
        "digits:val", "digits:val[:50]", "digits:val[50:100]", "shapes:val[:50]", "shapes:val[50:100]",
        "shapes:val[:50,size=16]", "shapes:val[:50,label=count]", "shapes:test[:50]",
    ]  # fmt: skip
    found = [fingerprint(open_data(spec)) for spec in specs]
    assert len({*found}) == len(specs)
    assert found == [fingerprint(open_data(spec)) for spec in specs]
