"""Inspection of a pass over images: attention distance, each head's map, pooling weights, and tokens as colours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vitkit.errors import InputError
from vitkit.inspection.asking import (
    Inspected,
    Undefined,
    ask,
    attending,
    reads_class_token,
    transformer,
)
from vitkit.inspection.weights import fix_signs
from vitkit.models.configs import TransformerConfig
from vitkit.models.record import Record

Cell = float | tuple[float, float]
"Height and width of a patch in pixels; one number means a square."
PERCENTILES = (2, 98)
"Mapped to the darkest and the brightest value of a colour channel, so that a few outliers don't set the scale."


def attention_distance(model: Inspected, images: Tensor, *, batch_size: int | None = None) -> np.ndarray:
    """Return the mean distance in pixels over which each head attends (ViT, figure 7 and D.7): (layers, heads).

    This is the distance between the positions of two patches, weighted by attention, averaged over queries and images.
    Class and register tokens have no position: their rows and columns are dropped, and the other rows are normalised
    to sum to one. Each layer is reduced as it is computed, so only one layer's attention is in memory.
    """
    module, config = attending(model, "attention distance")
    like = next(module.parameters())
    pixels = patch_distances(config.grid, (config.stride, config.stride)).to(like.device, torch.float32)

    def reduce(kind: str, layer: int | None, attention: Tensor) -> Tensor:
        patches = attention[:, :, config.num_prefix :, config.num_prefix :].float()
        mass = patches.sum(-1).clamp(min=torch.finfo(torch.float32).tiny)  # (batch, heads, queries)
        return ((patches * pixels).sum(-1) / mass).mean(-1).sum(0)  # (heads,)

    def take(record: Record) -> np.ndarray:
        return torch.stack(list(record.attention.values())).cpu().double().numpy()

    sums = ask(module, images, Record("attention", reduce=reduce), take, batch_size)
    return np.sum(sums, axis=0) / len(images)


def uniform_distance(grid: tuple[int, int], patch: Cell) -> float:
    """Return the mean distance in pixels if attention is uniform over a grid of patches, including the patch itself."""
    return patch_distances(grid, patch).mean().item()


def attention_maps(
    model: Inspected,
    images: Tensor,
    layers: Sequence[int] | None = None,
    *,
    patch: tuple[int, int] | None = None,
    batch_size: int | None = None,
) -> np.ndarray:
    """Return what each head attends to in each layer: (images, layers, heads, rows, columns).

    This is the class token's attention to the patches, or the mean over patches if the model reads no class token.
    Attention to class and register tokens is omitted, so a map may sum to less than one.
    layers: indices, which may be negative. Default: all layers.
    patch: (row, column) of a patch whose attention to return instead. Both may be negative.
    """
    module, config = attending(model, "a map of attention")
    query = None if patch is None else config.num_prefix + _place(patch, config.grid)
    chosen = range(config.num_layers) if layers is None else layers

    def reduce(kind: str, layer: int | None, attention: Tensor) -> Tensor:
        # A copy: a view of the row would hold the whole layer's attention.
        if query is not None:
            return attention[..., query, config.num_prefix :].float().clone()
        return read_patches(config, attention).float().clone()

    def take(record: Record) -> np.ndarray:
        rows = torch.stack([record.attention[layer % config.num_layers] for layer in chosen], dim=1)
        return rows.unflatten(-1, config.grid).cpu().numpy()

    record = Record("attention", layers=chosen, reduce=reduce)
    return np.concatenate(ask(module, images, record, take, batch_size))


def _place(patch: tuple[int, int], grid: tuple[int, int]) -> int:
    """Return the index of the patch at (row, column)."""
    try:
        row, column = (range(length)[side] for side, length in zip(patch, grid, strict=True))
    except (TypeError, ValueError, IndexError):
        rows = f"the model has {grid[0]} rows and {grid[1]} columns of patches"
        raise InputError(f"patch is {patch!r}; expected (row, column): {rows}") from None
    return row * grid[1] + column


def pooling_map(model: Inspected, images: Tensor, *, batch_size: int | None = None) -> np.ndarray:
    """Return the weights with which SeqPool or a MAP head (mean over its heads) reads patches: (images, rows, columns)."""
    module, config = transformer(model, "a map of pooling weights")
    if config.pool not in ("map", "seqpool"):
        reasons = {
            "token": "its head reads only the class token",
            "mean": "it gives every patch the same weight",
            "none": "it has no pool",
        }
        raise Undefined("a map of pooling weights", reasons[config.pool])

    def take(record: Record) -> np.ndarray:
        return record.pooling.float().mean(1).unflatten(-1, config.grid).cpu().numpy()

    return np.concatenate(ask(module, images, Record("pooling"), take, batch_size))


def token_colors(
    model: Inspected, images: Tensor, layer: int = -1, *, batch_size: int | None = None
) -> np.ndarray:
    """Return patch tokens after a block as colours from 0 to 1: float32 (images, rows, columns, 3).

    Red, green and blue are the first three principal components of the tokens of all images together, so a colour means
    the same in every image.
    """
    module, config = transformer(model, "a picture of tokens")
    place = layer % config.num_layers

    def reduce(kind: str, layer: int | None, tokens: Tensor) -> Tensor:
        return tokens[:, config.num_prefix :].float().cpu().clone()  # (batch, patches, width)

    record = Record("tokens", layers=[layer], reduce=reduce)
    tokens = np.concatenate(
        ask(module, images, record, lambda record: record.tokens[place].numpy(), batch_size)
    )
    if not np.isfinite(tokens).all():
        raise InputError("tokens are not finite: the model's weights are broken")
    values = _project(tokens.reshape(-1, config.width))
    low, high = np.percentile(values, PERCENTILES, axis=0)
    scaled = (values - low) / np.where(high > low, high - low, 1.0)
    colors = np.where(high > low, scaled.clip(0, 1), 0.5)  # constant components become grey
    return colors.reshape(len(images), *config.grid, 3).astype(np.float32)


def _project(tokens: np.ndarray) -> np.ndarray:
    """Return the first three principal components of (tokens, width): float64 (tokens, 3), padded with zeros."""
    centered = tokens - tokens.mean(axis=0, dtype=np.float64)
    # Eigenvectors of (width, width) are cheaper than an SVD of (tokens, width): there are usually far more tokens.
    _, directions = np.linalg.eigh(centered.T @ centered)  # in order of increasing variance
    found = centered @ fix_signs(directions[:, ::-1].T[:3]).T
    return np.pad(found, ((0, 0), (0, 3 - found.shape[1])))


def patch_distances(grid: tuple[int, int], patch: Cell) -> Tensor:
    """Return the distances in pixels between patches of a grid, in raster order: float64 (patches, patches)."""
    height, width = patch if isinstance(patch, tuple) else (patch, patch)
    rows = torch.arange(grid[0], dtype=torch.float64) * height
    columns = torch.arange(grid[1], dtype=torch.float64) * width
    places = torch.cartesian_prod(rows, columns)  # (patches, 2)
    return torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")


def read_patches(config: TransformerConfig, attention: Tensor) -> Tensor:
    """Return the row of attention (..., tokens, tokens) that stands for the image, patches only: (..., patches)."""
    to_patches = attention[..., config.num_prefix :]
    return (
        to_patches[..., 0, :]
        if reads_class_token(config)
        else to_patches[..., config.num_prefix :, :].mean(-2)
    )
