"""A way to run a model: library, device, precision, threads, eager or compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from vitkit.errors import InputError

Library = Literal["vitkit", "timm", "transformers", "torchvision", "onnxruntime", "openvino"]
LIBRARIES: dict[str, str] = {
    "vitkit": "vitkit",
    "timm": "timm",
    "transformers": "transformers",
    "torchvision": "torchvision",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}
Precision = Literal["float32", "bfloat16"]
DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# The default precision of each device comes first.
PRECISIONS: dict[str, tuple[Precision, ...]] = {
    "cpu": ("float32", "bfloat16"),
    "cuda": ("bfloat16", "float32"),
    "mps": ("float32",),
}


@dataclass(frozen=True)
class Way:
    """How a candidate runs."""

    library: str
    device: str
    precision: Precision
    threads: int
    is_compiled: bool = False

    @property
    def words(self) -> str:
        """The way in a table: 'timm, compiled'."""
        return f"{LIBRARIES[self.library]}{', compiled' if self.is_compiled else ''}"

    @property
    def dtype(self) -> torch.dtype:
        """What torch computes in."""
        return DTYPES[self.precision]


def choose_precision(precision: str, device: str) -> Precision:
    """Return the precision that 'auto' or a name means on a device."""
    known = PRECISIONS[device]
    if precision == "auto":
        return known[0]
    if precision == "int8":
        raise InputError(
            "precision 'int8' is for exported folders: run vit export MODEL --to openvino --precision int8 --out DIR, "
            "then vit bench DIR"
        )
    if precision not in known:
        anywhere = " there" if precision in get_args(Precision) else ""
        expected = ", ".join(["auto", *sorted(known, reverse=True)])
        raise InputError(f"precision is {precision!r} on {device}; expected{anywhere} one of {expected}")
    return precision
