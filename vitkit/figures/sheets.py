"""Sheets of small pictures, by class or in columns, and the parts of every sheet: fonts, text that fits, tiles."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vitkit.errors import InputError
from vitkit.figures.palette import THEME
from vitkit.files import check_output

if TYPE_CHECKING:
    from matplotlib.font_manager import FontEntry

FAMILY = "DejaVu Sans"
"The family of matplotlib's own font."
EMPTY = "#f0f2f5"
"Colour of a tile around its picture."

TILE = 96
"Longest side of a picture on a contact sheet."
TILES = 10
"Pictures in a row of a contact sheet."
GAP = 6
MARGIN = 16
HEAD = 36
"Height of the title."
CAPTION = 44
"Height of the two lines below a picture, and the space after them."
LEAST_WIDTH = 640
"Of a sheet with captions, so that its title has room."
NAMES = 190
"Width of the column of names."
COLUMN, COLUMN_GAP = 128, 4
"Pictures in columns are magnified by a whole number, to at most this many pixels; the space between them."

_INK, _MUTED, _PAPER = (THEME[name][0] for name in ("ink", "muted", "paper"))


class SheetRow(NamedTuple):
    """A class on a contact sheet: its name, its number of images, and some of them; None for an unreadable image."""

    name: str
    number: int
    tiles: Sequence[Image.Image | None]


def contact_sheet(title: str, rows: Sequence[SheetRow]) -> Image.Image:
    """Return a row of small pictures for each class, with its name and number of images."""
    width = 2 * MARGIN + NAMES + TILES * (TILE + GAP) - GAP
    sheet = Image.new("RGB", (width, 2 * MARGIN + HEAD + len(rows) * (TILE + GAP) - GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    draw_text(draw, (MARGIN, MARGIN), title, _INK, 17, width - 2 * MARGIN)
    for place, row in enumerate(rows):
        top = MARGIN + HEAD + place * (TILE + GAP)
        draw_text(draw, (MARGIN, top + TILE // 2 - 17), row.name, _INK, 14, NAMES - 12)
        draw.text((MARGIN, top + TILE // 2 + 3), f"{row.number:,}", _MUTED, load_font(12))
        for column, tile in enumerate(row.tiles):
            left = MARGIN + NAMES + column * (TILE + GAP)
            _paste_tile(sheet, draw, tile, left, top)
    return sheet


class Captioned(NamedTuple):
    """A small picture with two lines below it; None for an image that can't be read."""

    tile: Image.Image | None
    words: str
    more: str


def captioned_sheet(title: str, rows: Sequence[Sequence[Captioned]]) -> Image.Image:
    """Return rows of small pictures with their captions."""
    across, down = TILE + 2 * GAP, TILE + CAPTION
    columns = max((len(row) for row in rows), default=1)
    width = max(2 * MARGIN + columns * across - 2 * GAP, LEAST_WIDTH)
    sheet = Image.new("RGB", (width, 2 * MARGIN + HEAD + len(rows) * down), _PAPER)
    draw = ImageDraw.Draw(sheet)
    draw_text(draw, (MARGIN, MARGIN), title, _INK, 17, width - 2 * MARGIN)
    for line, row in enumerate(rows):
        for column, picture in enumerate(row):
            left, top = MARGIN + column * across, MARGIN + HEAD + line * down
            _paste_tile(sheet, draw, picture.tile, left, top)
            draw_text(draw, (left, top + TILE + 2), picture.words, _INK, 12, TILE)
            draw_text(draw, (left, top + TILE + 18), picture.more, _MUTED, 11, TILE)
    return sheet


def sheet_path(out: str | os.PathLike[str], force: bool) -> Path:
    """Return where a contact sheet goes, checked before anything is read."""
    path = Path(out).expanduser()
    if path.suffix.lower() != ".png":
        raise InputError(f"the contact sheet is a PNG, not {path.name!r}: name it {path.stem or 'sheet'}.png")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: no folder {path.parent}")
    check_output(path, force=force)
    return path


def _paste_tile(
    sheet: Image.Image, draw: ImageDraw.ImageDraw, tile: Image.Image | None, left: int, top: int
) -> None:
    """Draw a picture in the middle of its square."""
    draw.rectangle((left, top, left + TILE - 1, top + TILE - 1), EMPTY)
    if tile is None:
        draw.text((left + TILE // 2, top + TILE // 2), "unreadable", _MUTED, load_font(12), anchor="mm")
    else:
        sheet.paste(tile, (left + (TILE - tile.width) // 2, top + (TILE - tile.height) // 2))


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
    """Return the line of headings above columns of this width; the font size grows with the width."""
    size = max(12, width // 14)
    font = load_font(size)
    line = Image.new("RGB", (len(headings) * (width + COLUMN_GAP) - COLUMN_GAP, size * 3 // 2), _PAPER)
    for column, words in enumerate(headings):
        place = column * (width + COLUMN_GAP), 0
        ImageDraw.Draw(line).text(place, cut_text(words, font, width), _INK, font)
    return line


def load_font(size: int, kind: str = "") -> ImageFont.FreeTypeFont:
    """Return matplotlib's own font, of a kind such as '-Bold'."""
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", f"DejaVuSans{kind}.ttf"), size)


def name_class(name: str, number: int, word: str = "class") -> str:
    """Return a class name that can be drawn: without letters that no font has, or 'class 3' if none are left."""
    if not (lacking := _lacking(name)) or find_font(name):
        return name
    left = " ".join("".join(letter for letter in name if letter not in lacking).split())
    return left if any(map(str.isalnum, left)) else f"{word} {number}"


@cache
def find_font(text: str) -> FontEntry | None:
    """Return an installed font with all letters of a text, or None if matplotlib's own has them or no font does."""
    if not (lacking := _lacking(text)):
        return None
    from matplotlib.font_manager import fontManager

    letters = {*"".join(text.split()), "…"}
    for font in sorted(fontManager.ttflist, key=lambda f: (f.style != "normal", f.weight != 400, f.name)):
        # Skip Last Resort (all boxes), matplotlib's own font, and faces after a file's first, which PIL doesn't open.
        if "LastResort" in font.fname or font.name == FAMILY or getattr(font, "index", False):
            continue
        if letters <= _letters(font.fname) and _shows(font.fname, lacking):
            return font
    return None


def _lacking(text: str) -> set[str]:
    return set("".join(text.split())) - _letters(str(load_font(13).path))


@cache
def _letters(path: str) -> frozenset[str]:
    """Return the letters of a font file, or none if it can't be read."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError, ValueError):
        return frozenset()


def _shows(path: str, letters: set[str]) -> bool:
    """Return whether all letters are visible: in colour fonts they are blank, or bitmaps of another size."""
    try:
        font = ImageFont.truetype(path, 13)
        return all(font.getmask(letter).getbbox() for letter in letters)
    except OSError:
        return False


def draw_text(
    draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, ink: str, size: int, width: float
) -> None:
    """Draw a text on one line, truncated at `width`, in a font that has its letters; all fonts share the baseline."""
    own, other = load_font(size), find_font(text)
    font = ImageFont.truetype(other.fname, size) if other else own
    baseline = place[0], place[1] + own.getmetrics()[0]
    draw.text(baseline, cut_text(text, font, width), ink, font, anchor="ls")


def cut_text(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    """Return a text on one line, truncated to `width` pixels."""
    text = " ".join(text.split())
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"


def fit_tile(pixels: np.ndarray, side: int) -> Image.Image:
    """Return a picture scaled to fit a tile; small pictures keep sharp pixels."""
    image = Image.fromarray(pixels)
    scale = side / max(image.size)
    width, height = (max(1, round(length * scale)) for length in image.size)
    return image.resize((width, height), Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BICUBIC)
