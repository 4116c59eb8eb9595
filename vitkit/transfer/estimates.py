"""How long runs will take: by their operations, counted before the first starts, or by doing a few steps."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from vitkit.costs import cost_of
from vitkit.models.configs import ModelConfig, Size
from vitkit.training import estimate
from vitkit.training.build import Inputs, build
from vitkit.training.config import TrainConfig
from vitkit.training.graphs import WARM
from vitkit.training.loop import train_step
from vitkit.world import World

TRIALS = 2


def operations(model: ModelConfig, size: Size, *, trained: int, measured: int) -> float:
    """Return the floating-point operations of so many images with and without a backward pass."""
    macs = cost_of(replace(model, image_size=size)).macs
    return 2.0 * macs * (3 * trained + measured)  # a backward pass costs two forward ones


def seconds_for(flops: float, device: torch.device) -> float:
    """Return the time of so many operations, from a matrix product measured just now."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return flops / (estimate.matrix_rate(device, dtype) * estimate.SHARE)


def seconds_per_step(config: TrainConfig, inputs: Inputs, device: torch.device) -> float:
    """Return how long a step of a run takes once it is warm: data, both passes and the update."""
    world = World(0, 1, device)
    parts = build(config, world, inputs)
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
