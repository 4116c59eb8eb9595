"""What a run says of itself before it starts: which model on which data, how long, and what may surprise."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from vitkit.data.policies import erased_share
from vitkit.data.splits import counted
from vitkit.models.configs import CompactConfig, ViTConfig
from vitkit.models.names import changed_shape
from vitkit.training.build import Parts, is_trained
from vitkit.training.config import FrozenConfig, TrainConfig
from vitkit.world import World


def describe(config: TrainConfig, parts: Parts, world: World) -> list[str]:
    """Say what will be trained on what, and what may surprise."""
    per_process = f" ({parts.loader.count} on each of {world.ranks} processes)" if world.ranks > 1 else ""
    return [
        f"{_model_in_words(config, parts)} on {config.data.train}: {counted(len(parts.source), 'image')}"
        + (f", {counted(len(parts.class_names), 'class')}" if parts.class_names else ""),
        f"{counted(parts.periods.total, 'step')} of {config.batch_size:,} images{per_process}, "
        f"{parts.periods.total / parts.periods.per_epoch:,.4g} epochs, on {device_name(world.device)}",
        *_surprises(config, parts),
    ]


def _model_in_words(config: TrainConfig, parts: Parts) -> str:
    """Return an untrained model's name with the settings that make it another: 'Ti/16 (patch 4, width 64)'."""
    name = config.model["name"]
    if is_trained(config, parts.inputs):
        return str(name)
    own = changed_shape(name, config.model)
    return f"{name} ({', '.join(own)})" if own else str(name)


def _surprises(config: TrainConfig, parts: Parts) -> Iterator[str]:
    """Say what a user may not have meant."""
    span = round(1 / (1 - config.average)) if config.average else 0
    if span > parts.periods.total / 3:
        yield (
            f"the average of weights reaches back about {span:,} steps, the run has {parts.periods.total:,}: "
            "it will lag behind; a smaller one, such as average=0.99, follows sooner"
        )
    readers = {"shots": {"fewshot"}, "neighbours": {"knn"}, "data": {"fewshot", "probe", "knn"}}
    for name, evaluators in readers.items():
        is_changed = getattr(config.frozen, name) != getattr(FrozenConfig, name)
        if is_changed and not evaluators & set(config.frozen.evaluators):
            yield f"frozen.{name} is read by {' and '.join(sorted(evaluators))}, which frozen.evaluators doesn't ask for"
    model = parts.model.config
    for step in parts.loader.pipeline.batch:
        if step.name == "randaugment" and (share := erased_share(model.size, **dict(step.arguments))):
            yield (
                f"{step} leaves nothing of {share:.0%} of these images: its shifts and boxes are in pixels, made for "
                "224x224; those of timm_randaugment(rand-m9-mstd0.5-inc1) follow the size"
            )
    if isinstance(model, ViTConfig | CompactConfig) and model.covered != model.size:
        seen, given = ("x".join(map(str, sides)) for sides in (model.covered, model.size))
        yield f"patches of {model.stride} cover {seen} of the {given} pixels: the rest is not read"


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return counted(torch.get_num_threads(), "CPU thread") if device.type == "cpu" else device.type
