"""What patch tokens have in common, as colours."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from vitkit.errors import InputError
from vitkit.inspection.asking import Inspected, ask, transformer
from vitkit.inspection.weights import fix_signs
from vitkit.models.record import Record

PERCENTILES = (2, 98)
"What becomes the darkest and the brightest of a channel: a few odd tokens don't set the scale."


def token_colors(
    model: Inspected, images: Tensor, layer: int = -1, *, batch_size: int | None = None
) -> np.ndarray:
    """Return patch tokens after a block as colours from 0 to 1: float32 (images, rows, columns, 3).

    Red, green and blue are the first three principal components of the tokens of all images together, so that a colour
    means the same in each of them.
    """
    module, config = transformer(model, "a picture of tokens")
    place = layer % config.depth

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
    colors = np.where(high > low, scaled.clip(0, 1), 0.5)  # what doesn't vary is grey
    return colors.reshape(len(images), *config.grid, 3).astype(np.float32)


def _project(tokens: np.ndarray) -> np.ndarray:
    """Return the first three principal components of (tokens, width): float64 (tokens, 3); zeros beyond the width."""
    centered = tokens - tokens.mean(axis=0, dtype=np.float64)
    _, directions = np.linalg.eigh(centered.T @ centered)  # the smallest variance first
    found = centered @ fix_signs(directions[:, ::-1].T[:3]).T
    return np.pad(found, ((0, 0), (0, 3 - found.shape[1])))
