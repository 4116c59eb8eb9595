"""Resizing of a uint8 batch, each image with its own two matrices. Needs Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Rows and columns of one program's tile, pixels that it reads at a time, and warps. Tiles are small because images kept
# in memory are small (CIFAR's are one tile high and half a tile wide).
ROWS, COLUMNS, STEP, WARPS = 32, 64, 32, 4
# 1.5 * 2**23, where float32 has no fractions: adding and subtracting it rounds halves to even, as torch.round does.
ROUND = tl.constexpr(12582912.0)


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return rows @ image @ columns^T of each channel, rounded and clamped to 0..255.

    images: uint8 (images, channels, height, width); rows: float32 (images, new height, height); columns likewise.
    """
    count, channels, height, width = images.shape
    new_height, new_width = rows.shape[1], columns.shape[1]
    out = torch.empty(count, channels, new_height, new_width, dtype=torch.uint8, device=images.device)
    with torch.cuda.device_of(images):
        resample_tile[(count * channels, triton.cdiv(new_height, ROWS), triton.cdiv(new_width, COLUMNS))](
            images.contiguous(),
            rows.contiguous(),
            columns.contiguous(),
            out,
            channels,
            height,
            width,
            new_height,
            new_width,
            ROWS=ROWS,
            COLUMNS=COLUMNS,
            STEP=STEP,
            num_warps=WARPS,
        )
    return out


@triton.jit
def load(
    matrix: tl.tensor, rows: tl.tensor, columns: tl.tensor, height: tl.tensor, width: tl.tensor
) -> tl.tensor:
    """Load part of a matrix, 0 beyond its end."""
    inside = (rows < height)[:, None] & (columns < width)[None, :]
    return tl.load(matrix + rows[:, None] * width + columns[None, :], mask=inside, other=0)


@triton.jit
def resample_tile(
    images: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    out: tl.tensor,
    channels: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    new_height: tl.tensor,
    new_width: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
) -> None:
    """Write one tile of one channel of rows @ image @ columns^T."""
    channel = tl.program_id(0).to(tl.int64)
    image = channel // channels
    ys = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    xs = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    images += channel * height * width
    rows += image * new_height * height
    columns += image * new_width * width
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for left in range(0, width, STEP):
        js = left + tl.arange(0, STEP)
        # rows @ image for STEP columns, then its part of the product with columns^T, without a round trip to memory.
        part = tl.zeros((ROWS, STEP), tl.float32)
        for top in range(0, height, STEP):
            below = top + tl.arange(0, STEP)
            weights = load(rows, ys, below, new_height, height)
            pixels = load(images, below, js, height, width).to(tl.float32)
            # Three TF32 products of split numbers have nearly float32's precision, so pixels equal plain PyTorch's.
            part = tl.dot(weights, pixels, part, input_precision="tf32x3")
        weights = load(columns, xs, js, new_width, width)
        total = tl.dot(part, tl.trans(weights), total, input_precision="tf32x3")
    pixels = (tl.minimum(tl.maximum(total, 0.0), 255.0) + ROUND) - ROUND
    inside = (ys < new_height)[:, None] & (xs < new_width)[None, :]
    out += channel * new_height * new_width
    tl.store(out + ys[:, None] * new_width + xs[None, :], pixels.to(tl.uint8), mask=inside)
