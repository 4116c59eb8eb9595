"""Pictures of what inspection finds: arrays in, PIL images out, and the table of distances as CSV."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vitkit.figures.palette import THEME, plain_axes
from vitkit.figures.sheets import cut_text, fit_tile, load_font
from vitkit.models.configs import Preprocessing

MARGIN, GAP = 20, 6
LABELS = 26
"Room for the numbers beside rows and above columns."
CAPTION = 24
"Room for a caption under a picture."
FILTER, FILTER_COLUMNS = 84, 7
SIMILARITY, MOST_SIMILARITIES = 58, 16
"About the side of a tile of similarities; how many there are along a side before some are left out."
MAP, MAPS = (36, 104), 1040
"Least and largest side of a head's map; about the width of all layers together."
HEAT = "inferno"
STRENGTH = 0.62
"How much of a heat map's colour covers the photo."

_INK, _MUTED, _PAPER, _POINT, _UNIFORM = (
    THEME[name][0] for name in ("ink", "muted", "paper", "run-0", "run-1")
)


def photo(image: Any, preprocessing: Preprocessing) -> Image.Image:
    """Return what the model saw: a prepared image (channels, height, width), an array or a tensor, as a picture."""
    values = np.asarray(image.detach().float().cpu() if hasattr(image, "detach") else image, np.float64)
    mean, std = (np.reshape(numbers, (-1, 1, 1)) for numbers in (preprocessing.mean, preprocessing.std))
    return _picture((values * std + mean).transpose(1, 2, 0))


def overlay(picture: Image.Image, heat: np.ndarray, cells: tuple[float, float] | None = None) -> Image.Image:
    """Return a heat map (rows, columns) over a photo without its colours: bright is much, dark is little.

    cells: how many rows and columns lie over the photo, where the last ones reach beyond it; left open, all.
    """
    values = Image.fromarray(_scaled(heat).astype(np.float32))
    smooth = values.resize(picture.size, Image.Resampling.BICUBIC, _box(heat, cells))
    colors = Image.fromarray(_colored(np.asarray(smooth).clip(0, 1), HEAT))
    return Image.blend(picture.convert("L").convert("RGB"), colors, STRENGTH)


def color_picture(
    colors: np.ndarray, size: tuple[int, int], cells: tuple[float, float] | None = None
) -> Image.Image:
    """Return colours of patches (rows, columns, 3), from 0 to 1, as a picture of (width, height) pixels.

    cells: as in `overlay`.
    """
    return _picture(colors).resize(size, Image.Resampling.NEAREST, _box(colors, cells))


def sheet(
    pictures: Sequence[Image.Image],
    captions: Sequence[str],
    columns: int,
    title: str,
    note: str = "",
    side: int = 224,
) -> Image.Image:
    """Return pictures in rows, each with its longer side `side` pixels long, above its caption."""
    rows = -(-len(pictures) // columns)
    width = columns * (side + 2 * GAP) - 2 * GAP
    tiles = [fit_tile(np.asarray(picture), side) for picture in pictures]
    height = max(tile.height for tile in tiles)
    content = Image.new("RGB", (width, rows * (height + CAPTION + GAP) - GAP), _PAPER)
    draw, font = ImageDraw.Draw(content), load_font(13)
    for number, (tile, caption) in enumerate(zip(tiles, captions, strict=True)):
        row, column = divmod(number, columns)
        left, top = column * (side + 2 * GAP), row * (height + CAPTION + GAP)
        content.paste(tile, (left + (side - tile.width) // 2, top + (height - tile.height) // 2))
        draw.text((left, top + height + 5), cut_text(caption, font, side), _MUTED, font)
    return _framed(content, title, note)


def filter_sheet(values: np.ndarray, caption: str) -> Image.Image:
    """Return filters (filters, height, width, channels) in rows of seven, each on a scale of its own whose grey is zero."""
    rows = -(-len(values) // FILTER_COLUMNS)
    columns = min(FILTER_COLUMNS, len(values))
    step = FILTER + GAP
    content = Image.new("RGB", (columns * step - GAP, rows * step - GAP), _PAPER)
    for number, value in enumerate(values):
        row, column = divmod(number, FILTER_COLUMNS)
        tile = _picture(0.5 + 0.5 * value / max(np.abs(value).max(), np.finfo(np.float32).tiny))
        content.paste(tile.resize((FILTER, FILTER), Image.Resampling.NEAREST), (column * step, row * step))
    return _framed(content, "Filters over pixels", sentence(caption))


def similarity_picture(similarity: np.ndarray) -> Image.Image:
    """Return a tile for each patch of (rows, columns, rows, columns): its similarity with all others."""
    rows, columns = similarity.shape[:2]
    shown_rows, shown_columns = (
        _evenly_with_ends(rows, MOST_SIMILARITIES),
        _evenly_with_ends(columns, MOST_SIMILARITIES),
    )
    cell = max(2, SIMILARITY // max(rows, columns))
    step = (rows * cell + 4, columns * cell + 4)
    width, height = len(shown_columns) * step[1] - 4, len(shown_rows) * step[0] - 4
    bar = 16 + GAP + 30
    content = Image.new("RGB", (LABELS + width + 2 * GAP + bar, LABELS + height), _PAPER)
    for y, row in enumerate(shown_rows):
        for x, column in enumerate(shown_columns):
            tile = Image.fromarray(_colored((similarity[row, column] + 1) / 2, "viridis"))
            tile = tile.resize((columns * cell, rows * cell), Image.Resampling.NEAREST)
            content.paste(tile, (LABELS + x * step[1], LABELS + y * step[0]))
    _number(content, shown_rows, shown_columns, step, (rows * cell, columns * cell))
    _scale_bar(content, LABELS + width + 2 * GAP, LABELS, height)
    some = "" if len(shown_rows) * len(shown_columns) == rows * columns else "; some tiles, evenly spread"
    note = (
        f"The tile at a row and column: cosine similarity of that patch's embedding with all others'{some}."
    )
    return _framed(content, "Similarity of position embeddings", note)


def distance_picture(distances: np.ndarray, uniform: float | None = None) -> Image.Image:
    """Return the mean attention distance of every head (layers, heads), with the line of uniform attention."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    layers, heads = distances.shape
    with matplotlib.rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
        axes = figure.add_subplot()
        places = np.repeat(np.arange(layers), heads)
        axes.scatter(
            places, distances.ravel(), s=26, color=_POINT, alpha=0.65, linewidths=0, zorder=3, label="a head"
        )
        axes.plot(
            np.arange(layers),
            distances.mean(1),
            color=_POINT,
            linewidth=1.4,
            alpha=0.5,
            zorder=2,
            label="mean of the heads",
        )
        if uniform is not None:
            axes.axhline(
                uniform,
                color=_UNIFORM,
                linewidth=1.4,
                linestyle=(0, (5, 3)),
                zorder=2,
                label=f"uniform attention, {uniform:.1f} px",
            )
        axes.set_ylim(0, 1.08 * max(distances.max(), uniform or 0, 1e-6))
        axes.set_xlim(-0.6, layers - 0.4)
        plain_axes(axes, "Mean attention distance", 11, 9)
        axes.set_xlabel("layer", fontsize=9.5, color=_MUTED)
        axes.set_ylabel("pixels", fontsize=9.5, color=_MUTED)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        figure.legend(
            loc="outside lower left", ncols=3, frameon=False, fontsize=9, labelcolor=_MUTED, handlelength=1.8
        )
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
    return Image.open(buffer).convert("RGB")


def distance_table(distances: np.ndarray) -> str:
    """Return mean attention distances (layers, heads) as CSV: layer and head counted from 0, pixels."""
    rows = [f"{layer},{head},{pixels:.4f}" for (layer, head), pixels in np.ndenumerate(distances)]
    return "\n".join(["layer,head,pixels", *rows, ""])


def head_grid(maps: np.ndarray, layers: Sequence[int] | None = None) -> Image.Image:
    """Return one image's maps (layers, heads, rows, columns): a column for each layer, a row for each head.

    layers: the numbers to write above columns; left open, they count from 0.
    """
    num_layers, num_heads, rows, columns = maps.shape
    side = np.clip(MAPS / num_layers - GAP, *MAP)
    cell = max(1, round(side / max(rows, columns)))
    height, width = rows * cell, columns * cell
    step = (height + GAP, width + GAP)
    content = Image.new(
        "RGB", (LABELS + num_layers * step[1] - GAP, LABELS + num_heads * step[0] - GAP), _PAPER
    )
    for layer in range(num_layers):
        for head in range(num_heads):
            tile = Image.fromarray(_colored(_scaled(maps[layer, head]), HEAT))
            tile = tile.resize((width, height), Image.Resampling.NEAREST)
            content.paste(tile, (LABELS + layer * step[1], LABELS + head * step[0]))
    numbers = list(range(num_layers)) if layers is None else list(layers)
    _number(content, list(range(num_heads)), numbers, step, (height, width))
    note = "Columns are layers, rows are heads, both counted from 0; each map is on a scale of its own."
    return _framed(content, "What each head looks at", note)


def _box(values: np.ndarray, cells: tuple[float, float] | None) -> tuple[float, float, float, float]:
    """Return the part of a grid (rows, columns, ...) that is drawn, as Pillow takes it: left, top, right, bottom."""
    height, width = cells or values.shape[:2]
    return 0, 0, width, height


def _picture(values: np.ndarray) -> Image.Image:
    """Return (height, width, channels), from 0 to 1, as RGB; of channels that are not three, the mean as grey."""
    if values.shape[2] != 3:
        values = values.mean(axis=2, keepdims=True).repeat(3, axis=2)
    return Image.fromarray((values.clip(0, 1) * 255).round().astype(np.uint8))


def scale_of(heat: np.ndarray) -> tuple[float, float]:
    """Return the values that a map draws darkest and brightest.

    The few brightest patches share the top, so that one alone doesn't hide the rest.
    """
    return float(heat.min()), float(max(np.percentile(heat, 99), heat.max() / 4))


def _scaled(heat: np.ndarray) -> np.ndarray:
    """Return a map from 0 to 1."""
    low, high = scale_of(heat)
    return ((heat - low) / (high - low)).clip(0, 1) if high > low else np.zeros_like(heat)


def _colored(values: np.ndarray, name: str) -> np.ndarray:
    """Return (height, width), from 0 to 1, in a perceptually uniform colour map: uint8 (height, width, 3)."""
    from matplotlib import colormaps

    return colormaps[name](values, bytes=True)[..., :3].copy()


def _framed(content: Image.Image, title: str, note: str = "") -> Image.Image:
    """Return a picture under its title and a note, on white."""
    bold, plain = load_font(17, "-Bold"), load_font(13)
    width = max(content.width, 420)
    lines = [(line, bold, _INK, 24) for line in _wrap(title, bold, width)]
    lines += [(line, plain, _MUTED, 19) for line in _wrap(note, plain, width)]
    head = sum(height for *_, height in lines) + 12
    page = Image.new("RGB", (width + 2 * MARGIN, head + content.height + 2 * MARGIN), _PAPER)
    draw, top = ImageDraw.Draw(page), MARGIN - 3
    for line, font, color, height in lines:
        draw.text((MARGIN, top), line, color, font)
        top += height
    page.paste(content, (MARGIN, MARGIN + head))
    return page


def _number(
    content: Image.Image,
    rows: Sequence[int],
    columns: Sequence[int],
    step: tuple[int, int],
    size: tuple[int, int],
) -> None:
    """Write numbers beside rows and above columns of tiles."""
    draw, font = ImageDraw.Draw(content), load_font(12)
    for place, row in enumerate(rows):
        draw.text((LABELS - 8, LABELS + place * step[0] + size[0] // 2), f"{row}", _MUTED, font, anchor="rm")
    for place, column in enumerate(columns):
        draw.text(
            (LABELS + place * step[1] + size[1] // 2, LABELS - 8), f"{column}", _MUTED, font, anchor="ms"
        )


def _scale_bar(content: Image.Image, left: int, top: int, height: int) -> None:
    """Draw the colours of similarity from 1 to -1."""
    ramp = Image.fromarray(_colored(np.linspace(1, 0, height)[:, None], "viridis"))
    content.paste(ramp.resize((16, height)), (left, top))
    draw, font = ImageDraw.Draw(content), load_font(12)
    for number, share in ((1, 0.0), (0, 0.5), (-1, 1.0)):
        place = top + 6 + share * (height - 12)
        draw.text((left + 16 + GAP, place), f"{number}".replace("-", "−"), _MUTED, font, anchor="lm")


def _evenly_with_ends(length: int, most: int) -> list[int]:
    """Return up to `most` of the places 0 to length - 1, evenly spread, both ends among them."""
    return np.linspace(0, length - 1, min(length, most)).round().astype(int).tolist()


def _wrap(text: str, font: ImageFont.FreeTypeFont, width: float) -> list[str]:
    """Return lines no longer than `width` pixels; a word that is longer is cut."""
    lines: list[str] = []
    for word in text.split():
        if lines and font.getlength(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(cut_text(word, font, width))
    return lines


def sentence(text: str) -> str:
    """'a map is ...' -> 'A map is ... .'"""
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith(".") else ".")
