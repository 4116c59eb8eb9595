"""What a layout's reader makes of a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vitkit.weights.files import Tensors

# How timm's and transformers' ResNets compute, whatever wrote their weights.
TIMM_RESNET = {"standardization": "variance", "standardization_epsilon": 1e-8, "group_norm_epsilon": 1e-5}


@dataclass
class Reading:
    """Tensors under our names, and what the layout says of the model beside them."""

    tensors: Tensors
    unused: list[str] = field(default_factory=list)
    "Their names that no rule reads."
    settings: dict[str, Any] = field(default_factory=dict)
    "Fields of the model's config that follow from the layout or stand in its config file."
    preprocessing: dict[str, Any] = field(default_factory=dict)
    "Fields of the preprocessing that the layout fixes or its config file states."
    class_names: tuple[str, ...] | None = None
    several_labels: bool = False
    "Whether several classes of an image may be right."
