"""GPU kernels of our own, where PyTorch's are slow: each equals a few lines of plain PyTorch, which run everywhere else."""

from __future__ import annotations

import functools
import importlib.util
import warnings

import torch
from torch import Tensor


def runs_triton(x: Tensor) -> bool:
    """Tell whether Triton compiles for a tensor's device."""
    return x.is_cuda and torch.cuda.get_device_properties(x.device).major >= 8 and has_triton()


@torch.compiler.assume_constant_result
def has_triton() -> bool:
    """Tell whether Triton works here: it needs a C compiler, which images of containers may lack."""
    return _probe()


@functools.cache
def _probe() -> bool:
    if importlib.util.find_spec("triton") is None or torch.version.cuda is None:
        return False
    try:
        from triton.runtime import driver

        _ = driver.active.utils  # what the first launch builds
    except Exception as error:  # compilers fail in many ways, and PyTorch's own kernels are there for all
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        warnings.warn(f"Triton doesn't work here, PyTorch's own kernels are used: {reason}", stacklevel=2)
        return False
    return True
