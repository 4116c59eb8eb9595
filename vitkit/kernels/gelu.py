"""The exact GELU in a few instructions that compilers fuse; the compiler's own erf is slower than the memory access."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: erf with an error below 1.5e-7.
STEP = 0.3275911
TERMS = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
LOW = (torch.bfloat16, torch.float16)


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
