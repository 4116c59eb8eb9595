"""The user's own module, any `forward(images) -> logits`, as a Model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.errors import InputError, first_line
from vitkit.models.configs import OwnConfig, Size, as_size
from vitkit.models.model import Model, evaluating
from vitkit.models.precision import DTYPES, Precision
from vitkit.models.record import Record

OWN = "module:"
"Prefix of the MODEL string of a model that was passed as an object, not by name."


class OwnModule(Model):
    """Gives the module's own logits, or those of a new linear layer on its `features(images)`."""

    config: OwnConfig
    autocasts = True

    def __init__(self, module: nn.Module, config: OwnConfig) -> None:
        super().__init__()
        self.config, self.module = config, module
        self.head: nn.Module = nn.Identity()
        if config.new_head:
            self._read_by_new_head()
            self.head = self._new_head()

    @property
    def activation_checkpointing(self) -> bool:
        """Always False: which parts could be recomputed isn't known."""
        return False

    @activation_checkpointing.setter
    def activation_checkpointing(self, asked: bool) -> None:
        if asked:
            raise InputError(
                "activation_checkpointing only works for vitkit's own models: remove it, and use "
                "torch.utils.checkpoint inside your module"
            )

    def forward(self, images: Tensor, record: Record | None = None) -> Tensor:
        if self.config.new_head:
            return super().forward(images, record)
        if record is not None:
            return self._record(images, record)
        self.check_images(images)
        with self._computing(images):
            return self.module(images)

    def features(self, images: Tensor, record: Record | None = None) -> Tensor:
        self.check_images(images)
        if record is not None:
            self._record(images, record)
        if not self.config.num_features:
            raise InputError(
                f"{self.config.module} has no features: give it a method features(images) that returns (batch, width)"
            )
        with self._computing(images):
            return compute_features(self.module, images)

    def _record(self, images: Tensor, record: Record) -> Tensor:
        """Return the module's own logits, and record what its forward pass keeps, besides its features."""
        self.check_images(images)
        with self._computing(images):
            if "record" in signature(self.module.forward).parameters:
                logits = self.module(images, record=record)
            else:
                record.start(0)
                logits = self.module(images)
        if record.wants("features") and record.features is None:
            record.keep("features", self.features(images))
        if missing := [kind for kind in sorted(record.kinds) if getattr(record, kind) in (None, {})]:
            raise InputError(
                f"{self.config.module} records no {' and no '.join(missing)}: let its forward take `record` and call "
                f"record.keep({missing[0]!r}, ...)"
            )
        return logits

    def classify(self, features: Tensor) -> Tensor:
        if not self.config.new_head:
            raise InputError(f"{self.config.module} computes logits from images, not from features")
        return self.head(features)

    def reset_head(self, num_classes: int, bias: float = 0.0) -> None:
        """Replace the module's own logits with a linear layer on its features; without features, keep them."""
        config = self.config
        if not config.num_features and num_classes == config.num_classes:
            return
        if not config.num_features:
            raise InputError(
                f"{config.module} has {config.num_classes} classes, but {num_classes} are needed: build it with "
                f"{num_classes}, or give it a method features(images) that returns (batch, width), for a new head"
            )
        self.config = replace(config, num_classes=num_classes, new_head=True)
        self._read_by_new_head()
        self.head = self._new_head(bias)

    def set_image_size(self, image_size: Size) -> None:
        if as_size(image_size) != self.config.size:
            found = describe(self.module, image_size, self.config.channels)
            self.config = replace(self.config, image_size=found.size, num_features=found.num_features)

    def convert(self, precision: Precision) -> None:
        """Leave the weights as they are, since a module may keep statistics: autocast chooses what is computed in bfloat16."""

    def set_precision(self, precision: Precision, largest: Mapping[str, float] | None = None) -> None:
        if precision == "float8":
            raise InputError(
                f"float8 is for vitkit's own models, and {self.config.module} is a module of your own"
            )
        super().set_precision(precision)

    def _computing(self, images: Tensor) -> AbstractContextManager[Any]:
        """Return autocast if the module computes in another precision than its own."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(images.device.type, DTYPES[self.precision])

    def why_unmerged(self) -> str | None:
        return f"{self.config.module} is a module of your own, so its tokens are not known"

    def _new_head(self, bias: float = 0.0) -> nn.Module:
        if not self.config.num_classes:
            return nn.Identity()
        head = nn.Linear(self.config.num_features, self.config.num_classes)
        nn.init.zeros_(head.weight)
        nn.init.constant_(head.bias, bias)
        like = next(self.module.parameters(), head.weight)
        return head.to(device=like.device, dtype=like.dtype)

    def _read_by_new_head(self) -> None:
        """Freeze parameters that don't affect the features, such as the module's own head: DDP waits for every gradient."""
        learned = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        with evaluating(self.module), torch.enable_grad():
            features = compute_features(self.module, _blank(self.module, self.config))
            if not features.requires_grad:
                return
            gradients = torch.autograd.grad(features.sum(), learned, allow_unused=True)
        for parameter, gradient in zip(learned, gradients, strict=True):
            if gradient is None:
                parameter.requires_grad_(False)


def describe(module: nn.Module, image_size: Size, channels: int = 3) -> OwnConfig:
    """Return the number of classes and features of a module, and its cost, for images of this size."""
    from torch.utils.flop_counter import FlopCounterMode

    name = type(module).__name__
    config = OwnConfig(as_size(image_size), channels, 0, module=name)
    image = _blank(module, config)
    where = f"of {config.size[0]}x{config.size[1]} pixels"
    counter = FlopCounterMode(display=False)
    with evaluating(module), torch.no_grad(), counter, _blamed(f"{name} can't take images {where}"):
        logits = module(image)
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != 1:
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(f"{name} returns {got} for one image; expected logits of shape (1, classes)")
    return replace(
        config,
        num_classes=logits.shape[1],
        num_features=_num_features(module, image),
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        macs_per_pixel=counter.get_total_flops() / 2 / (config.size[0] * config.size[1]),
    )


def _num_features(module: nn.Module, image: Tensor) -> int:
    """Return the width of a module's features, or 0 if it has none, or not one row per image."""
    with evaluating(module), torch.no_grad(), _blamed(f"the features of {type(module).__name__} failed"):
        features = compute_features(module, image)
    return features.shape[1] if features.ndim == 2 and len(features) == 1 else 0


def compute_features(module: nn.Module, images: Tensor) -> Tensor:
    """Return the result of a module's method `features`, or the input of a timm model's head, or an empty tensor."""
    own, body, head = (
        getattr(module, name, None) for name in ("features", "forward_features", "forward_head")
    )
    if callable(own) and not isinstance(own, nn.Module):  # torchvision's VGG has a submodule of this name
        return own(images)
    if callable(body) and callable(head):
        return head(body(images), pre_logits=True)
    return torch.empty(0)


@contextmanager
def _blamed(what: str) -> Iterator[None]:
    """If the user's own code fails, raise an InputError that says what was tried."""
    try:
        yield
    except Exception as error:
        cause = first_line(error)
        raise InputError(f"{what}: {cause}") from error


def _blank(module: nn.Module, config: OwnConfig) -> Tensor:
    like = next(module.parameters(), torch.empty(0))
    return torch.zeros(1, config.channels, *config.size, device=like.device, dtype=like.dtype)


def object_name(module: nn.Module, name: str | None = None) -> str:
    """Return the MODEL string of a model that is passed as an object: its class and a hash of its tensors' shapes.

    The same architecture has the same string, so its run resumes; another architecture is another run.
    """
    if name is not None:
        return OWN + name
    shapes = repr([(key, tuple(tensor.shape)) for key, tensor in module.state_dict().items()])
    return f"{OWN}{type(module).__name__}-{hashlib.sha256(shapes.encode()).hexdigest()[:8]}"
