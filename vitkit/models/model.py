"""The base class of all model families, and helpers to run modules in another dtype or recompute them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from vitkit.config import Bounds, check_choice
from vitkit.errors import InputError
from vitkit.models.configs import ModelConfig, Size, as_size
from vitkit.models.float8 import Float8Linear, to_float8
from vitkit.models.layers import Activation
from vitkit.models.precision import DTYPES, Precision, in_words
from vitkit.models.record import Record

# Prefixes of the names of the classification layer's weights, for all families.
HEAD = ("head.", "classifier.fc.")
# The convolution that reads pixels, for all families. A hybrid also has patch_embed.proj, so its backbone comes first.
FIRST_CONVOLUTIONS = (
    "patch_embed.backbone.stem.conv",
    "patch_embed.backbone.conv",
    "patch_embed.proj",
    "stem.conv",
    "tokenizer.conv_layers.0.0",
)


def check_rgb(config: ModelConfig, named: str) -> None:
    """Raise InputError if a model doesn't take RGB images, which is what all data sources give."""
    if config.channels != 3:
        raise InputError(f"{named} takes {config.channels}-channel images; data has 3 channels (RGB)")


def first_convolution(model: Model) -> str:
    """Return the name of the convolution that reads pixels."""
    names = {name for name, _ in model.named_modules()}
    return next(name for name in FIRST_CONVOLUTIONS if name in names)


class Model(nn.Module):
    """Base of all families: built from a frozen config, `forward(images) -> logits`."""

    config: ModelConfig
    autocasts: ClassVar[bool] = False
    "Whether to use autocast for another precision, as for modules that keep statistics; otherwise everything is cast."

    def __init__(self) -> None:
        super().__init__()
        self.activation_checkpointing = False  # recompute each block in the backward pass to save memory
        self.merge = 0  # patches that each layer merges, in inference
        self.precision: Precision = "float32"

    def forward(self, images: Tensor, record: Record | None = None) -> Tensor:
        """Return logits (batch, classes), and fill `record` if one is given."""
        features = self.features(images, record)
        if self.precision != "float32":
            features = features.float()  # the head stays in float32, so that close logits differ
        if record is not None:
            record.keep("features", features)
        return self.classify(features)

    def features(self, images: Tensor, record: Record | None = None) -> Tensor:
        """Return the features that the head reads: (batch, width)."""
        raise NotImplementedError

    def classify(self, features: Tensor) -> Tensor:
        """Return the logits of features, or the features themselves if the model has no head."""
        raise NotImplementedError

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the pool's input, normalised, as in timm: tokens (batch, tokens, width), or a ResNet's feature map."""
        raise NotImplementedError

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return logits from the output of `forward_features` or, with `pre_logits`, the features that the head reads."""
        features = self.pool_features(x)
        if self.precision != "float32":
            features = features.float()
        return features if pre_logits else self.classify(features)

    def pool_features(self, x: Tensor, record: Record | None = None) -> Tensor:
        """Return features (batch, width) from the output of `forward_features`."""
        raise NotImplementedError

    def reset_head(self, num_classes: int, bias: float = 0.0) -> None:
        """Replace the whole head with a zero-initialised linear layer, as for fine-tuning (ViT, section 3.2)."""
        raise NotImplementedError

    def reset_tables(self) -> None:
        """Compute the fixed tables, which are not in weight files."""

    def resample_positions(self, old: ModelConfig) -> None:
        """Adapt all that depends on the input size from `old` to `self.config`."""

    def set_image_size(self, image_size: Size) -> None:
        """Change the input size; learned positions are resampled."""
        old, self.config = self.config, dataclasses.replace(self.config, image_size=as_size(image_size))
        self.resample_positions(old)

    def set_merge(self, merge: int) -> None:
        """Merge this many patches in each layer from now on (ToMe); 0 merges none. For inference, without training."""
        Bounds(at_least=0).check("merge", merge)
        if merge and (why := self.why_unmerged()):
            raise InputError(f"patches can't be merged in this model: {why}")
        self.merge = merge

    def why_unmerged(self) -> str | None:
        """Return why a model's patches can't be merged; None if they can."""
        return "it has no tokens"

    def set_precision(self, precision: Precision, largest: Mapping[str, float] | None = None) -> None:
        """Compute in another precision from now on, except for the head. For inference; float32 can't be restored.

        largest: for float8, the largest magnitude of the inputs of each of its layers (`vitkit.calibration`). Without, each
        token is scaled by its own.
        """
        check_choice("precision", precision, Precision)
        if precision == self.precision:
            return
        if self.precision != "float32":
            raise InputError(
                f"the model is already in {self.precision}: load it again to compute in {precision}"
            )
        if precision == "float8":
            to_float8(self, largest)  # from float32: rounding twice loses more
        self.convert(precision)
        self.precision = precision

    def convert(self, precision: Precision) -> None:
        """Store the weights in another precision."""
        kept = {
            buffer
            for layer in self.modules()
            if isinstance(layer, Float8Linear)
            for buffer in layer.buffers()
        }
        for name, tensor in (*self.named_parameters(), *self.named_buffers()):
            if tensor.is_floating_point() and not name.startswith(HEAD) and tensor not in kept:
                tensor.data = tensor.data.to(DTYPES[precision])
        for module in self.modules():
            if isinstance(module, Activation):
                module.is_inferring = True

    @property
    def options(self) -> list[str]:
        """What differs from how the model is trained, in words."""
        return in_words(self.precision, self.merge)

    def check_whole(self, named: str) -> None:
        """Raise InputError if the model computes in a way that is for inference alone."""
        if self.options:
            raise InputError(
                f"{named} computes {' and '.join(self.options)}, which is for inference: load it without precision and merge"
            )

    def check_images(self, images: Tensor) -> Tensor:
        """Return images in the precision of the model; raise InputError unless they have the shape that it takes."""
        config = self.config
        if images.ndim != 4 or images.shape[1] != config.channels or images.shape[2:] != config.size:
            expected = f"(batch, {config.channels}, {config.size[0]}, {config.size[1]})"
            raise InputError(
                f"images have shape {tuple(images.shape)}, but the model takes {expected}: "
                f"resize them, or call model.set_image_size((height, width))"
            )
        return images if self.precision == "float32" else images.to(DTYPES[self.precision])


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode, then restore the mode of every module."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def run_in(dtype: torch.dtype, module: nn.Module, *inputs: Any) -> Any:
    """Return module(*inputs) computed in `dtype`, including the residual stream; the stored weights don't change.

    The cast is part of the forward pass, so gradients are in fp32. Autocast keeps norms and residual sums in fp32.
    Here every activation is in `dtype`, which reduces memory traffic, the bottleneck of a ViT on a GPU. Norms and
    softmax still accumulate in fp32 inside their kernels.
    """
    if dtype == torch.float32:
        return module(*inputs)
    if getattr(module, "autocasts", False):
        with torch.autocast(inputs[0].device.type, dtype):
            return module(*inputs)
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    cast = {name: _cast(tensor, dtype) for name, tensor in tensors.items()}
    return functional_call(module, cast, tuple(_cast(value, dtype) for value in inputs))


def recomputed(block: nn.Module, *inputs: Any) -> Tensor:
    """Return block(*inputs) with activation checkpointing: the backward pass recomputes it from the inputs.

    `run_in` puts cast weights into the block for the forward pass only, so they are passed on to the recomputation.
    The block's own parameters are not passed on: FSDP gathers them again.
    """
    lent = {name: tensor for name, tensor in block.named_parameters() if not isinstance(tensor, nn.Parameter)}
    tensors = {**lent, **dict(block.named_buffers())}
    return checkpoint(functional_call, block, tensors, inputs, use_reentrant=False)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
