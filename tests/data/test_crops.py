"""Crops and resizes, of one image against torchvision's, of whole batches against torch's own of one image at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional as reference

from vitkit import InputError
from vitkit.data import crops
from vitkit.data.crops import resample_boxes
from vitkit.data.draws import Draw

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


BOXES = np.array(
    [[0, 0, 40, 56], [3, 5, 20, 30], [10, 10, 8, 9], [0, 0, 40, 20], [5, 7, 33, 41], [39, 55, 1, 1]]
)


def pictures(count: int, height: int = 40, width: int = 56) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, 3, height, width), np.uint8))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_boxes_are_resized_as_torch_does(interpolation: crops.Interpolation) -> None:
    images = pictures(len(BOXES))
    resized = resample_boxes(images, BOXES, (24, 32), np.full(len(BOXES), interpolation == "bicubic"))
    for image, result, (top, left, height, width) in zip(images, resized, BOXES, strict=True):
        box = image[None, :, top : top + height, left : left + width].float()
        expected = F.interpolate(box, (24, 32), mode=interpolation, antialias=True)[0].round().clamp(0, 255)
        difference = (expected - result.float()).abs()
        assert difference.max() <= 1 and (difference > 0).float().mean() < 0.001


def test_autocast_changes_nothing() -> None:
    images, cubic = pictures(len(BOXES)), np.arange(len(BOXES)) % 2 == 0
    expected = resample_boxes(images, BOXES, (24, 32), cubic)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(resample_boxes(images, BOXES, (24, 32), cubic), expected)


@pytest.mark.gpu
def test_precision_of_products_changes_nothing() -> None:
    images, cubic = pictures(len(BOXES)).cuda(), np.arange(len(BOXES)) % 2 == 0
    expected = resample_boxes(images, BOXES, (24, 32), cubic)
    torch.set_float32_matmul_precision("high")
    try:
        assert torch.equal(resample_boxes(images, BOXES, (24, 32), cubic), expected)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_batched_inception_crop_keeps_to_its_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = []
    monkeypatch.setattr(crops, "resample_boxes", lambda images, box, size, interpolation: boxes.append(box))
    crops.batched_inception_crop(
        pictures(4000, 40, 60), Draw(0, 0, np.arange(4000)), 16, area_min=0.2, area_max=0.6
    )
    top, left, height, width = boxes[0].T
    assert (
        (top >= 0).all() and (left >= 0).all() and (top + height <= 40).all() and (left + width <= 60).all()
    )
    share = height * width / (40 * 60)
    assert 0.17 < share.min() < 0.22 and 0.55 < share.max() < 0.63
    assert (width / height > 0.7).all() and (width / height < 1.4).all()
    assert abs(share.mean() - 0.4) < 0.03


def test_batched_crops_and_resizes() -> None:
    images, draw = pictures(3), Draw(0, 0, np.arange(3))
    assert crops.batched_resize(images, draw, (8, 12)).shape == (3, 3, 8, 12)
    assert crops.batched_resize_small(images, draw, 20).shape == (3, 3, 20, 28)
    assert torch.equal(crops.central_crop(images, draw, 20), images[:, :, 10:30, 18:38])
    with pytest.raises(InputError, match=r"random_crop\(64x64\) needs larger images than 40x56"):
        crops.batched_random_crop(images, draw, 64)
