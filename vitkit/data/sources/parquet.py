"""Parquet files of images and labels: rows are read by index, a row group at a time, the last groups kept."""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vitkit.data.sources.labels import Label, clean, find_names, name_classes, number_labels, say_classes
from vitkit.data.sources.source import Source, file_key
from vitkit.data.spec import DataSpec
from vitkit.data.splits import Default, choose_files, make_split
from vitkit.errors import InputError, first_line
from vitkit.notes import Note

if TYPE_CHECKING:
    import pyarrow
    from pyarrow.parquet import ParquetFile

# What a column may be called: images are bytes, or the hub's {bytes, path}; labels whole numbers or texts.
IMAGES = ("image", "img")
LABELS = ("label", "labels", "fine_label", "class")
KEPT_BYTES = 1 << 29
"Decoded row groups that a process keeps."


class Parquet(Source):
    """Images in row groups of parquet files."""

    def __init__(self, name: str, split: str, files: Sequence[str]) -> None:
        self.name, self.split = name, split
        self.groups: list[tuple[str, int]] = []
        "File and row group of each group."
        self.columns: dict[str, str] = {}
        "The column of images of each file."
        starts = [0]
        self.num_bytes = 0
        for file in files:
            with _open(file) as opened:
                self.columns[file] = _column(opened, IMAGES, file)
                for number in range(opened.num_row_groups):
                    self.groups.append((file, number))
                    group = opened.metadata.row_group(number)
                    starts.append(starts[-1] + group.num_rows)
                    self.num_bytes += group.total_byte_size
        self.starts = np.array(starts, np.int64)
        "First row of each group, and the number of rows."
        self._start()

    def read(self, index: int) -> bytes:
        group, row = self._place(index)
        data = self._group(group)[row].as_py()
        if data is None:
            raise InputError(
                f"{self.where(index)} has no bytes: only images stored in the file itself are read"
            )
        return data

    def where(self, index: int) -> str:
        group, row = self._place(index)
        file, _ = self.groups[group]
        first = next(place for place, (other, _) in enumerate(self.groups) if other == file)
        return f"{file}, row {self.starts[group] - self.starts[first] + row}"

    def content_keys(self) -> list[str]:
        keys = []
        for (file, number), count in zip(self.groups, np.diff(self.starts), strict=True):
            key = f"{file_key(file)}\0{number}"
            keys += [f"{key}\0{row}" for row in range(count)]
        return keys

    def _place(self, index: int) -> tuple[int, int]:
        if not 0 <= index < self.starts[-1]:
            raise IndexError(f"image {index} of {self.starts[-1]}")
        group = int(np.searchsorted(self.starts, index, side="right")) - 1
        return group, index - int(self.starts[group])

    def _group(self, number: int) -> pyarrow.ChunkedArray:
        import pyarrow as arrow
        from pyarrow import compute

        with self._lock:
            if number in self._kept:
                self._kept.move_to_end(number)
                return self._kept[number]
            file, place = self.groups[number]
            column = self.columns[file]
            with _open(file) as opened:
                images = _read(file, lambda: opened.read_row_group(place, columns=[column])).column(column)
            if arrow.types.is_struct(images.type):
                images = compute.struct_field(images, "bytes")
            self._kept[number] = images
            while len(self._kept) > 1 and sum(kept.nbytes for kept in self._kept.values()) > KEPT_BYTES:
                self._kept.popitem(last=False)
            return images

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Any] = OrderedDict()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_kept")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._start()


def open_parquet(files: Sequence[str], spec: DataSpec, default: Default) -> Source:
    """Return the images of parquet files; their names, or their folders', say the split."""
    chosen = choose_files(files, spec.split, default, spec.source)
    source = Parquet(spec.source, chosen.split, chosen.files)
    labels = {file: _labels(file) for file in {*chosen.files, *chosen.naming}}
    stated = find_names(os.path.dirname(files[0])) or _hub_names(chosen.naming[0])
    if stated is None:
        seen = [label for file in chosen.naming for label in labels[file]]
        source.class_names, origin = name_classes(seen), chosen.naming[0]
        notes = [*chosen.notes, say_classes(spec.source, source.class_names)]
    else:
        source.class_names, origin = stated
        notes = [*chosen.notes, say_classes(spec.source, source.class_names, f"as in {origin}")]
    values = [label for file in chosen.files for label in labels[file]]
    source.labels = number_labels(values, source.class_names, source.where, origin)
    if not len(source):
        raise InputError(f"{spec.source} has no rows in its split {chosen.split!r}")
    if source.num_bytes > KEPT_BYTES:
        text = (
            f"{spec.source}: {source.num_bytes / 1e9:.1f} GB in {len(source.groups):,} row groups; each random read "
            "decodes a whole group, so tar shards are faster"
        )
        notes.append(Note(text, "data"))
    source.notes = tuple(notes)
    return make_split(source, chosen.split, files[0]) if chosen.is_made else source


def _open(file: str) -> ParquetFile:
    from pyarrow.parquet import ParquetFile

    return _read(file, lambda: ParquetFile(file, memory_map=True))


def _read(file: str, request: Callable[[], Any]) -> Any:
    try:
        return request()
    except Exception as error:  # a damaged file may raise anything in Arrow
        raise InputError(
            f"cannot read {file}: {first_line(error).rstrip('.')}; if it is cut off, copy it again"
        ) from error


def _column(opened: ParquetFile, names: Sequence[str], file: str) -> str:
    columns = opened.schema_arrow.names
    for name in names:
        if name in columns:
            return name
    raise InputError(f"{file} has columns {', '.join(columns)}; expected one named {' or '.join(names)}")


def _labels(file: str) -> list[Label]:
    """Return the labels of a file, whole numbers or texts."""
    import pyarrow as arrow

    with _open(file) as opened:
        images = opened.schema_arrow.field(_column(opened, IMAGES, file)).type
        if arrow.types.is_struct(images) and "bytes" in images.names:
            images = images.field("bytes").type
        if not (arrow.types.is_binary(images) or arrow.types.is_large_binary(images)):
            raise InputError(f"images in {file} are of type {images}; expected bytes, or bytes and path")
        name = _column(opened, LABELS, file)
        column = _read(file, lambda: opened.read(columns=[name])).column(name)
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise InputError(f"{file}, row {row}, has no label")
    if arrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (
        arrow.types.is_integer(column.type)
        or arrow.types.is_string(column.type)
        or arrow.types.is_large_string(column.type)
    ):
        raise InputError(f"labels in {file} are of type {column.type}; expected whole numbers or texts")
    labels = column.to_pylist()
    return [clean(label) for label in labels] if labels and isinstance(labels[0], str) else labels


def _hub_names(file: str) -> tuple[tuple[str, ...], str] | None:
    """Return the class names that the hub's library writes into a parquet file, and the file."""
    with _open(file) as opened:
        metadata = opened.schema_arrow.metadata or {}
        label = _column(opened, LABELS, file)
    try:
        names = json.loads(metadata[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return tuple(clean(str(name)) for name in names), file
