"""Crops of whole batches, against torch's own resize of one image at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitkit import InputError
from vitkit.data import memory
from vitkit.data.draws import Draw
from vitkit.data.memory import MemoryFetcher, in_memory, resample_boxes
from vitkit.data.pipeline import Step
from vitkit.data.sources.source import Source

BOXES = np.array(
    [[0, 0, 40, 56], [3, 5, 20, 30], [10, 10, 8, 9], [0, 0, 40, 20], [5, 7, 33, 41], [39, 55, 1, 1]]
)


def pictures(count: int, height: int = 40, width: int = 56) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, 3, height, width), np.uint8))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_boxes_are_resized_as_torch_does(interpolation: memory.Interpolation) -> None:
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


def test_inception_crop_keeps_to_its_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = []
    monkeypatch.setattr(memory, "resample_boxes", lambda images, box, size, interpolation: boxes.append(box))
    memory.inception_crop(pictures(4000, 40, 60), Draw(0, 0, np.arange(4000)), 16, area_min=0.2, area_max=0.6)
    top, left, height, width = boxes[0].T
    assert (
        (top >= 0).all() and (left >= 0).all() and (top + height <= 40).all() and (left + width <= 60).all()
    )
    share = height * width / (40 * 60)
    assert 0.17 < share.min() < 0.22 and 0.55 < share.max() < 0.63
    assert (width / height > 0.7).all() and (width / height < 1.4).all()
    assert abs(share.mean() - 0.4) < 0.03


def test_an_image_depends_on_its_position_alone() -> None:
    fetcher = MemoryFetcher(
        pictures(20).permute(0, 2, 3, 1).numpy(),
        (Step("inception_crop", (("size", 24),)), Step("random_crop", (("size", 16),))),
        torch.device("cpu"),
    )
    indices, positions = np.arange(20), np.arange(100, 120)
    whole = fetcher(indices, Draw(0, 5, positions))
    parts = [fetcher(indices[s], Draw(0, 5, positions[s])) for s in (slice(0, 7), slice(7, 20))]
    assert torch.equal(whole, torch.cat(parts))
    assert whole.shape == (20, 3, 16, 16) and whole.dtype == torch.uint8
    assert not torch.equal(whole, fetcher(indices, Draw(0, 5, positions + 1)))


def test_crops_and_resizes() -> None:
    images, draw = pictures(3), Draw(0, 0, np.arange(3))
    assert memory.resize(images, draw, (8, 12)).shape == (3, 3, 8, 12)
    assert memory.resize_small(images, draw, 20).shape == (3, 3, 20, 28)
    assert torch.equal(memory.central_crop(images, draw, 20), images[:, :, 10:30, 18:38])
    with pytest.raises(InputError, match=r"random_crop\(64x64\) needs larger images than 40x56"):
        memory.random_crop(images, draw, 64)


class Pictures(Source):
    name, split, class_names = "made", "train", ("a",)

    def __init__(self, arrays: list[np.ndarray]) -> None:
        self.arrays, self.labels = arrays, np.zeros(len(arrays), np.int64)

    def read(self, index: int) -> np.ndarray:
        return self.arrays[index]


def test_pictures_are_kept_as_they_are() -> None:
    arrays = list(pictures(4).permute(0, 2, 3, 1).numpy())
    kept = in_memory(Pictures([*arrays, arrays[0][:20]]))
    assert kept.images is None and np.array_equal(kept.read(4), arrays[0][:20])
