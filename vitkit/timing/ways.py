"""A way to run a model: library, device, precision, threads, eager or compiled."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vitkit.models.precision import DTYPES, PRECISIONS, Precision, check_precision

LIBRARIES: dict[str, str] = {
    "vitkit": "vitkit",
    "timm": "timm",
    "transformers": "transformers",
    "torchvision": "torchvision",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}


@dataclass(frozen=True)
class Way:
    """How a candidate runs."""

    library: str
    device: str
    precision: Precision
    threads: int
    is_compiled: bool = False
    merge: int = 0
    "Patches that each layer merges."
    is_dynamic: bool = False
    "Whether float8 scales each token by itself."

    @property
    def words(self) -> str:
        """The way in a table: 'timm, compiled'."""
        dynamic = ", dynamic scales" if self.is_dynamic else ""
        merging = f", merging {self.merge}" if self.merge else ""
        return f"{LIBRARIES[self.library]}{', compiled' if self.is_compiled else ''}{dynamic}{merging}"

    @property
    def dtype(self) -> torch.dtype:
        """What torch computes in."""
        return DTYPES[self.precision]


def choose_precision(precision: str, device: str) -> Precision:
    """Return the precision that 'auto' or a name means on a device."""
    return PRECISIONS[device][0] if precision == "auto" else check_precision(precision, device, ("auto",))
