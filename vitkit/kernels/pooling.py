"""ReLU and 3x3 max-pooling with stride 2 in one pass over channels-last images: the tokenizer of Compact Transformers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.kernels import runs_triton

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Per program. Neighbouring threads take neighbouring channels, which are adjacent in memory: 16 windows of 128
# channels give 16 values to each of 128 threads.
POSITIONS, MAX_CHANNELS, WARPS = 16, 128, 4


def relu_pool(x: Tensor) -> Tensor:
    """Return max_pool2d(relu(x), 3, stride=2, padding=1) of (images, channels, height, width)."""
    if x.dtype not in DTYPES or not runs_triton(x):
        return F.relu(
            F.max_pool2d(x, 3, 2, 1)
        )  # the order doesn't matter; this one applies ReLU to a quarter of the values
    return _forward(x.contiguous(memory_format=torch.channels_last))[0]


@torch.library.custom_op("vitkit::relu_pool", mutates_args=())
def _forward(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output and the index (0 to 8) of each value in its window, or 9 if no value is above 0."""
    from vitkit.kernels import pooling_triton as kernels

    y, chosen = _forward_shapes(x)
    _launch(kernels.forward, x, y, chosen)
    return y, chosen


@_forward.register_fake
def _forward_shapes(x: Tensor) -> tuple[Tensor, Tensor]:
    images, channels, height, width = x.shape
    shape = (images, channels, (height + 1) // 2, (width + 1) // 2)
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    return y, torch.empty_like(y, dtype=torch.int8)


@torch.library.custom_op("vitkit::relu_pool_backward", mutates_args=())
def _backward(d_y: Tensor, chosen: Tensor, height: int, width: int) -> Tensor:
    """Return the gradient of the input."""
    from vitkit.kernels import pooling_triton as kernels

    d_x = _backward_shape(d_y, chosen, height, width)
    _launch(kernels.backward, d_x, d_y.contiguous(memory_format=torch.channels_last), chosen)
    return d_x


@_backward.register_fake
def _backward_shape(d_y: Tensor, chosen: Tensor, height: int, width: int) -> Tensor:
    shape = (*d_y.shape[:2], height, width)
    return torch.empty(shape, dtype=d_y.dtype, device=d_y.device, memory_format=torch.channels_last)


def _keep_for_backward(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.size = inputs[0].shape[2:]
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, d_y: Tensor, d_chosen: Tensor) -> Tensor:
    return _backward(d_y, *ctx.saved_tensors, *ctx.size)


_forward.register_autograd(_differentiate, setup_context=_keep_for_backward)


def _launch(kernel: Any, large: Tensor, small: Tensor, chosen: Tensor) -> None:
    """Run a kernel with one program per group of windows and channels."""
    from triton import next_power_of_2

    images, channels, height, width = large.shape
    windows = images * small.shape[2] * small.shape[3]
    block = min(MAX_CHANNELS, next_power_of_2(channels))
    with torch.cuda.device_of(large):
        kernel[(-(-windows // POSITIONS), -(-channels // block))](
            large,
            small,
            chosen,
            windows,
            HEIGHT=height,
            WIDTH=width,
            CHANNELS=channels,
            POSITIONS=POSITIONS,
            BLOCK=block,
            num_warps=WARPS,
        )
