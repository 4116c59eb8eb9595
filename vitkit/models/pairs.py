"""What attention costs: the pairs of tokens that it compares, and what it keeps for the backward pass. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from vitkit.models.configs import ViTConfig

Axis = Literal["rows", "columns"]
"Along which axis of the grid each half of an axial block attends."
SHORTEST_TILE = 8
"Fewest rows or columns of queries that share a copy of their surroundings' keys."
MOST_DIRECT = 64
"Most buckets of a single hash; for more buckets, each is a pair of two hashes."


@dataclass(frozen=True)
class AttentionCost:
    """The cost of one attention between its projections, for one image."""

    pairs: int
    "Pairs of a query and a key, added up over the heads."
    saved: int
    "Elements kept for the backward pass in the precision of the activations."
    saved_bytes: int
    "Bytes kept regardless of the precision."
    more_macs: int = 0
    "Multiply-adds besides the two for each pair and channel of a head."
    parameters: int = 0


def tile_side(side: int, reach: int) -> int:
    """Return the side of a tile of queries: longer tiles copy fewer keys, shorter ones compute fewer unseen pairs.

    It is the whole side where shorter tiles, with the keys around them, would compare as many pairs as that.
    """
    tile = max(SHORTEST_TILE, reach)
    return tile if ceil(side / tile) * tile * (tile + 2 * reach) < side**2 else side


def covers(reach: tuple[int, int], grid: tuple[int, int]) -> bool:
    """Return whether a window that reaches this many rows and columns holds the whole grid from every patch."""
    return all(steps >= side - 1 for steps, side in zip(reach, grid, strict=True))


def near_heads(heads: int) -> int:
    """Return how many heads of sparse attention see neighbours; the others see every stride-th patch."""
    return (heads + 1) // 2


def bucket_factors(patches: int, chunk: int) -> tuple[int, ...]:
    """Return even numbers whose product is the number of hash buckets: about one bucket for each chunk.

    Many buckets are two factors, as published: a hash of each, so that hashing costs the square root as much.
    """
    total = 2 * max(1, round(patches / chunk / 2))
    if total <= MOST_DIRECT:
        return (total,)
    first = 2 * round(total**0.5 / 2)
    return first, 2 * round(total / first / 2)


def attention_cost(config: ViTConfig, axis: Axis | None = None) -> AttentionCost:
    """Return the cost of one block's attention, or of one half of an axial block's; without relative positions."""
    (rows, columns), patches, prefix = config.grid, config.num_patches, config.num_prefix
    tokens, heads, width = config.num_tokens, config.heads, config.width
    match axis or config.attention:
        case "rows":
            parts = [_groups(config, heads, rows, columns, columns)]
            return _on_grid(config, heads * rows * columns**2, parts)
        case "columns":
            parts = [_groups(config, heads, columns, rows, rows)]
            return _on_grid(config, heads * columns * rows**2, parts)
        case "local":
            reach = config.attention_setting("attention_window") // 2
            pairs = heads * _near(rows, reach) * _near(columns, reach)
            return _on_grid(config, pairs, [_window(config, heads, (rows, columns), (reach, reach))])
        case "sparse":
            stride, near = config.attention_setting("attention_stride"), near_heads(heads)
            lengths = [len(range(first, patches, stride)) for first in range(stride)]
            pairs = near * _near(patches, stride) + (heads - near) * sum(length**2 for length in lengths)
            parts = [
                _window(config, near, (1, patches), (0, stride)),
                _groups(config, heads - near, stride, max(lengths), max(lengths)),
            ]
            return _on_grid(config, pairs, parts)
        case "linformer":
            rank = config.attention_setting("attention_rank")
            saved = 3 * tokens * width + 2 * (prefix + rank) * width + 2 * patches * width
            mixing = 2 * patches * rank * width
            return AttentionCost(
                heads * tokens * (prefix + rank), saved, 4 * heads * tokens, mixing, 2 * patches * rank
            )
        case "reformer":
            return _hashed(config)
    return AttentionCost(heads * tokens**2, 3 * tokens * width, 4 * heads * tokens)


def _on_grid(config: ViTConfig, pairs: int, parts: list[tuple[int, int]]) -> AttentionCost:
    """Add the prefix to the pairs of patches: all patches see it, and it sees all tokens."""
    heads, prefix = config.heads, config.num_prefix
    pairs += heads * prefix * (config.num_patches + config.num_tokens)
    saved, saved_bytes = (sum(part) for part in zip(*parts, strict=True))
    if prefix:
        saved += 3 * config.num_tokens * config.width + prefix * config.width
        saved_bytes += 4 * heads * prefix
    return AttentionCost(pairs, saved, saved_bytes)


def _groups(config: ViTConfig, heads: int, groups: int, queries: int, keys: int) -> tuple[int, int]:
    """Return what attention in groups keeps: copies of queries, keys and values, its output, and a log-sum-exp per query."""
    size = config.width // config.heads
    return heads * size * groups * 2 * (queries + config.num_prefix + keys), 4 * heads * groups * queries


def _window(config: ViTConfig, heads: int, grid: tuple[int, int], reach: tuple[int, int]) -> tuple[int, int]:
    """Return what attention to a window keeps, where queries share copies of keys by tiles."""
    if covers(reach, grid):
        # Fused attention keeps views of queries, keys and values. Its output is copied next to that of other tokens or heads.
        saved = 0 if config.num_prefix else 3 * config.num_tokens * config.width
        if config.num_prefix or heads < config.heads:
            saved += heads * (config.width // config.heads) * config.num_patches
        return saved, 4 * heads * config.num_patches
    groups = queries = keys = 1
    for side, steps in zip(grid, reach, strict=True):
        tile = tile_side(side, steps)
        groups, queries = groups * ceil(side / tile), queries * tile
        keys *= tile if tile == side else tile + 2 * steps
    saved, saved_bytes = _groups(config, heads, groups, queries, keys)
    # Tiles of one row or of whole rows are slices of the patches in raster order: views, not copies.
    if not config.num_prefix and (grid[0] == 1 or tile_side(grid[1], reach[1]) == grid[1]):
        line = groups * queries + keys - queries
        saved -= 2 * heads * (config.width // config.heads) * (groups * keys - line)
    return saved, saved_bytes


def _near(length: int, reach: int) -> int:
    """Return the number of pairs on a line that are at most `reach` apart."""
    reach = min(reach, length - 1)
    return length * (2 * reach + 1) - reach * (reach + 1)


def _hashed(config: ViTConfig) -> AttentionCost:
    """Count what Reformer computes: each chunk with itself and the one before, in every round. Memory is an estimate."""
    heads, width, prefix, patches = config.heads, config.width, config.num_prefix, config.num_patches
    rounds, chunk = (config.attention_setting(f"attention_{name}") for name in ("hashes", "chunk"))
    chunk = min(chunk, patches)
    sorted_patches = rounds * chunk * ceil(patches / chunk)
    compared = 2 * chunk * sorted_patches
    hashing = rounds * patches * width * sum(bucket_factors(patches, chunk)) // 2
    return AttentionCost(
        heads * (compared + prefix * (patches + config.num_tokens)),
        # Logits and weights are in float32, with a mask of one byte. The other terms were fitted to measurements.
        saved=7 * sorted_patches * width + (10 if prefix else 4) * config.num_tokens * width,
        saved_bytes=heads * (9 * compared + 38 * sorted_patches),
        more_macs=hashing,
    )
