"""Attention of patches to a window around them on a GPU, by PyTorch's flex_attention, which skips blocks of unseen keys."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from vitkit.kernels import runs_triton

BLOCK = 128
"Tokens in a block: flex_attention's default."
SIZES = (16, 32, 64, 128)


def can_use(q: Tensor, dropout: float) -> bool:
    """Return whether `window_attention` supports these queries; flex_attention has no dropout."""
    return dropout == 0.0 and q.shape[-1] in SIZES and runs_triton(q)


def window_attention(
    q: Tensor, k: Tensor, v: Tensor, grid: tuple[int, int], radius: tuple[int, int]
) -> Tensor:
    """Return the same as `vitkit.models.attention.local.attend_window`, which is its plain PyTorch."""
    prefix = k.shape[2] - q.shape[2]
    mask = block_mask(grid, radius, prefix, q.device)
    # The mask's blocks are square, so the prefix has queries too; their results are dropped.
    padded = F.pad(q, (0, 0, prefix, 0))
    attend = _attend if torch.compiler.is_compiling() else _compiled()
    return attend(padded, k.contiguous(), v.contiguous(), mask)[:, :, prefix:]


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask) -> Tensor:
    mixed = flex_attention(q, k, v, block_mask=mask)
    assert isinstance(mixed, Tensor)
    return mixed


@functools.cache
def _compiled() -> Callable[[Tensor, Tensor, Tensor, BlockMask], Tensor]:
    # Without compilation flex_attention builds the matrix of all pairs.
    return torch.compile(_attend, dynamic=False)


def block_mask(
    grid: tuple[int, int], radius: tuple[int, int], prefix: int, device: torch.device
) -> BlockMask:
    """Return the mask of a window, found from blocks alone, not from all pairs of tokens."""
    if torch.compiler.is_compiling():
        return _block_mask(grid, radius, prefix, device)
    return _kept_block_mask(grid, radius, prefix, device)


def _block_mask(
    grid: tuple[int, int], radius: tuple[int, int], prefix: int, device: torch.device
) -> BlockMask:
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
