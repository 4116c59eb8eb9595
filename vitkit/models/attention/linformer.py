"""Linformer (Wang et al. 2020): queries see a few learned mixtures of all patches: O(n rank)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.errors import InputError
from vitkit.models.attention.grid import GridAttention
from vitkit.models.configs import ViTConfig
from vitkit.models.positions import Grid


class LinformerAttention(GridAttention):
    """Keys and values are projected along the patches; all heads share a layer's two projections."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        rank = config.attention_setting("attention_rank")
        self.key_mixtures = nn.Linear(config.num_patches, rank, bias=False)
        self.value_mixtures = nn.Linear(config.num_patches, rank, bias=False)

    def set_grid(self, grid: Grid) -> None:
        assert grid == self.grid, "configs refuse another grid"
        super().set_grid(grid)

    def mix_tokens(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        k, v = (
            torch.cat([x[:, :, : self.num_prefix], self.reduce(x, mixtures)], dim=2)
            for x, mixtures in ((k, self.key_mixtures), (v, self.value_mixtures))
        )  # each (batch, heads, prefix + rank, size)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)

    def reduce(self, x: Tensor, mixtures: nn.Linear) -> Tensor:
        return mixtures(x[:, :, self.num_prefix :].transpose(2, 3)).transpose(2, 3)

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        raise InputError(
            "attention 'linformer' has no weights between tokens to record: "
            f"each patch attends to {self.key_mixtures.out_features} mixtures of all patches"
        )
