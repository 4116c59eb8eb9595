"""How fast the models of a study are on this device: each is timed for a few seconds, and the times are kept with the study."""

from __future__ import annotations

import gc
import hashlib
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from vitkit.config import to_dict
from vitkit.costs import cost_of
from vitkit.data.fetch import cached
from vitkit.data.open import open_data
from vitkit.data.sources.source import Source, Subset
from vitkit.data.spec import as_spec
from vitkit.evaluation.passes import SourcePass
from vitkit.files import write_json
from vitkit.models.configs import ModelConfig
from vitkit.results import Result, from_json
from vitkit.runs.records import read_object
from vitkit.studies.measures import Work
from vitkit.training.build import EVALUATION_BATCH, Inputs, RunParts, build
from vitkit.training.config import FrozenConfig, TrainConfig
from vitkit.training.estimate import SHARE, matrix_rate
from vitkit.transfer.outlook import MOST_TRIALS, TRIAL_SECONDS, seconds_per_step
from vitkit.world import World

PACES = "paces.json"
"In the study's folder."
IMAGES = 2048
"Training images that models are timed on, and that at most are passed forward."
LONGEST = 2.0
"Seconds of a step beyond which a smaller batch is timed."
PASS_SECONDS = 0.5
"A forward pass over fewer images than take this time is mostly its start."


@dataclass(frozen=True)
class Pace(Result):
    """What a model's work takes, in seconds."""

    trained: float
    "For an operation of training."
    passed: float
    "For an operation of a forward pass alone."
    start: float
    "To build and compile the model."
    kept: float
    "To read an image that stays in memory."

    def seconds(self, work: Work) -> float:
        """Return the time of a run."""
        spent = work.trained * self.trained + work.passed * self.passed
        return spent + work.starts * self.start + work.kept * self.kept + work.seconds


ANY = Pace(1.0, 1.0, 0.0, 0.0)
"Of a device of unknown speed: work in floating-point operations."


def estimated_pace(device: torch.device) -> Pace:
    """Return the pace of any model, as a matrix product on this device suggests it."""
    each = 1 / (_matrix_rate(device) * SHARE)
    return Pace(each, each, 0.0, 0.0)


def _matrix_rate(device: torch.device) -> float:
    return matrix_rate(device, torch.bfloat16 if device.type == "cuda" else torch.float32)


class Paces:
    """The times of models that were measured on a device."""

    def __init__(self, device: torch.device, folder: Path) -> None:
        self.world, self.path = World(0, 1, device), folder / PACES
        self._all = read_object(self.path)

    def of(self, config: TrainConfig, model: ModelConfig) -> Pace | None:
        """Return the pace of a model as a run trains it; None if it wasn't timed here."""
        found = self._all.get(self._key(config, model))
        return None if found is None else from_json(Pace, found)

    def measure(self, config: TrainConfig, model: ModelConfig, source: Source | None) -> None:
        """Time a model as a run trains it, unless that was done, and keep the result.

        source: its training data; if that isn't here, the model is timed on built-in images.
        """
        key = self._key(config, model)
        if key not in self._all:
            pace = measure_pace(config, model, source, self.world)
            self._all = {**read_object(self.path), key: pace.to_json()}
            write_json(self.path, self._all)

    def _key(self, config: TrainConfig, model: ModelConfig) -> str:
        """Return what a pace depends on, as one word."""
        settings = (config.batch_size, config.precision, config.compile, config.micro_batch)
        data = (as_spec(config.data.train).source, config.data.pipeline, config.data.cache)
        rest = (config.optimizer.name, config.objective.name, config.activation_checkpointing)
        whole = [self.world.device_name, type(model).__name__, to_dict(model), *settings, *data, *rest]
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]


def measure_pace(config: TrainConfig, model: ModelConfig, source: Source | None, world: World) -> Pace:
    """Time a few steps and forward passes of a model; a batch that takes too long or too much memory is halved."""
    macs, device = cost_of(model).macs, world.device
    rate = _matrix_rate(device) * SHARE
    batch_size = config.batch_size
    while batch_size % (2 * config.data.group) == 0 and 6 * macs * batch_size / rate > LONGEST:
        batch_size //= 2
    began = time.perf_counter()
    if source is None:
        height, width = model.size
        source = open_data(f"shapes:train[:{IMAGES // 8},size={max(height, width)}]")
    total = len(source)
    part = Subset(source, np.linspace(0, total - 1, min(total, IMAGES)).astype(np.int64))
    part.spec, part.may_lack_classes = source.spec, True
    kept = cached(part, config.data.cache)
    read = (time.perf_counter() - began) / len(part)
    while True:
        try:
            return _timed(_alone(config, batch_size), kept, total, macs, read, world)
        except torch.OutOfMemoryError:
            if batch_size % (2 * config.data.group):
                raise
            batch_size //= 2
        finally:
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()


def _alone(config: TrainConfig, batch_size: int) -> TrainConfig:
    """Return a run's settings without what it measures, and with another batch size."""
    micro_batch = config.micro_batch if batch_size == config.batch_size else None
    data = replace(config.data, evaluate=None)
    return replace(
        config,
        data=data,
        select="last",
        frozen=FrozenConfig(),
        batch_size=batch_size,
        micro_batch=None if micro_batch == "auto" else micro_batch,
    )


def _timed(
    config: TrainConfig, source: Source, num_images: int, macs: int, read: float, world: World
) -> Pace:
    began = time.perf_counter()
    parts = build(config, world, Inputs(source), num_images)
    parts.objective.train()
    step = seconds_per_step(config, parts, world)
    start = time.perf_counter() - began - min(TRIAL_SECONDS + step, MOST_TRIALS * step)
    image = _seconds_per_image(parts, world)
    kept = 0.0 if config.data.cache == "none" else read
    return Pace(step / (6 * macs * config.batch_size), image / (2 * macs), max(0.0, start), kept)


def _seconds_per_image(parts: RunParts, world: World) -> float:
    """Return how long it takes to pass an image forward, among so many that the start of a pass doesn't count."""
    count = min(64, len(parts.source))
    while True:
        images = SourcePass(
            Subset(parts.source, np.arange(count)),
            parts.preprocessing,
            world=world,
            batch_size=EVALUATION_BATCH,
            bad_images="any",
        )
        began = time.perf_counter()
        images.logits(parts.model, parts.objective.dtype)
        seconds = time.perf_counter() - began
        if seconds > PASS_SECONDS or count == len(parts.source):
            return seconds / count
        count = min(4 * count, len(parts.source))
