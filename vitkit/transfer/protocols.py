"""Fine-tuning's own settings, and the papers' protocols as settings of a training run."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from vitkit.config import Bounds, Change, Changes, Positive, as_changes, check_bounds, from_dict, merge
from vitkit.data.spec import DataSpec
from vitkit.errors import InputError, did_you_mean
from vitkit.models.configs import ModelConfig, OwnConfig, Size, as_size, write_size
from vitkit.training.config import TrainConfig
from vitkit.training.recipes import elsewhere
from vitkit.training.schedules import split_duration

# Sections that hold DATA and MODEL, each with a change that is fine.
SECTIONS = {"data": "data.workers=4", "model": "model.stochastic_depth=0.1"}
# Settings that leave a protocol what it is.
NEUTRAL = (
    *(
        "data.evaluate",
        "data.bad_images",
        "data.workers",
        "data.cache",
        "seed",
        "precision",
        "compile",
        "parallel",
    ),
    *("micro_batch", "activation_checkpointing", "log_every", "evaluate_every", "checkpoint_every"),
    *("keep_checkpoints", "track", "name"),
)


@dataclass(frozen=True)
class TransferConfig:
    """How a model is taken to new data."""

    protocol: Literal["auto", "paper", "quick"] = "auto"
    "The paper's (SGD, batch 512, its steps and resolution), or quick: a head on features, then as many steps as fit minutes; auto is paper with a GPU, else quick."
    image_size: Annotated[Size, Bounds(at_least=1)] | None = None
    "Side of the images in pixels, or HEIGHTxWIDTH; by default the paper's for this data in the model's proportions, or with quick the weights' own."
    minutes: Positive | None = None
    "Minutes for a quick run, including its final measurement. Default: 10. Each further seed adds its own steps and measurement."
    head_first: bool | None = None
    "Whether a linear head is fitted on frozen features before all weights learn; quick does, the paper doesn't."

    def __post_init__(self) -> None:
        check_bounds(self)


def part_changes(changes: Changes) -> tuple[TransferConfig, list[Change]]:
    """Return fine-tuning's own settings among changes, and the others, which are the training run's."""
    own: list[Change] = []
    rest: list[Change] = []
    names = [field.name for field in fields(TransferConfig)]
    known = [*names, *(field.name for field in fields(TrainConfig))]
    for change in as_changes(changes):
        name = change.key
        if (instead := {"data.train": "DATA", "model.name": "MODEL"}.get(name)) is not None:
            raise InputError(f"{name} is the argument {instead} of finetune: leave it out here")
        if name in ("data", "model"):
            raise InputError(f"{name} is a section: change its settings one by one, as in {SECTIONS[name]}")
        where = elsewhere(name)
        if where or name.partition(".")[0] not in known:
            near = f"; did you mean {where!r}?" if where else did_you_mean(name.partition(".")[0], known)
            raise InputError(f"unknown setting {name!r}{near}")
        (own if name in names else rest).append(change)
    return from_dict(TransferConfig, merge({}, own), "the changes"), rest


@dataclass(frozen=True)
class TrainingRule:
    """How long and how large a data set is fine-tuned."""

    steps: int
    warmup: int
    image_size: int
    grid: tuple[float, ...]
    "Learning rates of a sweep."
    dev_percent: int
    "Share of train that a sweep measures on."
    origin: str


_GRID = (0.001, 0.003, 0.01, 0.03)
_TABLE = "ViT's table 4"
# The paper's data sets by their names here. Warm-ups are those of the official code.
PAPER = {
    "imagenet": TrainingRule(20_000, 500, 384, (0.003, 0.01, 0.03, 0.06), 1, _TABLE),
    "cifar10": TrainingRule(10_000, 500, 384, _GRID, 2, _TABLE),
    "cifar100": TrainingRule(10_000, 500, 384, _GRID, 2, _TABLE),
    "pets": TrainingRule(500, 100, 384, _GRID, 10, _TABLE),
    "flowers102": TrainingRule(500, 100, 384, _GRID, 10, _TABLE),
}
LEARNING_RATE = 0.01
"Of the paper's protocol without a sweep: the middle of its grids."
QUICK_START = 0.1
"Share of the learning rate at which a quick run's warm-up starts."
QUICK_EPOCHS = 20
"A quick run sees each image at most so often: later epochs add little."


def named_rule(spec: DataSpec) -> TrainingRule | None:
    """Return the paper's own rule for a data set that has its name, or that is in a folder of that name."""
    return None if spec.source.startswith("vtab/") else PAPER.get(Path(spec.source).name)


def hyper_rule(num_images: int, area: int) -> TrainingRule:
    """Return BiT-HyperRule's length and resolution for a number of images and their typical area in pixels."""
    size = 128 if area < 96 * 96 else 384
    origin = f"BiT-HyperRule for {num_images:,} images"
    if num_images < 20_000:
        return TrainingRule(500, 100, size, _GRID, 10, origin)
    if num_images < 500_000:
        return TrainingRule(10_000, 500, size, _GRID, 2, origin)
    return TrainingRule(20_000, 500, size, _GRID, 1, origin)


def fitting_size(config: ModelConfig, size: Size) -> tuple[int, int]:
    """Return the multiples of the model's patch that are nearest to a size."""
    step = getattr(config, "stride", 1)
    height, width = (max(step, round(side / step) * step) for side in as_size(size))
    return height, width


def in_proportion(config: ModelConfig, side: int) -> tuple[int, int]:
    """Return the size in the model's proportions that has the pixels of a square, as nearly as patches fit."""
    if isinstance(config, OwnConfig):  # of which it isn't known what others it takes
        return config.size
    scale = side / math.sqrt(math.prod(config.size))
    return fitting_size(config, (round(scale * config.size[0]), round(scale * config.size[1])))


def paper_settings(rule: TrainingRule, image_size: Size) -> dict[str, Any]:
    """Return the settings of ViT's fine-tuning: SGD with momentum, no decay, clipping at 1, cosine to 0."""
    return {
        "data": {"pipeline": f"inception_crop({write_size(image_size)})|flip"},
        "duration": rule.steps,
        "batch_size": 512,
        "optimizer": {"name": "sgd", "learning_rate": LEARNING_RATE, "momentum": 0.9, "clip_norm": 1.0},
        "schedule": {"name": "cosine", "warmup": rule.warmup},
        "preprocessing": {"crop_fraction": 0, "interpolation": "bilinear"},
        "select": "last",
        "evaluate_every": "100%",
    }


def quick_settings(num_images: int, image_size: Size) -> dict[str, Any]:
    """Return the settings of a quick run, but for its length: small batches, from a head that is fitted already."""
    return {
        "data": {"pipeline": f"inception_crop({write_size(image_size)},0.3,1.0)|flip"},
        "batch_size": 32 if num_images < 2_000 else 64,
        "optimizer": {"name": "sgd", "learning_rate": 0.002, "momentum": 0.9, "clip_norm": 1.0},
        "schedule": {"name": "cosine", "warmup": "10%"},
        "select": "best",
        "evaluate_every": "20%",
    }


def learns_at_once(config: TrainConfig) -> TrainConfig:
    """Return a config whose warm-up starts above 0: of a few steps, none is to change nothing."""
    schedule = config.schedule
    if schedule.warmup_from or not split_duration(schedule.warmup, "schedule.warmup")[0]:
        return config
    first = config.optimizer.learning_rate * QUICK_START
    return replace(config, schedule=replace(schedule, warmup_from=first))


def without_regularisation(model: ModelConfig) -> dict[str, float]:
    """Return what turns off a transformer's dropout and stochastic depth, which fine-tuning does without."""
    names = ("dropout", "attention_dropout", "stochastic_depth", "patch_dropout")
    return {name: 0.0 for name in names if getattr(model, name, 0.0)}


def is_neutral(change: Change) -> bool:
    """Say whether a change leaves a protocol what it is: how it is computed, kept and shown."""
    return change.key in NEUTRAL or change.key.startswith("frozen.")
