"""What a run will cost: exact operations, and an estimate of its time from a matrix product measured just now."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from vitkit.costs import cost_of, training_exaflops
from vitkit.notes import Note
from vitkit.objectives.mae import MaskedAutoencoding
from vitkit.objectives.objective import Objective

# Share of the measured matrix rate that training is assumed to reach: B/16 reaches 0.61 on an H200 (bf16, compiled,
# docs/results/train_speed.json), small models less.
SHARE = 0.4


@dataclass(frozen=True)
class Estimate:
    """A run's cost and its likely time."""

    parameters: int
    decoder_parameters: int
    "Of them, those of masked autoencoding's decoder."
    exaflops: float
    rate: float
    "Operations per second of a large matrix product on this device."
    seconds: float
    flops_per_image: float

    def lines(self, duration: object, faster: str) -> list[Note]:
        """Say it to people, with ways to shorten the run; `faster` is what speeds up each step, if anything does."""
        ways = [f"duration=... (now {duration})", "a smaller model (model.name=...)", "smaller images"]
        if self.decoder_parameters > self.parameters / 2:
            decoder = "objective.decoder_width, objective.decoder_depth"
            ways.insert(0, f"a smaller decoder ({decoder}), which has {self.decoder_parameters:,} parameters")
        cost = (
            f"cost: {self.parameters:,} parameters, {self.exaflops:.3g} exaFLOPs; "
            f"estimated time: {in_words(self.seconds)} for steps alone ({self.rate / 1e12:,.2g} TFLOP/s measured, "
            f"{SHARE:.0%} of it assumed)"
        )
        return [
            Note(cost, "estimate"),
            Note("shorter: " + ", ".join(filter(None, [*ways, faster])), "advice"),
        ]


def estimate(
    objective: Objective, images: int, device: torch.device, dtype: torch.dtype, processes: int
) -> Estimate:
    """Return what training on so many images costs."""
    cost = cost_of(objective.model.config)
    macs, parameters = objective.cost(cost.macs, cost.parameters)
    exaflops = training_exaflops(macs, images)
    rate = matrix_rate(device, dtype) * processes
    flops = exaflops * 1e18
    decoder = parameters - cost.parameters if isinstance(objective, MaskedAutoencoding) else 0
    return Estimate(parameters, decoder, exaflops, rate, flops / (rate * SHARE), flops / images)


def matrix_rate(device: torch.device, dtype: torch.dtype, seconds: float = 0.2) -> float:
    """Return the operations per second of a large matrix product."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    done, began = 0, 0.0
    for trial in range(10_000):
        if trial == 2:  # warm
            _wait(device)
            began = time.perf_counter()
        torch.mm(a, b)
        done += trial >= 2
        if trial % 8 == 7:
            _wait(device)
            if time.perf_counter() - began > seconds:
                break
    _wait(device)
    return 2 * size**3 * done / (time.perf_counter() - began)


def in_words(seconds: float) -> str:
    """Return a duration as people say it."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
