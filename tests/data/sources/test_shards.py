"""Tar shards: what webdataset reads, by index, from disk or through fsspec, with the index made once."""

from __future__ import annotations

import gc
import http.server
import io
import json
import os
import pickle
import re
import tarfile
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest
import webdataset
from hypothesis import example, given
from hypothesis import strategies as st

from vitkit.data.open import open_data
from vitkit.data.sources import shards
from vitkit.data.sources.shards import BLOCK, list_members
from vitkit.data.sources.source import Source
from vitkit.errors import InputError

Png = Callable[[int], bytes]


def tar(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def samples(source: Source) -> list[tuple[bytes, str]]:
    return [(source.read(index), source.class_names[label]) for index, label in enumerate(source.labels)]  # type: ignore[misc]


def error(spec: str) -> str:
    with pytest.raises(InputError) as caught:
        open_data(spec, default="train")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_shards_give_what_webdataset_gives(tmp_path: Path, png: Png) -> None:
    for number in range(3):
        with webdataset.TarWriter(str(tmp_path / f"train-{number:06}.tar")) as writer:
            for place in range(5):
                index = 5 * number + place
                sample = {
                    "__key__": f"deep/{index:04}",
                    "png": png(index),
                    "cls": index % 4,
                    "json": {"more": 1},
                }
                writer.write(sample)
    pattern = f"{tmp_path}/train-{{000000..000002}}.tar"
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ResourceWarning
        )  # webdataset leaves its files to the garbage collector
        reader = webdataset.WebDataset(pattern, shardshuffle=False, empty_check=False)
        expected = [(sample["png"], sample["cls"].decode()) for sample in reader]
        del reader
        gc.collect()
    assert len(expected) == 15
    for spec in (pattern, f"{tmp_path}/*.tar", str(tmp_path)):
        source = open_data(spec, default="train")
        assert samples(source) == expected
    assert source.class_names == ("0", "1", "2", "3")
    assert source.where(6) == f"{tmp_path}/train-000001.tar, deep/0006.png"
    assert samples(pickle.loads(pickle.dumps(source))) == expected


SUFFIXES = st.lists(
    st.sampled_from(["png", "PNG", "jpg", "cls", "txt", "mp4", "seg.png"]),
    unique_by=lambda suffix: suffix.lower(),
)


@given(st.lists(st.tuples(st.from_regex(r"(x/)?[ab_]{1,4}", fullmatch=True), SUFFIXES), max_size=5))
def test_members_are_grouped_as_webdataset_groups_them(groups: list[tuple[str, list[str]]]) -> None:
    """Every sample that webdataset makes with one image and a label is ours, and no other."""
    members = [
        (f"{key}.{suffix}", f"{number}{suffix}")
        for number, (key, names) in enumerate(groups)
        for suffix in names
    ]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in members:
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    data = buffer.getvalue()
    files = webdataset.tariterators.tar_file_expander([{"url": "x", "stream": io.BytesIO(data)}])
    try:
        theirs = list(webdataset.tariterators.group_by_keys(files))
    except ValueError:  # two members of one name in a row
        return
    images = [[sample[kind] for kind in ("png", "jpg") if kind in sample] for sample in theirs]
    labels = [(sample.get("cls") or sample.get("txt") or b"").decode() for sample in theirs]
    expected = [(found[0], label) for found, label in zip(images, labels, strict=True) if found]
    if any(len(found) > 1 for found in images) or any(not label for _, label in expected):
        with pytest.raises(InputError, match="has two images of one key|has no label"):
            shards._build(io.BytesIO(data), len(data), "x", {})
        return
    index = shards._build(io.BytesIO(data), len(data), "x", {})
    ours = [data[place : place + size] for place, size in zip(index.offsets, index.sizes, strict=True)]
    assert list(zip(ours, index.labels, strict=True)) == expected


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ({"cls": b"1\n"}, "1"),
        ({"txt": b" cat "}, "cat"),
        ({"json": b'{"label": "cat"}'}, "cat"),
        ({"json": b'{"cls": 3, "more": [1]}'}, "3"),
        ({"json": b"2"}, "2"),
        ({"json": b'{"width": 3}', "txt": b"cat"}, "cat"),
        ({"txt": b"a picture", "cls": b"7"}, "7"),
        ({"json": b'{"label": true}'}, None),
        ({"mp4": b"1"}, None),
        ({"json": b"{"}, None),
        ({"txt": b"\xff"}, None),
    ],
)
def test_labels_are_in_cls_json_or_txt(label: dict[str, bytes], expected: str | None) -> None:
    data = tar({"a.png": b"x", **{f"a.{suffix}": text for suffix, text in label.items()}})
    if expected is None:
        with pytest.raises(InputError, match=r"x\.tar, a\.png, has "):
            shards._build(io.BytesIO(data), len(data), "x.tar", {})
    else:
        assert shards._build(io.BytesIO(data), len(data), "x.tar", {}).labels == [expected]


def write(folder: Path, files: dict[str, bytes]) -> str:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return str(folder)


def shard(labels: str, start: int = 0) -> bytes:
    members = {}
    for number, label in enumerate(labels.split(), start):
        members |= {f"{number}.png": f"image {number}".encode(), f"{number}.cls": label.encode()}
    return tar(members)


def test_classes_are_texts_or_numbers_and_the_same_for_every_split(tmp_path: Path) -> None:
    text = write(tmp_path / "text", {"train/0.tar": shard("dog cat ant"), "val/0.tar": shard("cat")})
    val = open_data(text, default="measure")
    assert (val.split, val.class_names, val.labels.tolist()) == ("val", ("ant", "cat", "dog"), [1])
    numbers = write(tmp_path / "numbers", {"x-train-0.tar": shard("0 12 3"), "x-test-0.tar": shard("3")})
    test = open_data(numbers, default="measure")
    assert (test.num_classes, test.labels.tolist()) == (13, [3])
    given = open_data(numbers, default="measure", classes=["3", "4"])
    assert given.labels.tolist() == [0]
    write(tmp_path / "numbers", {"classes.txt": "\n".join("abcdefghijklm").encode()})
    named = open_data(numbers, default="train")
    assert [named.class_names[label] for label in named.labels] == ["a", "m", "d"]
    assert named.notes[-1].endswith(f"13 classes, as in {numbers}/classes.txt: a, b, c, d, e and 8 more")
    mixed = write(tmp_path / "mixed", {"train.tar": shard("1 2b 10")})
    assert open_data(mixed, default="train").class_names == ("1", "10", "2b")
    write(tmp_path / "mixed", {"classes.txt": b"2b\n10\n1\n"})
    assert open_data(mixed, default="train").labels.tolist() == [2, 0, 1]


def test_threads_read_more_shards_than_stay_open(tmp_path: Path) -> None:
    root = write(tmp_path, {f"train-{number}.tar": shard("0", number) for number in range(300)})
    source = open_data(root, default="train")
    names = [int(re.sub(r"\D", "", source.where(index).rpartition(",")[2])) for index in range(300)]
    with ThreadPoolExecutor(4) as pool:
        assert (
            list(pool.map(source.read, [*range(300)] * 3)) == [f"image {name}".encode() for name in names] * 3
        )
    assert shards._open.cache_info().currsize <= 256


def test_shards_without_a_split_are_split_by_content(tmp_path: Path) -> None:
    root = write(tmp_path, {"0.tar": shard("0 1 " * 10), "1.tar": shard("0 1 " * 10, 20)})
    parts = [open_data(f"{root}:{split}", default="train") for split in ("train", "val", "test")]
    assert [len(part) for part in parts] == [32, 4, 4]
    assert len({data for part in parts for data, _ in samples(part)}) == 40


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train.tar": shard("0 1")[:1300]}, "{root}/train.tar is cut off"),
        ({"train.tar": b""}, "{root}/train.tar is empty"),
        ({"train.tar": b"\x1f\x8b" + b"x" * 2000}, "unpack a compressed one to .tar first"),
        ({"train.tar": tar({"a.png": b"1"})}, "{root}/train.tar, a.png, has no label: expected a .cls, a .json with"),
        ({"train.tar": tar({"a.mp4": b"1", "a.cls": b"1"})}, "no images in {root}: expected members KEY.jpg or .png"),
        ({"train.tar": tar({"a.1.jpg": b"1", "a.1.cls": b"1"})}, "with KEY.cls, .json or .txt, and no dot in KEY"),
        ({"train.tar": tar({"a.png": b"1", "a.jpg": b"1"})}, "has two images of one key, a.png and a.jpg"),
        ({"train.tar": tar({"a.png": b"1", "a.cls": b"1" * (2 << 20)})}, "a.cls, has 2,097,152 bytes; a label is a"),
        ({"train.tar": shard("0 -1")}, "1.png has label -1; {root}/train.tar gives 1 classes, 0 to 0"),
        ({"train.tar": shard("0 7"), "classes.txt": b"a\nb\n"}, "1.png has label 7; {root}/classes.txt gives 2 class"),
        ({"train.tar": shard("a c"), "classes.txt": b"a\nb\n"}, "has class 'c', which {root}/classes.txt lacks"),
        ({"train.tar": shard("0"), "classes.txt": b"a\na\n"}, "{root}/classes.txt names class 'a' twice"),
        ({"train.tar": shard("0"), "classes.txt": b"a\n\nb"}, "{root}/classes.txt, line 2, is empty; expected one"),
        ({"train.tar": shard("0"), "x-classes.txt": b"a", "y-classes.txt": b"a"}, "holds x-classes.txt, y-classes.tx"),
    ],
)  # fmt: skip
def test_a_broken_shard_is_an_error_that_says_where(
    tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    root = write(tmp_path, files)
    assert message.replace("{root}", root) in error(root)


def test_links_in_a_shard_are_not_followed_and_nothing_is_unpacked(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        link = tarfile.TarInfo("a.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        for name, data in {"../../b.png": b"image", "../../b.cls": b"0"}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    root = write(tmp_path / "x", {"train.tar": buffer.getvalue()})
    assert samples(open_data(root, default="train")) == [(b"image", "0")]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["train.tar", "x"]


def test_the_index_is_made_once_and_again_for_a_new_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    build = shards._build
    monkeypatch.setattr(
        shards,
        "_build",
        lambda file, size, url, version: built.append(url) or build(file, size, url, version),
    )
    root = write(tmp_path, {"train.tar": shard("0 1")})
    source = open_data(root, default="train")
    assert samples(open_data(root, default="train")) == samples(source)
    assert len(built) == 1
    write(tmp_path, {"train.tar": shard("1 0 1", 7)})
    assert samples(open_data(root, default="train"))[2] == (b"image 9", "1")
    assert len(built) == 2
    source = open_data(root, default="train")
    os.truncate(tmp_path / "train.tar", 100)
    with pytest.raises(InputError, match=r"train\.tar, 7\.png: 0 of 7 bytes arrived; the shard has changed"):
        source.read(0)
    (tmp_path / "train.tar").unlink()
    shards._open.cache_clear()
    with pytest.raises(InputError, match="cannot read .*: No such file"):
        source.read(0)


def test_a_damaged_index_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    root = write(tmp_path / "data", {"train.tar": shard("0 1")})
    expected = samples(open_data(root, default="train"))
    [index] = (tmp_path / "cache" / "shards").iterdir()
    stored = index.read_bytes()
    swapped = stored.replace(b"[512,", b"[2048,")  # another image's offset: sound JSON, and a sound tar file
    assert swapped != stored
    for damaged in (
        swapped,
        b"",
        stored[:-1],
        b"{",
        b"[]",
        b'{"version": {}}',
        json.dumps({"version": 1, "names": []}).encode(),
    ):
        index.write_bytes(damaged)
        assert samples(open_data(root, default="train")) == expected


def test_a_shard_that_was_replaced_is_not_read_by_the_old_offsets(tmp_path: Path) -> None:
    root = write(tmp_path, {"train.tar": shard("0 1")})
    source = open_data(root, default="train")
    write(tmp_path, {"train.tar": shard("1 0", 7)})
    os.utime(tmp_path / "train.tar", ns=(1, 1))
    with pytest.raises(InputError, match="train.tar: it has changed since it was opened: start again"):
        source.read(0)


def test_shards_are_read_through_fsspec() -> None:
    store = fsspec.filesystem("memory")
    store.pipe_file("/set/train-0.tar", shard("a b"))
    store.pipe_file("/set/train-1.tar", shard("c", 2))
    store.pipe_file("/set/val-0.tar", shard("b"))
    source = open_data("memory://set/train-{0..1}.tar", default="train")
    assert samples(source) == [(b"image 0", "a"), (b"image 1", "b"), (b"image 2", "c")]
    assert samples(pickle.loads(pickle.dumps(source))) == samples(source)
    val = open_data("memory://set/*.tar:val", default="train")
    assert (val.class_names, val.labels.tolist()) == (("a", "b", "c"), [1])
    store.pipe_file("/set/classes.txt", b"c\nb\na\n")
    assert open_data("memory://set:val", default="train").class_names == ("c", "b", "a")
    store.pipe_file("/other/0.tar", shard("a b"))
    assert error("memory://other/0.tar").endswith("use 'memory://other/0.tar:all', or rename the files")
    assert len(open_data("memory://other/0.tar:all", default="train")) == 2
    assert "memory://set/train-7.tar" in error("memory://set/train-7.tar")


class Ranges(http.server.SimpleHTTPRequestHandler):
    """A server of one shard that answers range requests, if it is told to."""

    data = shard("a b c")
    ranges = True
    asked: list[tuple[int, int]] = []  # noqa: RUF012

    def do_HEAD(self) -> None:
        self.send_response(200 if self.path.endswith("0.tar") else 404)
        self.send_header("Content-Length", str(len(self.data)))
        if self.ranges:
            self.send_header("Accept-Ranges", "bytes")
        self.end_headers()

    def do_GET(self) -> None:
        if not self.path.endswith("0.tar"):
            self.send_error(404)
            return
        body, status = self.data, 200
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if match and self.ranges:
            start, stop = int(match[1]), min(int(match[2]) + 1, len(body))
            self.asked.append((start, stop))
            body, status = body[start:stop], 206
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(self.data)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_shards_are_read_by_range_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranges)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/train-0.tar?signature=0.tar"
        source = open_data(url, default="train")
        Ranges.asked.clear()
        assert samples(source) == [(b"image 0", "a"), (b"image 1", "b"), (b"image 2", "c")]
        assert [stop - start for start, stop in Ranges.asked] == [7, 7, 7]
        monkeypatch.setattr(Ranges, "ranges", False)
        with pytest.raises(InputError, match="the server answers no range requests"):
            source.read(0)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        Ranges.asked.clear()
        for read in (lambda: source.read(0), lambda: open_data(f"{url}:all")):
            with pytest.raises(
                InputError, match=f"{re.escape(url)} is not read, since HF_HUB_OFFLINE is set: unset it"
            ):
                read()
        assert not Ranges.asked
    finally:
        server.shutdown()
        server.server_close()


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=160).filter(
    lambda name: name.strip("/") == name
)


def pack(members: list[tuple[str, bytes, bytes]], format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for name, data, kind in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.size = len(data) if kind == tarfile.REGTYPE else 0
            info.linkname = "target" * 30 if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def members(data: bytes) -> list[tuple[str, bytes]]:
    return [
        (name, data[offset : offset + size])
        for name, offset, size in list_members(io.BytesIO(data), len(data), "x.tar")
    ]


@example([("\x80\n", b"", tarfile.REGTYPE)], tarfile.GNU_FORMAT)
@example([("\x80\n", b"", tarfile.REGTYPE)], tarfile.PAX_FORMAT)
@given(
    st.lists(
        st.tuples(
            NAMES,
            st.binary(max_size=1100),
            st.sampled_from(
                [tarfile.REGTYPE] * 4 + [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]
            ),
        ),
        max_size=5,
    ),
    st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
)
def test_members_are_those_of_tarfile(contents: list[tuple[str, bytes, bytes]], format: int) -> None:
    data = pack(contents, format)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        expected = [(info.name, archive.extractfile(info).read()) for info in archive if info.isreg()]  # type: ignore[union-attr]
    assert members(data) == expected


def test_the_oldest_format_is_read_with_its_prefix() -> None:
    name = "folder/" * 20 + "a.png"
    assert members(pack([(name, b"1", tarfile.REGTYPE)], tarfile.USTAR_FORMAT)) == [(name, b"1")]


def test_a_tar_file_that_is_cut_off_anywhere_is_an_error() -> None:
    data = pack([("a.png", b"1" * 700, tarfile.REGTYPE), ("b" * 150, b"2" * 700, tarfile.REGTYPE)])
    end = len(data.rstrip(b"\0"))
    for length in [*range(0, end, 100), end, -(-end // BLOCK) * BLOCK]:
        with pytest.raises(InputError, match=r"x\.tar is (cut off|empty|no sound)"):
            members(data[:length])
    assert len(members(data[: -(-end // BLOCK) * BLOCK + BLOCK])) == 2


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x1f\x8b" + b"x" * 1000, "x.tar is not an intact tar file: no header at byte 0; unpack a compressed one"),
        (header("a", 1 << 60), "x.tar is cut off: 'a' ends at byte"),
        (header("a", -600), "x.tar is cut off: 'a' ends at byte"),
        (header("a", 1 << 40, tarfile.XHDTYPE), "x.tar is cut off"),
        (header("a", 2 << 20, tarfile.GNUTYPE_LONGNAME) + bytes(2 << 20), "a name of 2,097,152 bytes"),
        (header("a", 10, tarfile.XHDTYPE) + b"0 path=b\n" + bytes(503), "a broken extended header at byte 512"),
        (header("a", 10, tarfile.XHDTYPE) + b"99 path=b\n" + bytes(502), "a broken extended header at byte 512"),
        (header("a", 13, tarfile.XHDTYPE) + b"13 size=many\n" + bytes(499), "a broken extended header at byte 512"),
        (header("a", 13, tarfile.XHDTYPE) + b"13 size=-512\n" + bytes(499) + header("a", 0), "x.tar is cut off"),
        (header("a", 5, tarfile.GNUTYPE_SPARSE) + bytes(1024), "x.tar holds a sparse file, 'a': pack it again"),
        (header("a", 22, tarfile.XHDTYPE) + b"22 GNU.sparse.major=1\n" + bytes(490), "x.tar holds a sparse file"),
    ],
)  # fmt: skip
def test_a_hostile_tar_file_is_an_error(data: bytes, message: str) -> None:
    with pytest.raises(InputError) as error:
        members(data + bytes(1024) if not message.endswith("byte 0") else data)
    assert message in str(error.value)


@given(st.binary(max_size=3000), st.integers(0, 3))
def test_any_bytes_give_members_or_an_error(noise: bytes, place: int) -> None:
    data = bytearray(pack([("a.png", b"1" * 700, tarfile.REGTYPE), ("b" * 150, b"2" * 70, tarfile.REGTYPE)]))
    data[place * BLOCK : place * BLOCK + len(noise)] = noise
    try:
        for name, content in members(bytes(data)):
            assert len(content) <= len(data), name
    except InputError:
        pass
