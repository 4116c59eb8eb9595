"""WebDataset's tar shards, local or through fsspec: indexed once from headers alone, then each image is read by its offset."""

from __future__ import annotations

import functools
import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from vitkit.data.cache import cache_file, keep, kept
from vitkit.data.images import EXTENSIONS
from vitkit.data.sources.files import ask, is_url, remote
from vitkit.data.sources.labels import (
    clean,
    find_names,
    name_classes,
    number_labels,
    parse_names,
    read_labels,
    say_classes,
)
from vitkit.data.sources.source import Source
from vitkit.data.spec import DataSpec
from vitkit.data.splits import Default, choose_files, make_split
from vitkit.data.threads import map_in_order
from vitkit.errors import CannotRead, InputError

# KEY.SUFFIX, the key up to the first dot of the file's name: what webdataset groups by.
_NAME = re.compile(r"((?:.*/|)[^.]+)\.([^/]*)", re.DOTALL)
_META = re.compile(r"__[^/]*__($|/)")
# Label members, first before last, and the fields of a .json that hold the label.
_LABELS = ("cls", "json", "txt")
_FIELDS = ("label", "cls")
_MOST_LABEL = 1 << 20
# What tells a remote file from its next version, as far as stores say it.
_VERSION = ("size", "ETag", "etag", "mtime", "LastModified", "last_modified", "created")
# Tar files: the longest name that is read, and the types of headers that name the next file, stand aside, or have no data.
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


@dataclass(frozen=True)
class Index:
    """The images of one shard: their members' names, offsets and sizes, and their labels as texts."""

    version: dict[str, str]
    names: list[str]
    offsets: list[int]
    sizes: list[int]
    labels: list[str]


class Shards(Source):
    """Images in tar files. It holds no open file itself, so that it can be sent to other processes."""

    def __init__(self, name: str, split: str, indices: dict[str, Index]) -> None:
        self.name, self.split = name, split
        self.urls = list(indices)
        self.versions = [index.version for index in indices.values()]
        self.members = [member for index in indices.values() for member in index.names]
        self.shards = np.repeat(np.arange(len(self.urls)), [len(index.names) for index in indices.values()])
        self.offsets = np.array([place for index in indices.values() for place in index.offsets], np.int64)
        self.sizes = np.array([size for index in indices.values() for size in index.sizes], np.int64)

    def read(self, index: int) -> bytes:
        url = self.urls[self.shards[index]]
        start, size = int(self.offsets[index]), int(self.sizes[index])
        if is_url(url):
            system, path = remote(url)
            data = ask(url, lambda: system.cat_file(path, start=start, end=start + size))
        else:
            try:
                data = _open(url, self.versions[self.shards[index]]["mtime"]).read(start, size)
            except OSError as error:
                raise InputError(f"cannot read {url}: {error.strerror}") from None
        if len(data) != size:
            reason = "the shard has changed" if len(data) < size else "the server answers no range requests"
            arrived = f"{len(data):,} of {size:,} bytes arrived"
            raise CannotRead(self.where(index), f"{arrived}; {reason}")
        return data

    def where(self, index: int) -> str:
        return f"{self.urls[self.shards[index]]}, {self.members[index]}"

    def content_keys(self) -> list[str]:
        versions = [f"{url}\0{version}" for url, version in zip(self.urls, self.versions, strict=True)]
        return [f"{versions[n]}\0{offset}" for n, offset in zip(self.shards, self.offsets, strict=True)]


def open_shards(
    urls: Sequence[str], spec: DataSpec, default: Default, classes: Sequence[str] | None = None
) -> Source:
    """Return the images of tar shards; their names, or their folders', say the split.

    Without classes.txt, and without `classes` given, all shards of train are indexed for the names of classes.
    """
    name = spec.source
    chosen = choose_files(urls, spec.split, default, name)
    if chosen.is_made and chosen.split != "all" and is_url(urls[0]):
        raise InputError(
            f"{name}: no file or folder name says train, val or test, and making a split would "
            f"read all of it: use '{name}:all', or rename the files"
        )
    indices = index_shards(chosen.files)
    source = Shards(name, chosen.split, indices)
    if not source.members:
        raise InputError(
            f"no images in {name}: expected members KEY.jpg or .png with KEY.cls, .json or .txt, and no dot in KEY"
        )
    values = [label for index in indices.values() for label in index.labels]
    stated = _stated_names(urls[0])
    order: str | None
    if stated is not None:
        source.class_names, origin = stated
        order = f"as in {origin}"
    else:
        naming = index_shards(chosen.naming) if classes is None else indices
        seen = [label for index in naming.values() for label in index.labels]
        source.class_names = name_classes(read_labels(seen))
        origin, order = next(iter(naming)), None
    labels = read_labels(values, source.class_names)
    source.labels = number_labels(labels, source.class_names, source.where, origin)
    source.notes = (*chosen.notes, say_classes(name, source.class_names, order))
    return make_split(source, chosen.split, urls[0]) if chosen.is_made else source


def index_shards(urls: Sequence[str]) -> dict[str, Index]:
    """Return the index of each shard, from the cache where the shard hasn't changed."""
    threads = min(16, len(urls))  # which wait for disks and servers more than for cores
    return dict(zip(urls, map_in_order(_index, urls, threads=threads), strict=True))


def _index(url: str) -> Index:
    version, size = _version(url)
    path = cache_file("shards", url if is_url(url) else os.path.abspath(url))
    if (known := kept(path)) is not None:
        index = Index(**json.loads(known))
        if index.version == version:
            return index
    if is_url(url):
        system, place = remote(url)
        file = ask(url, lambda: system.open(place, "rb"))
        with file:
            index = ask(url, lambda: _build(file, size, url, version))
    else:
        with open(url, "rb") as file:
            index = _build(file, size, url, version)
    keep(path, json.dumps(index.__dict__).encode())
    return index


class _OpenFile:
    """A file that any thread may read at any place, closed when the last reader lets go of it."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY)

    def read(self, start: int, size: int) -> bytes:
        return os.pread(self.number, size, start)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


@functools.lru_cache(maxsize=256)
def _open(path: str, version: str) -> _OpenFile:
    """Return a shard of this process's open ones; another version of it is another file."""
    file = _OpenFile(path)
    if str(os.fstat(file.number).st_mtime_ns) != version:  # the offsets are another file's
        raise InputError(f"cannot read {path}: it has changed since it was opened: start again")
    return file


def _version(url: str) -> tuple[dict[str, str], int]:
    """Return what changes when a shard does, and its size in bytes."""
    if is_url(url):
        system, path = remote(url)
        info = ask(url, lambda: system.info(path))
        if info.get("size") is None:
            raise InputError(
                f"{url}: the server doesn't say how large the file is, so parts of it can't be read: copy it here"
            )
        return {name: str(info[name]) for name in _VERSION if name in info}, info["size"]
    try:
        status = os.stat(url)
    except OSError as error:
        raise InputError(f"cannot read {url}: {error.strerror}") from None
    return {"size": str(status.st_size), "mtime": str(status.st_mtime_ns)}, status.st_size


def _build(file: BinaryIO, size: int, url: str, version: dict[str, str]) -> Index:
    """Read a shard's headers and labels. Members of one key follow each other, as webdataset has it."""
    index = Index(version, [], [], [], [])
    key: str | None = None
    image: tuple[str, int, int] | None = None
    labels: dict[str, bytes] = {}

    def close() -> None:
        if image is None:
            return
        index.names.append(image[0])
        index.offsets.append(image[1])
        index.sizes.append(image[2])
        index.labels.append(_label(labels, f"{url}, {image[0]},"))

    for name, offset, length in list_members(file, size, url):
        match = _NAME.fullmatch(name)
        if match is None or _META.match(name):
            continue
        suffix = match[2].lower()
        if match[1] != key:
            close()
            key, image, labels = match[1], None, {}
        if f".{suffix}" in EXTENSIONS:
            if image is not None:
                raise InputError(f"{url} has two images of one key, {image[0]} and {name}: keep one of them")
            image = (name, offset, length)
        elif suffix in _LABELS:
            if length > _MOST_LABEL:
                raise InputError(f"{url}, {name}, has {length:,} bytes; a label is a number or a short text")
            file.seek(offset)
            labels[suffix] = file.read(length)
    close()
    return index


def _label(labels: dict[str, bytes], where: str) -> str:
    """Return the label of a sample: .cls, else a field of .json, else .txt."""
    try:
        texts = {suffix: labels[suffix].decode("utf-8-sig").strip() for suffix in _LABELS if suffix in labels}
    except UnicodeDecodeError:
        raise InputError(f"{where} has a label that is not UTF-8 text") from None
    if "json" in texts:
        try:
            texts["json"] = _field(json.loads(texts["json"]))
        except (ValueError, RecursionError):
            raise InputError(f"{where} has a .json that is not valid JSON") from None
    text = next((text for text in texts.values() if text), None)
    if text is None:
        raise InputError(
            f"{where} has no label: expected a .cls, a .json with {' or '.join(_FIELDS)}, or a .txt"
        )
    return clean(text)


def _field(value: Any) -> str:
    """Return the label in the content of a .json, or nothing."""
    if isinstance(value, dict):
        value = next((value[name] for name in _FIELDS if name in value), "")
    return str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""


def _stated_names(url: str) -> tuple[tuple[str, ...], str] | None:
    """Return the class names in classes.txt next to the shards, and its path."""
    folder = url.rpartition("/")[0]
    if not is_url(url):
        return find_names(folder or ".")
    path = f"{folder}/classes.txt"
    system, place = remote(path)
    if not ask(path, lambda: system.exists(place)):
        return None
    return parse_names(ask(path, lambda: system.cat_file(place)), path), path


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
                    f"{where} is not an intact tar file: a name of {header.size:,} bytes at byte {place:,}"
                )
            file.seek(place)
            data = file.read(header.size)
            if header.type == tarfile.GNUTYPE_LONGNAME:
                name = _decoded(data.partition(b"\0")[0])
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
        raise InputError(f"{where} is not an intact tar file: no header at byte {place:,}{packed}") from None


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
            fields[_decoded(key)] = _decoded(value)
            data = data[length:]
        int(fields.get("size", "0"))
    except ValueError:
        raise InputError(
            f"{where} is not an intact tar file: a broken extended header at byte {place:,}"
        ) from None
    return fields


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
