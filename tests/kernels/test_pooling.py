"""Pooling equals PyTorch's, forward and backward, ties and odd sizes included."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.kernels import pooling

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
compiled = pytest.mark.skipif(INTERPRETED, reason="kernels are interpreted here")
SHAPES = [(2, 16, 32, 32), (1, 3, 7, 9), (3, 130, 5, 2), (1, 1, 1, 1)]


def published(x: Tensor) -> Tensor:
    return F.max_pool2d(F.relu(x), 3, 2, 1)


def check(shape: tuple[int, ...], **options: object) -> None:
    """Few distinct values, so that windows hold ties."""
    torch.manual_seed(0)
    x = (torch.randint(-6, 4, shape) / 2).to(**options).contiguous(memory_format=torch.channels_last)
    results = []
    for function in (lambda x: pooling._forward(x)[0], published):
        leaf = x.detach().requires_grad_()
        y = function(leaf)
        d_y = torch.arange(y.numel(), device=y.device).reshape(y.shape).remainder(17).to(y.dtype)
        results.append((y, *torch.autograd.grad(y, leaf, d_y)))
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)
        assert ours.is_contiguous(memory_format=torch.channels_last)


if INTERPRETED:

    @pytest.mark.parametrize("shape", SHAPES)
    def test_interpreted_equals_published(shape: tuple[int, ...]) -> None:
        check(shape)

    @pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
    def test_interpreted_op_contract() -> None:
        x = torch.randn(2, 3, 6, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
        torch.library.opcheck(torch.ops.vitkit.relu_pool.default, (x,))

    def test_interpreted_lets_through_what_is_no_number() -> None:
        x = torch.zeros(1, 4, 8, 8).contiguous(memory_format=torch.channels_last)
        x[0, 1, 3, 3] = torch.nan
        assert torch.equal(pooling._forward(x)[0].isnan(), published(x).isnan())


@pytest.mark.parametrize("shape", SHAPES)
def test_either_order_gives_the_same(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = (torch.randint(-6, 4, shape) / 2).requires_grad_()
    (d_ours,) = torch.autograd.grad(pooling.relu_pool(x).square().sum(), x)
    (d_theirs,) = torch.autograd.grad(published(x).square().sum(), x)
    assert torch.equal(pooling.relu_pool(x), published(x)) and torch.equal(d_ours, d_theirs)


@compiled
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [*SHAPES, (64, 256, 32, 32)])
def test_gpu_equals_published(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    check(shape, device="cuda", dtype=dtype)
