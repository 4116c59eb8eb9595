"""GELU in few instructions and few passes over memory; the compiler's own erf is slower than the memory access.

In inference it is the end of a product (`linear_gelu`), or it writes 8 bits (`gelu_float8`).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.kernels import runs_triton
from vitkit.kernels.float8 import DTYPE, LARGEST, round_to_float8

# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: erf with an error below 1.5e-7.
STEP = 0.3275911
TERMS = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
LOW = (torch.bfloat16, torch.float16)
# gelu(x) = x * sigmoid(x * (c0 + c1 x^2 + c2 x^4)). The tanh form is this exactly, with c2 = 0. For the erf form, c are fitted
# to the logit of the normal distribution function, and gelu is off by less than 3e-5. Beyond x^2 = FAR the sigmoid is 0 or 1.
TANH_FORM = (2 * math.sqrt(2 / math.pi), 2 * math.sqrt(2 / math.pi) * 0.044715, 0.0)
ERF_FORM = (1.59501509, 7.40120575e-02, -7.03195499e-04)
FAR = 25.0
BLOCK, WARPS = 4096, 8


def exact_gelu(x: Tensor) -> Tensor:
    """Return x times the standard normal distribution function of x."""
    if torch.compiler.is_compiling() and x.is_cuda and x.dtype in LOW:
        return _Gelu.apply(x)
    return F.gelu(x)


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        wide = x.float()
        return (wide * share_below(wide)[0]).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> Tensor:
        x = ctx.saved_tensors[0].float()
        share, bell = share_below(x)
        # (x * share)' = share + x * density, where density = bell / sqrt(2 pi).
        return (d_y.float() * (share + x * bell * (1 / math.sqrt(2 * math.pi)))).to(d_y.dtype)


def share_below(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the share of a standard normal distribution below x, and exp(-x^2 / 2)."""
    bell = torch.exp(-0.5 * x * x)
    # Formula 7.1.26 for erf(x / sqrt(2)), hence STEP / sqrt(2). The gradient reuses its exp(-x^2 / 2).
    t = 1.0 / (1.0 + STEP / math.sqrt(2.0) * x.abs())
    # Horner's scheme: one multiplication and one addition per term, which a GPU fuses.
    tail = t * TERMS[4] + TERMS[3]
    for term in TERMS[2::-1]:
        tail = tail * t + term
    tail = 0.5 * t * tail * bell  # the share above |x|
    return torch.where(x < 0, tail, 1.0 - tail), bell


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return gelu(x W^T + b) in bfloat16 with one rounding, by a product that ends in GELU's tanh form."""
    return _linear_gelu(x.flatten(0, -2), weight, bias).unflatten(0, x.shape[:-1])


@torch.library.custom_op("vitkit::linear_gelu", mutates_args=())
def _linear_gelu(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if rows.is_cuda:  # there its GELU is the tanh form, on the CPU the erf form
        return torch._addmm_activation(bias, rows, weight.t(), use_gelu=True)
    exact = F.linear(rows.float(), weight.float(), bias.float())
    return F.gelu(exact, approximate="tanh").to(rows.dtype)


@_linear_gelu.register_fake
def _linear_gelu_shape(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return rows.new_empty(len(rows), len(weight))


def gelu_float8(x: Tensor, scale: Tensor, *, is_tanh: bool) -> Tensor:
    """Return gelu(x) / scale in 8 bits, from bfloat16."""
    return _gelu_float8(x.contiguous(), scale, is_tanh)


@torch.library.custom_op("vitkit::gelu_float8", mutates_args=())
def _gelu_float8(x: Tensor, scale: Tensor, is_tanh: bool) -> Tensor:
    if runs_triton(x):
        return _run_gelu_float8(x, scale, is_tanh)
    return round_to_float8(F.gelu(x.float(), approximate="tanh" if is_tanh else "none"), scale)


@_gelu_float8.register_fake
def _gelu_float8_shape(x: Tensor, scale: Tensor, is_tanh: bool) -> Tensor:
    return torch.empty_like(x, dtype=DTYPE)


def _run_gelu_float8(x: Tensor, scale: Tensor, is_tanh: bool, dtype: torch.dtype = DTYPE) -> Tensor:
    """Run the kernel. dtype: of the result; Triton's interpreter rounds to 8 bits wrongly."""
    from vitkit.kernels import gelu_triton as kernels

    form = TANH_FORM if is_tanh else ERF_FORM
    out = torch.empty_like(x, dtype=dtype)
    with torch.cuda.device_of(x):
        kernels.gelu_float8[(-(-x.numel() // BLOCK),)](
            x, scale, out, x.numel(), *form, FAR, LARGEST, BLOCK, num_warps=WARPS
        )
    return out
