"""GPU kernels of our own, where PyTorch's are slow: each equals a few lines of plain PyTorch, which run everywhere else."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

HAS_TRITON = importlib.util.find_spec("triton") is not None and torch.version.cuda is not None


def runs_triton(x: Tensor) -> bool:
    """Tell whether Triton compiles for a tensor's device."""
    return HAS_TRITON and x.is_cuda and torch.cuda.get_device_properties(x.device).major >= 8
