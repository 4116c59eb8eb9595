"""Pictures show the arrays they are given, the same way every time."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from PIL import Image

from vitkit.figures import maps as pictures
from vitkit.figures.framed import MARGIN
from vitkit.models.configs import Preprocessing

RANDOM = np.random.default_rng(0)
PHOTO = Image.fromarray(RANDOM.integers(0, 256, (48, 72, 3), dtype=np.uint8))
DRAWN: dict[str, Callable[[], Image.Image]] = {
    "filters": lambda: pictures.filter_sheet(filters(28), "the filters").image(),
    "similarity": lambda: pictures.similarity_sheet(np.cos(np.arange(36.0)).reshape(2, 3, 2, 3)).image(),
    "distance": lambda: pictures.distance_picture(np.arange(12.0).reshape(4, 3), 9.0),
    "overlay": lambda: pictures.overlay(PHOTO, np.arange(6.0).reshape(2, 3)),
    "heads": lambda: pictures.head_grid(np.arange(72.0).reshape(4, 3, 2, 3)).image(),
    "sheet": lambda: pictures.sheet([PHOTO] * 3, ["one", "two", "three"], 2, "Title", "A note.").image(),
}


def filters(count: int, channels: int = 3) -> np.ndarray:
    values = np.sin(np.arange(count * 16 * channels)).reshape(count, 4, 4, channels).astype(np.float32)
    return values


def pixels(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture)


def holds(picture: Image.Image, color: tuple[int, ...]) -> int:
    """Return how many pixels have a colour."""
    return int((pixels(picture) == color).all(-1).sum())


def heat(value: float, name: str = pictures.HEAT) -> tuple[int, ...]:
    return tuple(int(part) for part in colormaps[name](value, bytes=True)[:3])


@pytest.mark.parametrize("name", DRAWN)
def test_the_same_arrays_give_the_same_picture(name: str) -> None:
    first, second = DRAWN[name](), DRAWN[name]()
    assert first.mode == "RGB" and first.tobytes() == second.tobytes()
    assert len(np.unique(pixels(first).reshape(-1, 3), axis=0)) > 10
    if name != "overlay":
        assert (pixels(first)[[0, 0, -1, -1], [0, -1, 0, -1]] == 255).all()  # on white


def test_filters_stand_in_rows_of_seven() -> None:
    sheet = pictures.filter_sheet(filters(28), "the filters").image()
    assert sheet.width == 2 * MARGIN + 7 * (pictures.FILTER + pictures.GAP) - pictures.GAP
    rows = [pictures.filter_sheet(filters(count), "the filters").image().height for count in (1, 7, 8, 28)]
    assert rows[0] == rows[1] and rows[2] - rows[1] == pictures.FILTER + pictures.GAP
    assert rows[3] - rows[1] == 3 * (pictures.FILTER + pictures.GAP)


def test_a_filter_is_grey_where_it_is_zero() -> None:
    values = np.zeros((1, 2, 2, 3), np.float32)
    values[0, 0, 0], values[0, 1, 1] = (0.02, 0, 0), (0, 0, -0.01)
    sheet = pictures.filter_sheet(values, "the filters").image()
    quarter = (pictures.FILTER // 2) ** 2
    assert holds(sheet, (255, 128, 128)) == quarter
    assert holds(sheet, (128, 128, 64)) == quarter
    assert holds(sheet, (128, 128, 128)) >= 2 * quarter
    pictures.filter_sheet(np.zeros((2, 3, 3, 5), np.float32), "the filters")


def test_similarity_spans_minus_one_to_one() -> None:
    similarity = np.zeros((2, 2, 2, 2))
    similarity[0, 0, 0, 0], similarity[1, 1, 0, 1] = 1.0, -1.0
    picture = pictures.similarity_sheet(similarity).image()
    cell = (pictures.SIMILARITY // 2) ** 2
    assert holds(picture, heat(1.0, "viridis")) >= cell and holds(picture, heat(0.0, "viridis")) >= cell
    assert holds(picture, heat(0.5, "viridis")) >= 14 * cell


def test_large_grids_show_some_tiles() -> None:
    large = pictures.similarity_sheet(np.zeros((40, 20, 40, 20), np.float32)).image()
    assert large.width < 1000 and large.height < 1600


def test_overlay_is_brightest_where_the_map_is() -> None:
    grey = Image.new("RGB", (60, 40), "#808080")
    found = np.asarray(
        pictures.overlay(grey, np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])).convert("L"), float
    )
    assert found.shape == (40, 60)
    y, x = np.unravel_index(found.argmax(), found.shape)
    assert y >= 20 and x >= 40
    assert found[5, 5] < found[30, 50] - 50
    assert len(np.unique(pictures.overlay(grey, np.full((2, 3), 0.3)))) <= 3


def test_a_head_grid_has_a_column_for_each_layer() -> None:
    maps = np.zeros((4, 2, 3, 3))
    maps[:, :, 1, 1] = 1.0
    picture = pictures.head_grid(maps, [8, 9, 10, 11]).image()
    cell = holds(picture, heat(1.0)) / 8
    assert cell == round(cell**0.5) ** 2 and cell >= 30**2
    assert holds(picture, heat(0.0)) == 8 * 8 * cell
    assert picture.width > picture.height


def test_distances_show_the_uniform_line() -> None:
    line = (217, 115, 10)
    with_line = pictures.distance_picture(np.full((4, 3), 50.0), 80.0)
    assert holds(with_line, line) > 500
    assert holds(pictures.distance_picture(np.full((4, 3), 50.0)), line) == 0
    pictures.distance_picture(np.zeros((1, 1)), 0.0)


def test_distances_as_svg_take_the_colours_of_the_page() -> None:
    shown = pictures.distance_svg(np.full((4, 3), 50.0), 80.0)
    assert shown.count("var(--run-1)") >= 2 and "var(--muted)" in shown  # the line, and its key
    assert not re.search("#[0-9a-f]{6}", shown)
    assert "uniform attention, 80.0 px" in shown and "<title>Mean attention distance" in shown


def test_distances_as_csv() -> None:
    table = pictures.distance_table(np.array([[1.5, 20.0], [100.00004, 0.0]]))
    assert table == "layer,head,pixels\n0,0,1.5000\n0,1,20.0000\n1,0,100.0000\n1,1,0.0000\n"


@pytest.mark.parametrize("side", [14, 24, 32])
def test_a_few_patches_that_hold_everything_are_seen(side: int) -> None:
    heat = np.full((side, side), 1e-6)
    heat[3, 4] = 1.0
    shown = np.asarray(pictures.overlay(Image.new("RGB", (8 * side, 8 * side)), heat)).astype(int).sum(2)
    assert shown[8 * 3 + 4, 8 * 4 + 4] > shown.min() + 200
    assert (shown > shown.min() + 200).mean() < 0.05


def test_a_photo_is_what_the_model_saw() -> None:
    preprocessing = Preprocessing(image_size=(2, 3), mean=(0.5, 0.4, 0.3), std=(0.5, 0.2, 0.1))
    wanted = RANDOM.integers(0, 256, (2, 3, 3), dtype=np.uint8)
    prepared = (
        torch.from_numpy(wanted).permute(2, 0, 1) / 255 - torch.tensor([0.5, 0.4, 0.3])[:, None, None]
    ) / (torch.tensor([0.5, 0.2, 0.1])[:, None, None])
    for image in (prepared, prepared.numpy(), prepared.clone().requires_grad_()):
        assert (pixels(pictures.photo(image, preprocessing)) == wanted).all()
    grey = pictures.photo(np.zeros((1, 2, 3)), Preprocessing(image_size=(2, 3), mean=(0.5,), std=(0.5,)))
    assert grey.mode == "RGB" and (pixels(grey) == 128).all()


def test_colours_are_drawn_as_squares() -> None:
    colors = np.array([[[1.0, 0, 0], [0, 1.0, 0]]])
    assert (pixels(pictures.color_picture(colors, (4, 2)))[:, :2] == (255, 0, 0)).all()


def test_a_sheet_takes_any_caption_and_shape() -> None:
    shapes = [Image.new("RGB", size, "red") for size in ((10, 40), (40, 10), (300, 300))]
    captions = ["a name that is much longer than its picture is wide, and then some", "", "<b>& ü 漢"]
    wide = pictures.sheet(shapes, captions, 2, "word " * 60, "note " * 90, side=100).image()
    narrow = pictures.sheet(shapes, captions, 2, "word", "note", side=100).image()
    assert wide.width == narrow.width and wide.height > narrow.height
    with pytest.raises(ValueError, match="zip"):
        pictures.sheet(shapes, captions[:2], 2, "title")


def test_cells_that_reach_beyond_the_photo_are_cut() -> None:
    """Of a grid of two rows that spans one and a half, the second has the lower third."""
    colors = np.array([[[1.0, 0, 0]], [[0, 0, 1.0]]])
    pixels = np.asarray(pictures.color_picture(colors, (10, 30), cells=(1.5, 1)))
    assert (pixels[:20] == (255, 0, 0)).all() and (pixels[20:] == (0, 0, 255)).all()
    heat = np.array([[0.0], [0.0], [1.0], [1.0]])
    whole, cut = (
        np.asarray(pictures.overlay(Image.new("RGB", (10, 40)), heat, cells).convert("L"))[:, 5].argmax()
        for cells in (None, (3, 1))
    )
    assert whole < cut  # brighter from further below


def test_the_tiles_of_a_sheet_are_as_high_as_their_pictures() -> None:
    wide, square = (
        pictures.sheet([Image.new("RGB", size)] * 4, list("abcd"), 2, "T").image()
        for size in ((80, 20), (80, 80))
    )
    assert square.height - wide.height == 2 * (224 - 56)
