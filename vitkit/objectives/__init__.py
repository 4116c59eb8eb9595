"""What one training step computes: a literal table of objectives, each a module around the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from vitkit.errors import InputError
from vitkit.models.configs import Preprocessing
from vitkit.models.model import Model
from vitkit.objectives.objective import Objective
from vitkit.objectives.supervised import Supervised


@dataclass(frozen=True)
class ObjectiveConfig:
    """What a step learns from its images."""

    name: Literal["supervised"] = "supervised"
    "supervised: the labels."
    loss: Literal["auto", "softmax", "sigmoid"] = "auto"
    "Cross-entropy over all classes, or of each class alone (summed); auto is sigmoid where an image may have several labels."
    label_smoothing: float = 0.0
    "Share of each target that is spread over all classes."

    def __post_init__(self) -> None:
        if not 0.0 <= self.label_smoothing < 1.0:
            raise InputError(f"label_smoothing must be at least 0 and below 1, not {self.label_smoothing}")


OBJECTIVES: dict[str, Callable[[ObjectiveConfig, Model, Preprocessing, bool], Objective]] = {
    "supervised": lambda config, model, preprocessing, several: Supervised(
        model,
        preprocessing,
        sigmoid=several if config.loss == "auto" else config.loss == "sigmoid",
        label_smoothing=config.label_smoothing,
    ),
}


def build_objective(
    config: ObjectiveConfig, model: Model, preprocessing: Preprocessing, has_several_labels: bool
) -> Objective:
    """Return the module that one training step runs."""
    return OBJECTIVES[config.name](config, model, preprocessing, has_several_labels)
