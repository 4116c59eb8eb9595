"""Bars of accuracies: a PNG for one task or many, with and without published marks."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from vitkit.figures.bars import Bar, bars


def pixels(*arguments: object) -> np.ndarray:
    with Image.open(io.BytesIO(bars(*arguments))) as picture:  # type: ignore[arg-type]
        return np.asarray(picture.convert("RGB"), np.int64)


@pytest.mark.parametrize("count", [1, 6, 19])
def test_a_picture_of_any_number_of_tasks(count: int) -> None:
    tasks = [Bar(f"task {n} $x$", "ABC"[n % 3], n / 19, 0.01, [0.5, None]) for n in range(count)]
    groups = [Bar("A\n1 of 2", "A", 0.4, None, [0.5, 0.6]), Bar("All", "", 0.3)]
    picture = pixels("A title that goes on " * 8, groups, tasks, ["one", "two"], "* a remark")
    assert picture.shape[0] == 690 and picture.shape[1] >= 975


def test_a_higher_accuracy_is_more_colour() -> None:
    def colour(value: float) -> int:
        picture = pixels("t", [Bar("All", "", value)], [Bar("a", "A", value)])
        return int((picture.max(-1) - picture.min(-1) > 60).sum())

    assert colour(0.9) > 1.5 * colour(0.4) > 0


@pytest.mark.parametrize("count", [1, 6, 19])
def test_a_long_title_is_whole(count: int) -> None:
    tasks = [Bar("a", "A", 0.5) for _ in range(count)]
    title = (
        "mean of 2 tasks: some/where/Ti16@vit_tiny_patch16_224.augreg_in21k.safetensors, light: WIDE WORDS "
        * 2
    )
    picture = pixels(title, [Bar("All", "", 0.5)], tasks)
    assert (picture[:60, -6:] == 255).all()
    assert (picture[:60, :-6] < 255).any()


def test_a_deviation_is_drawn() -> None:
    def dark(std: float | None) -> int:
        picture = pixels("t", [Bar("All", "", 0.5, std)], [Bar("a", "A", 0.5, std)])
        return int((picture.max(-1) < 60).sum())

    assert dark(None) < dark(0.0) < dark(0.1)
