"""Pictures of inspection results: arrays in, PIL images and sheets out. Also the table of distances as CSV."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from vitkit.figures.framed import Sheet, Word
from vitkit.figures.palette import THEME, plain_axes
from vitkit.figures.sheets import cut_text, fit_tile, load_font
from vitkit.figures.vector import drawing, themed_svg
from vitkit.models.configs import Preprocessing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAP = 6
LABELS = 26
"Space for the numbers next to rows and above columns."
CAPTION = 24
"Space for a caption below a picture."
FILTER, FILTER_COLUMNS = 84, 7
SIMILARITY, MOST_SIMILARITIES = 58, 16
"Approximate side of a similarity tile; the most tiles along a side before some are skipped."
MAP, MAPS = (36, 104), 1040
"Smallest and largest side of a head's map; approximate width of all layers together."
HEAT = "inferno"
STRENGTH = 0.62
"Opacity of a heat map over the photo."

_MUTED, _POINT, _UNIFORM = (THEME[name][0] for name in ("muted", "run-0", "run-1"))


def photo(image: Any, preprocessing: Preprocessing) -> Image.Image:
    """Return a prepared image (channels, height, width), an array or a tensor, as a picture."""
    values = np.asarray(image.detach().float().cpu() if hasattr(image, "detach") else image, np.float64)
    mean, std = (np.reshape(numbers, (-1, 1, 1)) for numbers in (preprocessing.mean, preprocessing.std))
    return _picture((values * std + mean).transpose(1, 2, 0))


def overlay(picture: Image.Image, heat: np.ndarray, cells: tuple[float, float] | None = None) -> Image.Image:
    """Return a heat map (rows, columns) over the photo in grey: bright is high, dark is low.

    cells: how many rows and columns cover the photo, if the last ones reach beyond it. Default: all.
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
) -> Sheet:
    """Return pictures in rows with captions below; the longer side of each is `side` pixels."""
    rows = -(-len(pictures) // columns)
    width = columns * (side + 2 * GAP) - 2 * GAP
    tiles = [fit_tile(np.asarray(picture), side) for picture in pictures]
    height = max(tile.height for tile in tiles)
    content = _clear(width, rows * (height + CAPTION + GAP) - GAP)
    words, font = list[Word](), load_font(13)
    for number, (tile, caption) in enumerate(zip(tiles, captions, strict=True)):
        row, column = divmod(number, columns)
        left, top = column * (side + 2 * GAP), row * (height + CAPTION + GAP)
        content.paste(tile, (left + (side - tile.width) // 2, top + (height - tile.height) // 2))
        words.append(Word(left, top + height + 5, cut_text(caption, font, side), size=13))
    return Sheet(title, note, content, words)


def filter_sheet(values: np.ndarray, caption: str) -> Sheet:
    """Return filters (filters, height, width, channels) in rows of seven, each with its own scale, where grey is zero."""
    rows = -(-len(values) // FILTER_COLUMNS)
    columns = min(FILTER_COLUMNS, len(values))
    step = FILTER + GAP
    content = _clear(columns * step - GAP, rows * step - GAP)
    for number, value in enumerate(values):
        row, column = divmod(number, FILTER_COLUMNS)
        tile = _picture(0.5 + 0.5 * value / max(np.abs(value).max(), np.finfo(np.float32).tiny))
        content.paste(tile.resize((FILTER, FILTER), Image.Resampling.NEAREST), (column * step, row * step))
    return Sheet("Filters over pixels", sentence(caption), content)


def similarity_sheet(similarity: np.ndarray) -> Sheet:
    """Return a tile for each patch of (rows, columns, rows, columns): its similarity to all patches."""
    rows, columns = similarity.shape[:2]
    shown_rows, shown_columns = (
        _evenly_with_ends(rows, MOST_SIMILARITIES),
        _evenly_with_ends(columns, MOST_SIMILARITIES),
    )
    cell = max(2, SIMILARITY // max(rows, columns))
    step = (rows * cell + 4, columns * cell + 4)
    width, height = len(shown_columns) * step[1] - 4, len(shown_rows) * step[0] - 4
    bar = 16 + GAP + 30
    content = _clear(LABELS + width + 2 * GAP + bar, LABELS + height)
    for y, row in enumerate(shown_rows):
        for x, column in enumerate(shown_columns):
            tile = Image.fromarray(_colored((similarity[row, column] + 1) / 2, "viridis"))
            tile = tile.resize((columns * cell, rows * cell), Image.Resampling.NEAREST)
            content.paste(tile, (LABELS + x * step[1], LABELS + y * step[0]))
    words = _numbers(shown_rows, shown_columns, step, (rows * cell, columns * cell))
    words += _scale_bar(content, LABELS + width + 2 * GAP, LABELS, height)
    some = "" if len(shown_rows) * len(shown_columns) == rows * columns else "; some tiles, evenly spread"
    note = f"The tile at a row and column: cosine similarity of that patch's embedding to all patches'{some}."
    return Sheet("Similarity of position embeddings", note, content, words)


def distance_picture(distances: np.ndarray, uniform: float | None = None) -> Image.Image:
    """Return a chart of every head's mean attention distance (layers, heads), with a line for uniform attention."""
    with drawing():
        buffer = io.BytesIO()
        _distance_figure(distances, uniform, "Mean attention distance").savefig(buffer, format="png", dpi=150)
    return Image.open(buffer).convert("RGB")


def distance_svg(distances: np.ndarray, uniform: float | None = None) -> str:
    """Return the same chart as SVG for a page, without a title."""
    with drawing(salt="attention distance"):
        return themed_svg(_distance_figure(distances, uniform, ""), "Mean attention distance of every head")


def _distance_figure(distances: np.ndarray, uniform: float | None, title: str) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    layers, heads = distances.shape
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
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
        label="mean of heads",
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
    plain_axes(axes, title, 11, 9)
    axes.set_xlabel("layer", fontsize=9.5, color=_MUTED)
    axes.set_ylabel("pixels", fontsize=9.5, color=_MUTED)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    figure.legend(
        loc="outside lower left", ncols=3, frameon=False, fontsize=9, labelcolor=_MUTED, handlelength=1.8
    )
    return figure


def distance_table(distances: np.ndarray) -> str:
    """Return mean attention distances (layers, heads) as CSV: layer and head, counted from 0, and pixels."""
    rows = [f"{layer},{head},{pixels:.4f}" for (layer, head), pixels in np.ndenumerate(distances)]
    return "\n".join(["layer,head,pixels", *rows, ""])


def head_grid(maps: np.ndarray, layers: Sequence[int] | None = None) -> Sheet:
    """Return one image's maps (layers, heads, rows, columns): a column for each layer, a row for each head.

    layers: numbers to write above columns. Default: counted from 0.
    """
    num_layers, num_heads, rows, columns = maps.shape
    side = np.clip(MAPS / num_layers - GAP, *MAP)
    cell = max(1, round(side / max(rows, columns)))
    height, width = rows * cell, columns * cell
    step = (height + GAP, width + GAP)
    content = _clear(LABELS + num_layers * step[1] - GAP, LABELS + num_heads * step[0] - GAP)
    for layer in range(num_layers):
        for head in range(num_heads):
            tile = Image.fromarray(_colored(_scaled(maps[layer, head]), HEAT))
            tile = tile.resize((width, height), Image.Resampling.NEAREST)
            content.paste(tile, (LABELS + layer * step[1], LABELS + head * step[0]))
    numbers = list(range(num_layers)) if layers is None else list(layers)
    words = _numbers(list(range(num_heads)), numbers, step, (height, width))
    note = "Columns are layers, rows are heads, both counted from 0. Each map has its own scale."
    return Sheet("What each head attends to", note, content, words)


def _clear(width: int, height: int) -> Image.Image:
    """Return a transparent picture to paste tiles into."""
    return Image.new("RGBA", (width, height), (0, 0, 0, 0))


def _box(values: np.ndarray, cells: tuple[float, float] | None) -> tuple[float, float, float, float]:
    """Return the part of a grid (rows, columns, ...) to draw, as Pillow's box: left, top, right, bottom."""
    height, width = cells or values.shape[:2]
    return 0, 0, width, height


def _picture(values: np.ndarray) -> Image.Image:
    """Return (height, width, channels), from 0 to 1, as RGB; if there aren't three channels, their mean as grey."""
    if values.shape[2] != 3:
        values = values.mean(axis=2, keepdims=True).repeat(3, axis=2)
    return Image.fromarray((values.clip(0, 1) * 255).round().astype(np.uint8))


def scale_of(heat: np.ndarray) -> tuple[float, float]:
    """Return the values that a map draws darkest and brightest.

    The few brightest patches share the top of the scale, so that a single one doesn't hide the rest.
    """
    return float(heat.min()), float(max(np.percentile(heat, 99), heat.max() / 4))


def _scaled(heat: np.ndarray) -> np.ndarray:
    """Return a map scaled to 0..1."""
    low, high = scale_of(heat)
    return ((heat - low) / (high - low)).clip(0, 1) if high > low else np.zeros_like(heat)


def _colored(values: np.ndarray, name: str) -> np.ndarray:
    """Return (height, width), from 0 to 1, in a perceptually uniform colour map: uint8 (height, width, 3)."""
    from matplotlib import colormaps

    return colormaps[name](values, bytes=True)[..., :3].copy()


def _numbers(
    rows: Sequence[int], columns: Sequence[int], step: tuple[int, int], size: tuple[int, int]
) -> list[Word]:
    """Return the numbers next to rows and above columns of tiles."""
    found = [
        Word(LABELS - 8, LABELS + place * step[0] + size[0] // 2, f"{row}", "rm")
        for place, row in enumerate(rows)
    ]
    return found + [
        Word(LABELS + place * step[1] + size[1] // 2, LABELS - 8, f"{column}", "ms")
        for place, column in enumerate(columns)
    ]


def _scale_bar(content: Image.Image, left: int, top: int, height: int) -> list[Word]:
    """Draw the colours of similarity from 1 to -1, and return their numbers."""
    ramp = Image.fromarray(_colored(np.linspace(1, 0, height)[:, None], "viridis"))
    content.paste(ramp.resize((16, height)), (left, top))
    return [
        Word(left + 16 + GAP, top + 6 + share * (height - 12), f"{number}".replace("-", "−"), "lm")
        for number, share in ((1, 0.0), (0, 0.5), (-1, 1.0))
    ]


def _evenly_with_ends(length: int, most: int) -> list[int]:
    """Return up to `most` evenly spaced indices from 0 to length - 1, including both ends."""
    return np.linspace(0, length - 1, min(length, most)).round().astype(int).tolist()


def sentence(text: str) -> str:
    """'a map is ...' -> 'A map is ... .'"""
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith(".") else ".")
