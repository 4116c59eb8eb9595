"""Resizing a batch of images, each by its own two matrices, straight from bytes to bytes."""

from __future__ import annotations

import torch
from torch import Tensor

# Rows and columns of one program's tile, pixels that it takes in at a time, and warps: small tiles, since images from
# memory are small (CIFAR's are one tile high and half a tile wide).
ROWS, COLUMNS, STEP, WARPS = 32, 64, 32, 4


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return rows @ image @ columns^T of each channel, rounded and cut off at 0 and 255.

    images: uint8 (images, channels, height, width); rows: float32 (images, new height, height); columns likewise.
    """
    from triton import cdiv

    from vitkit.kernels import resampling_triton as kernels

    count, channels, height, width = images.shape
    new_height, new_width = rows.shape[1], columns.shape[1]
    out = torch.empty(count, channels, new_height, new_width, dtype=torch.uint8, device=images.device)
    with torch.cuda.device_of(images):
        kernels.resample[(count * channels, cdiv(new_height, ROWS), cdiv(new_width, COLUMNS))](
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
