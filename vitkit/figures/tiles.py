"""What sheets of pictures are drawn with: letters, text that fits, tiles."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from matplotlib.font_manager import FontEntry

FAMILY = "DejaVu Sans"


def load_font(size: int, kind: str = "") -> ImageFont.FreeTypeFont:
    """Return matplotlib's own font; kind: such as '-Bold'."""
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", f"DejaVuSans{kind}.ttf"), size)


def name_class(name: str, number: int, word: str = "class") -> str:
    """Return a class's name as it can be drawn: without what no font has, as 'class 3' where no letter would be left."""
    if not (lacking := _lacking(name)) or find_font(name):
        return name
    left = " ".join("".join(letter for letter in name if letter not in lacking).split())
    return left if any(map(str.isalnum, left)) else f"{word} {number}"


@cache
def find_font(text: str) -> FontEntry | None:
    """Return an installed font with all letters of a text, where matplotlib's own lacks some; else None."""
    if not (lacking := _lacking(text)):
        return None
    from matplotlib.font_manager import fontManager

    letters = {*"".join(text.split()), "…"}
    for font in sorted(fontManager.ttflist, key=lambda f: (f.style != "normal", f.weight != 400, f.name)):
        # Last Resort has boxes for all letters; of a file PIL opens the first face; FAMILY would be the own font.
        if "LastResort" in font.fname or font.name == FAMILY or getattr(font, "index", False):
            continue
        if letters <= _letters(font.fname) and _shows(font.fname, lacking):
            return font
    return None


def _lacking(text: str) -> set[str]:
    return set("".join(text.split())) - _letters(str(load_font(13).path))


@cache
def _letters(path: str) -> frozenset[str]:
    """Return the letters of a font file, none where it can't be read."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError, ValueError):
        return frozenset()


def _shows(path: str, letters: set[str]) -> bool:
    """Say whether all letters leave ink: in colour fonts they are blank, or bitmaps of another size."""
    try:
        font = ImageFont.truetype(path, 13)
        return all(font.getmask(letter).getbbox() for letter in letters)
    except OSError:
        return False


def draw_text(
    draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, ink: str, size: int, width: float
) -> None:
    """Draw a text on one line, cut off at `width`, in a font with its letters; fonts share the baseline."""
    own, other = load_font(size), find_font(text)
    font = ImageFont.truetype(other.fname, size) if other else own
    baseline = place[0], place[1] + own.getmetrics()[0]
    draw.text(baseline, cut_text(text, font, width), ink, font, anchor="ls")


def cut_text(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    """Return a text on one line, cut off where it would be longer than `width` pixels."""
    text = " ".join(text.split())
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"


def fit_tile(pixels: np.ndarray, side: int) -> Image.Image:
    """Return a picture as large as a tile holds it whole; few pixels stay sharp squares."""
    image = Image.fromarray(pixels)
    scale = side / max(image.size)
    width, height = (max(1, round(length * scale)) for length in image.size)
    return image.resize((width, height), Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BICUBIC)
