"""Local attention: each patch sees a square neighbourhood of the grid: O(n window^2)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.kernels import window as kernel
from vitkit.models.attention.grid import GridAttention, attend_groups
from vitkit.models.configs import ViTConfig
from vitkit.models.pairs import covers, tile_side
from vitkit.models.positions import Grid

Sides = tuple[int, int]


class LocalAttention(GridAttention):
    """Each patch sees the patches of a square around it, cut off at the edges of the grid."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.radius = config.attention_setting("attention_window") // 2

    def mix_patches(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        return attend_window(q, k, v, self.grid, (self.radius, self.radius), dropout)

    def sees(self, q: Tensor) -> Tensor:
        rows, columns = self.places(q)
        near_rows = (rows[:, None] - rows).abs() <= self.radius
        return near_rows & ((columns[:, None] - columns).abs() <= self.radius)


def attend_window(q: Tensor, k: Tensor, v: Tensor, grid: Grid, radius: Sides, dropout: float) -> Tensor:
    """Attend to patches at most `radius` rows and columns away. `k` and `v` have the prefix before the patches."""
    if covers(radius, grid):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    if kernel.can_use(q, grid, radius, dropout):
        return kernel.window_attention(q, k, v, grid, radius)
    prefix = k.shape[2] - q.shape[2]
    tile = (tile_side(grid[0], radius[0]), tile_side(grid[1], radius[1]))
    # A tile as long as the grid has nothing around it.
    around = (radius[0] * (tile[0] < grid[0]), radius[1] * (tile[1] < grid[1]))
    queries = cut_tiles(q.unflatten(2, grid), tile, (0, 0))
    keys, values = (cut_tiles(x[:, :, prefix:].unflatten(2, grid), tile, around) for x in (k, v))
    seen = window_mask(grid, tile, around, radius, q.device)
    mixed = attend_groups(queries, keys, values, k[:, :, :prefix], v[:, :, :prefix], dropout, seen)
    return join_tiles(mixed, tile, grid)


def cut_tiles(x: Tensor, tile: Sides, around: Sides) -> Tensor:
    """Cut (batch, heads, rows, columns, size) into tiles with their surroundings: (batch, heads, tiles, cells, size)."""
    rows, columns = x.shape[2:4]
    below, right = -rows % tile[0], -columns % tile[1]
    x = F.pad(x, (0, 0, around[1], around[1] + right, around[0], around[0] + below))
    for axis, (length, halo) in enumerate(zip(tile, around, strict=True), start=2):
        x = x.unfold(axis, length + 2 * halo, length)
    return x.permute(0, 1, 2, 3, 5, 6, 4).flatten(4, 5).flatten(2, 3)


def join_tiles(x: Tensor, tile: Sides, grid: Grid) -> Tensor:
    """Put tiles (batch, heads, tiles, cells, size) together again, as patches in raster order."""
    tiles = [-(-side // length) for side, length in zip(grid, tile, strict=True)]
    # (batch, heads, tile rows, tile columns, rows, columns, size)
    x = x.unflatten(3, tile).unflatten(2, tiles)
    x = x.transpose(3, 4).flatten(4, 5).flatten(2, 3)  # (batch, heads, rows, columns, size)
    return x[:, :, : grid[0], : grid[1]].flatten(2, 3)


def window_mask(grid: Grid, tile: Sides, around: Sides, radius: Sides, device: torch.device) -> Tensor:
    """Return which cells of a tile and its surroundings each patch of the tile sees: (tiles, queries, keys)."""
    axes = []
    for side, length, halo, reach in zip(grid, tile, around, radius, strict=True):
        query = torch.arange(length, device=device)[:, None]
        key = torch.arange(length + 2 * halo, device=device) - halo
        place = torch.arange(0, side, length, device=device)[:, None, None] + key
        seen = ((query - key).abs() <= reach) & (place >= 0) & (place < side)  # (tiles, queries, keys)
        # Queries beyond the grid's edge are cut off later, but a softmax over nothing would be NaN.
        axes.append(seen | ~seen.any(2, keepdim=True))
    rows, columns = axes
    both = rows[:, None, :, None, :, None] & columns[None, :, None, :, None, :]
    return both.flatten(4, 5).flatten(2, 3).flatten(0, 1)
