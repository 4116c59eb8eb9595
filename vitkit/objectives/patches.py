"""Shared by objectives that hide patches: which models have patches, how many are hidden, pictures of predictions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitkit.costs import cost_of
from vitkit.errors import InputError
from vitkit.models.attention.full import FullAttention
from vitkit.models.compact import CompactTransformer
from vitkit.models.configs import (
    CompactConfig,
    HybridConfig,
    ModelConfig,
    OwnConfig,
    Preprocessing,
    ResNetConfig,
    ViTConfig,
)
from vitkit.models.model import Model
from vitkit.models.vit import VisionTransformer
from vitkit.objectives.objective import Objective

AFTER_THE_ENCODER = ("attn_pool", "seq_pool", "fc_norm", "pre_logits", "head", "attention_pool", "fc")
ENCODER = ("patch_embedding", "qkv", "attention", "projection", "mlp")
"Rows of the report of costs that have an encoder's multiply-adds."
GREY = 128
"Value of hidden patches in pictures."


class PatchObjective(Objective):
    """Hides some of an image's patches, and learns to predict them."""

    def __init__(
        self, model: Model, preprocessing: Preprocessing, name: str, setting: str, share: float
    ) -> None:
        """setting: the name of `share`, for messages."""
        super().__init__(model, preprocessing)
        self.config = config = check_patches(model.config, name)
        self.patch = config.kernel if isinstance(config, CompactConfig) else config.patch
        self.num_hidden = round(config.num_patches * share)
        if not 0 < self.num_hidden < config.num_patches:
            raise InputError(
                f"{setting} {share:g} hides {self.num_hidden} of {config.num_patches} patches: "
                "it must hide some, but not all"
            )
        outer = model.classifier if isinstance(model, CompactTransformer) else model
        for part in AFTER_THE_ENCODER:
            if (module := getattr(outer, part, None)) is not None:
                module.requires_grad_(False)  # not used by these objectives

    def last_norm(self) -> list[nn.Module]:
        """Return a norm for the encoder's output if the model's own norm comes after its pool."""
        config = self.config
        if isinstance(config, CompactConfig) or config.final_norm == "tokens":
            return []
        return [nn.LayerNorm(config.width, config.norm_epsilon)]

    def encoder_macs(self, num_patches: int) -> int:
        """Return the multiply-adds of an encoder that embeds all patches and reads `num_patches` of them."""
        config, model = self.config, self.model
        if isinstance(config, ViTConfig) and config.attention != "full":
            parts = cost_of(config).parts
            return sum(parts[name].macs for name in ENCODER)
        embedding: nn.Module
        if isinstance(model, CompactTransformer):
            embedding, blocks = model.tokenizer, model.classifier.blocks
        else:
            assert isinstance(model, VisionTransformer)
            embedding, blocks = model.patch_embed, model.blocks
        macs = config.num_patches * count_weights(embedding)
        return macs + block_macs(blocks, config.num_prefix + num_patches, config.width)

    def as_pixels(self, patches: Tensor) -> Tensor:
        """Return patches of normalised images (images, patches, values) as uint8."""
        by_channel = patches.unflatten(2, (self.config.channels, -1))
        values = by_channel / self.scale[:, 0] + self.mean[:, 0]
        return values.round().clamp(0, 255).byte().flatten(2)

    def panels(self, images: Tensor, *patches: Tensor) -> Tensor:
        """Return uint8 images next to copies with other patches: (images, 1 + copies, channels, height, width)."""
        others = (paste_patches(images, panel, self.patch) for panel in patches)
        return torch.stack([images, *others], dim=1)


def at(values: Tensor, numbers: Tensor) -> Tensor:
    """Return values (images, patches, size) at the patch indices (images, chosen) of each image."""
    return values.gather(1, numbers[:, :, None].expand(-1, -1, values.shape[2]))


def paste_patches(images: Tensor, patches: Tensor, patch: int) -> Tensor:
    """Return the images with other patches, as from `cut_patches`; a border that no patch covers is unchanged."""
    batch, channels, height, width = images.shape
    rows, columns = height // patch, width // patch
    tiles = patches.reshape(batch, rows, columns, channels, patch, patch).permute(0, 3, 1, 4, 2, 5)
    pasted = images.clone()
    pasted[:, :, : rows * patch, : columns * patch] = tiles.reshape(
        batch, channels, rows * patch, columns * patch
    )
    return pasted


def block_macs(blocks: nn.ModuleList, tokens: int, width: int) -> int:
    """Return the multiply-adds of encoder blocks: every matrix on each token, and attention between all of them."""
    weights = count_weights(blocks)
    for module in blocks.modules():
        if isinstance(module, FullAttention) and module.relative is not None:
            weights += (module.heads - 1) * module.relative.numel()  # every head uses the table
    return tokens * weights + 2 * tokens * tokens * width * len(blocks)


def count_weights(module: nn.Module) -> int:
    """Return the number of weights in a module's matrices: its multiply-adds for one token."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.ndim > 1)


def check_patches(config: ModelConfig, objective: str) -> ViTConfig | CompactConfig:
    """Return the config if the model's tokens are patches of the image, else raise InputError."""
    if isinstance(config, CompactConfig) and config.tokenizer == "patches" and objective == "masked_patches":
        return config
    if not isinstance(config, ViTConfig) or isinstance(config, HybridConfig):
        others = ", a ViT-Lite or a CVT" if objective == "masked_patches" else ""
        raise InputError(f"objective {objective} needs a plain ViT{others}: {_why_not(config)}")
    if config.patch_dropout:
        raise InputError(f"objective {objective} selects patches itself: set model.patch_dropout=0")
    return config


def _why_not(config: ModelConfig) -> str:
    if isinstance(config, ResNetConfig):
        return "a ResNet has no tokens to hide"
    if isinstance(config, OwnConfig):
        return f"{config.module} is a module of your own, so its internals are not known"
    if isinstance(config, CompactConfig) and config.tokenizer == "patches":
        return "this model's encoder can't skip patches"
    return "this model's tokens come from a convolutional stem, so patches can't be masked"
