"""Sheets of small pictures: rows of images under the names of their classes, and columns under headings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from vitkit.figures.tiles import cut_text, draw_text, load_font

TILE = 96
"Longest side of a picture of a contact sheet."
TILES = 10
"Pictures in a row of a contact sheet."
GAP = 6
MARGIN = 16
HEAD = 36
"Height of the title."
NAMES = 190
"Width of the column of names."
COLUMN, COLUMN_GAP = 128, 4
"Pictures in columns are magnified by a whole number, up to about this many pixels; the space between them."

_INK, _PALE, _PAPER, _EMPTY = "#1a1a1a", "#767676", "#ffffff", "#f0f0f0"


class Row(NamedTuple):
    """A class of a contact sheet: its name, its number of images, and some of them; None is unreadable."""

    name: str
    number: int
    tiles: Sequence[Image.Image | None]


def contact_sheet(title: str, rows: Sequence[Row]) -> Image.Image:
    """Return a row of small pictures for each class, with its name and number of images."""
    width = 2 * MARGIN + NAMES + TILES * (TILE + GAP) - GAP
    sheet = Image.new("RGB", (width, 2 * MARGIN + HEAD + len(rows) * (TILE + GAP) - GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    draw_text(draw, (MARGIN, MARGIN), title, _INK, 17, width - 2 * MARGIN)
    for place, row in enumerate(rows):
        top = MARGIN + HEAD + place * (TILE + GAP)
        draw_text(draw, (MARGIN, top + TILE // 2 - 17), row.name, _INK, 14, NAMES - 12)
        draw.text((MARGIN, top + TILE // 2 + 3), f"{row.number:,}", _PALE, load_font(12))
        for column, tile in enumerate(row.tiles):
            left = MARGIN + NAMES + column * (TILE + GAP)
            draw.rectangle((left, top, left + TILE - 1, top + TILE - 1), _EMPTY)
            if tile is None:
                middle = left + TILE // 2, top + TILE // 2
                draw.text(middle, "unreadable", _PALE, load_font(12), anchor="mm")
            else:
                sheet.paste(tile, (left + (TILE - tile.width) // 2, top + (TILE - tile.height) // 2))
    return sheet


def column_sheet(panels: np.ndarray, headings: Sequence[str]) -> Image.Image:
    """Return pictures uint8 (rows, columns, channels, height, width) side by side, each column under its heading."""
    rows, columns, channels, height, width = panels.shape
    scale = max(1, COLUMN // max(height, width))
    colors = (
        panels if channels == 3 else panels.mean(axis=2, keepdims=True).astype(np.uint8).repeat(3, axis=2)
    )
    large = colors.repeat(scale, axis=3).repeat(scale, axis=4)
    padded = np.pad(large, ((0, 0),) * 3 + ((0, COLUMN_GAP),) * 2, constant_values=255)
    joined = padded.transpose(0, 3, 1, 4, 2).reshape(
        rows * (scale * height + COLUMN_GAP), columns * (scale * width + COLUMN_GAP), 3
    )[:-COLUMN_GAP, :-COLUMN_GAP]
    line = _heading_line(headings, scale * width)
    sheet = Image.new("RGB", (line.width, line.height + len(joined)), _PAPER)
    sheet.paste(line, (0, 0))
    sheet.paste(Image.fromarray(joined), (0, line.height))
    return sheet


def _heading_line(headings: Sequence[str], width: int) -> Image.Image:
    """Return the line above columns of this width; its letters grow with them."""
    size = max(12, width // 14)
    font = load_font(size)
    line = Image.new("RGB", (len(headings) * (width + COLUMN_GAP) - COLUMN_GAP, size * 3 // 2), _PAPER)
    for column, words in enumerate(headings):
        place = column * (width + COLUMN_GAP), 0
        ImageDraw.Draw(line).text(place, cut_text(words, font, width), "black", font)
    return line
