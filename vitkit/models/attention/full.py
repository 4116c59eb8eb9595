"""Full attention: every token sees every token, as in the paper."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.kernels.attention import can_use, short_attention
from vitkit.models.attention.attention import Attention, attention_weights, join_heads, unpack
from vitkit.models.positions import relative_logits


class FullAttention(Attention):
    """Softmax attention between all pairs, in a fused kernel; optionally with relative positions (ViT, D.4)."""

    relative: nn.Parameter | None

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        qkv_bias: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        relative_tokens: int = 0,
    ) -> None:
        super().__init__(
            width, heads, qkv_bias=qkv_bias, dropout=dropout, attention_dropout=attention_dropout
        )
        if relative_tokens:  # one key per offset between two tokens, shared by the heads
            self.relative = nn.Parameter(torch.zeros(2 * relative_tokens - 1, width // heads))
        else:
            self.register_parameter("relative", None)

    def mix(self, qkv: Tensor, dropout: float) -> Tensor:
        if self.relative is None and qkv.requires_grad and can_use(qkv):
            return short_attention(qkv, dropout)
        q, k, v = unpack(qkv)
        return join_heads(F.scaled_dot_product_attention(q, k, v, self.bias(q), dropout))

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        return attention_weights(q, k, self.bias(q))

    def bias(self, q: Tensor) -> Tensor | None:
        """Return what is added to the logits, if anything: (batch, heads, tokens, tokens)."""
        return None if self.relative is None else relative_logits(q, self.relative)
