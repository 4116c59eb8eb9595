"""What objectives that hide patches share: the models that have them, how many are hidden, pixels of what is painted."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitkit.errors import InputError
from vitkit.models.configs import HybridConfig, Preprocessing, ViTConfig
from vitkit.models.layers import Attention
from vitkit.models.model import Model
from vitkit.models.vit import VisionTransformer
from vitkit.objectives.objective import Objective

GREY = 128
"What a hidden patch looks like in pictures."


class PatchObjective(Objective):
    """Learns from the patches of an image that it hides, some but not all of them."""

    def __init__(
        self, model: Model, preprocessing: Preprocessing, name: str, setting: str, share: float
    ) -> None:
        """setting: names the share of patches to hide in messages."""
        super().__init__(model, preprocessing)
        self.config = config = check_vit(model.config, name)
        assert isinstance(model, VisionTransformer)
        self.num_hidden = round(config.num_patches * share)
        if not 0 < self.num_hidden < config.num_patches:
            raise InputError(
                f"{setting} {share:g} takes {self.num_hidden} of {config.num_patches} patches: "
                "some must be taken, and some left"
            )
        for part in ("attn_pool", "seq_pool", "fc_norm", "pre_logits", "head"):
            if (module := getattr(model, part, None)) is not None:
                module.requires_grad_(False)  # nothing here reads what comes after the encoder

    def last_norm(self) -> list[nn.Module]:
        """Return a norm for the encoder's output where the model's own comes after its pool."""
        config = self.config
        return [] if config.final_norm == "tokens" else [nn.LayerNorm(config.width, config.norm_epsilon)]

    def encoder_macs(self, num_patches: int) -> int:
        """Return the multiply-adds of an encoder that embeds all patches and reads so many of them."""
        config, model = self.config, self.model
        assert isinstance(model, VisionTransformer)
        embedding = config.num_patches * count_weights(model.patch_embed)
        return embedding + block_macs(model.blocks, config.num_prefix + num_patches, config.width)

    def as_pixels(self, patches: Tensor) -> Tensor:
        """Return patches of normalised images (images, patches, values) as uint8."""
        by_channel = patches.unflatten(2, (self.config.channels, -1))
        values = by_channel / self.scale[:, 0] + self.mean[:, 0]
        return values.round().clamp(0, 255).byte().flatten(2)

    def panels(self, images: Tensor, *patches: Tensor) -> Tensor:
        """Return uint8 images beside what other patches make of them: (images, 1 + others, channels, height, width)."""
        others = (paste_patches(images, panel, self.config.patch) for panel in patches)
        return torch.stack([images, *others], dim=1)


def at(values: Tensor, numbers: Tensor) -> Tensor:
    """Return the values (images, patches, size) at each image's own patches, by their numbers (images, chosen)."""
    return values.gather(1, numbers[:, :, None].expand(-1, -1, values.shape[2]))


def paste_patches(images: Tensor, patches: Tensor, patch: int) -> Tensor:
    """Return the images with other patches, as `cut_patches` cuts them; a border that no patch covers stays."""
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
        if isinstance(module, Attention) and module.relative is not None:
            weights += (module.heads - 1) * module.relative.numel()  # each head has the table once more
    return tokens * weights + 2 * tokens * tokens * width * len(blocks)


def count_weights(module: nn.Module) -> int:
    """Return how many numbers a module's matrices hold: its multiply-adds for one token."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.ndim > 1)


def check_vit(config: object, objective: str) -> ViTConfig:
    """Return the config of a model whose tokens are patches of the image, which hiding them needs."""
    if not isinstance(config, ViTConfig) or isinstance(config, HybridConfig):
        raise InputError(f"objective {objective} needs a plain ViT, whose tokens are patches of the image")
    if config.patch_dropout:
        raise InputError(f"objective {objective} chooses patches by itself: set model.patch_dropout=0")
    return config
