"""Small pictures with text around them: as one picture with a title on white, or as SVG styled by its page."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from vitkit.figures.palette import THEME
from vitkit.figures.sheets import cut_text, load_font

MARGIN = 20
NARROWEST = 420
"Narrowest width, so that titles don't wrap too often."
QUALITY = 90
"WebP quality of photos on a page; the loss is not visible."

_INK, _MUTED, _PAPER = (THEME[name][0] for name in ("ink", "muted", "paper"))
_ANCHORS = {"l": "start", "m": "middle", "r": "end"}


class Word(NamedTuple):
    """A text among tiles. The anchor is Pillow's: l, m or r, then a (top), m (middle) or s (baseline)."""

    x: float
    y: float
    text: str
    anchor: str = "la"
    size: int = 12


@dataclass(frozen=True, eq=False)
class Sheet:
    """Tiles on a transparent RGBA image, with text in the gaps."""

    title: str
    note: str
    tiles: Image.Image
    words: Sequence[Word] = ()

    def image(self) -> Image.Image:
        """Return one picture with title and note above, on white."""
        bold, plain = load_font(17, "-Bold"), load_font(13)
        width = max(self.tiles.width, NARROWEST)
        lines = [(line, bold, _INK, 24) for line in _wrap(self.title, bold, width)]
        lines += [(line, plain, _MUTED, 19) for line in _wrap(self.note, plain, width)]
        head = sum(height for *_, height in lines) + 12
        size = (width + 2 * MARGIN, head + self.tiles.height + 2 * MARGIN)
        page = Image.new("RGB", size, _PAPER)
        draw, top = ImageDraw.Draw(page), MARGIN - 3
        for line, font, color, height in lines:
            draw.text((MARGIN, top), line, color, font)
            top += height
        left, top = MARGIN, MARGIN + head
        page.paste(self.tiles, (left, top), self.tiles)
        for word in self.words:
            place = left + word.x, top + word.y
            draw.text(place, word.text, _MUTED, load_font(word.size), anchor=word.anchor)
        return page

    def svg(self, alt: str) -> str:
        """Return only tiles and text, as SVG: the page has its own heading, and sets fonts and colours."""
        source = f"data:image/webp;base64,{base64.b64encode(webp(self.tiles)).decode()}"
        width, height = self.tiles.size
        words = "".join(map(_text, self.words))
        return (
            f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
            f'aria-label="{html.escape(alt)}"><image href="{source}" width="{width}" height="{height}"/>'
            f'<g fill="var(--muted)">{words}</g></svg>'
        )


def webp(image: Image.Image) -> bytes:
    """Return a picture for a page, several times smaller than PNG: photos are lossy, flat colours exact."""
    found = []
    for settings in ({"lossless": True}, {"quality": QUALITY}):
        buffer = io.BytesIO()
        image.save(buffer, "WEBP", **settings)
        found.append(buffer.getvalue())
    return min(found, key=len)  # for flat colours, lossless is smaller


def _text(word: Word) -> str:
    y = word.y + {"a": word.size, "m": 0.35 * word.size, "s": 0}[word.anchor[1]]  # SVG uses the baseline
    anchor = _ANCHORS[word.anchor[0]]
    return (
        f'<text x="{word.x:g}" y="{y:g}" font-size="{word.size}" text-anchor="{anchor}">'
        f"{html.escape(word.text)}</text>"
    )


def _wrap(text: str, font: ImageFont.FreeTypeFont, width: float) -> list[str]:
    """Return lines of at most `width` pixels; longer words are truncated."""
    lines: list[str] = []
    for word in text.split():
        if lines and font.getlength(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(cut_text(word, font, width))
    return lines
