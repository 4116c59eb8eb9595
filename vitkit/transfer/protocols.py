"""Fine-tuning protocols: steps, warm-up, resolution and grids of the papers, as settings of a training run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from vitkit.models.configs import ModelConfig, Size, as_size, write_size


@dataclass(frozen=True)
class Rule:
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
    "imagenet": Rule(20_000, 500, 384, (0.003, 0.01, 0.03, 0.06), 1, _TABLE),
    "cifar10": Rule(10_000, 500, 384, _GRID, 2, _TABLE),
    "cifar100": Rule(10_000, 500, 384, _GRID, 2, _TABLE),
    "pets": Rule(500, 100, 384, _GRID, 10, _TABLE),
    "flowers102": Rule(500, 100, 384, _GRID, 10, _TABLE),
}
LEARNING_RATE = 0.01
"Of the paper's protocol without a sweep: the middle of its grids."
QUICK_EPOCHS = 20
"A quick run sees each image at most so often: later epochs add little."


def hyper_rule(num_images: int, area: int) -> Rule:
    """Return BiT-HyperRule's length and resolution for a data set of so many images of so many pixels."""
    size = 128 if area < 96 * 96 else 384
    origin = f"BiT-HyperRule for {num_images:,} images"
    if num_images < 20_000:
        return Rule(500, 100, size, _GRID, 10, origin)
    if num_images < 500_000:
        return Rule(10_000, 500, size, _GRID, 2, origin)
    return Rule(20_000, 500, size, _GRID, 1, origin)


def fitting_size(config: ModelConfig, size: Size) -> tuple[int, int]:
    """Return the multiples of the model's patch that are nearest to a size."""
    step = getattr(config, "stride", 1)
    height, width = (max(step, round(side / step) * step) for side in as_size(size))
    return height, width


def in_proportion(config: ModelConfig, side: int) -> tuple[int, int]:
    """Return the size in the model's proportions that has the pixels of a square, as nearly as patches fit."""
    scale = side / math.sqrt(math.prod(config.size))
    return fitting_size(config, (round(scale * config.size[0]), round(scale * config.size[1])))


def paper_settings(rule: Rule, image_size: Size) -> dict[str, Any]:
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
