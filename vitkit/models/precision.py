"""Compute in bf16 on fp32 weights: the cast is part of the forward pass, and gradients come back in fp32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint


def run_in(dtype: torch.dtype, module: nn.Module, *inputs: Any) -> Any:
    """Return module(*inputs) computed in `dtype`, residual stream included, while its weights stay as they are.

    Autocast keeps norms and the sums of residual branches in fp32; here every activation is in `dtype`: less memory
    traffic, which is what bounds a ViT on a GPU. Norms and softmax still sum in fp32 inside their kernels.
    """
    if dtype == torch.float32:
        return module(*inputs)
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    cast = {name: _cast(tensor, dtype) for name, tensor in tensors.items()}
    return functional_call(module, cast, tuple(_cast(value, dtype) for value in inputs))


def recomputed(block: nn.Module, *inputs: Any) -> Tensor:
    """Return block(*inputs), of which the backward pass computes all but the inputs once more (activation checkpointing).

    The block keeps the weights that `run_in` lends it now, since by then they are given back. Parameters of its own
    stay where they are: FSDP gathers them anew.
    """
    lent = {name: tensor for name, tensor in block.named_parameters() if not isinstance(tensor, nn.Parameter)}
    tensors = {**lent, **dict(block.named_buffers())}
    return checkpoint(functional_call, block, tensors, inputs, use_reentrant=False)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
