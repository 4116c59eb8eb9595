"""The headers of any tar file give what Python's tarfile finds, and a broken or hostile one gives an error."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vitkit.data.sources.tar import BLOCK, list_members
from vitkit.errors import InputError

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
        (b"\x1f\x8b" + b"x" * 1000, "x.tar is no sound tar file: no header at byte 0; unpack a compressed one"),
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
