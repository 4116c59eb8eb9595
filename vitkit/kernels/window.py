"""Attention of patches to a window around them on a GPU, by PyTorch's flex_attention, which skips blocks of unseen keys."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.kernels import runs_triton

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128
"Tokens in a block: flex_attention's default."
SIZES = (16, 32, 64, 128)
MOST_SHAPES = 32
"Shapes that are compiled in one process, each of which takes seconds; further ones run in tiles."


def can_use(q: Tensor, grid: tuple[int, int], radius: tuple[int, int], dropout: float) -> bool:
    """Return whether `window_attention` supports these queries; flex_attention has no dropout."""
    if dropout > 0.0 or q.shape[-1] not in SIZES or not runs_triton(q):
        return False
    if torch.compiler.is_compiling():
        return True
    modes = torch.is_grad_enabled() and q.requires_grad, torch.is_inference_mode_enabled()
    shape = (*q.shape, q.dtype, q.device, grid, radius, *modes)
    if shape not in _compiled_shapes and len(_compiled_shapes) < MOST_SHAPES:
        _compiled_shapes.add(shape)
    return shape in _compiled_shapes


_compiled_shapes: set[tuple[Any, ...]] = set()


def window_attention(
    q: Tensor, k: Tensor, v: Tensor, grid: tuple[int, int], radius: tuple[int, int]
) -> Tensor:
    """Return the same as `vitkit.models.attention.local.attend_window`, which is its plain PyTorch."""
    prefix = k.shape[2] - q.shape[2]
    mask = block_mask(grid, radius, prefix, q.device)
    # The mask's blocks are square, so the prefix has queries too; their results are dropped.
    padded = F.pad(q, (0, 0, prefix, 0))
    if torch.compiler.is_compiling():
        return _attend(padded, k.contiguous(), v.contiguous(), mask)[:, :, prefix:]
    from torch._dynamo import config  # takes a while to import

    # PyTorch's own limit is eight shapes; beyond it flex_attention would run uncompiled.
    with config.patch(recompile_limit=2 * MOST_SHAPES):
        return _compiled()(padded, k.contiguous(), v.contiguous(), mask)[:, :, prefix:]


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    mixed = flex_attention(q, k, v, block_mask=mask)
    assert isinstance(mixed, Tensor)
    return mixed


@functools.cache
def _compiled() -> Callable[[Tensor, Tensor, Tensor, BlockMask], Tensor]:
    # Without compilation flex_attention builds the matrix of all pairs.
    return torch.compile(_attend, dynamic=False, fullgraph=True)


def block_mask(
    grid: tuple[int, int], radius: tuple[int, int], prefix: int, device: torch.device
) -> BlockMask:
    """Return the mask of a window, found from blocks alone, not from all pairs of tokens."""
    if torch.compiler.is_compiling():
        return _block_mask(grid, radius, prefix, device)
    with torch.inference_mode(False):  # a mask that is kept may be needed for gradients later
        return _kept_block_mask(grid, radius, prefix, device)


def _block_mask(
    grid: tuple[int, int], radius: tuple[int, int], prefix: int, device: torch.device
) -> BlockMask:
    from torch.nn.attention.flex_attention import BlockMask

    columns, tokens = grid[1], prefix + grid[0] * grid[1]

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        rows_apart = ((query - prefix) // columns - (key - prefix) // columns).abs()
        columns_apart = ((query - prefix) % columns - (key - prefix) % columns).abs()
        near = (rows_apart <= radius[0]) & (columns_apart <= radius[1])
        return near | (key < prefix) | (query < prefix)

    # Patches of a window are at most this far apart in raster order.
    reach = radius[0] * columns + radius[1]
    first = torch.arange(0, tokens, BLOCK, device=device)
    apart = (first[:, None] - first).abs() - (BLOCK - 1)  # of the nearest tokens of two blocks
    seen = apart <= reach
    if prefix:
        numbers = torch.arange(len(first), device=device)
        holds_prefix = numbers * BLOCK < prefix
        seen = seen | holds_prefix | holds_prefix[:, None]
    order = seen.int().argsort(dim=1, descending=True, stable=True)
    return BlockMask.from_kv_blocks(
        seen.sum(1, dtype=torch.int32)[None, None],
        order.int()[None, None],
        BLOCK_SIZE=BLOCK,
        mask_mod=sees,
        seq_lengths=(tokens, tokens),
    )


_kept_block_mask = functools.lru_cache(maxsize=16)(_block_mask)
