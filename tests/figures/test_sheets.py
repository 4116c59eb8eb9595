"""Sheets of small pictures: where tiles lie, and headings that fit."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from vitkit.figures.sheets import GAP, HEAD, MARGIN, NAMES, TILE, SheetRow, column_sheet, contact_sheet


@pytest.mark.parametrize("shape", [(8, 8), (16, 64), (70, 70), (224, 224), (448, 64)])
@pytest.mark.parametrize("channels", [1, 3])
def test_headings_fit_their_columns(shape: tuple[int, int], channels: int) -> None:
    panels = np.full((2, 3, channels, *shape), 200, np.uint8)
    found = np.asarray(column_sheet(panels, ("image", "given", "predicted")))
    scale = max(1, 128 // max(shape))
    height, width = scale * shape[0], scale * shape[1]
    head = found.shape[0] - 2 * height - 4
    assert head == max(12, width // 14) * 3 // 2 and found.shape[1] == 3 * width + 8
    for column in range(3):
        letters = found[:head, column * (width + 4) : (column + 1) * (width + 4)].min(axis=(0, 2)) < 128
        assert letters.any() and not letters[width:].any()
    assert found[head:][:height, :width].min() == 200


def test_tiles_lie_in_the_row_of_their_class() -> None:
    rows = [SheetRow("red", 2, [Image.new("RGB", (TILE, TILE), "red")]), SheetRow("none", 1, [None, None])]
    found = np.asarray(contact_sheet("two classes", rows))
    assert found.shape[0] == 2 * MARGIN + HEAD + 2 * TILE + GAP
    left, top = MARGIN + NAMES, MARGIN + HEAD
    assert (found[top : top + TILE, left : left + TILE] == [255, 0, 0]).all()
    assert (found[top : top + TILE, left + TILE :] == 255).all()  # one image, one tile
    for column in range(2):  # unreadable images leave a grey tile with a word
        tile = found[top + TILE + GAP :, left + column * (TILE + GAP) :][:TILE, :TILE]
        assert tile[0, 0].tolist() == [0xF0, 0xF2, 0xF5] and tile.min() < 0xF0
