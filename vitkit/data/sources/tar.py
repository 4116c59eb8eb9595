"""The files inside a tar file: their names, offsets and sizes from its headers alone, nothing extracted."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from vitkit.errors import InputError

BLOCK = 512
_MOST_NAME = 1 << 20
_LONG = (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_ASIDE = (*_LONG, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK)
_NO_DATA = (
    tarfile.LNKTYPE,
    tarfile.SYMTYPE,
    tarfile.CHRTYPE,
    tarfile.BLKTYPE,
    tarfile.DIRTYPE,
    tarfile.FIFOTYPE,
)


class Member(NamedTuple):
    """A regular file in a tar file."""

    name: str
    offset: int
    size: int


def list_members(file: BinaryIO, size: int, where: str) -> Iterator[Member]:
    """Yield the regular files of a tar file of `size` bytes; links, devices and folders are passed over."""
    place = 0
    name: str | None = None  # from a header before the file's own, where it is long
    length: int | None = None
    while True:
        header = _header(file, place, size, where)
        if header is None:
            return
        place += BLOCK
        if header.type not in _ASIDE and length is not None:
            header.size = length
        end = place + (0 if header.type in _NO_DATA else header.size)
        if header.size < 0 or end > size:
            raise InputError(
                f"{where} is cut off: {header.name!r} ends at byte {end:,} of {size:,}; copy it again"
            )
        if header.type == tarfile.GNUTYPE_SPARSE:
            raise InputError(f"{where} holds a sparse file, {header.name!r}: pack it again without --sparse")
        if header.type in _LONG:
            if header.size > _MOST_NAME:
                raise InputError(
                    f"{where} is no sound tar file: a name of {header.size:,} bytes at byte {place:,}"
                )
            file.seek(place)
            data = file.read(header.size)
            if header.type == tarfile.GNUTYPE_LONGNAME:
                name = _text(data.partition(b"\0")[0])
            else:
                fields = _fields(data, where, place)
                name = fields.get("path", name)
                length = int(fields["size"]) if "size" in fields else None
                if any(field.startswith("GNU.sparse") for field in fields):
                    raise InputError(f"{where} holds a sparse file, {name!r}: pack it again without --sparse")
        elif header.type not in _ASIDE:
            if header.isreg():
                yield Member(name or header.name, place, header.size)
            name = length = None
        place = -(-end // BLOCK) * BLOCK


def _header(file: BinaryIO, place: int, size: int, where: str) -> tarfile.TarInfo | None:
    """Return the header at a place, or None where the archive ends."""
    file.seek(place)
    block = file.read(BLOCK)
    if block == bytes(BLOCK):
        return None
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        if not size:
            raise InputError(f"{where} is empty") from None
        if len(block) < BLOCK:
            raise InputError(
                f"{where} is cut off: it ends at byte {size:,} without a tar file's end; copy it again"
            ) from None
        packed = "; unpack a compressed one to .tar first" if not place else ""
        raise InputError(f"{where} is no sound tar file: no header at byte {place:,}{packed}") from None


def _fields(data: bytes, where: str, place: int) -> dict[str, str]:
    """Return the fields of a POSIX extended header: records of 'LENGTH KEY=VALUE' and a line feed."""
    fields = {}
    try:
        while data:
            length = int(data.partition(b" ")[0])
            record = data[:length]
            if length <= 0 or len(record) < length:
                raise ValueError
            key, _, value = record.partition(b" ")[2].removesuffix(b"\n").partition(b"=")
            fields[_text(key)] = _text(value)
            data = data[length:]
        int(fields.get("size", "0"))
    except ValueError:
        raise InputError(
            f"{where} is no sound tar file: a broken extended header at byte {place:,}"
        ) from None
    return fields


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
