"""Pictures of mistakes: readable sizes for any number of classes, any name, any image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitkit.figures.mistakes import HEAD, MARGIN, TILE, Tile, confusion_picture, mistake_sheet


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
