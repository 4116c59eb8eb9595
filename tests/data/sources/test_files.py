"""Paths, patterns and URLs name the files that a shell and fsspec would."""

from __future__ import annotations

import os
import time
from pathlib import Path

import braceexpand
import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitkit.data.decode import decode
from vitkit.data.open import open_data
from vitkit.data.sources.files import expand_braces, find_files
from vitkit.errors import InputError

PARTS = st.one_of(
    st.text("ab/-.", max_size=3),
    st.tuples(st.integers(0, 120), st.integers(0, 120), st.integers(1, 4)).map(
        lambda row: "{" + f"{row[0]:0{row[2]}}..{row[1]:0{row[2]}}" + "}"
    ),
    st.lists(st.text("xyz", max_size=2), min_size=2, max_size=3).map(
        lambda options: "{" + ",".join(options) + "}"
    ),
)


@pytest.mark.slow
@given(st.lists(PARTS, max_size=3).map("".join))
def test_braces_are_expanded_as_the_library_that_webdataset_uses_does(text: str) -> None:
    assert expand_braces(text) == list(braceexpand.braceexpand(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a{1}", "a range such as {000..099} or a choice such as {a,b}"),
        ("{0..99999999}", "more than a million files"),
    ],
)
def test_braces_that_mean_nothing_are_an_error(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        expand_braces(text)
    assert message in str(error.value)


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


def names(root: Path, source: str) -> list[str]:
    return [str(Path(file).relative_to(root)) for file in find_files(source)]


def test_patterns_and_folders_name_files(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "s/1.tar",
        "s/0.tar",
        "s/.2.tar",
        "s/classes.txt",
        "p/data/train-0.parquet",
        "t/val/0.tar",
        "t/train/0.tar",
    )
    assert names(tmp_path, f"{tmp_path}/s/*.tar") == ["s/0.tar", "s/1.tar"]
    assert names(tmp_path, f"{tmp_path}/s/{{0..1}}.tar") == ["s/0.tar", "s/1.tar"]
    assert names(tmp_path, f"{tmp_path}/s") == ["s/0.tar", "s/1.tar"]
    assert names(tmp_path, f"{tmp_path}/p") == ["p/data/train-0.parquet"]
    assert names(tmp_path, f"{tmp_path}/t") == ["t/train/0.tar", "t/val/0.tar"]
    assert names(tmp_path, str(tmp_path)) == ["."]
    touch(tmp_path, "images/a/1.png", "images/images.tar", "images/.x/1.png")
    assert names(tmp_path, f"{tmp_path}/images") == ["images"]
    touch(tmp_path, "s/logs/log.txt", "s/preview.png")
    assert names(tmp_path, f"{tmp_path}/s") == ["s/0.tar", "s/1.tar"]
    touch(tmp_path, "odd{1}/0.tar")
    assert names(tmp_path, f"{tmp_path}/odd{{1}}") == ["odd{1}/0.tar"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{root}/{0..2}.tar", "names {root}/1.tar, which is not there"),
        ("{root}/*.parquet", "no file matches {root}/*.parquet"),
        ("{root}/x", "no such file or folder: {root}/x"),
        (
            "{root}/both",
            "{root}/both holds parquet and tar files: name one kind, such as '{root}/both/*.tar'",
        ),
    ],
)
def test_files_that_are_not_there_are_an_error(tmp_path: Path, source: str, message: str) -> None:
    touch(tmp_path, "0.tar", "2.tar", "both/a.tar", "both/b.parquet")
    with pytest.raises(InputError) as error:
        find_files(source.replace("{root}", str(tmp_path)))
    assert message.replace("{root}", str(tmp_path)) in str(error.value)


def test_urls_name_files_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    store = fsspec.filesystem("memory")
    for name in ("train-0.tar", "train-1.tar", "val-0.tar", "note.txt"):
        store.pipe_file(f"/urls/{name}", b"")
    expected = ["memory:///urls/train-0.tar", "memory:///urls/train-1.tar"]
    assert [
        url.replace("memory://urls", "memory:///urls") for url in find_files("memory://urls/train-*.tar")
    ] == expected
    assert find_files("memory://urls/train-{0..1}.tar") == [
        "memory://urls/train-0.tar",
        "memory://urls/train-1.tar",
    ]
    assert len(find_files("memory://urls")) == 3
    with pytest.raises(InputError, match="no tar file at memory://nothing"):
        find_files("memory://nothing")
    with pytest.raises(InputError, match="cannot read nosuch://a/b.tar: Protocol not known: nosuch"):
        find_files("nosuch://a/b.tar")


@pytest.mark.parametrize(
    "text",
    [
        "./{a,b}" * 30,
        "{0..999999}{0..1}",
        "{a,b,{c,d,{e,f,{g,h,{i,j,{k,l}}}}}}" * 4,
        "{a," * 3000 + "b" + "}" * 3000,
        "{" + "9" * 5000 + "..1}",
    ],
)
def test_a_brace_bomb_is_one_line_at_once(text: str) -> None:
    began = time.perf_counter()
    with pytest.raises(InputError):
        expand_braces(text)
    assert time.perf_counter() - began < 5


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_devices_and_loops_are_no_data(tmp_path: Path) -> None:
    for name in ("a.csv", "a.tar", "a.parquet"):
        os.mkfifo(tmp_path / name)
        for spec in (tmp_path / name, f"{tmp_path}/*.{name[2:]}"):
            with pytest.raises(InputError, match=r"a\.\w+: it is a pipe or a device, not a file$"):
                open_data(spec)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError, match="no such file or folder"):
        open_data(tmp_path / "loop")
    (tmp_path / "photos/train/a").mkdir(parents=True)
    (tmp_path / "photos/train/a/in").symlink_to(tmp_path / "photos")
    os.mkfifo(tmp_path / "photos/train/a/1.png")
    (tmp_path / "photos/train/a/2.png").symlink_to(tmp_path / "photos/train/a/2.png")
    (tmp_path / "photos/train/a/3.png").symlink_to("/dev/zero")
    [index] = range(len(source := open_data(tmp_path / "photos:train")))
    with pytest.raises(InputError, match=r"2\.png: Too many levels"):
        decode(source.read(index))
    os.mkfifo(tmp_path / "4.png")
    (tmp_path / "table.csv").write_text("path,label,split\n4.png,a,train\nphotos/train/a/in/5.png,a,train\n")
    (tmp_path / "photos/5.png").write_bytes(b"")
    source = open_data(tmp_path / "table.csv", tolerate=True)
    with pytest.raises(InputError, match=r"4\.png: it is a pipe or a device"):
        decode(source.read(0))
