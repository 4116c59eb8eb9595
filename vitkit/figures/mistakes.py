"""Pictures of a classifier's mistakes: the confusion matrix, and a sheet of the most confident mistakes."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from vitkit.figures.palette import THEME
from vitkit.figures.sheets import EMPTY, cut_text, draw_text, find_font, fit_tile, load_font
from vitkit.figures.vector import drawing, themed_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL import Image

OTHERS = "other classes"
MOST_COUNTS = 25
"Up to this many classes, cells show their counts."
MOST_NAMES = 100
"Up to this many classes, all are named; beyond that, an evenly spaced selection."
MOST_CELLS = 400
"Up to this many classes, cells are large enough to see; beyond that, each is drawn as a dot."
MOST_LETTERS = 28

_INK, _MUTED, _LINE, _PAPER, _GOOD, _BAD = (
    THEME[name][0] for name in ("ink", "muted", "line", "paper", "good", "bad")
)


class Shades(NamedTuple):
    """Colours of shares from 0 to 1, and the text colour on strong ones."""

    colors: Sequence[str]
    strong: str


_ON_WHITE = Shades((_PAPER, "#cfe0fb", "#6ba1f4", "#2463eb", "#12327d"), _PAPER)
_ON_PAGE = Shades(
    (f"{THEME['run-0'][0]}00", f"{THEME['run-0'][0]}bf"), _INK
)  # legible on light and dark pages
_CUT: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.25, "dpi": 150}


class Tile(NamedTuple):
    """A misclassified image: pixels uint8 (height, width, 3), its class, and the predicted class."""

    pixels: np.ndarray | None
    "None if the image can no longer be read."
    true: str
    predicted: str
    probability: float


def confusion_picture(
    matrix: np.ndarray, class_names: Sequence[str], path: str | os.PathLike[str] | BinaryIO
) -> None:
    """Draw a confusion matrix as PNG: rows are classes, columns are predictions, colours are shares of rows.

    If there is one column more than rows, the last one counts predictions of other classes.
    """
    with drawing():
        figure = _confusion_figure(matrix, class_names, _ON_WHITE)
        figure.savefig(path, format="png", metadata={"Software": None}, **_CUT)


def confusion_svg(matrix: np.ndarray, class_names: Sequence[str], salt: str) -> str:
    """Return the same figure as SVG for a page; `salt` must be unique on the page."""
    with drawing(salt=f"confusion {salt}"):
        return themed_svg(_confusion_figure(matrix, class_names, _ON_PAGE), "Confusion matrix", **_CUT)


def _confusion_figure(matrix: np.ndarray, class_names: Sequence[str], shades: Shades) -> Figure:
    import matplotlib
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm
    from matplotlib.figure import Figure

    matrix = np.asarray(matrix)
    rows, columns = matrix.shape
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    names = [_cut_letters(name) for name in [*class_names, OTHERS][:columns]]
    has_counts, has_names = rows <= MOST_COUNTS, rows <= MOST_NAMES
    inches = 0.62 if rows <= 10 else 0.42 if has_counts else 0.19
    height = max(2.2, inches * rows) if has_names else 11.0
    colors = LinearSegmentedColormap.from_list("shares", shades.colors)
    # With many classes, single mistakes are small shares: stretch that end of the scale.
    norm, ticks = (
        (PowerNorm(1, 0, 1), (0, 0.25, 0.5, 0.75, 1))
        if has_counts
        else (PowerNorm(0.4, 0, 1), (0, 0.05, 0.2, 0.5, 1))
    )
    others = dict.fromkeys(font.name for name in class_names if (font := find_font(name)))
    families = [*matplotlib.rcParams["font.family"], *others]
    figure = Figure((height * columns / rows, height))
    width, height = figure.get_size_inches()
    axes = figure.add_axes((0, 0, 1, 1))  # texts and scale are outside; the file is cropped around them
    image = axes.imshow(shares, cmap=colors, norm=norm, interpolation="nearest", aspect="auto")
    if rows > MOST_CELLS:
        y, x = np.nonzero(matrix)
        order = np.argsort(shares[y, x], kind="stable")
        y, x = y[order], x[order]
        dots = axes.scatter(x, y, s=1.6, c=shares[y, x], cmap=colors, norm=norm, marker="s", linewidths=0)
        dots.set_rasterized(True)  # one picture in the SVG, not thousands of shapes
    for axis, count in ((axes.xaxis, columns), (axes.yaxis, rows)):
        shown = list(range(count)) if has_names else np.arange(40) * count // 40
        axis.set_ticks(shown, [names[place] for place in shown], fontfamily=families)
    axes.tick_params(length=0, pad=4, labelsize=9 if has_counts else 7.5, labelcolor=_INK)
    axes.tick_params(axis="x", rotation=90)
    if has_names:
        axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
        axes.grid(which="minor", color=_LINE, linewidth=0.6)
        axes.tick_params(which="minor", length=0)
    axes.spines[:].set_color(_LINE)
    axes.set_xlabel("predicted as", color=_MUTED, fontsize=9)
    axes.set_ylabel("class", color=_MUTED, fontsize=9)
    for row, column in np.argwhere(matrix > 0).tolist() if has_counts else ():
        color = shades.strong if shares[row, column] > 0.55 else _INK
        count = int(matrix[row, column])
        size = 9 if count < 1000 else 6.5
        axes.text(column, row, f"{count:,}", color=color, fontsize=size, ha="center", va="center")
    right, total = int(matrix.diagonal().sum()), int(matrix.sum())
    title = f"{right:,} of {total:,} images correct" + (f", {right / total:.1%}" if total else "")
    figure.text(0, 1 + 0.38 / height, title, color=_INK, fontsize=11, fontweight="bold")
    some = "" if has_names else f"; {rows:,} classes, only some are named"
    figure.text(0, 1 + 0.16 / height, f"colour: share of the row{some}", color=_MUTED, fontsize=8.5)
    scale = figure.colorbar(image, cax=figure.add_axes((1 + 0.2 / width, 0, 0.12 / width, 1)), ticks=ticks)
    assert scale.solids is not None
    scale.solids.set_rasterized(True)
    scale.ax.set_yticklabels([f"{tick:.0%}" for tick in ticks])
    scale.ax.tick_params(length=0, labelcolor=_MUTED, labelsize=8.5)
    scale.outline.set_edgecolor(_LINE)
    return figure


TILE, GAP, MARGIN, HEAD, WORDS, COLUMNS = 176, 16, 24, 66, 46, 6


def mistake_sheet(tiles: Sequence[Tile], path: str | os.PathLike[str], wrong: int, images: int) -> None:
    """Draw misclassified images as PNG, each with its class and prediction; `wrong` of all `images` are wrong."""
    from PIL import Image, ImageDraw

    sheet = Image.new("RGB", _sheet_size(len(tiles)), _PAPER)
    width = sheet.width
    draw = ImageDraw.Draw(sheet)
    bold, plain = load_font(19, "-Bold"), load_font(13)
    shown = "" if len(tiles) == wrong else f"; the {len(tiles)} most confident mistakes"
    title = (
        f"{wrong:,} of {images:,} images misclassified{shown}"
        if wrong
        else f"None of {images:,} images misclassified"
    )
    draw.text((MARGIN, MARGIN), cut_text(title, bold, width - 2 * MARGIN), _INK, bold)
    if tiles:
        legend = "green: true class; red: predicted class, with its probability"
        draw.text((MARGIN, MARGIN + 30), legend, _MUTED, plain)
    for number, tile in enumerate(tiles):
        left, top = _tile_corner(number)
        draw.rectangle((left, top, left + TILE - 1, top + TILE - 1), EMPTY)
        if tile.pixels is None:
            draw.text((left + TILE // 2, top + TILE // 2), "unreadable", _MUTED, plain, anchor="mm")
        else:
            small = fit_tile(tile.pixels, TILE)
            sheet.paste(small, (left + (TILE - small.width) // 2, top + (TILE - small.height) // 2))
        share = f" {tile.probability:.0%}"
        below = top + TILE + 8
        draw_text(draw, (left, below), tile.true, _GOOD, 13, TILE)
        draw_text(draw, (left, below + 20), tile.predicted, _BAD, 13, TILE - plain.getlength(share))
        draw.text((left + TILE, below + 20), share, _MUTED, plain, anchor="ra")
    sheet.save(path, "PNG")


def cut_tiles(sheet: bytes, count: int) -> list[Image.Image]:
    """Return the `count` images of a mistake sheet, or none if the file isn't such a sheet."""
    from PIL import Image, ImageChops

    try:
        with Image.open(io.BytesIO(sheet), formats=["PNG"]) as opened:
            if opened.size != _sheet_size(count):
                return []
            whole = opened.convert("RGB")
    except (OSError, ValueError, SyntaxError):  # what Pillow raises for a damaged file
        return []
    found = []
    for number in range(count):
        left, top = _tile_corner(number)
        tile = whole.crop((left, top, left + TILE, top + TILE))
        around = ImageChops.difference(tile, Image.new("RGB", tile.size, EMPTY)).getbbox()
        found.append(tile.crop(around) if around else tile)
    return found


def _sheet_size(count: int) -> tuple[int, int]:
    columns = max(4, min(COLUMNS, count))
    rows = -(-count // COLUMNS)
    width = 2 * MARGIN + columns * (TILE + GAP) - GAP
    return width, 2 * MARGIN + HEAD + rows * (TILE + WORDS + GAP) - (GAP if rows else 0)


def _tile_corner(number: int) -> tuple[int, int]:
    row, column = divmod(number, COLUMNS)
    return MARGIN + column * (TILE + GAP), MARGIN + HEAD + row * (TILE + WORDS + GAP)


def _cut_letters(name: str) -> str:
    name = " ".join(name.split())
    return name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"
