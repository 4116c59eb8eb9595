"""Matrix products of 8-bit floats (e4m3): the GPU's own, and the same in plain PyTorch for other devices."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPE = torch.float8_e4m3fn
LARGEST = torch.finfo(DTYPE).max
"448"
SIDE = 16
"Inputs and outputs of a layer are multiples of this, as the GPU needs them."


def has_float8(device: torch.device) -> bool:
    """Return whether a device multiplies 8-bit floats: NVIDIA GPUs since Ada and Hopper."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def round_to_float8(x: Tensor, scale: Tensor) -> Tensor:
    """Return x / scale in 8 bits; what is beyond the largest value becomes that."""
    return (x.float() * scale.reciprocal()).clamp(-LARGEST, LARGEST).to(DTYPE)


def row_scales(x: Tensor) -> Tensor:
    """Return the scale of each row (rows, 1), by which its largest value becomes the largest of 8 bits."""
    return x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / LARGEST


def float8_linear(
    x: Tensor, weight: Tensor, scale: Tensor, weight_scale: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Return x W^T + b of 8-bit x (rows, inputs) and W (outputs, inputs).

    scale: of x, one number, or one for each row (rows, 1); then weight_scale is (1, outputs).
    """
    if x.is_cuda:
        return torch._scaled_mm(
            x,
            weight.t(),
            scale_a=scale,
            scale_b=weight_scale,
            bias=bias,
            out_dtype=dtype,
            use_fast_accum=True,
        )
    y = (x.float() @ weight.float().t()) * scale * weight_scale
    return (y if bias is None else y + bias.float()).to(dtype)
