"""Arithmetic on bytes in the forms that torch does fast: masks, clips, and one or the other image by a mask."""

from __future__ import annotations

import torch
from torch import Tensor


def negative(values: Tensor) -> Tensor:
    """Return 255 where int16 values are negative, else 0. Masks are bit operations: on bytes, torch's are many
    times faster than its comparisons and `where`."""
    return (values >> 15).to(torch.uint8)


def outside(place: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return 255 where a place isn't from low to high - 1, else 0; all int16."""
    return negative((place - low) | (high - 1 - place))


def to_bytes(values: Tensor) -> Tensor:
    """Clip and cut off the fraction, as Pillow does; the step over int16 is vectorised, the direct cast isn't."""
    return values.clamp_(0, 255).to(torch.int16).to(torch.uint8)


def fill_where(mask: Tensor, images: Tensor, others: Tensor) -> Tensor:
    """Return others where the mask is 255, and images where it is 0."""
    return images ^ ((images ^ others) & mask)
