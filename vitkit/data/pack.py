"""Pack data into tar or parquet shards of smaller images; each shard is written whole, and the same command resumes."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from vitkit.config import Bounds
from vitkit.data.images import ORIENTATION, open_image, read_image
from vitkit.data.open import Data, named_data, open_data, open_splits
from vitkit.data.sources.files import find_files, is_url
from vitkit.data.sources.labels import parse_names
from vitkit.data.sources.source import Picture, Source, fingerprint, match_classes
from vitkit.data.spec import DataSpec, as_spec
from vitkit.data.splits import MADE
from vitkit.data.threads import Unreadable, work_through
from vitkit.data.unreadable import BadImageRule, BadImages, Skipped, skipped_notes
from vitkit.errors import InputError
from vitkit.files import read_file, write_file, written_whole
from vitkit.progress import Progress, showing, telling
from vitkit.results import Result, as_json, from_json
from vitkit.runs import RunFolder
from vitkit.runs.records import KINDS

Format = Literal["tar", "parquet"]
ROW_GROUP = 100
"Rows of a parquet file that are read at once; as many as the hub's library writes."
# Formats of files that may be kept as they are, and their suffixes.
KEPT = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp"}


class Packed(NamedTuple):
    """An image as it goes into a shard."""

    data: bytes
    suffix: str
    is_shrunk: bool


class PackedImage(NamedTuple):
    """An image of a shard with its place in the split."""

    place: int
    label: int
    image: Packed


class Shard(NamedTuple):
    """A file to write, and the images of a split that go into it."""

    name: str
    source: Source
    indices: np.ndarray


@dataclass(frozen=True)
class PackSettings(Result):
    """What decides the content of shards."""

    to: Format
    size: int
    quality: int
    images_per_shard: int


@dataclass(frozen=True)
class ShardRecord(Result):
    """What the manifest keeps of a shard that is written."""

    split: str
    images: int
    shrunk: int
    bytes: int
    unreadable: tuple[Unreadable, ...]


@dataclass(frozen=True)
class PackedSplit(Result):
    """The shards of one split."""

    split: str
    shards: int
    images: int
    shrunk: int
    bytes: int


@dataclass(frozen=True)
class PackResult(Result):
    """What a folder of shards holds."""

    source: str
    target: str
    to: Format
    size: int
    quality: int
    images_per_shard: int
    num_classes: int
    splits: list[PackedSplit]
    shards: int
    resumed_shards: int
    unreadable: list[Unreadable]
    notes: list[str]


def pack(
    source: Data,
    target: str | os.PathLike[str],
    *,
    size: int = 256,
    to: Format = "tar",
    images_per_shard: int = 10_000,
    quality: int = 95,
    bad_images: BadImages = "skip",
    force: bool = False,
    progress: bool | Progress | None = True,
) -> PackResult:
    """Write each split of a source into shards in a folder, and return what the folder holds.

    size: larger images are shrunk until their shorter side has this many pixels; others keep their pixels.
    quality: JPEG quality of shrunk images.
    bad_images: "skip", "error" or "any", for unreadable images.
    progress: False shows none; a function is called with the number of images done, and with their total.
    """
    data = named_data(source)[0]
    spec = data.spec if isinstance(data, Source) else as_spec(data)
    _check_settings(size, to, images_per_shard, quality)
    rule = BadImageRule(bad_images, "option")
    target = Path(target).expanduser()
    if spec is not None:
        _keep_apart(spec, target)
    sources, notes = _open(data if isinstance(data, Source) else as_spec(data))
    named = data.data_name if isinstance(data, Source) else str(spec)
    names = sources[0].class_names
    if to == "tar" and _numbers_mislead(names):
        notes.append(
            "class names are numbers that differ from the class numbers, so labels are written as names to .txt, not to .cls"
        )
    settings = PackSettings(to, size, quality, images_per_shard)
    content = {part.split: fingerprint(part) for part in sources}
    lines = _lines(names)
    with (
        RunFolder(target, settings.to_json(), kind="pack", force=force) as folder,
        showing(progress, "packing") as tell,
    ):
        _check_content(folder, content)
        folder.clear()
        manifest = folder.path / KINDS["pack"].record
        shards = folder.record["shards"].items()
        known = {name: from_json(ShardRecord, found, manifest) for name, found in shards}
        records = {name: one for name, one in known.items() if _size(folder.path / name) == one.bytes}
        resumed = len(records)
        skipped = {source.split: Skipped(source, rule) for source in sources}
        todo = []
        for shard in _plan(sources, to, images_per_shard):
            if shard.name in records:
                skipped[shard.source.split].add(_places(shard, records[shard.name].unreadable))
            else:
                todo.append(shard)
        total, done = sum(len(shard.indices) for shard in todo), 0

        def step() -> None:
            nonlocal done
            done += 1
            if tell:
                tell(done, total)

        for shard in todo:
            records[shard.name] = _write(shard, folder.path, settings, skipped[shard.source.split], step)
            write_file(folder.path / "classes.txt", lines)
            shards = as_json(records)
            folder.update(status="running", source=named, content=content, complete=False, shards=shards)
        records = dict(sorted(records.items()))
        folder.update(status="done", message="", complete=True, shards=as_json(records))
    notes += skipped_notes(_unreadable(records))
    tell_note = telling(progress)
    for line in notes:
        tell_note(line)
    return PackResult(
        source=named,
        target=str(target),
        to=to,
        size=size,
        quality=quality,
        images_per_shard=images_per_shard,
        num_classes=len(names),
        splits=[_sum(part.split, records.values()) for part in sources],
        shards=len(records),
        resumed_shards=resumed,
        unreadable=_unreadable(records),
        notes=notes,
    )


def shrink(picture: Picture, size: int, quality: int) -> Packed:
    """Return an image with a shorter side of `size` as a JPEG; one that is no larger keeps its pixels.

    Kept is the file itself where every reader sees the same in it: an upright JPEG, PNG or WebP in RGB or grey.
    Others become PNG.
    """
    if isinstance(picture, np.ndarray):
        data, image = None, Image.fromarray(picture[..., 0] if picture.shape[2] == 1 else picture)
    else:
        data = picture if isinstance(picture, bytes) else read_file(picture)
        image = read_image(data)
    short = min(image.size)
    if short <= size and data is not None and (suffix := _kept_suffix(data)):
        return Packed(data, suffix, False)
    image.info.clear()  # Pillow would write comments and profiles of the file
    buffer = io.BytesIO()
    if short <= size:
        image.save(buffer, "PNG")
        return Packed(buffer.getvalue(), "png", False)
    # Sides as resize_small(size) rounds them, so that it leaves the image alone.
    width, height = (int(size * side / short) for side in image.size)
    shrunk = image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
    try:
        shrunk.save(buffer, "JPEG", quality=quality)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {height}x{width} pixels as a JPEG: {error}") from error
    return Packed(buffer.getvalue(), "jpg", True)


def write_tar(path: Path, rows: Iterable[PackedImage], class_names: Sequence[str]) -> None:
    """Write webdataset's pairs: KEY.jpg and KEY.cls, all that a header says of time and owner left empty."""
    by_name = _numbers_mislead(class_names)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for row in rows:
            label = class_names[row.label] if by_name else str(row.label)
            for suffix, data in (
                (row.image.suffix, row.image.data),
                ("txt" if by_name else "cls", label.encode()),
            ):
                member = tarfile.TarInfo(f"{row.place:09d}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def write_parquet(path: Path, rows: Iterable[PackedImage], class_names: Sequence[str]) -> None:
    """Write the hub's layout: image {bytes, path} and label, with the names of classes."""
    import pyarrow as arrow
    from pyarrow.parquet import ParquetWriter

    features = {
        "image": {"_type": "Image"},
        "label": {"names": list(class_names), "_type": "ClassLabel"},
    }
    image = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    schema = arrow.schema(
        [("image", image), ("label", arrow.int64())],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    # The bytes are compressed images: neither compression nor statistics gain anything.
    with ParquetWriter(
        path, schema, compression="none", use_dictionary=False, write_statistics=False
    ) as writer:
        group: list[dict[str, object]] = []

        def flush() -> None:
            if group:
                writer.write_table(arrow.Table.from_pylist(group, schema))
            group.clear()

        for row in rows:
            name = f"{row.place:09d}.{row.image.suffix}"
            group.append({"image": {"bytes": row.image.data, "path": name}, "label": row.label})
            if len(group) == ROW_GROUP:
                flush()
        flush()


WRITERS: dict[str, Callable[[Path, Iterable[PackedImage], Sequence[str]], None]] = {
    "tar": write_tar,
    "parquet": write_parquet,
}


def _check_settings(size: int, to: str, images_per_shard: int, quality: int) -> None:
    if to not in WRITERS:
        raise InputError(f"cannot pack to {to!r}; expected {' or '.join(WRITERS)}")
    Bounds(at_least=1, at_most=1 << 16).check("size", size)
    Bounds(at_least=1, at_most=10**9).check("images_per_shard", images_per_shard)
    Bounds(at_least=1, at_most=100).check("quality", quality)


def _keep_apart(spec: DataSpec, folder: Path) -> None:
    """Refuse to write into the source or around it."""
    if not spec.is_path or is_url(spec.source):
        return
    place = folder.resolve()
    for file in find_files(spec.source):
        path = Path(file).resolve()
        if place == path or place in path.parents or path in place.parents:
            raise InputError(
                f"one of {folder} and {spec.source} is inside the other: pack into another folder"
            )


def _open(data: DataSpec | Source) -> tuple[list[Source], list[str]]:
    """Return the splits to pack, their labels by the classes of the first, and notes."""
    is_whole = isinstance(data, DataSpec) and data.split is None
    sources = (
        open_splits(data) if isinstance(data, DataSpec) and is_whole else [open_data(data, tolerate=True)]
    )
    name = data.source if isinstance(data, DataSpec) else data.name
    notes = list(dict.fromkeys(note for source in sources for note in (*source.notes, *source.faults)))
    others = [source.split for source in sources if source.split not in MADE]
    if is_whole and others:
        sources = [source for source in sources if source.split in MADE]
        if not sources:
            raise InputError(
                f"{name} has no train, val or test, only {', '.join(others)}: "
                f"name the split to pack, such as '{name}:{others[0]}'"
            )
        notes.append(f"{name}: skipped {', '.join(others)}; pack it alone, as '{name}:{others[0]}'")
    elif others:
        notes.append("the shards' names say neither train, val nor test: open them as 'FOLDER:all'")
    sources = [match_classes(source, sources[0].class_names) for source in sources]
    if sources[0].is_multi_label:
        raise InputError(f"{name} is multi-label, and shards hold one label per image: it can't be packed")
    return sources, notes


def _plan(sources: Iterable[Source], to: Format, images_per_shard: int) -> Iterator[Shard]:
    for source in sources:
        every = np.arange(len(source))
        for number, start in enumerate(range(0, len(source), images_per_shard)):
            name = f"{source.split}-{number:06d}.{to}"
            yield Shard(name, source, every[start : start + images_per_shard])


def _lines(names: Sequence[str]) -> bytes:
    """Return what classes.txt holds."""
    lines = "".join(f"{name}\n" for name in names).encode()
    if parse_names(lines, "classes.txt") != tuple(names):
        raise InputError("a class name starts or ends with a space, or has a line break: rename the class")
    return lines


def _check_content(folder: RunFolder, content: dict[str, str]) -> None:
    """Refuse to resume with other images, labels or classes; with `force` the record is new."""
    known = folder.record["content"]
    if known and known != content:
        raise InputError(
            f"{folder.path} was packed from {folder.record['source']}, but the source is different or has changed: "
            "choose another folder, or start over with --force (force=True)"
        )


def _write(
    shard: Shard, folder: Path, settings: PackSettings, skipped: Skipped, step: Callable[[], None]
) -> ShardRecord:
    """Write one shard and return its record; `skipped` judges the unreadable images of its split so far."""
    source, images, shrunk = shard.source, 0, 0
    unreadable: list[Unreadable] = []

    def rows() -> Iterator[PackedImage]:
        nonlocal images, shrunk
        for index, result in work_through(
            source, shard.indices, lambda picture: shrink(picture, settings.size, settings.quality)
        ):
            if isinstance(result, Unreadable):
                skipped.add({index: result})
                unreadable.append(result)
            else:
                images += 1
                shrunk += result.is_shrunk
                yield PackedImage(index, int(source.labels[index]), result)
            step()

    path = folder / shard.name
    with written_whole(path) as part:
        WRITERS[settings.to](part, rows(), source.class_names)
    return ShardRecord(source.split, images, shrunk, path.stat().st_size, tuple(unreadable))


def _places(shard: Shard, unreadable: Sequence[Unreadable]) -> dict[int, Unreadable]:
    """Return the unreadable images of a shard that is written, by their places in the split."""
    known = {entry.image: entry for entry in unreadable}
    places = shard.indices.tolist() if known else []
    return {index: known[where] for index in places if (where := shard.source.where(index)) in known}


def _unreadable(records: Mapping[str, ShardRecord]) -> list[Unreadable]:
    return [entry for record in records.values() for entry in record.unreadable]


def _sum(split: str, records: Iterable[ShardRecord]) -> PackedSplit:
    own = [record for record in records if record.split == split]
    images, shrunk = sum(record.images for record in own), sum(record.shrunk for record in own)
    return PackedSplit(split, len(own), images, shrunk, sum(record.bytes for record in own))


def _numbers_mislead(class_names: Sequence[str]) -> bool:
    """Return whether a number in .cls could be read as the name of another class."""
    places = {str(place) for place in range(len(class_names))}
    return any(name in places and name != str(place) for place, name in enumerate(class_names))


def _kept_suffix(data: bytes) -> str | None:
    """Return the suffix of a file that every reader decodes alike; None for others."""
    with open_image(io.BytesIO(data)) as image:
        plain = image.mode in ("RGB", "L") and not image.has_transparency_data
        is_moving = getattr(image, "is_animated", False)
        try:
            upright = image.getexif().get(ORIENTATION, 1) == 1
        except Exception:  # broken EXIF data
            upright = False
        return KEPT.get(image.format or "") if plain and upright and not is_moving else None


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
