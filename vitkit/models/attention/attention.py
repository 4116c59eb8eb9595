"""The interface of all kinds of attention: project to queries, keys and values, mix the values, project the result."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.positions import Grid
from vitkit.models.record import Record


class Attention(nn.Module):
    """Multi-head self-attention. Kinds define `mix`, and `weights` for recording."""

    projections = 3
    "Queries, keys and values."

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        qkv_bias: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.attention_dropout = attention_dropout
        self.qkv = nn.Linear(width, self.projections * width, bias=qkv_bias)
        self.proj = nn.Linear(width, width)
        self.proj_drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, record: Record | None = None, layer: int = 0) -> Tensor:
        qkv = self.project(x)  # (batch, tokens, 3, heads, width / heads)
        dropout = self.attention_dropout if self.training else 0.0
        if record is not None and record.wants("attention", layer):
            q, k, v = unpack(qkv)
            attention = self.weights(q, k)  # (batch, heads, tokens, tokens)
            record.keep("attention", attention, layer)
            x = join_heads(F.dropout(attention, dropout) @ v)
        else:
            x = self.mix(qkv, dropout)
        return self.proj_drop(self.proj(x))  # (batch, tokens, width)

    def project(self, x: Tensor) -> Tensor:
        """Return the packed queries, keys and values: (batch, tokens, 3, heads, size)."""
        return self.qkv(x).unflatten(2, (3, self.heads, -1))

    def mix(self, qkv: Tensor, dropout: float) -> Tensor:
        """Return the values, mixed by attention: (batch, tokens, width)."""
        raise NotImplementedError

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the weights that `mix` gives each value, between all tokens: (batch, heads, tokens, tokens)."""
        raise NotImplementedError

    def set_grid(self, grid: Grid) -> None:
        """Adapt to another grid of patches."""

    def reset_tables(self) -> None:
        """Compute the fixed tables, which are not in weight files."""


def unpack(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values, each (batch, heads, tokens, size)."""
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


def join_heads(x: Tensor) -> Tensor:
    """Return (batch, heads, tokens, size) as (batch, tokens, width)."""
    return x.transpose(1, 2).flatten(2)


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return softmax(q k^T / sqrt(size) + bias), as the fused kernel computes it internally."""
    logits = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
    return (logits if bias is None else logits + bias).softmax(dim=-1)
