"""Self-attention: between all pairs of tokens, or between fewer where that costs too much; one file for each kind."""

from __future__ import annotations

from vitkit.models.attention.attention import Attention
from vitkit.models.attention.axial import ColumnAttention, RowAttention
from vitkit.models.attention.full import FullAttention
from vitkit.models.attention.linformer import LinformerAttention
from vitkit.models.attention.local import LocalAttention
from vitkit.models.attention.reformer import ReformerAttention
from vitkit.models.attention.sparse import SparseAttention
from vitkit.models.configs import ViTConfig
from vitkit.models.pairs import Axis


def build_attention(config: ViTConfig, axis: Axis | None = None) -> Attention:
    """Return the attention of one block; each half of an axial block has an axis."""
    match axis or config.attention:
        case "rows":
            return RowAttention(config)
        case "columns":
            return ColumnAttention(config)
        case "local":
            return LocalAttention(config)
        case "sparse":
            return SparseAttention(config)
        case "linformer":
            return LinformerAttention(config)
        case "reformer":
            return ReformerAttention(config)
    return FullAttention(
        config.width,
        config.heads,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        relative_tokens=config.num_tokens if config.positions == "relative" else 0,
    )
