"""How long a training step takes, by doing some: data, both passes and the update."""

from __future__ import annotations

import time

import torch

from vitkit.training.build import build
from vitkit.training.config import TrainConfig
from vitkit.training.graphs import WARM
from vitkit.training.loop import train_step
from vitkit.world import World

TRIALS = 2


def seconds_per_step(config: TrainConfig, device: torch.device) -> float:
    """Return how long a step of a run takes once it is warm; the run itself begins anew."""
    world = World(0, 1, device)
    parts = build(config, world)
    size = config.micro_batch if isinstance(config.micro_batch, int) else config.batch_size
    warm = WARM if config.compile == "graphs" else 0
    began = 0.0
    for step, batch in enumerate(parts.loader.steps(0, warm + 1 + TRIALS)):
        train_step(config, parts, batch, step, size, world)
        if step == warm:
            began = _now(device)
    return (_now(device) - began) / TRIALS


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
