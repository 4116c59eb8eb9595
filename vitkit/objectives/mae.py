"""Masked autoencoding (MAE): the encoder reads a few patches, a small decoder paints the others; no labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from vitkit.data.draws import Draw
from vitkit.data.operations import send
from vitkit.errors import InputError
from vitkit.models.configs import HybridConfig, Preprocessing, ViTConfig
from vitkit.models.layers import init_encoder_layer
from vitkit.models.model import Model
from vitkit.models.positions import sincos_2d
from vitkit.models.vit import Block, VisionTransformer, cut_patches
from vitkit.objectives.objective import Batch, Loss, Objective


class MaskedAutoencoding(Objective):
    """The mean squared error of the pixels of masked patches."""

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
        super().__init__(model, preprocessing)
        config = check_vit(model.config, "mae")
        assert isinstance(model, VisionTransformer)
        self.num_masked = round(config.num_patches * mask_share)
        if not 0 < self.num_masked < config.num_patches:
            raise InputError(
                f"mask_share {mask_share:g} masks {self.num_masked} of {config.num_patches} patches: "
                "some must be masked, and some left"
            )
        self.patch_norm = patch_norm
        self.decoder = Decoder(config, decoder_width, decoder_depth)
        self._encoder = (Encoder(model),)  # in a tuple, so that its parameters are the model's alone
        for name in ("attn_pool", "seq_pool", "fc_norm", "pre_logits", "head"):
            if (part := getattr(model, name, None)) is not None:
                part.requires_grad_(False)  # nothing here reads what comes after the encoder

    def prepare(self, batch: Batch, draw: Draw) -> Batch:
        config = check_vit(self.model.config, "mae")
        order = np.argsort(draw.uniform("mask", config.num_patches), axis=1)
        return {**batch, "order": send(batch["image"].device, order)[0]}

    def cost(self, macs: int, parameters: int) -> tuple[int, int]:
        model, decoder = self._encoder[0].model, self.decoder
        config, patches = model.config, model.config.num_patches
        seen = patches - self.num_masked
        found = patches * _weights(model.patch_embed)  # masked patches are left out behind it
        found += _block_macs(model.blocks, config.num_prefix + seen, config.width)
        found += seen * _weights(decoder.narrow) + patches * _weights(decoder.paint)
        found += _block_macs(decoder.blocks, patches, decoder.narrow.out_features)
        return found, parameters + sum(parameter.numel() for parameter in decoder.parameters())

    def forward(self, batch: Batch) -> Loss:
        images, order = self.normalize(batch["image"]), batch["order"]  # (images, patches): masked ones first
        masked, seen = order[:, : self.num_masked], order[:, self.num_masked :]
        tokens = self.compute(self._encoder[0], images, seen)  # (images, seen, width)
        painted = self.compute(self.decoder, tokens, seen).float()  # (images, patches, pixels)
        pixels = cut_patches(images, check_vit(self.model.config, "mae").patch)
        if self.patch_norm:
            variance, mean = torch.var_mean(pixels, dim=2, keepdim=True)
            pixels = (pixels - mean) / (variance + 1e-6).sqrt()
        errors = (painted - pixels).square().mean(dim=2)  # (images, patches)
        return errors.gather(1, masked).mean(), {}


class Encoder(nn.Module):
    """The part of a ViT that reads patches, as a module of its own."""

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, seen: Tensor) -> Tensor:
        return self.model.encode(images, None, seen)[:, self.model.config.num_prefix :]


class Decoder(nn.Module):
    """A small transformer over all places: encoded tokens where a patch was seen, a mask token elsewhere."""

    positions: Tensor

    def __init__(self, config: ViTConfig, width: int, depth: int) -> None:
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
        self.narrow = nn.Linear(config.width, width)
        self.mask = nn.Parameter(torch.zeros(1, 1, width))
        self.register_buffer("positions", sincos_2d(own.grid, width), persistent=False)
        self.blocks = nn.ModuleList(Block(own, 0.0) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=config.norm_epsilon)
        self.paint = nn.Linear(width, config.channels * config.patch**2)
        for module in self.blocks.modules():
            init_encoder_layer(module)
        nn.init.normal_(self.mask, std=0.02)

    def forward(self, tokens: Tensor, seen: Tensor) -> Tensor:
        tokens = self.narrow(tokens)
        places = seen[:, :, None].expand(-1, -1, tokens.shape[2])
        canvas = self.mask.to(tokens.dtype).expand(len(tokens), self.positions.shape[-2], -1)
        tokens = canvas.scatter(1, places, tokens) + self.positions  # (images, patches, width)
        for block in self.blocks:
            tokens = block(tokens)
        return self.paint(self.norm(tokens))


def _block_macs(blocks: nn.ModuleList, tokens: int, width: int) -> int:
    """Return the multiply-adds of encoder blocks: every matrix on each token, and attention between all of them."""
    return tokens * _weights(blocks) + 2 * tokens * tokens * width * len(blocks)


def _weights(module: nn.Module) -> int:
    """Return how many numbers a module's matrices hold: its multiply-adds for one token."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.ndim > 1)


def check_vit(config: object, objective: str) -> ViTConfig:
    """Return the config of a model whose tokens are patches of the image, which masking needs."""
    if not isinstance(config, ViTConfig) or isinstance(config, HybridConfig):
        raise InputError(f"objective {objective} needs a plain ViT, whose tokens are patches of the image")
    if config.positions_at != "stem" or config.positions == "relative":
        raise InputError(f"objective {objective} needs positions that are added at the stem")
    if config.patch_dropout:
        raise InputError(f"objective {objective} leaves out patches by itself: set model.patch_dropout=0")
    return config
