"""What every model family offers: logits, features, a new head, another input size; and how its modules are run."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from vitkit.errors import InputError
from vitkit.models.configs import ModelConfig, Size, as_size
from vitkit.models.record import Record

# How the names of a classification layer's weights begin, in every family.
HEAD = ("head.", "classifier.fc.")
# The convolution that reads pixels, in every family; a hybrid has the backbone's before the projection of its patches.
FIRST_CONVOLUTIONS = (
    "patch_embed.backbone.stem.conv",
    "patch_embed.backbone.conv",
    "patch_embed.proj",
    "stem.conv",
    "tokenizer.conv_layers.0.0",
)


def check_rgb(config: ModelConfig, named: str) -> None:
    """Refuse a model that takes other than RGB images, which is what data has."""
    if config.channels != 3:
        raise InputError(f"{named} takes {config.channels}-channel images; data has 3 channels (RGB)")


def first_convolution(model: Model) -> str:
    """Return the name of the convolution that reads pixels."""
    names = {name for name, _ in model.named_modules()}
    return next(name for name in FIRST_CONVOLUTIONS if name in names)


class Model(nn.Module):
    """Base of all families: built from a frozen config, `forward(images) -> logits`."""

    config: ModelConfig

    def __init__(self) -> None:
        super().__init__()
        self.activation_checkpointing = False  # recompute each block in the backward pass, to save memory

    def forward(self, images: Tensor, record: Record | None = None) -> Tensor:
        """Return logits (batch, classes); what `record` asks for is kept in it."""
        features = self.features(images, record)
        if record is not None:
            record.keep("features", features)
        return self.classify(features)

    def features(self, images: Tensor, record: Record | None = None) -> Tensor:
        """Return what the head reads: (batch, width)."""
        raise NotImplementedError

    def classify(self, features: Tensor) -> Tensor:
        """Return logits of features; the features themselves where the model has no head."""
        raise NotImplementedError

    def reset_head(self, num_classes: int, bias: float = 0.0) -> None:
        """Replace the whole head by a linear layer whose weights are zero, as fine-tuning starts (ViT, section 3.2)."""
        raise NotImplementedError

    def reset_tables(self) -> None:
        """Compute the fixed tables, which no weight file holds."""

    def resample_positions(self, old: ModelConfig) -> None:
        """Fit what depends on the input size to `self.config`, coming from `old`."""

    def set_image_size(self, image_size: Size) -> None:
        """Take images of another size from now on; learned positions are resampled."""
        old, self.config = self.config, dataclasses.replace(self.config, image_size=as_size(image_size))
        self.resample_positions(old)

    def check_images(self, images: Tensor) -> None:
        """Refuse images that the model was not built for."""
        config = self.config
        if images.ndim != 4 or images.shape[1] != config.channels or images.shape[2:] != config.size:
            expected = f"(batch, {config.channels}, {config.size[0]}, {config.size[1]})"
            raise InputError(
                f"images have shape {tuple(images.shape)}, the model takes {expected}: "
                f"resize them, or call model.set_image_size((height, width))"
            )


def run_in(dtype: torch.dtype, module: nn.Module, *inputs: Any) -> Any:
    """Return module(*inputs) computed in `dtype`, residual stream included, while its weights stay as they are.

    The cast is part of the forward pass, so that gradients come back in fp32.
    Autocast keeps norms and the sums of residual branches in fp32; here every activation is in `dtype`: less memory
    traffic, which is what bounds a ViT on a GPU. Norms and softmax still sum in fp32 inside their kernels.
    """
    if dtype == torch.float32:
        return module(*inputs)
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    cast = {name: _cast(tensor, dtype) for name, tensor in tensors.items()}
    return functional_call(module, cast, tuple(_cast(value, dtype) for value in inputs))


def recomputed(block: nn.Module, *inputs: Any) -> Tensor:
    """Return block(*inputs), of which the backward pass computes all but the inputs once more (activation checkpointing).

    The block keeps the weights that `run_in` lends it now, since by then they are given back. Parameters of its own
    stay where they are: FSDP gathers them again.
    """
    lent = {name: tensor for name, tensor in block.named_parameters() if not isinstance(tensor, nn.Parameter)}
    tensors = {**lent, **dict(block.named_buffers())}
    return checkpoint(functional_call, block, tensors, inputs, use_reentrant=False)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
