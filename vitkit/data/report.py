"""What is in a data set: splits, classes, balance, sizes, unreadable images, duplicates, overlap with another set."""

from __future__ import annotations

import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from vitkit.config import Bounds
from vitkit.data.decode import decode
from vitkit.data.images import open_image
from vitkit.data.open import JOINT, Data, named_data, open_data, open_splits
from vitkit.data.sources.source import Picture, Source, Subset, count_classes, spread
from vitkit.data.spec import DataSpec, as_spec
from vitkit.data.splits import counted
from vitkit.data.threads import Unreadable, work_through
from vitkit.data.unreadable import BadImageRule, Skipped
from vitkit.display import png_files
from vitkit.errors import InputError
from vitkit.figures.sheets import TILE, TILES, SheetRow, contact_sheet, fit_tile, name_class, sheet_path
from vitkit.files import written_whole
from vitkit.notes import Note
from vitkit.progress import Progress, showing, telling
from vitkit.results import Result

MOST_ROWS = 24
"Classes on a contact sheet."


class ImageFacts(NamedTuple):
    """What one image is, as the loader sees it: upright, RGB, 8 bits."""

    digest: bytes
    "Of height, width and pixels: the same for the same pixels in any file."
    height: int
    width: int
    mode: str
    "Pillow's, as stored: RGB, L, P, CMYK, ..."
    format: str


@dataclass(frozen=True)
class ClassSize(Result):
    """A class and how many images it has."""

    name: str = field(metadata={"json": "class"})
    images: int


@dataclass(frozen=True)
class Range(Result):
    """The smallest, the middle and the largest of some numbers."""

    min: int
    median: int
    max: int


@dataclass(frozen=True)
class SplitReport(Result):
    """What is in one split."""

    split: str
    images: int
    labels: int
    multi_label: bool
    unlabelled: int
    classes: dict[str, int]
    smallest: ClassSize
    largest: ClassSize
    balance: float
    "1 if all classes have one size, 0 if there is one class only."
    read: int
    unreadable: list[Unreadable]
    height: Range | None
    width: Range | None
    modes: dict[str, int]
    formats: dict[str, int]


@dataclass(frozen=True)
class NamedImage(Result):
    """An image, by where it is."""

    split: str
    image: str
    classes: list[str]


@dataclass(frozen=True)
class Overlap(Result):
    """How many images of a split are in another too."""

    split: str
    other: str = field(metadata={"json": "in"})
    images: int


@dataclass(frozen=True)
class Duplicates(Result):
    """Images with the same pixels."""

    within: dict[str, int]
    across: list[Overlap]
    with_different_classes: int
    groups: list[list[NamedImage]]


@dataclass(frozen=True)
class Match(Result):
    """An image of another set, and its copies here."""

    image: str
    classes: list[str]
    found: list[NamedImage]


@dataclass(frozen=True)
class Comparison(Result):
    """Which images of another set are here."""

    data: str
    split: str
    images: int
    read: int
    unreadable: list[Unreadable]
    found: int
    matches: list[Match]


@dataclass(frozen=True)
class DataReport(Result):
    """What is in a data set."""

    data: str
    num_classes: int
    splits: list[SplitReport]
    faults: list[str]
    compared: list[str]
    duplicates: Duplicates
    against: Comparison | None
    sheet: str | None
    notes: list[str]
    refused: list[str]
    "Why other commands stop: too many unreadable images, or all of a class; empty where such images are skipped."

    _leads = ("data", "num_classes", "faults", "num_unreadable", "refused")
    _tables = ("splits",)

    def _pictures(self) -> list[tuple[str, bytes]]:
        return png_files([self.sheet] if self.sheet else [])

    @property
    def num_unreadable(self) -> int:
        """Images that can't be read, of these splits and of what they were compared with."""
        return sum(len(part.unreadable) for part in (*self.splits, self.against) if part)


@dataclass
class SplitImages:
    """A split and what its images turned out to be."""

    source: Source
    is_shown: bool
    "Whether the report is on it; others are only compared with."
    indices: np.ndarray
    "The images to read."
    looks: dict[int, ImageFacts] = field(default_factory=dict)
    bad: dict[int, Unreadable] = field(default_factory=dict)

    @property
    def unreadable(self) -> list[Unreadable]:
        return list(self.bad.values())


def describe_data(
    data: Data,
    *,
    against: Data | None = None,
    images: int | None = None,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: bool | Progress | None = True,
) -> DataReport:
    """Read every image of a data set and return what was found.

    against: another data set; its images are searched for in this one.
    images: read at most this many images of each split, evenly spaced.
    out: PNG file for a contact sheet with some images of each class.
    progress: False shows none; a function is called with the number of images done, and with their total.
    """
    data = named_data(data)[0]
    spec = data if isinstance(data, Source) else as_spec(data)
    Bounds(at_least=1).check("images", images)
    sheet = None if out is None else sheet_path(out, force)
    opened, faults = _open(spec)
    faults += [fault for source, is_shown in opened if is_shown for fault in source.faults]
    parts = [
        SplitImages(source, is_shown, spread(len(source), images or len(source)))
        for source, is_shown in opened
    ]
    shown = [part for part in parts if part.is_shown]
    other = None
    if against is not None:
        source = open_data(against, default="measure", tolerate=True)
        other = SplitImages(source, False, spread(len(source), images or len(source)))
    everything = [*parts, other] if other else parts
    tell_note = telling(progress)
    with showing(progress, "reading") as tell:
        _read(everything, tell)
    if sheet is not None:
        write_sheet(shown[0].source, sheet)
    notes = _notes(everything)
    for line in notes:
        tell_note(line)
    return DataReport(
        data=spec.data_name if isinstance(spec, Source) else str(spec),
        num_classes=shown[0].source.num_classes,
        splits=[_describe(part) for part in shown],
        faults=faults,
        compared=[part.source.split for part in parts if not part.is_shown],
        duplicates=_duplicates(parts),
        against=None if other is None else _found(other, shown, other.source.data_name),
        sheet=None if sheet is None else str(sheet),
        notes=notes,
        refused=[fault for part in shown if (fault := _fault(part))],
    )


def _fault(part: SplitImages) -> str:
    """Return why other commands stop at the unreadable images of a split; '' if they skip them."""
    skipped = Skipped(Subset(part.source, part.indices), BadImageRule("any"))
    with suppress(InputError):  # none can be read
        places = enumerate(part.indices.tolist())
        skipped.add({place: part.bad[index] for place, index in places if index in part.bad})
    return skipped.fault


def _open(spec: DataSpec | Source) -> tuple[list[tuple[Source, bool]], list[str]]:
    """Return the splits to report on; of a DATA with a split, that split and, marked False, those to compare it with.

    Also what is wrong with splits that can't be opened.
    """
    faults: list[str] = []
    if isinstance(spec, Source):
        return [(spec, True)], faults
    if spec.split is None:
        return [(source, True) for source in open_splits(spec, faults)], faults
    asked = open_data(spec, tolerate=True)
    if asked.split == "all":
        return [(asked, True)], faults
    inside = (asked.split, *JOINT.get(asked.split, ()))
    others = [(source, False) for source in open_splits(spec.whole, faults) if source.split not in inside]
    return ([(asked, True), *others] if asked.split == "train" else [*others, (asked, True)]), faults


def _read(parts: Sequence[SplitImages], progress: Progress | None) -> None:
    total, done = sum(len(part.indices) for part in parts), 0
    for part in parts:
        for index, look in work_through(part.source, part.indices, look_at):
            if isinstance(look, Unreadable):
                part.bad[index] = look
            else:
                part.looks[index] = look
            done += 1
            if progress:
                progress(done, total)


def look_at(picture: Picture) -> ImageFacts:
    """Decode a picture as the loader does, and say what it is."""
    pixels = decode(picture).permute(1, 2, 0).contiguous().numpy()
    height, width = pixels.shape[:2]
    digest = hashlib.blake2b(f"{height}x{width}".encode(), digest_size=16)
    digest.update(pixels.data)
    if isinstance(picture, np.ndarray):
        return ImageFacts(digest.digest(), height, width, "L" if picture.shape[2] == 1 else "RGB", "array")
    try:
        with open_image(io.BytesIO(picture) if isinstance(picture, bytes) else picture) as image:
            mode, kind = image.mode, image.format or "unknown"
    except Exception:  # a JPEG that torchvision reads and Pillow doesn't
        mode, kind = "unknown", "JPEG"
    return ImageFacts(digest.digest(), height, width, mode, kind)


def _describe(part: SplitImages) -> SplitReport:
    source, looks = part.source, list(part.looks.values())
    counts = count_classes(source)
    classes = {name: int(count) for name, count in zip(source.class_names, counts, strict=True)}
    smallest, largest = min(classes, key=classes.__getitem__), max(classes, key=classes.__getitem__)
    return SplitReport(
        split=source.split,
        images=len(source),
        labels=int(counts.sum()),
        multi_label=source.is_multi_label,
        unlabelled=int(np.count_nonzero(~source.labels.any(1))) if source.is_multi_label else 0,
        classes=classes,
        smallest=ClassSize(smallest, classes[smallest]),
        largest=ClassSize(largest, classes[largest]),
        balance=_balance(counts),
        read=len(looks),
        unreadable=part.unreadable,
        height=_range([look.height for look in looks]),
        width=_range([look.width for look in looks]),
        modes=dict(Counter(look.mode for look in looks).most_common()),
        formats=dict(Counter(look.format for look in looks).most_common()),
    )


def _balance(counts: np.ndarray) -> float:
    """Return the entropy of the classes' shares over that of even shares: 1 is even, 0 is one class alone."""
    if np.count_nonzero(counts) < 2:
        return 0.0
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum() / np.log(len(counts)))


def _range(values: Sequence[int]) -> Range | None:
    if not values:
        return None
    ordered = sorted(values)
    return Range(ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1])


def _duplicates(parts: Sequence[SplitImages]) -> Duplicates:
    """Return the groups of images with the same pixels, with how many there are in each split and in two."""
    groups = [
        members
        for members in _by_digest(parts).values()
        if len(members) > 1 and any(part.is_shown for part, _ in members)
    ]
    within: dict[str, int] = {part.source.split: 0 for part in parts if part.is_shown}
    across = {
        (second.source.split, first.source.split): 0
        for place, first in enumerate(parts)
        for second in parts[place + 1 :]
        if first.is_shown or second.is_shown
    }
    conflicts = 0
    for members in groups:
        counts = Counter(part.source.split for part, _ in members)
        for split in within.keys() & counts.keys():
            within[split] += counts[split] - 1
        for split, place in across:
            if counts[place]:
                across[split, place] += counts[split]
        conflicts += len({tuple(_classes(part.source, index)) for part, index in members}) > 1
    return Duplicates(
        within=within,
        across=[Overlap(split, place, count) for (split, place), count in across.items()],
        with_different_classes=conflicts,
        groups=[[_name(part, index) for part, index in members] for members in groups],
    )


def _found(other: SplitImages, parts: Sequence[SplitImages], name: str) -> Comparison:
    """Return the images of another set that are in these splits."""
    here = _by_digest(parts)
    matches = [
        Match(
            image=other.source.where(index),
            classes=_classes(other.source, index),
            found=[_name(part, place) for part, place in here[look.digest]],
        )
        for index, look in other.looks.items()
        if look.digest in here
    ]
    return Comparison(
        data=name,
        split=other.source.split,
        images=len(other.source),
        read=len(other.looks),
        unreadable=other.unreadable,
        found=len(matches),
        matches=matches,
    )


def _by_digest(parts: Iterable[SplitImages]) -> dict[bytes, list[tuple[SplitImages, int]]]:
    found: dict[bytes, list[tuple[SplitImages, int]]] = {}
    for part in parts:
        for index, look in part.looks.items():
            found.setdefault(look.digest, []).append((part, index))
    return found


def _name(part: SplitImages, index: int) -> NamedImage:
    return NamedImage(part.source.split, part.source.where(index), _classes(part.source, index))


def _classes(source: Source, index: int) -> list[str]:
    labels = np.flatnonzero(source.labels[index]) if source.is_multi_label else [source.labels[index]]
    return [source.class_names[label] for label in labels]


def _notes(parts: Sequence[SplitImages]) -> list[str]:
    notes = [note for part in parts for note in part.source.notes]
    for part in parts:
        source = part.source
        if len(part.indices) < len(source):
            text = (
                f"{source.name}: read {len(part.indices):,} of the {len(source):,} images of {source.split}, evenly "
                "spaced: only these are checked for unreadable images and copies"
            )
            notes.append(Note(text, "warning"))
    return list(dict.fromkeys(notes))


def write_sheet(source: Source, path: Path) -> None:
    """Draw images of each class, evenly spread over the class; of many classes some, evenly spread too."""
    with written_whole(path) as part:
        draw_sheet(source).save(part, "PNG")


def draw_sheet(source: Source) -> Image.Image:
    """Return the sheet of a source."""
    counts = count_classes(source)
    present = np.flatnonzero(counts)
    shown = present[spread(len(present), MOST_ROWS)]
    members = [_members(source, number) for number in shown.tolist()]
    tiles = work_through(source, np.concatenate(members), _tile)
    rows = []
    for number, places in zip(shown.tolist(), members, strict=True):
        own = [tile for _, tile in islice(tiles, len(places))]
        name = name_class(source.class_names[number], number)
        rows.append(
            SheetRow(name, int(counts[number]), [None if isinstance(t, Unreadable) else t for t in own])
        )
    title = f"{source.name}:{source.split}, {counted(len(source), 'image')}, {counted(len(present), 'class')}"
    if len(shown) < len(present):
        title += f", {len(shown)} of them shown"
    return contact_sheet(title, rows)


def _members(source: Source, number: int) -> np.ndarray:
    """Return images of a class, evenly spread over it."""
    has = source.labels[:, number] if source.is_multi_label else source.labels == number
    members = np.flatnonzero(has)
    return members[spread(len(members), TILES)]


def _tile(picture: Picture) -> Image.Image:
    return fit_tile(decode(picture).permute(1, 2, 0).contiguous().numpy(), TILE)
