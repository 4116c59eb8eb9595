"""The precisions that a model computes in, and which device has which."""

from __future__ import annotations

from typing import Literal, get_args

import torch

from vitkit.errors import InputError
from vitkit.kernels.float8 import has_float8

Precision = Literal["float32", "bfloat16", "float8"]
# Of activations: float8 is for large products alone.
DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float8": torch.bfloat16,
}
# What `vit bench` takes by default comes first.
PRECISIONS: dict[str, tuple[Precision, ...]] = {
    "cpu": ("float32", "bfloat16"),
    "cuda": ("bfloat16", "float32", "float8"),
    "mps": ("float32",),
}


def in_words(precision: str, merge: int) -> list[str]:
    """Return what differs from how a model is trained: its precision, and the patches that each layer merges."""
    computes = [] if precision == "float32" else [f"in {precision}"]
    return computes + ([f"merging {merge} patches in each layer"] if merge else [])


def check_float8(device: torch.device) -> None:
    """Raise InputError unless a device multiplies 8-bit floats."""
    if not has_float8(device):
        named = torch.cuda.get_device_name(device) if device.type == "cuda" else f"device {device.type!r}"
        raise InputError(
            f"precision 'float8' needs an NVIDIA GPU that has it (Ada, Hopper and later), and {named} does not: use "
            "bfloat16 or float32"
        )


def check_precision(precision: str, device: str, also: tuple[str, ...] = ()) -> Precision:
    """Return a precision if a device has it; `also` are other words that the caller takes."""
    known = PRECISIONS[device]
    if precision == "float8":
        check_float8(torch.device(device))
        return "float8"
    for name in known:
        if name == precision:
            return name
    if precision == "int8":
        raise InputError(
            "precision 'int8' is for exported folders, on the CPU: run vit export MODEL --to openvino --precision int8 "
            "--calibrate DATA --out DIR, then give DIR"
        )
    anywhere = " there" if precision in get_args(Precision) else ""
    expected = ", ".join([*also, *sorted(known, reverse=True)])
    raise InputError(f"precision is {precision!r} on {device}; expected{anywhere} one of {expected}")
