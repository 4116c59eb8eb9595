"""Crops and resizes of one image, against torchvision's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional as reference

from vitkit import InputError
from vitkit.data import crops

RANDOM = np.random.default_rng(0)


def picture(height: int, width: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(0, 256, (3, height, width), np.uint8))


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 1000))
def test_a_box_lies_in_the_image(height: int, width: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    top, left, box_height, box_width = crops.inception_box(height, width, random, (0.05, 1.0), (0.75, 4 / 3))
    assert top >= 0 and left >= 0 and box_height >= 1 and box_width >= 1
    assert top + box_height <= height and left + box_width <= width


def test_boxes_have_the_area_and_ratio_asked_for() -> None:
    random = np.random.default_rng(0)
    boxes = np.array([crops.inception_box(300, 400, random, (0.1, 0.5), (0.75, 4 / 3)) for _ in range(2000)])
    share, ratio = boxes[:, 2] * boxes[:, 3] / 120_000, boxes[:, 3] / boxes[:, 2]
    assert 0.09 < share.min() < 0.12 and 0.48 < share.max() < 0.51 and abs(share.mean() - 0.3) < 0.02
    assert 0.74 < ratio.min() < 0.8 and 1.28 < ratio.max() < 1.35


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resizes_are_torchvisions(interpolation: crops.Interpolation) -> None:
    mode = reference.InterpolationMode(interpolation)
    image = picture(60, 90)
    expected = reference.resize(image, [32, 48], mode, antialias=True)
    assert torch.equal(crops.resize(image, RANDOM, (32, 48), interpolation), expected)
    small = reference.resize(image, [40], mode, antialias=True)
    assert torch.equal(crops.resize_small(image, RANDOM, 40, interpolation), small)


def test_crops_cut() -> None:
    image = picture(30, 40)
    assert torch.equal(crops.central_crop(image, RANDOM, (20, 10)), reference.center_crop(image, [20, 10]))
    cut = crops.random_crop(image, np.random.default_rng(3), 16)
    places = [
        (y, x) for y in range(15) for x in range(25) if torch.equal(image[:, y : y + 16, x : x + 16], cut)
    ]
    assert len(places) == 1
    with pytest.raises(InputError) as error:
        crops.central_crop(image, RANDOM, 32)
    assert (
        str(error.value) == "central_crop(32x32) needs larger images than 30x40: put resize_small before it"
    )


def test_a_thread_of_an_image_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(
        InputError, match="an image of 1x10000 pixels is too long and thin: .* to 224x2240000"
    ):
        crops.resize_small(picture(1, 10000), RANDOM, 224)
    with pytest.raises(InputError, match="too long and thin"):
        crops.resize_small(picture(1, 10000), RANDOM, (224, 200))
    assert crops.resize_small(picture(1, 10000), RANDOM, 2).shape == (3, 2, 20000)
