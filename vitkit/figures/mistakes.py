"""Pictures of what a classifier gets wrong: the confusion matrix, and the most confident mistakes as a sheet."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vitkit.figures.palette import THEME
from vitkit.figures.sheets import EMPTY, cut_text, draw_text, find_font, fit_tile, load_font

OTHERS = "other classes"
MOST_COUNTS = 25
"Classes up to which cells show their counts."
MOST_NAMES = 100
"Classes up to which all are named; of more, some are, evenly spread."
MOST_CELLS = 400
"Classes up to which cells are large enough to be seen; of more, each is drawn as a dot."
MOST_LETTERS = 28

_INK, _MUTED, _LINE, _PAPER, _GOOD, _BAD = (
    THEME[name][0] for name in ("ink", "muted", "line", "paper", "good", "bad")
)


class Tile(NamedTuple):
    """A wrong image: pixels uint8 (height, width, 3), and what it is and what it was predicted as."""

    pixels: np.ndarray
    true: str
    predicted: str
    probability: float


def confusion_picture(matrix: np.ndarray, class_names: Sequence[str], path: str | os.PathLike[str]) -> None:
    """Draw a confusion matrix as PNG: rows are classes, columns what their images were predicted as, colours shares of rows.

    A matrix with one column more than rows has what is none of the classes in its last.
    """
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
    colors = LinearSegmentedColormap.from_list("shares", [_PAPER, "#cfe0fb", "#6ba1f4", "#2463eb", "#12327d"])
    # Of many classes, single mistakes are small shares: the scale is stretched where they lie.
    norm, ticks = (
        (PowerNorm(1, 0, 1), (0, 0.25, 0.5, 0.75, 1))
        if has_counts
        else (PowerNorm(0.4, 0, 1), (0, 0.05, 0.2, 0.5, 1))
    )
    others = dict.fromkeys(font.name for name in class_names if (font := find_font(name)))
    families = [*matplotlib.rcParams["font.family"], *others]
    with matplotlib.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")  # what the font lacks shows as boxes
        figure = Figure((height * columns / rows, height), dpi=150)
        width, height = figure.get_size_inches()
        axes = figure.add_axes((0, 0, 1, 1))  # texts and scale lie outside, and the file is cut around them
        image = axes.imshow(shares, cmap=colors, norm=norm, interpolation="nearest", aspect="auto")
        if rows > MOST_CELLS:
            y, x = np.nonzero(matrix)
            order = np.argsort(shares[y, x], kind="stable")
            y, x = y[order], x[order]
            axes.scatter(x, y, s=1.6, c=shares[y, x], cmap=colors, norm=norm, marker="s", linewidths=0)
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
            color = _PAPER if shares[row, column] > 0.55 else _INK
            count = int(matrix[row, column])
            size = 9 if count < 1000 else 6.5
            axes.text(column, row, f"{count:,}", color=color, fontsize=size, ha="center", va="center")
        right, total = int(matrix.diagonal().sum()), int(matrix.sum())
        title = f"{right:,} of {total:,} images right" + (f", {right / total:.1%}" if total else "")
        figure.text(0, 1 + 0.38 / height, title, color=_INK, fontsize=11, fontweight="bold")
        some = "" if has_names else f"; {rows:,} classes, some of them named"
        figure.text(0, 1 + 0.16 / height, f"colour: share of the row{some}", color=_MUTED, fontsize=8.5)
        scale = figure.colorbar(
            image, cax=figure.add_axes((1 + 0.2 / width, 0, 0.12 / width, 1)), ticks=ticks
        )
        scale.ax.set_yticklabels([f"{tick:.0%}" for tick in ticks])
        scale.ax.tick_params(length=0, labelcolor=_MUTED, labelsize=8.5)
        scale.outline.set_edgecolor(_LINE)
        figure.savefig(path, format="png", bbox_inches="tight", pad_inches=0.25, metadata={"Software": None})


TILE, GAP, MARGIN, HEAD, WORDS, COLUMNS = 176, 16, 24, 66, 46, 6


def mistake_sheet(tiles: Sequence[Tile], path: str | os.PathLike[str], wrong: int, images: int) -> None:
    """Draw wrong images as PNG, each above what it is and what it was predicted as; `wrong` of `images` are wrong in all."""
    from PIL import Image, ImageDraw

    columns = max(4, min(COLUMNS, len(tiles)))
    rows = -(-len(tiles) // COLUMNS)
    width = 2 * MARGIN + columns * (TILE + GAP) - GAP
    height = 2 * MARGIN + HEAD + rows * (TILE + WORDS + GAP) - (GAP if rows else 0)
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    bold, plain = load_font(19, "-Bold"), load_font(13)
    shown = "" if len(tiles) == wrong else f"; the {len(tiles)} most confident mistakes"
    title = f"{wrong:,} of {images:,} images wrong{shown}" if wrong else f"None of {images:,} images wrong"
    draw.text((MARGIN, MARGIN), cut_text(title, bold, width - 2 * MARGIN), _INK, bold)
    if tiles:
        legend = "green: the class; red: what it was predicted as, with its probability"
        draw.text((MARGIN, MARGIN + 30), legend, _MUTED, plain)
    for number, tile in enumerate(tiles):
        row, column = divmod(number, COLUMNS)
        left, top = MARGIN + column * (TILE + GAP), MARGIN + HEAD + row * (TILE + WORDS + GAP)
        draw.rectangle((left, top, left + TILE - 1, top + TILE - 1), EMPTY)
        small = fit_tile(tile.pixels, TILE)
        sheet.paste(small, (left + (TILE - small.width) // 2, top + (TILE - small.height) // 2))
        share = f" {tile.probability:.0%}"
        below = top + TILE + 8
        draw_text(draw, (left, below), tile.true, _GOOD, 13, TILE)
        draw_text(draw, (left, below + 20), tile.predicted, _BAD, 13, TILE - plain.getlength(share))
        draw.text((left + TILE, below + 20), share, _MUTED, plain, anchor="ra")
    sheet.save(path, "PNG")


def _cut_letters(name: str) -> str:
    name = " ".join(name.split())
    return name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"
