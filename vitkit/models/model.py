"""What every model family offers: logits, features, a new head, another input size."""

from __future__ import annotations

import dataclasses

from torch import Tensor, nn

from vitkit.errors import InputError
from vitkit.models.configs import ModelConfig, Size, as_size
from vitkit.models.record import Record

# How the names of a classification layer's weights begin, in every family.
HEAD = ("head.", "classifier.fc.")


def check_rgb(config: ModelConfig, named: str) -> None:
    """Refuse a model that takes other than RGB images, which is what data has."""
    if config.channels != 3:
        raise InputError(f"{named} takes images of {config.channels} channels; data has RGB, 3")


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
