"""Window attention by flex_attention: its blocks hold all that is seen, and it equals the plain PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitkit.kernels import window
from vitkit.models import build
from vitkit.models.attention.local import attend_window
from vitkit.models.configs import ViTConfig
from vitkit.models.model import run_in

gpu = pytest.mark.gpu


def drawn(grid: tuple[int, int], prefix: int, device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    patches = grid[0] * grid[1]
    return [
        torch.randn(2, 3, patches + extra, 16, device=device, dtype=dtype, requires_grad=True)
        for extra in (0, prefix, prefix)
    ]


@settings(max_examples=30, deadline=None)
@given(
    grid=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    radius=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    prefix=st.integers(0, 3),
)
def test_blocks_hold_all_that_is_seen(grid: tuple[int, int], radius: tuple[int, int], prefix: int) -> None:
    found = window.block_mask(grid, radius, prefix, torch.device("cpu"))
    tokens = prefix + grid[0] * grid[1]
    token = torch.arange(tokens)
    query, key = token[:, None], token[None, :]
    assert found.mask_mod is not None
    seen = found.mask_mod(token[0], token[0], query, key)
    rows, columns = (token - prefix) // grid[1], (token - prefix) % grid[1]
    near = ((rows[:, None] - rows).abs() <= radius[0]) & ((columns[:, None] - columns).abs() <= radius[1])
    assert torch.equal(seen, near | (query < prefix) | (key < prefix))
    blocks = found.to_dense()[0, 0].bool()
    assert blocks[query // window.BLOCK, key // window.BLOCK][seen].all()


def test_few_blocks_are_computed() -> None:
    found = window.block_mask((64, 64), (3, 3), 0, torch.device("cpu"))
    assert found.to_dense().float().mean() < 0.2


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("prefix", [0, 2])
def test_it_equals_the_plain_window(prefix: int) -> None:
    grid, radius = (9, 13), (2, 3)
    q, k, v = (x.detach() for x in drawn(grid, prefix, "cpu", torch.float64))
    found = window._attend(
        torch.nn.functional.pad(q, (0, 0, prefix, 0)),
        k,
        v,
        window.block_mask(grid, radius, prefix, torch.device("cpu")),
    )
    torch.testing.assert_close(found[:, :, prefix:], attend_window(q, k, v, grid, radius, 0.0))


@pytest.mark.slow
def test_it_is_part_of_a_compiled_model(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ViTConfig(image_size=16, patch=2, width=32, depth=2, heads=2, mlp_width=8, attention="local")
    model, images = build(config).eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected = model(images)
        monkeypatch.setattr(window, "can_use", lambda q, dropout: True)
        found = torch.compile(model, backend="aot_eager", fullgraph=True)(images)
    torch.testing.assert_close(found, expected)


@gpu
@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("grid", [(9, 13), (48, 32)])
def test_on_a_gpu_it_equals_the_plain_window(grid: tuple[int, int], prefix: int) -> None:
    inputs = drawn(grid, prefix, "cuda", torch.float32)
    half = [x.detach().bfloat16().requires_grad_() for x in inputs]
    assert window.can_use(half[0], 0.0)
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
