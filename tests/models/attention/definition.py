"""Which tokens see which, by the definition of each kind of attention in words, one pair at a time."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from vitkit.models.configs import ViTConfig

Pair = tuple[int, int]


def visible(config: ViTConfig, axis: str | None, head: int, query: Pair, key: Pair) -> bool:
    """Whether a patch at (row, column) sees another, by the definition in words."""
    (row, column), (other_row, other_column) = query, key
    columns = config.grid[1]
    match axis or config.attention:
        case "rows":
            return row == other_row
        case "columns":
            return column == other_column
        case "local":
            assert config.attention_window is not None
            reach = config.attention_window // 2
            return abs(row - other_row) <= reach and abs(column - other_column) <= reach
        case "sparse":
            stride = config.attention_stride or columns
            apart = abs((row - other_row) * columns + column - other_column)
            return apart <= stride if head < math.ceil(config.heads / 2) else apart % stride == 0
    raise AssertionError


def mask(config: ViTConfig, axis: str | None) -> Tensor:
    """Which tokens see which: (heads, tokens, tokens)."""
    cells = list(itertools.product(range(config.grid[0]), range(config.grid[1])))
    seen = torch.ones(config.heads, config.num_tokens, config.num_tokens, dtype=torch.bool)
    for head in range(config.heads):
        for (query, place), (key, other) in itertools.product(enumerate(cells), repeat=2):
            at = head, config.num_prefix + query, config.num_prefix + key
            seen[at] = visible(config, axis, head, place, other)
    return seen
