"""How long runs will take together, said before the first of them starts."""

from __future__ import annotations

from dataclasses import replace

import torch

from vitkit.costs import cost_of
from vitkit.models.configs import ModelConfig, Size
from vitkit.training import estimate


def operations(model: ModelConfig, size: Size, *, trained: int, measured: int) -> float:
    """Return the floating-point operations of so many images with and without a backward pass."""
    macs = cost_of(replace(model, image_size=size)).macs
    return 2.0 * macs * (3 * trained + measured)  # a backward pass costs two forward ones


def seconds_for(flops: float, device: torch.device) -> float:
    """Return the time of so many operations, from a matrix product measured just now."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return flops / (estimate.matrix_rate(device, dtype) * estimate.SHARE)
