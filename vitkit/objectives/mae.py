"""Masked autoencoding (MAE): the encoder sees a few patches, and a small decoder predicts the pixels of the rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from vitkit.data.draws import Draw
from vitkit.data.operations import send
from vitkit.errors import InputError
from vitkit.models.configs import Preprocessing, ViTConfig
from vitkit.models.layers import init_encoder_layer
from vitkit.models.model import Model, recomputed
from vitkit.models.positions import sincos_2d
from vitkit.models.vit import Block, VisionTransformer, cut_patches
from vitkit.objectives.objective import Batch, Loss
from vitkit.objectives.patches import GREY, PatchObjective, at, block_macs, count_weights


class MaskedAutoencoding(PatchObjective):
    """The mean squared error of the masked patches' pixels."""

    def __init__(
        self,
        model: Model,
        preprocessing: Preprocessing,
        *,
        mask_share: float,
        decoder_width: int,
        decoder_depth: int,
        patch_norm: bool,
    ) -> None:
        super().__init__(model, preprocessing, "mae", "mask_share", mask_share)
        assert isinstance(model, VisionTransformer) and isinstance(self.config, ViTConfig)
        if self.config.positions_at != "stem" or self.config.positions == "relative":
            raise InputError("objective mae needs positions that are added at the stem")
        if self.config.attention != "full":
            raise InputError(
                f"objective mae needs attention 'full', not {self.config.attention!r}, "
                "because its encoder reads only a few patches"
            )
        if patch_norm and self.config.channels * self.patch**2 == 1:
            raise InputError(
                "objective mae can't normalise patches of one value: set objective.patch_norm=false"
            )
        self.patch_norm = patch_norm
        self.decoder = Decoder(self.config, decoder_width, decoder_depth, self.last_norm())
        self._encoder = (Encoder(model),)  # in a tuple, so its parameters are not registered twice

    def prepare(self, batch: Batch, draw: Draw) -> Batch:
        order = np.argsort(draw.uniform("mask", self.config.num_patches), axis=1)
        return {**batch, "order": send(batch["image"].device, order)[0]}

    def cost(self, macs: int, parameters: int) -> tuple[int, int]:
        decoder, patches, prefix = self.decoder, self.config.num_patches, self.config.num_prefix
        seen = patches - self.num_hidden
        found = self.encoder_macs(seen)
        found += (prefix + seen) * count_weights(decoder.narrow) + patches * count_weights(decoder.paint)
        found += block_macs(decoder.blocks, prefix + patches, decoder.narrow.out_features)
        return found, parameters + sum(parameter.numel() for parameter in decoder.parameters())

    def forward(self, batch: Batch) -> Loss:
        images = self.normalize(batch["image"])
        pixels, _, _ = self.targets(images)
        errors = (self.paint(images, batch["order"]) - pixels).square().mean(dim=2)  # (images, patches)
        return errors.gather(1, batch["order"][:, : self.num_hidden]).mean(), {}

    def paint(self, images: Tensor, order: Tensor) -> Tensor:
        """Return the decoder's prediction of all patches; `order` has the indices of the masked patches first."""
        seen = order[:, self.num_hidden :]
        tokens = self.compute(self._encoder[0], images, seen)  # (images, prefix + seen, width)
        recompute = self.model.activation_checkpointing and torch.is_grad_enabled()
        return self.compute(self.decoder, tokens, seen, recompute).float()  # (images, patches, pixels)

    def targets(self, images: Tensor) -> tuple[Tensor, Tensor | float, Tensor | float]:
        """Return the target pixels, and the mean and standard deviation they were normalised with."""
        pixels = cut_patches(images, self.patch)
        if not self.patch_norm:
            return pixels, 0.0, 1.0
        variance, mean = torch.var_mean(pixels, dim=2, keepdim=True)
        deviation = (variance + 1e-6).sqrt()
        return (pixels - mean) / deviation, mean, deviation

    def pictures(self, batch: Batch, draw: Draw) -> Tensor:
        """As in the base class. With patch_norm, predictions get the true patch's mean and standard deviation back."""
        images, order = batch["image"], self.prepare(batch, draw)["order"]
        masked, patches = order[:, : self.num_hidden], cut_patches(images, self.patch)
        _, mean, deviation = self.targets(self.normalize(images))
        painted = self.as_pixels(self.paint(self.normalize(images), order) * deviation + mean)
        places = masked[:, :, None].expand(-1, -1, patches.shape[2])
        left, made = patches.scatter(1, places, GREY), patches.scatter(1, places, at(painted, masked))
        return self.panels(images, left, made)


class Encoder(nn.Module):
    """The part of a ViT that reads patches, as a separate module."""

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, seen: Tensor) -> Tensor:
        return self.model.encode(images, None, seen)


class Decoder(nn.Module):
    """A small transformer over all patch positions: encoded tokens for the patches seen, mask tokens for the rest.

    Class and register tokens are passed on without positions, so they are trained too.
    """

    positions: Tensor

    def __init__(self, config: ViTConfig, width: int, depth: int, norms: list[nn.Module]) -> None:
        super().__init__()
        own = replace(
            config,
            width=width,
            depth=depth,
            heads=max(1, width // 32),
            mlp_width=4 * width,
            dropout=0.0,
            attention_dropout=0.0,
            positions="sincos_2d",
            num_classes=0,
        )
        self.normalize = nn.Sequential(*norms)
        self.narrow = nn.Linear(config.width, width)
        self.mask = nn.Parameter(torch.zeros(1, 1, width))
        self.register_buffer("positions", sincos_2d(own.grid, width), persistent=False)
        self.blocks = nn.ModuleList(Block(own, 0.0) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=config.norm_epsilon)
        self.paint = nn.Linear(width, config.channels * config.patch**2)
        for module in self.blocks.modules():
            init_encoder_layer(module)
        nn.init.normal_(self.mask, std=0.02)

    def forward(self, tokens: Tensor, seen: Tensor, recompute: bool = False) -> Tensor:
        prefix = tokens.shape[1] - seen.shape[1]
        tokens = self.narrow(self.normalize(tokens))
        places = seen[:, :, None].expand(-1, -1, tokens.shape[2])
        canvas = self.mask.to(tokens.dtype).expand(len(tokens), self.positions.shape[-2], -1)
        painted = canvas.scatter(1, places, tokens[:, prefix:]) + self.positions
        tokens = torch.cat([tokens[:, :prefix], painted], dim=1)  # (images, prefix + patches, width)
        for block in self.blocks:
            tokens = recomputed(block, tokens) if recompute else block(tokens)
        return self.paint(self.norm(tokens[:, prefix:]))
