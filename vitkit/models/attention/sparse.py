"""Sparse Transformers' strided attention (Child et al. 2019), in both directions: O(n sqrt(n)).

Half of the heads see the patches up to `stride` before and after in raster order, the other half every stride-th patch.
Two layers connect all patches. With the grid's width as the stride, the second half sees columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitkit.models.attention.axial import attend_columns
from vitkit.models.attention.grid import GridAttention
from vitkit.models.attention.local import attend_window
from vitkit.models.configs import ViTConfig
from vitkit.models.positions import Grid


class SparseAttention(GridAttention):
    """Neighbours in the first half of the heads, every stride-th patch in the second half."""

    def __init__(self, config: ViTConfig) -> None:
        self.chosen_stride = config.attention_stride  # by default the grid's width, whatever the grid
        super().__init__(config)

    def set_grid(self, grid: Grid) -> None:
        super().set_grid(grid)
        self.patches = grid[0] * grid[1]
        self.stride = self.chosen_stride or grid[1]

    def mix_patches(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        half = (self.heads + 1) // 2
        line = (1, self.patches)
        near = attend_window(q[:, :half], k[:, :half], v[:, :half], line, (0, self.stride), dropout)
        far = attend_columns(q[:, half:], k[:, half:], v[:, half:], self.stride, dropout)
        return torch.cat([near, far], dim=1)

    def sees(self, q: Tensor) -> Tensor:
        patch = torch.arange(self.patches, device=q.device)
        apart = (patch[:, None] - patch).abs()
        half = (self.heads + 1) // 2
        near, far = apart <= self.stride, apart % self.stride == 0
        return torch.stack([near] * half + [far] * (self.heads - half))
