"""Tables of images: CSV with a column of paths, a column of labels and, if wanted, a column of splits."""

from __future__ import annotations

import csv
import os

import numpy as np

from vitkit.data.sources.labels import clean, name_classes, number_labels, say_classes
from vitkit.data.sources.source import Files, Source
from vitkit.data.spec import DataSpec
from vitkit.data.splits import MADE, WORDS, Default, choose_split, make_split
from vitkit.data.unreadable import too_many
from vitkit.errors import InputError

# What a column may be called, in any case.
COLUMNS = {
    "image": ("image_path", "path", "image", "file"),
    "label": ("label", "labels", "class"),
    "split": ("split",),
}
SEVERAL = ";"


def open_table(path: str, spec: DataSpec, default: Default) -> Source:
    """Return the images of a CSV file; paths are relative to its folder, multi-label entries are separated by ';'."""
    rows, lines, has_splits = _read(path)
    available = _splits(rows) if has_splits else list(MADE)
    split, notes = choose_split(available, spec.split, default, spec.source)
    several = any(SEVERAL in row["label"] for row in rows)
    labels = [[clean(name.strip()) for name in row["label"].split(SEVERAL) if name.strip()] for row in rows]
    for line, names in zip(lines, labels, strict=True):
        if not names and not several:
            raise InputError(f"{path}, line {line}, has no label")
    named = [
        label
        for row, label in zip(rows, labels, strict=True)
        if not has_splits or "train" not in available or row["split"] == "train"
    ]
    class_names = name_classes([name for label in named for name in label])
    if not class_names:
        raise InputError(f"{path} has no label in any line")
    kept = [i for i, row in enumerate(rows) if not has_splits or split in ("all", row["split"])]
    folder = os.path.dirname(path)
    paths = [os.path.join(folder, os.path.expanduser(rows[i]["image"])) for i in kept]
    missing = [place for place, file in enumerate(paths) if not os.path.isfile(file)]
    faults: tuple[str, ...] = ()
    if missing:
        first = f"line {lines[kept[missing[0]]]}: no such file: {paths[missing[0]]}"
        if len(missing) == len(kept):
            raise InputError(f"{path}, {first}; none of its files is there")
        if too_many(len(missing), len(kept)):  # others are skipped like any unreadable image
            faults = (
                f"{path}: {len(missing):,} of {len(kept):,} files are missing, the first in {first}; "
                "put them there, or remove the lines",
            )
    owner = [place for place, i in enumerate(kept) for _ in labels[i]]
    numbers = number_labels(
        [name for i in kept for name in labels[i]],
        class_names,
        lambda place: f"{path}, line {lines[kept[owner[place]]]},",
        "its split train",
    )
    if several:
        matrix = np.zeros((len(kept), len(class_names)), bool)
        matrix[owner, numbers] = True
        numbers = matrix
    notes.append(say_classes(spec.source, class_names))
    source = Files(spec.source, split, class_names, numbers, paths, notes)
    source.faults = faults
    return source if has_splits else make_split(source, split, path)


def list_table_splits(path: str) -> list[str]:
    """Return the splits that a CSV file names; none where they are made."""
    rows, _, has_splits = _read(path)
    return _splits(rows) if has_splits else []


def _splits(rows: list[dict[str, str]]) -> list[str]:
    return sorted({row["split"] for row in rows}, key=_rank)


def _read(path: str) -> tuple[list[dict[str, str]], list[int], bool]:
    """Return the rows with the fields image, label and split, their line numbers, and whether splits are given."""
    rows, lines = [], []
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip().lower() for name in next(reader, [])]
            places = {field: _column(field, header, path) for field in COLUMNS}
            for cells in reader:
                if not any(cell.strip() for cell in cells):
                    continue
                if len(cells) != len(header):
                    raise InputError(
                        f"{path}, line {reader.line_num}, has {len(cells)} fields, its header {len(header)}: "
                        "a field with a comma needs quotes"
                    )
                row = {field: cells[place].strip() for field, place in places.items() if place is not None}
                for field in ("image", "split"):
                    if not row.get(field, "-"):
                        raise InputError(f"{path}, line {reader.line_num}, has no {field}")
                if "\0" in row["image"]:
                    raise InputError(f"{path}, line {reader.line_num}: the path has a NUL character")
                if "split" in row:
                    row["split"] = WORDS.get(row["split"].lower(), row["split"])
                rows.append(row)
                lines.append(reader.line_num)
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text") from None
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    if not rows:
        raise InputError(f"{path} has a header but no images")
    return rows, lines, places["split"] is not None


def _column(field: str, header: list[str], path: str) -> int | None:
    found = [place for place, name in enumerate(header) if name in COLUMNS[field]]
    if len(found) > 1:
        raise InputError(f"{path} has columns {header[found[0]]} and {header[found[1]]}: keep one of them")
    if not found and field != "split":
        raise InputError(
            f"{path} has columns {', '.join(header) or 'none'}; expected a header such as image_path,label "
            f"(the {field} may be called {', '.join(COLUMNS[field])})"
        )
    return found[0] if found else None


def _rank(split: str) -> tuple[int, str]:
    order = list(MADE)
    return (order.index(split) if split in order else len(order), split)
