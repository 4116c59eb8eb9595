"""Axial attention: along rows, then along columns of the grid (ViT, D.6): O(n sqrt(n)) for a square of n patches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.models.attention.grid import GridAttention, attend_groups
from vitkit.models.positions import Grid


class RowAttention(GridAttention):
    """Each patch sees its row, and the class and register tokens."""

    def mix_patches(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        return attend_rows(q, k, v, self.grid, dropout)

    def sees(self, q: Tensor) -> Tensor:
        rows, _ = self.places(q)
        return rows[:, None] == rows


class ColumnAttention(GridAttention):
    """Each patch sees its column, and the class and register tokens."""

    def mix_patches(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        return attend_columns(q, k, v, self.grid[1], dropout)

    def sees(self, q: Tensor) -> Tensor:
        _, columns = self.places(q)
        return columns[:, None] == columns


def attend_rows(q: Tensor, k: Tensor, v: Tensor, grid: Grid, dropout: float) -> Tensor:
    """Attend along rows. `q` is of the patches; `k` and `v` have the prefix before these."""
    prefix = k.shape[2] - q.shape[2]
    q, keys, values = (x.unflatten(2, grid) for x in (q, k[:, :, prefix:], v[:, :, prefix:]))
    return attend_groups(q, keys, values, k[:, :, :prefix], v[:, :, :prefix], dropout).flatten(2, 3)


def attend_columns(q: Tensor, k: Tensor, v: Tensor, columns: int, dropout: float) -> Tensor:
    """Attend along columns of patches that are laid out in rows of this length; the last row may be shorter."""
    patches = q.shape[2]
    prefix, missing = k.shape[2] - patches, -patches % columns
    q, keys, values = (
        F.pad(x, (0, 0, 0, missing)).unflatten(2, (-1, columns)).transpose(2, 3)
        for x in (q, k[:, :, prefix:], v[:, :, prefix:])
    )  # each (batch, heads, columns, rows, size)
    seen = None
    if missing:
        rows = (patches + missing) // columns
        seen = torch.arange(rows * columns, device=q.device) < patches
        seen = seen.unflatten(0, (rows, columns)).T[:, None]  # (columns, 1, rows)
    mixed = attend_groups(q, keys, values, k[:, :, :prefix], v[:, :, :prefix], dropout, seen)
    return mixed.transpose(2, 3).flatten(2, 3)[:, :, :patches]
