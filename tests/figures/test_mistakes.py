"""Pictures of mistakes: readable sizes for any number of classes, any name, any image."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitkit.figures.mistakes import (
    HEAD,
    MARGIN,
    TILE,
    Tile,
    confusion_picture,
    confusion_svg,
    cut_tiles,
    mistake_sheet,
)


def read(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.array(picture.convert("RGB"))


@pytest.mark.slow
@pytest.mark.parametrize("classes", [1, 2, 11, 60, 101, 1000])
def test_any_number_of_classes(tmp_path: Path, classes: int) -> None:
    matrix = np.diag(np.full(classes, 40)) + np.random.default_rng(0).integers(0, 2, (classes, classes))
    path = tmp_path / "part"
    confusion_picture(matrix, [f"class {number}" for number in range(classes)], path)
    pixels = read(path)
    assert min(pixels.shape[:2]) > 300 and max(pixels.shape[:2]) < 4000
    dark = (pixels[..., 2].astype(int) - pixels[..., 0] > 80).sum()
    assert dark > pixels.shape[0]  # the diagonal is blue


def test_colours_are_shares_of_the_row(tmp_path: Path) -> None:
    pictures = []
    for matrix in ([[1, 1], [0, 2]], [[50, 50], [0, 2]], [[1, 1], [1, 1]]):
        confusion_picture(np.array(matrix), ["a", "b"], tmp_path / "x.png")
        pictures.append(read(tmp_path / "x.png"))
    colours = [
        {tuple(colour) for colour in picture[::7, ::7].reshape(-1, 3).tolist()} for picture in pictures
    ]
    blue = [{c for c in colour if c[2] > 200 and c[0] < 130} for colour in colours]
    assert blue[0] & blue[1] & blue[2]  # half of the row looks the same whatever the count


def test_names_of_any_kind(tmp_path: Path) -> None:
    names = ["$x^2$ \\frac", "a" * 300, "犬 \N{DOG FACE}", "two\nlines", "<b>"]
    confusion_picture(np.eye(5, 6, dtype=int), names, tmp_path / "c.png")
    tiles = [Tile(np.zeros((4, 4, 3), np.uint8), name, name[::-1], 0.5) for name in names]
    mistake_sheet(tiles, tmp_path / "m.png", 5, 10)
    assert read(tmp_path / "c.png").shape[1] < 1500
    assert read(tmp_path / "m.png").shape[1] == 2 * MARGIN + 5 * TILE + 4 * 16


def test_classes_without_images_are_white(tmp_path: Path) -> None:
    confusion_picture(np.zeros((3, 3), int), ["a", "b", "c"], tmp_path / "c.png")
    assert read(tmp_path / "c.png").shape[0] > 300


def test_tiles_show_their_images(tmp_path: Path) -> None:
    colours = [(250, 0, 0), (0, 250, 0), (0, 0, 250)]
    shapes = [(300, 300), (10, 40), (500, 100)]
    tiles = [
        Tile(np.full((*shape, 3), colour, np.uint8), "cat", "dog", 0.9)
        for colour, shape in zip(colours, shapes, strict=True)
    ]
    mistake_sheet(tiles, tmp_path / "m.png", 30, 100)
    pixels = read(tmp_path / "m.png")
    for number, colour in enumerate(colours):
        x, y = MARGIN + number * (TILE + 16) + TILE // 2, MARGIN + HEAD + TILE // 2
        assert np.abs(pixels[y, x].astype(int) - colour).max() < 5
    corner = pixels[MARGIN + HEAD + 2, MARGIN + TILE + 16 + 2]
    assert corner.min() > 200  # a wide image keeps its shape


def test_no_mistakes(tmp_path: Path) -> None:
    mistake_sheet([], tmp_path / "m.png", 0, 100)
    pixels = read(tmp_path / "m.png")
    assert pixels.shape[0] < 200 and pixels.min() < 100  # a line of text


def test_a_confusion_matrix_takes_the_colours_of_a_page() -> None:
    shown = confusion_svg(np.array([[1500, 1], [0, 7]]), ["<b>", "b"], "a")
    assert "1,500" in shown and "&lt;b&gt;" in shown and "<title>Confusion matrix</title>" in shown
    assert not re.search("#[0-9a-f]{6}", shown)
    assert {"var(--ink)", "var(--muted)", "var(--line)"} <= set(re.findall(r"var\(--\w+\)", shown))
    names = re.findall(' id="(.*?)"', shown)
    assert names and not set(names) & set(
        re.findall(' id="(.*?)"', confusion_svg(np.eye(2, dtype=int), ["a", "b"], "b"))
    )


@pytest.mark.slow
def test_a_confusion_matrix_of_many_classes_is_small(tmp_path: Path) -> None:
    matrix = np.random.default_rng(0).integers(0, 2, (1000, 1000))
    assert len(confusion_svg(matrix, [f"class {number}" for number in range(1000)], "a")) < 4 << 20


@pytest.mark.parametrize("count", [1, 6, 7])
def test_tiles_are_cut_out_of_a_sheet_again(tmp_path: Path, count: int) -> None:
    shapes = [(30, 30), (10, 40), (50, 10), (8, 8), (30, 20), (20, 30), (9, 9)]
    tiles = [
        Tile(np.full((*shape, 3), (250, 40 * number % 200, 0), np.uint8), "cat", "dog", 0.9)
        for number, shape in enumerate(shapes[:count])
    ]
    mistake_sheet(tiles, tmp_path / "m.png", count, 100)
    sheet = (tmp_path / "m.png").read_bytes()
    found = cut_tiles(sheet, count)
    for tile, (height, width), number in zip(found, shapes, range(count), strict=False):
        assert max(tile.size) == TILE and tile.width / tile.height == pytest.approx(width / height, rel=0.02)
        assert tile.getpixel((tile.width // 2, tile.height // 2)) == (250, 40 * number % 200, 0)
    assert len(found) == count
    assert cut_tiles(sheet, count + 6) == cut_tiles(sheet[:40], count) == cut_tiles(b"<svg>", count) == []


def test_an_image_that_is_gone_keeps_its_place(tmp_path: Path) -> None:
    tiles = [Tile(None, "cat", "dog", 0.9), Tile(np.zeros((4, 4, 3), np.uint8), "cat", "dog", 0.8)]
    mistake_sheet(tiles, tmp_path / "m.png", 2, 100)
    gone, black = cut_tiles((tmp_path / "m.png").read_bytes(), 2)
    assert np.asarray(black).max() == 0 and np.asarray(gone).max() > 0
