"""What all kinds but full attention share: patches see some of the patches, or mixtures of them.

Class and register tokens always see all tokens and are seen by all tokens.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.errors import InputError
from vitkit.models.attention.attention import Attention, attention_weights, join_heads, unpack
from vitkit.models.configs import ViTConfig
from vitkit.models.positions import Grid


class GridAttention(Attention):
    """Kinds define `mix_patches`, and `sees` for recording."""

    own_logit = 0.0
    "Added to the logit of a token for itself."

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(
            config.width,
            config.heads,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
        )
        self.num_prefix = config.num_prefix
        self.kind = config.attention
        self.grid = config.grid

    def set_grid(self, grid: Grid) -> None:
        self.grid = grid

    def project(self, x: Tensor) -> Tensor:
        if x.shape[1] != self.num_prefix + math.prod(self.grid):
            raise InputError(
                f"attention {self.kind!r} needs all patches, but some were dropped: use 'full' or 'reformer'"
            )
        return super().project(x)

    def mix(self, qkv: Tensor, dropout: float) -> Tensor:
        q, k, v = unpack(qkv)
        return join_heads(self.mix_tokens(q, k, v, dropout))

    def mix_tokens(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        """Return the mixed values: (batch, heads, tokens, size)."""
        patches = self.mix_patches(q[:, :, self.num_prefix :], k, v, dropout)
        if not self.num_prefix:
            return patches
        return torch.cat([self.mix_prefix(q, k, v, dropout), patches], dim=2)

    def mix_prefix(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        """Return the values mixed for class and register tokens: (batch, heads, prefix, size)."""
        return F.scaled_dot_product_attention(q[:, :, : self.num_prefix], k, v, dropout_p=dropout)

    def mix_patches(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        """Return the values mixed for patches, (batch, heads, patches, size); `k` and `v` are of all tokens."""
        raise NotImplementedError

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        seen = self.sees(q[:, :, self.num_prefix :])
        seen = F.pad(seen, (self.num_prefix, 0, self.num_prefix, 0), value=True)
        own = self.own_logit * torch.eye(q.shape[2], dtype=q.dtype, device=q.device)
        return attention_weights(q, k, torch.where(seen, own, -torch.inf))

    def sees(self, q: Tensor) -> Tensor:
        """Return which patches each patch sees, True or False: (..., patches, patches). `q` is of the patches."""
        raise NotImplementedError

    def places(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row and the column of each patch."""
        patch = torch.arange(math.prod(self.grid), device=like.device)
        return patch // self.grid[1], patch % self.grid[1]


def attend_groups(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    prefix_k: Tensor,
    prefix_v: Tensor,
    dropout: float,
    seen: Tensor | None = None,
) -> Tensor:
    """Attend inside groups: each query sees the keys of its own group, and the prefix.

    q, k and v: (batch, heads, groups, queries or keys, size); the prefix: (batch, heads, prefix, size).
    seen: which keys of its group a query sees, (groups, queries or 1, keys). Default: all.
    """
    (batch, heads, groups), prefix = q.shape[:3], prefix_k.shape[2]
    if prefix:
        k = torch.cat([prefix_k[:, :, None].expand(-1, -1, groups, -1, -1), k], dim=3)
        v = torch.cat([prefix_v[:, :, None].expand(-1, -1, groups, -1, -1), v], dim=3)
    if seen is None:
        q, k, v = (x.flatten(1, 2) for x in (q, k, v))  # (batch, heads * groups, ...)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        return y.unflatten(1, (heads, groups))
    # Groups come first, so that images and heads share a group's mask without a copy of it.
    seen = F.pad(seen, (prefix, 0), value=True)[:, None].expand(-1, 1, q.shape[3], -1)
    q, k, v = (x.movedim(2, 0).flatten(1, 2) for x in (q, k, v))  # (groups, batch * heads, ...)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout)
    return y.unflatten(1, (batch, heads)).movedim(0, 2)
