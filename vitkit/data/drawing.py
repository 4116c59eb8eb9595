"""What sheets of pictures are drawn with: letters, text that fits, tiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageFont


def load_font(size: int, kind: str = "") -> ImageFont.FreeTypeFont:
    """Return matplotlib's own font; kind: such as '-Bold'."""
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", f"DejaVuSans{kind}.ttf"), size)


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
