"""Pack data into tar or parquet shards of smaller images: shard by shard, each whole, and the same command goes on."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from vitkit.data.fetch import BadImages
from vitkit.data.open import open_data
from vitkit.data.parts import Progress, Unreadable, open_splits, work_through, written_whole
from vitkit.data.sources.files import find_files, is_url
from vitkit.data.sources.source import Source, match_classes
from vitkit.data.spec import DataSpec, parse_spec
from vitkit.data.splits import MADE
from vitkit.errors import InputError

Format = Literal["tar", "parquet"]
MANIFEST = "pack.json"
ROW_GROUP = 100
"Rows of a parquet file that are read at once; what the hub's library writes."
# Formats whose files may be kept as they are, with the suffix of their members.
KEPT = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp"}
_SHARD = re.compile(r"[^/]+-\d{6}\.(tar|parquet)")
_ORIENTATION = 0x0112  # EXIF tag


class Packed(NamedTuple):
    """An image as it goes into a shard."""

    data: bytes
    suffix: str
    is_shrunk: bool


class Row(NamedTuple):
    """An image of a shard."""

    key: str
    label: int
    image: Packed


@dataclass
class Shard:
    """One file to write: some images of a split, in the order of the source."""

    name: str
    source: Source
    indices: np.ndarray
    unreadable: list[Unreadable] = field(default_factory=list)
    shrunk: int = 0


def pack(
    source: str | DataSpec,
    target: str | os.PathLike[str],
    *,
    size: int = 256,
    to: Format = "tar",
    images_per_shard: int = 10_000,
    quality: int = 95,
    bad_images: BadImages = "error",
    force: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write each split of a source into shards, and return what was written.

    size: the shorter side of larger images; smaller ones keep their pixels.
    quality: of the JPEGs that shrunk images become.
    """
    spec = parse_spec(source) if isinstance(source, str) else source
    limits = {
        "size": (size, 1, 1 << 16),
        "images_per_shard": (images_per_shard, 1, 1 << 40),
        "quality": (quality, 1, 100),
    }
    for name, (value, low, high) in limits.items():
        if not low <= value <= high:
            raise InputError(f"{name} is {value}; expected {low} to {high}")
    if to not in WRITERS:
        raise InputError(f"cannot pack to {to!r}; expected {' or '.join(WRITERS)}")
    folder = Path(target).expanduser()
    _keep_apart(spec, folder)
    sources, notes = _open(spec)
    class_names = sources[0].class_names
    settings = {"to": to, "size": size, "quality": quality, "images_per_shard": images_per_shard}
    content = {source.split: _content_key(source) for source in sources}
    manifest = {
        "source": str(spec),
        "settings": settings,
        "content": content,
        "complete": False,
        "shards": {},
    }
    done = _start(folder, manifest, _name_lines(class_names), force)
    manifest["shards"] = done
    todo = [shard for shard in _plan(sources, to, images_per_shard) if shard.name not in done]
    for entry in (entry for record in done.values() for entry in record["unreadable"]):
        _check(Unreadable(**entry), bad_images)
    count, total = 0, sum(len(shard.indices) for shard in todo)

    def rows(shard: Shard) -> Iterator[Row]:
        nonlocal count
        for index, result in work_through(
            shard.source, shard.indices, lambda picture: shrink(picture, size, quality)
        ):
            if isinstance(result, Unreadable):
                _check(result, bad_images)
                shard.unreadable.append(result)
            else:
                shard.shrunk += result.is_shrunk
                yield Row(f"{index:09d}", int(shard.source.labels[index]), result)
            count += 1
            if progress:
                progress(count, total)

    for shard in todo:
        path = folder / shard.name
        with written_whole(path) as part:
            WRITERS[to](part, rows(shard), class_names)
        done[shard.name] = {
            "split": shard.source.split,
            "images": len(shard.indices) - len(shard.unreadable),
            "shrunk": shard.shrunk,
            "bytes": path.stat().st_size,
            "unreadable": [entry._asdict() for entry in shard.unreadable],
        }
        _write_manifest(folder, manifest)
    manifest["complete"] = True
    _write_manifest(folder, manifest)
    return {
        "source": str(spec),
        "target": str(folder),
        **settings,
        "num_classes": len(class_names),
        "splits": [_sum(source.split, done.values()) for source in sources],
        "resumed_shards": len(done) - len(todo),
        "unreadable": [entry for record in done.values() for entry in record["unreadable"]],
        "notes": notes,
    }


def _open(spec: DataSpec) -> tuple[list[Source], list[str]]:
    """Return the splits to pack, with labels by the classes of the first."""
    sources = open_splits(spec) if spec.split is None else [open_data(spec, default="train")]
    notes = [note for source in sources for note in source.notes]
    if spec.split is None:
        others = [source.split for source in sources if source.split not in MADE]
        sources = [source for source in sources if source.split in MADE]
        if others:
            notes.append(
                f"{spec.source}: left out {', '.join(others)}: shards are of train, val and test; name it to pack it"
            )
        if not sources:
            raise InputError(
                f"{spec.source} has neither train, val nor test: name a split, such as '{spec.source}:{others[0]}'"
            )
    sources = [match_classes(source, sources[0].class_names) for source in sources]
    if sources[0].has_several_labels:
        raise InputError(
            f"{spec.source} has several labels an image, and shards hold one: keep it as a table of files"
        )
    if sources[0].split not in MADE:
        notes.append("the names of the shards say no split: open them with ':all'")
    return sources, list(dict.fromkeys(notes))


def _keep_apart(spec: DataSpec, folder: Path) -> None:
    """Refuse to write into the source, or among its files."""
    if not spec.is_path or is_url(spec.source):
        return
    place = folder.resolve()
    for file in find_files(spec.source):
        path = Path(file).resolve()
        if place == path or place in path.parents or path in place.parents:
            raise InputError(
                f"{folder} and the source {spec.source} lie in one another: pack into another folder"
            )


def _plan(sources: Iterable[Source], to: Format, images_per_shard: int) -> list[Shard]:
    return [
        Shard(
            f"{source.split}-{number:06d}.{to}",
            source,
            np.arange(start, min(start + images_per_shard, len(source))),
        )
        for source in sources
        for number, start in enumerate(range(0, len(source), images_per_shard))
    ]


def _start(folder: Path, manifest: dict[str, Any], names: bytes, force: bool) -> dict[str, Any]:
    """Make the folder ready, and return the records of the shards that are there already."""
    found = _read_manifest(folder)
    if found is None:
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise InputError(f"{folder} is there and holds no {MANIFEST} of `vit pack`: give a new folder")
    elif not force:
        _check_same(found, manifest, folder)
        shards = found["shards"].items()
        return {name: record for name, record in shards if _size(folder / name) == record["bytes"]}
    else:
        for path in folder.iterdir():
            if _SHARD.fullmatch(path.name):
                path.unlink()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make {folder}: {error.strerror}") from None
    _write_manifest(folder, manifest)
    with written_whole(folder / "classes.txt") as part:
        part.write_bytes(names)
    return {}


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_bytes())
        if {"source", "settings", "content", "shards"} <= found.keys():
            return found
    except FileNotFoundError, NotADirectoryError:
        return None
    except (OSError, ValueError, AttributeError):
        pass
    raise InputError(f"{path} is no manifest of `vit pack`: give a new folder")


def _write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    with written_whole(folder / MANIFEST) as part:
        part.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
