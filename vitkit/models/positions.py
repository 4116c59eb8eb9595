"""Positions: fixed tables, relative attention, and resampling of learned tables to another grid."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.models.configs import Resample

Grid = tuple[int, int]

# How each resampling interpolates a grid: mode, corners aligned, antialiased.
RESAMPLES: dict[Resample, tuple[str, bool | None, bool]] = {
    "bilinear_corners": ("bilinear", True, False),  # vit_jax, big_vision
    "bicubic": ("bicubic", False, True),  # timm
    "bicubic_plain": ("bicubic", False, False),  # transformers
    "bilinear": ("bilinear", False, False),  # Compact-Transformers
}


def sincos_2d(grid: Grid, width: int) -> Tensor:
    """Return the fixed table (1, rows * columns, width): sines and cosines of x, then of y (big_vision)."""
    quarter = width // 4
    # MoCo v3's frequencies: the last one is exactly 1 / 10000. Float64 keeps the angles of large grids exact.
    omega = 10000.0 ** -(torch.arange(quarter, dtype=torch.float64) / max(1, quarter - 1))
    y, x = torch.meshgrid(
        torch.arange(grid[0], dtype=torch.float64),
        torch.arange(grid[1], dtype=torch.float64),
        indexing="ij",
    )
    x_angles, y_angles = x.reshape(-1, 1) * omega, y.reshape(-1, 1) * omega
    parts = [x_angles.sin(), x_angles.cos(), y_angles.sin(), y_angles.cos()]
    return torch.cat(parts, dim=1)[None].float()


def sine_1d(tokens: int, width: int) -> Tensor:
    """Return the fixed table (1, tokens, width) of Compact Transformers: sines at even indices, cosines at odd ones."""
    place = torch.arange(width, dtype=torch.float64)
    angles = torch.arange(tokens, dtype=torch.float64)[:, None] / 10000.0 ** (2 * (place // 2) / width)
    return torch.where(place % 2 == 0, angles.sin(), angles.cos())[None].float()


def concat_axes(y: Tensor, x: Tensor) -> Tensor:
    """Return the (layers, patches, width) table that combines learned tables per grid row and per grid column."""
    y_grid = y[:, :, None, :].expand(-1, -1, x.shape[1], -1)
    x_grid = x[:, None, :, :].expand(-1, y.shape[1], -1, -1)
    return torch.cat([x_grid, y_grid], dim=-1).flatten(1, 2)


def relative_logits(q: Tensor, table: Tensor) -> Tensor:
    """Return attention logits (batch, heads, n, n): queries times a learned key per offset q - k (ViT, D.4)."""
    tokens = q.shape[-2]
    by_offset = q @ table.T / math.sqrt(q.shape[-1])  # (batch, heads, n, 2n - 1)
    place = torch.arange(tokens, device=q.device)
    offsets = place[:, None] - place[None, :] + tokens - 1  # (n, n), shifted to start at 0
    return by_offset.gather(-1, offsets.expand(*by_offset.shape[:-1], tokens))


def resample_table(table: Tensor, old: Grid, new: Grid, num_prefix: int, method: Resample) -> Tensor:
    """Resample the patch rows of a (layers, prefix + patches, width) table; prefix rows are unchanged."""
    if old == new:
        return table
    mode, corners, antialias = RESAMPLES[method]
    prefix, patches = table[:, :num_prefix], table[:, num_prefix:]  # a class token has no place in the grid
    # Always in float32: bfloat16 has too few bits for bicubic weights.
    grid = patches.unflatten(1, old).permute(0, 3, 1, 2).float()  # (layers, width, old rows, old columns)
    grid = F.interpolate(grid, size=new, mode=mode, align_corners=corners, antialias=antialias)
    patches = grid.permute(0, 2, 3, 1).flatten(1, 2).to(table.dtype)
    return torch.cat([prefix, patches], dim=1)


def resample_line(table: Tensor, length: int) -> Tensor:
    """Resample a (..., length, width) table along its length, keeping its ends in place."""
    if table.shape[-2] == length:
        return table
    # With aligned corners the first and the last row (or the farthest offsets) keep their meaning.
    line = table.reshape(-1, *table.shape[-2:]).transpose(1, 2).float()
    line = F.interpolate(line, size=length, mode="linear", align_corners=True)
    return line.transpose(1, 2).reshape(*table.shape[:-2], length, table.shape[-1]).to(table.dtype)
