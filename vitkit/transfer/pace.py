"""How many training steps fit a time, by timing some."""

from __future__ import annotations

import time

import torch

from vitkit.models.precision import run_in
from vitkit.train.build import build_model, compute_dtype
from vitkit.train.config import TrainConfig

TRIALS = 2


def seconds_per_step(config: TrainConfig, class_names: tuple[str, ...], device: torch.device) -> float:
    """Return how long forward and backward of one batch take, without data and optimiser."""
    model, _, _ = build_model(config, class_names)
    model.to(device).train()
    size = config.micro_batch if isinstance(config.micro_batch, int) else min(config.batch_size, 64)
    images = torch.randn(size, model.config.channels, *model.config.size, device=device)
    dtype = compute_dtype(config, device)
    began = 0.0
    for trial in range(TRIALS + 1):
        if trial == 1:  # warm
            began = _now(device)
        run_in(dtype, model, images).float().square().mean().backward()
    return (_now(device) - began) / TRIALS * config.batch_size / size


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
