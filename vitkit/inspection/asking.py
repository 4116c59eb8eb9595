"""Shared by all inspections: which models they are defined for, and passes over images in small batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from vitkit.config import Bounds
from vitkit.errors import InputError
from vitkit.models.configs import OwnConfig, TransformerConfig, ViTConfig
from vitkit.models.model import Model, evaluating
from vitkit.models.record import Record
from vitkit.predictor import Predictor
from vitkit.runtimes.model import RuntimeModel

Inspected = Model | Predictor
"A bare model, or one from `vitkit.load`."
ATTENTION_BYTES = 2**28
"Attention that one pass may hold in memory, if the caller doesn't set the batch size."
MOST_IMAGES = 64

Found = TypeVar("Found")
_SAID = "{} not defined for this model, because {}"


class Undefined(InputError):
    """Raised for an inspection that is not defined for a model."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(_SAID.format(f"{what} is", reason))
        self.what, self.reason = what, reason


def join_reasons(errors: Iterable[Undefined]) -> list[str]:
    """Return one sentence per reason, which lists everything that is undefined for that reason."""
    found: dict[str, list[str]] = {}
    for error in errors:
        found.setdefault(error.reason, []).append(error.what)
    return [_SAID.format(_all(what), reason) for reason, what in found.items()]


def _all(what: list[str]) -> str:
    return f"{', '.join(what[:-1])} and {what[-1]} are" if len(what) > 1 else f"{what[0]} is"


def bare(model: Inspected) -> Model:
    """Return the module itself, without a Predictor or torch.compile around it."""
    module = model.model if isinstance(model, Predictor) else model
    module = getattr(module, "_orig_mod", module)
    if not isinstance(module, Model):
        raise InputError(
            f"the model is {type(model).__name__}; expected a model from vitkit.load or create_model"
        )
    if isinstance(module, RuntimeModel):
        raise InputError(
            f"{module.folder.path} is an exported graph, which hides its inside: inspect the model folder that it was made from"
        )
    return module


def transformer(model: Inspected, what: str) -> tuple[Model, TransformerConfig]:
    """Return a transformer and its config; raise Undefined for a ResNet and for the user's own module."""
    module = bare(model)
    if isinstance(module.config, OwnConfig):
        raise Undefined(
            what, f"{module.config.module} is a module of your own, so its internals are not known"
        )
    if not isinstance(module.config, TransformerConfig):
        raise Undefined(what, "a ResNet has neither tokens nor attention")
    return module, module.config


def attending(model: Inspected, what: str) -> tuple[Model, TransformerConfig]:
    """Return a transformer and its config; raise Undefined if it has no attention between tokens."""
    module, config = transformer(model, what)
    if getattr(config, "attention", "full") == "linformer":
        raise Undefined(what, "Linformer attends to mixtures of all patches, not to patches")
    return module, config


def check_head(model: Inspected, what: str) -> None:
    """Raise Undefined if a model doesn't classify images."""
    config = bare(model).config
    if getattr(config, "pool", "") == "none":
        raise Undefined(what, "it has no pool, so it gives logits for each token, not for the image")
    if not config.num_classes:
        raise Undefined(what, "it has no classification head")


def reads_class_token(config: TransformerConfig) -> bool:
    """Return whether the class token stands for the image; one that no pool reads doesn't."""
    if config.pool == "none":
        return isinstance(config, ViTConfig) and bool(config.class_token)
    return config.pool == "token"


def ask(
    model: Model,
    images: Tensor,
    record: Record,
    take: Callable[[Record], Found],
    batch_size: int | None = None,
) -> list[Found]:
    """Pass images through the model, a few at a time, and return the result of `take` for each pass."""
    found = []
    with evaluating(model), torch.no_grad():
        for batch in batches(model, images, batch_size):
            model.features(batch, record)
            found.append(take(record))
    return found


def batches(model: Model, images: Tensor, batch_size: int | None, num_kept: int = 1) -> Iterator[Tensor]:
    """Yield images on the model's device, a few at a time.

    batch_size: by default, as many images as keep `num_kept` layers' attention within ATTENTION_BYTES, at least one.
    """
    config = model.config
    assert isinstance(config, TransformerConfig)
    if not isinstance(images, Tensor) or not images.is_floating_point():
        kind = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise InputError(
            f"images are {kind}; expected a float tensor, prepared with the model's preprocessing"
        )
    if len(images) == 0:
        raise InputError("no images to inspect: give at least one")
    if batch_size is None:
        layer_bytes = 4 * config.heads * config.num_tokens**2
        batch_size = max(1, min(MOST_IMAGES, ATTENTION_BYTES // (num_kept * layer_bytes)))
    Bounds(at_least=1).check("batch_size", batch_size)
    like = next(model.parameters())
    for batch in images.split(batch_size):
        yield batch.to(like.device, like.dtype)
