"""Training objectives: a literal table of modules that wrap the model and compute a step's loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

from vitkit.config import Count, Rate, Share, check_bounds
from vitkit.errors import InputError
from vitkit.models.configs import Preprocessing
from vitkit.models.model import Model
from vitkit.objectives.mae import MaskedAutoencoding
from vitkit.objectives.masked_patches import MaskedPatches, Target
from vitkit.objectives.objective import Objective
from vitkit.objectives.supervised import Supervised

# The settings that each objective reads.
READS: dict[str, tuple[str, ...]] = {
    "supervised": ("loss", "label_smoothing"),
    "masked_patches": ("corrupt_share", "target"),
    "mae": ("mask_share", "decoder_width", "decoder_depth", "patch_norm"),
}


@dataclass(frozen=True)
class ObjectiveConfig:
    """What the model learns from images."""

    name: Literal["supervised", "masked_patches", "mae"] = "supervised"
    "supervised: learn the labels. masked_patches and mae need no labels. masked_patches: predict the colours of corrupted patches, as in the ViT paper. mae: predict the pixels of patches that the encoder doesn't see."
    loss: Literal["auto", "softmax", "sigmoid"] = "auto"
    "softmax: cross-entropy over all classes. sigmoid: binary cross-entropy, summed over classes. auto: sigmoid for multi-label data, else softmax."
    label_smoothing: Rate = 0.0
    "Share of each target that is spread evenly over all classes."
    corrupt_share: Share = 0.5
    "masked_patches: share of patches to corrupt. Of these, 80% become the mask embedding, 10% another patch of the image, and 10% are unchanged."
    target: Target = "mean_color"
    "masked_patches: what to predict for a corrupted patch: its mean colour (3 bits per channel, 512 classes), 4x4 such colours, or its pixels (squared error)."
    mask_share: Share = 0.75
    "mae: share of patches that the encoder doesn't see."
    decoder_width: int = 512
    "mae: width of the decoder's tokens."
    decoder_depth: Count = 8
    "mae: number of decoder blocks."
    patch_norm: bool = True
    "mae: whether to normalise the target pixels within each patch."

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name not in ("name", *READS[self.name]) and getattr(self, field.name) != field.default:
                raise InputError(
                    f"{field.name} does not apply to objective {self.name!r}: remove it, or "
                    f"replace the section: 'objective={{name: {self.name}}}'"
                )
        check_bounds(self)
        if self.decoder_width < 4 or self.decoder_width % 4:
            raise InputError(f"decoder_width must be a multiple of 4, not {self.decoder_width}")
        if self.decoder_width > 32 and self.decoder_width % 32:
            raise InputError(f"decoder_width above 32 must be a multiple of 32, not {self.decoder_width}")


OBJECTIVES: dict[str, Callable[[ObjectiveConfig, Model, Preprocessing, bool], Objective]] = {
    "supervised": lambda config, model, preprocessing, several: Supervised(
        model,
        preprocessing,
        sigmoid=several if config.loss == "auto" else config.loss == "sigmoid",
        label_smoothing=config.label_smoothing,
        is_multi_label=several,
    ),
    "masked_patches": lambda config, model, preprocessing, several: MaskedPatches(
        model, preprocessing, corrupt_share=config.corrupt_share, target=config.target
    ),
    "mae": lambda config, model, preprocessing, several: MaskedAutoencoding(
        model, preprocessing, **{name: getattr(config, name) for name in READS["mae"]}
    ),
}


def build_objective(
    config: ObjectiveConfig, model: Model, preprocessing: Preprocessing, is_multi_label: bool
) -> Objective:
    """Return the module that each training step runs."""
    return OBJECTIVES[config.name](config, model, preprocessing, is_multi_label)
