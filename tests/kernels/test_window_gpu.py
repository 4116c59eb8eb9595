"""On a GPU, window attention and models with each kind of attention give what they give on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vitkit.kernels import window
from vitkit.models import build
from vitkit.models.attention.local import attend_window
from vitkit.models.configs import ViTConfig
from vitkit.models.model import run_in

gpu = pytest.mark.gpu
# PyTorch 2.11 looks at gradients of inner tensors while it compiles.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


def drawn(grid: tuple[int, int], prefix: int, device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    patches = grid[0] * grid[1]
    return [
        torch.randn(2, 3, patches + extra, 16, device=device, dtype=dtype, requires_grad=True)
        for extra in (0, prefix, prefix)
    ]


@gpu
@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("grid", [(9, 13), (48, 32)])
def test_on_a_gpu_it_equals_the_plain_window(grid: tuple[int, int], prefix: int) -> None:
    inputs = drawn(grid, prefix, "cuda", torch.float32)
    half = [x.detach().bfloat16().requires_grad_() for x in inputs]
    assert window.can_use(half[0], grid, (3, 3), 0.0)
    found = window.window_attention(*half, grid, (3, 3))
    gradients = torch.autograd.grad(found.float().square().sum(), half)
    exact = [x.detach().cpu().double().requires_grad_() for x in half]
    expected = attend_window(*exact, grid, (3, 3), 0.0)
    others = torch.autograd.grad(expected.square().sum(), exact)
    for one, other in zip((found, *gradients), (expected, *others), strict=True):
        error = (one.cpu().double() - other).norm() / other.norm()
        assert error < 0.02


@gpu
@pytest.mark.parametrize("kind", ["axial", "local", "sparse", "linformer", "reformer"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_on_a_gpu_equals_the_one_on_the_cpu(kind: Any, compiled: bool) -> None:
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=(32, 48), patch=2, width=64, depth=2, heads=2, mlp_width=64, num_classes=5, attention=kind
    )
    model = build(config)
    torch.nn.init.normal_(model.head.weight)  # type: ignore[union-attr, arg-type]
    images = torch.randn(4, 3, 32, 48)
    expected = model(images)
    expected.square().sum().backward()
    wanted = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}  # type: ignore[union-attr]
    model = model.cuda()
    model.zero_grad()
    forward = torch.compile(model, dynamic=False) if compiled else model
    logits = run_in(torch.bfloat16, forward, images.cuda())
    logits.float().square().sum().backward()
    # Reformer hashes in bfloat16, so that a few patches fall into other buckets.
    bound = 0.2 if kind == "reformer" else 0.05
    assert (logits.float().cpu() - expected).norm() < bound * expected.norm()
    if kind != "reformer":
        for name, parameter in model.named_parameters():
            error = (parameter.grad.cpu() - wanted[name]).norm()  # type: ignore[union-attr]
            assert error < 0.1 * wanted[name].norm() + 1e-3, name
