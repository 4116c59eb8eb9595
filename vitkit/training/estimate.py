"""What a run reports before it starts: the model and data, possible surprises, its cost and its likely time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from vitkit.costs import cost_of, training_exaflops
from vitkit.data.pipeline import parse_pipeline
from vitkit.data.policies import erased_share
from vitkit.data.splits import counted
from vitkit.figures.numbers import rough_duration
from vitkit.kernels.float8 import DTYPE as FLOAT8
from vitkit.kernels.float8 import float8_linear
from vitkit.models.configs import ModelConfig, Size, TransformerConfig
from vitkit.models.names import changed_shape
from vitkit.notes import Note
from vitkit.objectives.mae import MaskedAutoencoding
from vitkit.objectives.objective import Objective
from vitkit.training.build import RunParts, is_trained
from vitkit.training.config import FrozenConfig, TrainConfig
from vitkit.world import World, wait

# Assumed share of the measured matrix rate that training reaches. B/16 reaches 0.61 on an H200 (bf16, compiled,
# docs/results/train_speed.json); small models reach less.
SHARE = 0.4


@dataclass(frozen=True)
class Estimate:
    """A run's cost and its likely time."""

    parameters: int
    decoder_parameters: int
    "How many of them belong to the decoder of masked autoencoding."
    exaflops: float
    rate: float
    "Operations per second of a large matrix product on this device."
    seconds: float
    flops_per_image: float

    def notes(self, duration: object, faster: str) -> list[Note]:
        """Return the estimate in words, with ways to shorten the run; `faster` is a way to speed up steps, or ''."""
        ways = [f"duration=... (now {duration})", "a smaller model (model.name=...)", "smaller images"]
        if self.decoder_parameters > self.parameters / 2:
            decoder = "objective.decoder_width, objective.decoder_depth"
            ways.insert(0, f"a smaller decoder ({decoder}), which has {self.decoder_parameters:,} parameters")
        cost = (
            f"cost: {self.parameters:,} parameters, {self.exaflops:.3g} exaFLOPs; "
            f"estimated time: {rough_duration(self.seconds)} for the steps only (assumes {SHARE:.0%} of "
            f"{self.rate / 1e12:,.2g} TFLOP/s measured)"
        )
        return [
            Note(cost, "estimate"),
            Note("shorter: " + ", ".join(filter(None, [*ways, faster])), "advice"),
        ]


def introduction(config: TrainConfig, parts: RunParts, world: World, seconds: float) -> list[Note]:
    """Return warnings about possible surprises, then one line on the model, its data and the length of the run.

    A time below a minute is omitted: for such a short run it would be wrong, and the progress soon shows a better one.
    """
    per_process = f" ({parts.loader.count} on each of {world.ranks} processes)" if world.ranks > 1 else ""
    what = f"{_model_in_words(config, parts)} on {config.data.train}: {counted(len(parts.source), 'image')}"
    if parts.class_names:
        what += f", {counted(len(parts.class_names), 'class')}"
    length = (
        f"{counted(parts.periods.total, 'step')} of {config.batch_size:,} images{per_process}, "
        f"{parts.periods.total / parts.periods.per_epoch:,.4g} epochs, on {world.device_name}"
    )
    time = f"; roughly {rough_duration(seconds)}" if seconds >= 60 else ""
    warnings = surprises(config, parts.model.config, parts.periods.total)
    return [*warnings, Note(f"{what}; {length}{time}", "summary")]


def _model_in_words(config: TrainConfig, parts: RunParts) -> str:
    """Return an untrained model's name with the settings that change its shape: 'Ti/16 (patch 4, width 64)'."""
    name = config.model["name"]
    if is_trained(config, parts.inputs):
        return str(name)
    own = changed_shape(name, config.model)
    return f"{name} ({', '.join(own)})" if own else str(name)


def surprises(config: TrainConfig, model: ModelConfig, steps: int) -> list[Note]:
    """Return warnings about settings, of a run of so many steps, that the user may not have intended."""
    return [Note(line, "warning") for line in _surprises(config, model, steps)]


def _surprises(config: TrainConfig, model: ModelConfig, total: int) -> Iterator[str]:
    span = round(1 / (1 - config.average)) if config.average else 0
    if span > total / 3:
        # A tenth of the run is short enough to exclude the first, poor weights.
        tenth = 1 - float(f"{10 / total:.1g}")
        advice = f"average={tenth:g} spans a tenth of it" if total >= 20 else "average=null turns it off"
        yield (
            f"the average of the weights spans about {span:,} steps and the run has {total:,}, "
            f"so the average will lag behind; {advice}"
        )
    readers = {"shots": {"fewshot"}, "neighbours": {"knn"}, "data": {"fewshot", "probe", "knn"}}
    for name, evaluators in readers.items():
        is_changed = getattr(config.frozen, name) != getattr(FrozenConfig, name)
        if is_changed and not evaluators & set(config.frozen.evaluators):
            yield f"frozen.{name} has no effect without {' or '.join(sorted(evaluators))} in frozen.evaluators"
    for step in parse_pipeline(config.data.pipeline).batch:
        if step.name == "randaugment" and (share := erased_share(model.size, **dict(step.arguments))):
            yield (
                f"{step} erases {share:.0%} of these images completely: its shifts and boxes are in pixels, for 224x224 "
                "images; those of timm_randaugment(rand-m9-mstd0.5-inc1) scale with the image size"
            )
    if isinstance(model, TransformerConfig) and model.covered != model.size:
        seen, given = ("x".join(map(str, sides)) for sides in (model.covered, model.size))
        yield f"patches of {model.stride} cover {seen} of the {given} pixels; the rest is ignored"


def estimate(
    objective: Objective, images: int, device: torch.device, dtype: torch.dtype, processes: int
) -> Estimate:
    """Return the cost of training on this many images."""
    cost = cost_of(objective.model.config)
    macs, parameters = objective.cost(cost.macs, cost.parameters)
    exaflops = training_exaflops(macs, images)
    rate = matrix_rate(device, dtype) * processes
    flops = exaflops * 1e18
    decoder = parameters - cost.parameters if isinstance(objective, MaskedAutoencoding) else 0
    return Estimate(parameters, decoder, exaflops, rate, flops / (rate * SHARE), flops / images)


def operations(model: ModelConfig, size: Size, *, trained: int, measured: int) -> float:
    """Return the floating-point operations for images with (`trained`) and without (`measured`) a backward pass."""
    macs = cost_of(replace(model, image_size=size)).macs
    return 2.0 * macs * (3 * trained + measured)  # a backward pass costs two forward ones


def seconds_for(flops: float, device: torch.device) -> float:
    """Return the likely time of this many operations, based on a matrix product measured now."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return flops / (matrix_rate(device, dtype) * SHARE)


def matrix_rate(device: torch.device, dtype: torch.dtype, seconds: float = 0.2) -> float:
    """Return the operations per second of a large matrix product; that of 8-bit floats gives bfloat16."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    one, done, began = torch.ones((), device=device), 0, 0.0
    for trial in range(10_000):
        if trial == 2:  # after a warm-up
            wait(device)
            began = time.perf_counter()
        float8_linear(a, b, one, one, None, torch.bfloat16) if dtype == FLOAT8 else torch.mm(a, b)
        done += trial >= 2
        if trial % 8 == 7:
            wait(device)
            if time.perf_counter() - began > seconds:
                break
    wait(device)
    return 2 * size**3 * done / (time.perf_counter() - began)
