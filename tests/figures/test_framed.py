"""Sheets: one picture for a file; for a page SVG with the same tiles, whose words take the page's colours."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from vitkit.figures.framed import Sheet, Word, webp

EVIL = "<script>alert('\"&')</script>"


def sheet(*words: Word) -> Sheet:
    tiles = Image.new("RGBA", (200, 100), (0, 0, 0, 0))
    tiles.paste("#ff0000", (0, 50, 100, 100))
    return Sheet("Title", "A note.", tiles, words)


def test_the_picture_is_on_white_with_title_tiles_and_words() -> None:
    plain, written = (np.asarray(sheet(*words).image()) for words in ((), (Word(150, 20, "words", "mm"),)))
    assert (plain[[0, 0, -1, -1], [0, -1, 0, -1]] == 255).all()
    assert (plain == (255, 0, 0)).all(-1).sum() == 5000
    rows, columns = np.nonzero((plain != written).any(-1))
    assert 150 < columns.mean() - 20 + 5 < 160 and len(rows) > 20  # the margin is 20 pixels


def test_the_svg_has_the_tiles_without_white_and_words_as_text() -> None:
    shown = sheet(Word(150, 20, EVIL, "rm")).svg(EVIL)
    assert "<script" not in shown and shown.count("&lt;script&gt;") == 2
    assert '<text x="150" y="24.2" font-size="12" text-anchor="end">' in shown
    assert 'fill="var(--muted)"' in shown and not re.search("#[0-9a-f]{6}", shown)
    (content,) = re.findall('href="data:image/webp;base64,(.*?)"', shown)
    tiles = Image.open(io.BytesIO(base64.b64decode(content)))
    assert tiles.mode == "RGBA" and tiles.getpixel((150, 20))[3] == 0  # type: ignore[index]
    assert tiles.getpixel((50, 75)) == (255, 0, 0, 255)


@pytest.mark.parametrize("kind", ["flat", "photo"])
def test_flat_colours_stay_exact_and_photos_get_small(kind: str) -> None:
    values = (
        np.random.default_rng(0).normal(size=(8, 8, 3))
        if kind == "photo"
        else np.eye(8)[..., None].repeat(3, 2)
    )
    image = Image.fromarray((values * 60 + 120).clip(0, 255).astype(np.uint8))
    image = image.resize(
        (256, 256), Image.Resampling.BICUBIC if kind == "photo" else Image.Resampling.NEAREST
    )
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    content = webp(image)
    shown = Image.open(io.BytesIO(content)).convert("RGB")
    assert len(content) < len(buffer.getvalue()) / (3 if kind == "photo" else 1)
    assert np.abs(np.asarray(shown, int) - np.asarray(image)).max() <= (12 if kind == "photo" else 0)
