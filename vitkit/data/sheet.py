"""The contact sheet of a source: which classes and images it shows."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from vitkit.data.decode import decode
from vitkit.data.sources.source import Picture, Source, count_classes, spread
from vitkit.data.splits import counted
from vitkit.data.threads import Unreadable, work_through
from vitkit.figures.sheets import TILE, TILES, Row, contact_sheet
from vitkit.figures.tiles import fit_tile, name_class
from vitkit.files import written_whole

MOST_ROWS = 24


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
        rows.append(Row(name, int(counts[number]), [None if isinstance(t, Unreadable) else t for t in own]))
    title = f"{source.name}:{source.split}, {counted(len(source), 'image')}, {counted(len(present), 'class')}"
    if len(shown) < len(present):
        title += f", {len(shown)} of them shown"
    return contact_sheet(title, rows)


def _members(source: Source, number: int) -> np.ndarray:
    """Return images of a class, evenly spread over it."""
    has = source.labels[:, number] if source.has_several_labels else source.labels == number
    members = np.flatnonzero(has)
    return members[spread(len(members), TILES)]


def _tile(picture: Picture) -> Image.Image:
    return fit_tile(decode(picture).permute(1, 2, 0).contiguous().numpy(), TILE)
