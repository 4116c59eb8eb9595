"""Window attention by flex_attention: its blocks hold all that is seen, and it equals the plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitkit.kernels import window
from vitkit.models import build
from vitkit.models.attention.local import attend_window
from vitkit.models.configs import ViTConfig


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


def test_a_mask_made_for_a_prediction_serves_training() -> None:
    with torch.inference_mode():
        found = window.block_mask((12, 11), (2, 2), 1, torch.device("cpu"))
    assert found is window.block_mask((12, 11), (2, 2), 1, torch.device("cpu"))
    assert not found.kv_indices.is_inference() and not found.kv_num_blocks.is_inference()


def test_the_number_of_compiled_shapes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is compiled for itself; PyTorch would run further ones with the matrix of all pairs."""
    monkeypatch.setattr(window, "runs_triton", lambda q: True)
    monkeypatch.setattr(window, "_compiled_shapes", set())
    queries = [torch.zeros(batch, 2, 64, 16) for batch in range(1, 41)]
    fitting = [window.can_use(q, (8, 8), (1, 1), 0.0) for q in (*queries, *queries)]
    assert fitting == 2 * [*[True] * 32, *[False] * 8]


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
        monkeypatch.setattr(window, "can_use", lambda *arguments: True)
        found = torch.compile(model, backend="aot_eager", fullgraph=True)(images)
    torch.testing.assert_close(found, expected)
