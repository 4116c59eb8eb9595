"""A contact sheet: a row of small pictures for each class, with its name and number of images, as a PNG."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from vitkit.data.decode import decode
from vitkit.data.parts import Unreadable, work_through
from vitkit.data.sources.source import Picture, Source
from vitkit.data.splits import counted
from vitkit.figures.tiles import draw_text, fit_tile, load_font, name_class
from vitkit.files import written_whole

TILE = 96
GAP = 6
MARGIN = 16
HEAD = 36
"Height of the title."
NAMES = 190
"Width of the column of names."
COLUMNS = 10
MOST_ROWS = 24

_INK, _PALE, _PAPER, _EMPTY = "#1a1a1a", "#767676", "#ffffff", "#f0f0f0"


def write_sheet(source: Source, path: Path) -> None:
    """Draw images of each class, evenly spread over the class; of many classes some, evenly spread too."""
    with written_whole(path) as part:
        draw_sheet(source).save(part, "PNG")


def draw_sheet(source: Source) -> Image.Image:
    """Return the sheet of a source."""
    rows = _rows(source)
    every = int(np.count_nonzero(count_classes(source)))
    width = 2 * MARGIN + NAMES + COLUMNS * (TILE + GAP) - GAP
    sheet = Image.new("RGB", (width, 2 * MARGIN + HEAD + len(rows) * (TILE + GAP) - GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    title = f"{source.name}:{source.split}, {counted(len(source), 'image')}, {counted(every, 'class')}"
    if len(rows) < every:
        title += f", {len(rows)} of them shown"
    draw_text(draw, (MARGIN, MARGIN), title, _INK, 17, width - 2 * MARGIN)
    shown = np.concatenate([members for _, _, members in rows])
    tiles = work_through(source, shown, _tile)
    for row, (name, number, members) in enumerate(rows):
        top = MARGIN + HEAD + row * (TILE + GAP)
        draw_text(draw, (MARGIN, top + TILE // 2 - 17), name, _INK, 14, NAMES - 12)
        draw.text((MARGIN, top + TILE // 2 + 3), f"{number:,}", _PALE, load_font(12))
        for column in range(len(members)):
            left = MARGIN + NAMES + column * (TILE + GAP)
            draw.rectangle((left, top, left + TILE - 1, top + TILE - 1), _EMPTY)
            _, small = next(tiles)
            if isinstance(small, Unreadable):
                draw.text(
                    (left + TILE // 2, top + TILE // 2), "unreadable", _PALE, load_font(12), anchor="mm"
                )
            else:
                sheet.paste(small, (left + (TILE - small.width) // 2, top + (TILE - small.height) // 2))
    return sheet


def _rows(source: Source) -> list[tuple[str, int, np.ndarray]]:
    """Return the classes to show: their names, numbers of images, and the images to show."""
    present = np.flatnonzero(count_classes(source))
    rows = []
    for number in present[spread(len(present), MOST_ROWS)]:
        has = source.labels[:, number] if source.has_several_labels else source.labels == number
        members = np.flatnonzero(has)
        name = name_class(source.class_names[number], number)
        rows.append((name, len(members), members[spread(len(members), COLUMNS)]))
    return rows


def count_classes(source: Source) -> np.ndarray:
    """Return the number of images of each class: (classes,)."""
    if source.has_several_labels:
        return np.asarray(source.labels.sum(0))
    return np.bincount(source.labels, minlength=source.num_classes)


def spread(length: int, most: int) -> np.ndarray:
    """Return up to `most` of the places 0 to length - 1, evenly spread."""
    return np.arange(length) if length <= most else np.arange(most) * length // most


def _tile(picture: Picture) -> Image.Image:
    return fit_tile(decode(picture).permute(1, 2, 0).contiguous().numpy(), TILE)
