"""What fine-tuning decides beside the settings of a training run, each with its meaning beneath it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from vitkit.config import Bounds, Positive, check_bounds, from_dict, merge
from vitkit.errors import InputError, did_you_mean
from vitkit.models.configs import Size
from vitkit.training.config import TrainConfig
from vitkit.training.recipes import elsewhere

# Sections that hold DATA and MODEL, each with a change that is fine.
SECTIONS = {"data": "data.workers=4", "model": "model.stochastic_depth=0.1"}


@dataclass(frozen=True)
class TransferConfig:
    """How a model is taken to new data."""

    protocol: Literal["auto", "paper", "quick"] = "auto"
    "The paper's (SGD, batch 512, its steps and resolution), or quick: a head on features, then as many steps as fit minutes; auto is paper with a GPU, else quick."
    image_size: Annotated[Size, Bounds(at_least=1)] | None = None
    "Side of the images in pixels, or HEIGHTxWIDTH; left open, the paper's for this data in the model's proportions, or with quick the weights' own."
    minutes: Positive | None = None
    "Time for a quick run's steps; 10 unless given."
    head_first: bool | None = None
    "Whether a linear head is fitted on frozen features before all weights learn; quick does, the paper doesn't."

    def __post_init__(self) -> None:
        check_bounds(self)


def part_changes(changes: Sequence[str]) -> tuple[TransferConfig, list[str]]:
    """Return fine-tuning's own settings among `key=value` changes, and the others, which are the training run's."""
    own: list[str] = []
    rest: list[str] = []
    names = [field.name for field in fields(TransferConfig)]
    known = [*names, *(field.name for field in fields(TrainConfig))]
    for change in changes:
        name = change.partition("=")[0].strip()
        if (instead := {"data.train": "DATA", "model.name": "MODEL"}.get(name)) is not None:
            raise InputError(f"{name} is the argument {instead} of finetune: leave it out here")
        if name in ("data", "model"):
            raise InputError(f"{name} is a section: change its settings one by one, as in {SECTIONS[name]}")
        if "=" in change and name.partition(".")[0] not in known:
            where = elsewhere(name)
            near = f"; did you mean {where!r}?" if where else did_you_mean(name.partition(".")[0], known)
            raise InputError(f"unknown setting {name!r}{near}")
        (own if name in names else rest).append(change)
    settings: dict[str, Any] = merge({}, own)
    return from_dict(TransferConfig, settings, "the changes"), rest
