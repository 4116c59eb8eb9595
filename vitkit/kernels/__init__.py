"""Triton kernels for operations that are slow in PyTorch. Each has an equivalent in plain PyTorch for other devices."""

from __future__ import annotations

import functools
import importlib.util
import warnings

import torch
from torch import Tensor

from vitkit.errors import first_line


def runs_triton(x: Tensor) -> bool:
    """Return whether Triton can compile for a tensor's device."""
    return x.is_cuda and torch.cuda.get_device_properties(x.device).major >= 8 and has_triton()


@torch.compiler.assume_constant_result
def has_triton() -> bool:
    """Return whether Triton works here. It needs a C compiler, which container images may lack."""
    return _probe()


@functools.cache
def _probe() -> bool:
    if importlib.util.find_spec("triton") is None or torch.version.cuda is None:
        return False
    try:
        from triton.runtime import driver

        _ = driver.active.utils  # the first kernel launch builds this
    except Exception as error:  # compilers fail in many ways; PyTorch's kernels always work
        reason = first_line(error)
        warnings.warn(f"Triton doesn't work here, so PyTorch's own kernels are used: {reason}", stacklevel=2)
        return False
    return True
