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
from vitkit.models.pairs import near_heads


class SparseAttention(GridAttention):
    """Neighbours in the first half of the heads, every stride-th patch in the second half."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.chosen_stride = config.attention_stride  # None follows the grid

    @property
    def stride(self) -> int:
        return self.chosen_stride or self.grid[1]

    def mix_patches(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        half = near_heads(self.heads)
        line = (1, q.shape[2])
        near = attend_window(q[:, :half], k[:, :half], v[:, :half], line, (0, self.stride), dropout)
        far = attend_columns(q[:, half:], k[:, half:], v[:, half:], self.stride, dropout)
        return torch.cat([near, far], dim=1)

    def sees(self, q: Tensor) -> Tensor:
        patch = torch.arange(q.shape[2], device=q.device)
        apart = (patch[:, None] - patch).abs()
        half = near_heads(self.heads)
        near, far = apart <= self.stride, apart % self.stride == 0
        return torch.stack([near] * half + [far] * (self.heads - half))
