"""Resampling in one kernel equals two products in float64."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch import Tensor

from vitkit.data.crops import resample_boxes

resample = pytest.importorskip("vitkit.kernels.resampling", reason="needs Triton").resample

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
compiled = pytest.mark.skipif(INTERPRETED, reason="kernels are interpreted here")


def check(height: int, width: int, new_height: int, new_width: int, device: str, channels: int = 3) -> None:
    torch.manual_seed(0)
    images = torch.randint(0, 256, (2, channels, height, width), dtype=torch.uint8, device=device)

    def weights(new: int, old: int) -> Tensor:
        drawn = torch.rand(2, new, old, device=device) - 0.2
        return drawn / drawn.sum(dim=-1, keepdim=True) if old > 1 else drawn.abs() + 0.5

    rows, columns = weights(new_height, height), weights(new_width, width)
    exact = rows.double()[:, None] @ images.double() @ columns.double()[:, None].mT
    result = resample(images, rows, columns).double()
    assert result.shape == exact.shape
    assert (result - exact.clamp(0, 255)).abs().max() < 0.501


if INTERPRETED:

    @pytest.mark.parametrize(
        "sizes", [(32, 32, 64, 80), (5, 7, 33, 65), (40, 3, 1, 2), (1, 1, 4, 4), (70, 33, 20, 30)]
    )
    def test_interpreted_equals_products(sizes: tuple[int, int, int, int]) -> None:
        check(*sizes, "cpu")

    def test_interpreted_rounds_halves_to_even() -> None:
        images = torch.tensor([[[[1, 3, 5, 255]]]], dtype=torch.uint8)
        columns = torch.tensor(
            [[[0.5, 0, 0, 0], [0, 0.5, 0, 0], [0, 0, 0.5, 0], [0, 0, 0, 2.0], [0, 0, 0, -1]]]
        )
        assert resample(images, torch.ones(1, 1, 1), columns).flatten().tolist() == [0, 2, 2, 255, 0]


@compiled
@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(32, 32, 224, 224), (32, 32, 32, 32), (300, 200, 96, 160), (5, 7, 33, 65)])
def test_gpu_equals_products(sizes: tuple[int, int, int, int]) -> None:
    check(*sizes, "cuda")


@compiled
@pytest.mark.gpu
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_gpu_resizes_as_the_processor(share: float) -> None:
    draw = np.random.default_rng(0)
    images = torch.from_numpy(draw.integers(0, 256, (64, 3, 32, 32), np.uint8))
    top, left = draw.integers(0, 10, (2, 64))
    boxes = np.stack([top, left, 32 - top, 32 - left], axis=1)
    cubic = draw.random(64) < share
    ours = resample_boxes(images.cuda(), boxes, (224, 224), cubic).cpu().int()
    difference = (ours - resample_boxes(images, boxes, (224, 224), cubic).int()).abs()
    assert difference.max() <= 1 and (difference > 0).float().mean() < 1e-3
