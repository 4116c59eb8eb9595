"""The precisions that a model computes in, and which device has which."""

from __future__ import annotations

from typing import Literal, get_args

import torch

from vitkit.errors import InputError

Precision = Literal["float32", "bfloat16"]
DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# What `vit bench` takes by default comes first.
PRECISIONS: dict[str, tuple[Precision, ...]] = {
    "cpu": ("float32", "bfloat16"),
    "cuda": ("bfloat16", "float32"),
    "mps": ("float32",),
}


def in_words(precision: str, merge: int) -> list[str]:
    """Return what differs from how a model is trained: its precision, and the patches that each layer merges."""
    computes = [] if precision == "float32" else [f"in {precision}"]
    return computes + ([f"merging {merge} patches in each layer"] if merge else [])


def check_precision(precision: str, device: str, also: tuple[str, ...] = ()) -> Precision:
    """Return a precision if a device has it; `also` are other words that the caller takes."""
    known = PRECISIONS[device]
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
