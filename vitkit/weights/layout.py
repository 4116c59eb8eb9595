"""What a layout's reader makes of a file, and what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitkit.weights.files import Tensors

Document = Mapping[str, Any]
"A JSON document as it comes in: config.json of timm or transformers."
Settings = dict[str, object]
"Fields of a config by name, checked where the config is made of them."
Numeric = str | float
"A setting on which the result of the same tensors depends, such as the form of GELU."

# How timm's and transformers' ResNets compute, whatever wrote their weights.
TIMM_RESNET: dict[str, Numeric] = {
    "standardization": "variance",
    "standardization_epsilon": 1e-8,
    "group_norm_epsilon": 1e-5,
}


@dataclass
class Reading:
    """Tensors under our names, and what the layout says of the model beside them."""

    tensors: Tensors
    unused: list[str] = field(default_factory=list)
    "Their names that no rule reads."
    settings: Settings = field(default_factory=dict)
    "Fields of the model's config that follow from the layout or stand in its config file."
    preprocessing: Settings = field(default_factory=dict)
    "Fields of the preprocessing that the layout fixes or its config file states."
    class_names: tuple[str, ...] | None = None
    several_labels: bool = False
    "Whether several classes of an image may be right."
