"""The grammar of DATA strings."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitkit import InputError
from vitkit.data.spec import DataSpec, parse_spec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("digits", DataSpec("digits")),
        ("cifar10:train[:98%]", DataSpec("cifar10", "train", stop="98%")),
        ("cifar10:train[5shot,seed=1]", DataSpec("cifar10", "train", shots=5, seed=1)),
        (
            "cifar10:train[upto20,seed=1]",
            DataSpec("cifar10", "train", shots=20, takes_fewer=True, seed=1),
        ),
        ("shards/{000..010}.tar:train", DataSpec("./shards/{000..010}.tar", "train")),
        ("*.parquet", DataSpec("./*.parquet")),
        ("cifar10:train[100:200, 5shot]", DataSpec("cifar10", "train", start="100", stop="200", shots=5)),
        ("./photos", DataSpec("./photos")),
        ("~/photos:val", DataSpec("~/photos", "val")),
        ("/data/a:b/c", DataSpec("/data/a:b/c")),
        ("s3://bucket/x-{000..010}.tar:train", DataSpec("s3://bucket/x-{000..010}.tar", "train")),
        ("s3://bucket/x.tar", DataSpec("s3://bucket/x.tar")),
        ("hf-hub:org/name", DataSpec("hf-hub:org/name")),
        ("hf-hub:org/name:test", DataSpec("hf-hub:org/name", "test")),
        ("pets:train[root=/data,download=true]", DataSpec("pets", "train", root="/data", download=True)),
        ("shapes[label=count,size=64]", DataSpec("shapes", label="count", size=64)),
        ("digits:all", DataSpec("digits", "all")),
    ],
)
def test_specs_mean_what_the_grammar_says(text: str, expected: DataSpec) -> None:
    assert parse_spec(text) == expected
    assert parse_spec(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the data spec is empty; expected SOURCE[:SPLIT][[ITEM,...]], such as 'digits:train'"),
        (":train", "data spec ':train' names no source; expected SOURCE[:SPLIT][[ITEM,...]]"),
        ("digits:", "data spec 'digits:' ends in a colon; a split's name follows it, such as ':train'"),
        ("digits[seed=x]", "data spec 'digits[seed=x]': seed= takes a whole number, not 'x'"),
        (
            "digits[download=yes]",
            "data spec 'digits[download=yes]': download= takes true or false, not 'yes'",
        ),
        ("digits[:120%]", "data spec 'digits[:120%]': 120% is more than 100%"),
        ("digits[0shot]", "data spec 'digits[0shot]': 0shot selects no image"),
        ("digits[seed=1,seed=2]", "data spec 'digits[seed=1,seed=2]' says seed twice"),
        (
            "digits[sed=1]",
            "data spec 'digits[sed=1]': unknown item 'sed=1'; did you mean 'seed'? expected a slice "
            "(:98%, 100:200), 5shot, upto5, or seed=, label=, size=, root=, download=",
        ),
        ("digits[:5,:9]", "data spec 'digits[:5,:9]' has two slices"),
        (
            "digits[5shots]",
            "data spec 'digits[5shots]': unknown item '5shots'; did you mean '5shot'? expected a slice "
            "(:98%, 100:200), 5shot, upto5, or seed=, label=, size=, root=, download=",
        ),
        ("digits[5shot,upto5]", "data spec 'digits[5shot,upto5]' gives the number of shots twice"),
        ("digits[upto0]", "data spec 'digits[upto0]': upto0 selects no image"),
        (
            "digits[up to 20]",
            "data spec 'digits[up to 20]': unknown item 'up to 20'; did you mean 'upto20'? expected a slice "
            "(:98%, 100:200), 5shot, upto5, or seed=, label=, size=, root=, download=",
        ),
        (
            "digits[-10:]",
            "data spec 'digits[-10:]': '-10:' counts from the end, which slices can't do; write 90%:, for example",
        ),
        (
            "./flat:train[:5",
            "data spec './flat:train[:5' has a '[' without its ']'; expected 'SOURCE:SPLIT[ITEM,...]'",
        ),
        ("digits[", "data spec 'digits[' has a '[' without its ']'; expected 'SOURCE:SPLIT[ITEM,...]'"),
        ("digits]", "data spec 'digits]': brackets don't match; expected 'SOURCE:SPLIT[ITEM,...]'"),
    ],
)
def test_bad_specs_say_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_spec(text)
    assert str(error.value) == message


def sampled(shots: int | None, takes_fewer: bool, **others: Any) -> DataSpec:
    """Return a spec of any items; without shots there is nothing to take fewer of."""
    return DataSpec(shots=shots, takes_fewer=takes_fewer and shots is not None, **others)


ends = st.none() | st.integers(0, 100).map(str) | st.integers(0, 100).map("{}%".format)


@given(
    st.builds(
        sampled,
        source=st.sampled_from(["digits", "./a b", "/x/y.csv", "s3://b/c.tar", "hf-hub:o/n"]),
        split=st.none() | st.sampled_from(["train", "val", "all"]),
        start=ends,
        stop=ends,
        shots=st.none() | st.integers(1, 99),
        takes_fewer=st.booleans(),
        seed=st.integers(0, 9),
        label=st.none() | st.just("count"),
        size=st.none() | st.integers(1, 999),
        root=st.none() | st.just("/d"),
        download=st.booleans(),
    )
)
def test_a_spec_survives_being_written(spec: DataSpec) -> None:
    assert parse_spec(str(spec)) == spec


@given(st.text(max_size=30))
def test_any_text_is_a_spec_or_a_clean_error(text: str) -> None:
    with suppress(InputError):
        spec = parse_spec(text)
        assert spec.source.removeprefix("./") in text
        assert parse_spec(str(spec)).source == spec.source


def test_a_path_that_exists_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a:b", "photos[1]", "c"):
        (tmp_path / name).mkdir()
    assert parse_spec("./a:b") == DataSpec("./a:b")
    assert parse_spec("./a:b:train") == DataSpec("./a:b", "train")
    assert parse_spec("./a:b[:5]") == DataSpec("./a:b", stop="5")
    assert parse_spec("./photos[1]") == DataSpec("./photos[1]")
    assert parse_spec("./photos[1]:val[5shot]") == DataSpec("./photos[1]", "val", shots=5)
    assert parse_spec("./c:b") == DataSpec("./c", "b")


def test_a_path_that_exists_needs_no_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "a:b", "more[1]", "sets/flowers", "digits", "pets", "vtab/dtd"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "t.csv").touch()
    assert parse_spec("photos") == DataSpec("./photos")
    assert parse_spec("photos:train[5shot]") == DataSpec("./photos", "train", shots=5)
    assert parse_spec("photos/") == DataSpec("./photos/")
    assert parse_spec("a:b:val") == DataSpec("./a:b", "val")
    assert parse_spec("more[1][:5]") == DataSpec("./more[1]", stop="5")
    assert parse_spec("sets/flowers:test") == DataSpec("./sets/flowers", "test")
    assert parse_spec("t.csv:all") == DataSpec("./t.csv", "all")
    assert str(parse_spec("photos:train")) == "./photos:train", "which is read the same wherever ./photos is"
    # Names of data sets win.
    assert parse_spec("digits") == DataSpec("digits")
    assert parse_spec("pets:test[root=.]") == DataSpec("pets", "test", root=".")
    assert parse_spec("vtab/dtd") == DataSpec("vtab/dtd")
    assert parse_spec("nowhere") == DataSpec("nowhere")
