"""int8 layers: 8-bit weights with a scale per output channel, and 8-bit inputs with one scale and zero point."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.layers import pad_same
from vitkit.runtimes.graph import PlainConv2d

LARGEST, LEVELS = 127, 255
"Of signed values, -127 to 127, and of unsigned ones, 0 to 255."
SKEWED = 0.5
"Inputs are unsigned, with a zero point, if their least value is nearer to zero than this share of the largest."
LEAST = 1e-9


class Int8Layer(nn.Module):
    """What both kinds share: in eager mode it computes what the runtime will; an export contains the 8-bit operators."""

    weight: Tensor
    weight_scale: Tensor
    scale: Tensor
    zero: Tensor
    axis: int
    "Of the weight, its output channels."

    def __init__(self, weight: Tensor, bias: Tensor | None, low: float, high: float) -> None:
        """low, high: the range of inputs that 8 bits represent; what is outside is clipped."""
        super().__init__()
        others = [axis for axis in range(weight.ndim) if axis != self.axis]
        weight_scale = (weight.abs().amax(dim=others, keepdim=True) / LARGEST).clamp(min=1e-12)
        steps = (weight / weight_scale).round().clamp(-LARGEST, LARGEST)
        self.register_buffer("weight", steps.to(torch.int8))
        self.register_buffer("weight_scale", weight_scale.flatten())
        low, high = min(low, 0.0), max(high, 0.0)
        self.is_signed = -low > high * SKEWED
        if self.is_signed:
            scale, zero = max(-low, high) / LARGEST, 0
        else:
            scale = (high - low) / LEVELS
            zero = round(-low / max(scale, LEAST))
        self.register_buffer("scale", torch.tensor(max(scale, LEAST)))
        self.register_buffer("zero", torch.tensor(zero, dtype=torch.int8 if self.is_signed else torch.uint8))
        self.bias = None if bias is None else nn.Parameter(bias.clone(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.padded(x)
        if torch.compiler.is_exporting():
            return self.compute(self.exported_input(x), self.exported_weight())
        return self.compute(self.rounded(x), self.restored_weight())

    def padded(self, x: Tensor) -> Tensor:
        return x

    def compute(self, x: Tensor, weight: Tensor) -> Tensor:
        raise NotImplementedError

    def rounded(self, x: Tensor) -> Tensor:
        """Return the input as 8 bits represent it."""
        zero = self.zero.float()
        low, high = (-LARGEST - 1, LARGEST) if self.is_signed else (0, LEVELS)
        return ((x / self.scale).round() + zero).clamp(low, high).sub(zero) * self.scale

    def restored_weight(self) -> Tensor:
        shape = [-1 if axis == self.axis else 1 for axis in range(self.weight.ndim)]
        return self.weight.float() * self.weight_scale.view(shape)

    def exported_input(self, x: Tensor) -> Tensor:
        steps = _operator("QuantizeLinear", (x, self.scale, self.zero), self.zero.dtype, x)
        return _operator("DequantizeLinear", (steps, self.scale, self.zero), x.dtype, x)

    def exported_weight(self) -> Tensor:
        inputs = (self.weight, self.weight_scale)
        return _operator("DequantizeLinear", inputs, torch.float32, self.weight, {"axis": self.axis})


def _operator(
    name: str, inputs: tuple[Tensor, ...], dtype: torch.dtype, like: Tensor, attributes: Any = None
) -> Tensor:
    return torch.onnx.ops.symbolic(name, inputs, attributes, dtype=dtype, shape=like.shape)


class Int8Linear(Int8Layer):
    """x W + b with a weight (inputs, outputs), the order in which runtimes recognise the 8-bit product."""

    axis = 1

    def __init__(self, source: nn.Linear, low: float, high: float) -> None:
        super().__init__(source.weight.T, source.bias, low, high)

    def compute(self, x: Tensor, weight: Tensor) -> Tensor:
        y = x @ weight
        return y if self.bias is None else y + self.bias


class Int8Conv2d(Int8Layer):
    """A convolution; padding adds exact zeros, which 8 bits represent."""

    axis = 0

    def __init__(self, source: nn.Conv2d, low: float, high: float) -> None:
        super().__init__(source.weight, source.bias, low, high)
        self.kernel, self.stride, self.padding = source.kernel_size[0], source.stride, source.padding
        self.same = isinstance(source, PlainConv2d) and source.same

    def padded(self, x: Tensor) -> Tensor:
        return pad_same(x, self.kernel, self.stride[0]) if self.same else x

    def compute(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)
