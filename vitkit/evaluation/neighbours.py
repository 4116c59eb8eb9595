"""Nearest rows by cosine similarity, exactly and in blocks, so that neither side needs to fit in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.errors import InputError


class Nearest(NamedTuple):
    """The nearest rows of each query, nearest first; of equal ones the first row."""

    similarities: Tensor
    "Cosine similarities, (queries, k)."
    numbers: Tensor
    "Places of the rows, int64 (queries, k)."


def unit_rows(rows: np.ndarray, dtype: type = np.float32, device: str | torch.device = "cpu") -> Tensor:
    """Return rows scaled to length one, on a device."""
    block = torch.from_numpy(np.array(rows, dtype))
    if not block.isfinite().all():
        raise InputError("features are not finite")
    return F.normalize(block.to(device), dim=1)


def nearest(queries: Tensor, blocks: Iterable[Tensor], k: int) -> Nearest:
    """Return the k rows of some blocks that are nearest to each query; all rows have length one."""
    similarities = torch.empty(len(queries), 0, dtype=queries.dtype, device=queries.device)
    numbers = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    first = 0
    for block in blocks:
        values, places = _greatest(queries @ block.T, k)
        values = torch.cat((similarities, values), 1)
        values, order = values.sort(dim=1, descending=True, stable=True)
        numbers = torch.cat((numbers, places + first), 1).gather(1, order)[:, :k]
        similarities, first = values[:, :k], first + len(block)
    return Nearest(similarities, numbers)


def _greatest(similarities: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k greatest of each row with their places, of equal ones the first, in falling order."""
    k = min(k, similarities.shape[1])
    values, places = similarities.topk(k, dim=1)
    # topk takes any of several equal values: where some are left out, the row is sorted.
    crowded = (similarities >= values[:, -1:]).sum(1) > k
    if crowded.any():
        ordered, order = similarities[crowded].sort(dim=1, descending=True, stable=True)
        values[crowded], places[crowded] = ordered[:, :k], order[:, :k]
    places, order = places.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order)
