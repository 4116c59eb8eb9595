"""Masked patch prediction (the ViT paper's self-supervision): corrupt half of the patches, predict their colours."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data.draws import Draw
from vitkit.data.operations import send
from vitkit.models.compact import CompactTransformer
from vitkit.models.configs import Preprocessing
from vitkit.models.model import Model
from vitkit.models.vit import VisionTransformer, cut_patches
from vitkit.objectives.objective import Batch, Loss
from vitkit.objectives.patches import GREY, PatchObjective, at, count_weights

Target = Literal["mean_color", "colors_4x4", "pixels"]
# Cells along each side of a patch. The colour of each cell is predicted.
CELLS: dict[Target, int] = {"mean_color": 1, "colors_4x4": 4}
# Shares of the corrupted patches that become the mask embedding and another patch's embedding; the rest are unchanged.
MASKED, OTHER = 0.8, 0.1
LEVELS = 8  # per channel: 3 bits
MASK = -1  # stands for the mask embedding, in place of a patch index


class MaskedPatches(PatchObjective):
    """Cross-entropy of the colours of corrupted patches, or the squared error of their pixels."""

    def __init__(
        self, model: Model, preprocessing: Preprocessing, *, corrupt_share: float, target: Target
    ) -> None:
        super().__init__(model, preprocessing, "masked_patches", "corrupt_share", corrupt_share)
        assert isinstance(model, VisionTransformer | CompactTransformer)
        config, self.cells = self.config, CELLS.get(target, 0)
        self.num_colors = LEVELS**config.channels
        if self.cells:
            self.metric_names = ("loss", "color_accuracy", "gradient_norm")
        self.corruption = Corruption(config.width)
        outputs = self.cells**2 * self.num_colors or config.channels * self.patch**2
        self.predict = nn.Sequential(*self.last_norm(), linear := nn.Linear(config.width, outputs))
        nn.init.zeros_(linear.weight)  # like the paper's other heads
        nn.init.zeros_(linear.bias)
        # In a tuple, so its parameters are not registered twice.
        self._encoder = (Encoder(model, self.corruption),)

    def prepare(self, batch: Batch, draw: Draw) -> Batch:
        """Add the indices of the corrupted patches, and for every position the index of the patch whose embedding it gets."""
        patches, count = self.config.num_patches, self.num_hidden
        corrupted = np.argsort(draw.uniform("corrupt", patches), axis=1)[:, :count]
        kind, step = draw.uniform("kind", count), draw.uniform("other", count)
        others = (corrupted + 1 + (step * (patches - 1)).astype(np.int64)) % patches
        taken = np.where(kind < MASKED, MASK, np.where(kind < MASKED + OTHER, others, corrupted))
        source = np.tile(np.arange(patches), (len(corrupted), 1))
        np.put_along_axis(source, corrupted, taken, axis=1)
        sent = send(batch["image"].device, corrupted, source)
        return {**batch, "corrupted": sent[0], "source": sent[1]}

    def cost(self, macs: int, parameters: int) -> tuple[int, int]:
        found = self.encoder_macs(self.config.num_patches)
        found += self.num_hidden * count_weights(self.predict)
        own = (*self.corruption.parameters(), *self.predict.parameters())
        return found, parameters + sum(parameter.numel() for parameter in own)

    def forward(self, batch: Batch) -> Loss:
        images = self.normalize(batch["image"])
        predicted = self.predictions(images, batch)  # (images, corrupted, outputs)
        if not self.cells:
            pixels = at(cut_patches(images, self.patch), batch["corrupted"])
            return F.mse_loss(predicted, pixels), {}
        colors = color_classes(batch["image"], self.patch, self.cells)
        colors = at(colors, batch["corrupted"]).flatten()
        logits = predicted.reshape(-1, self.num_colors)
        right = (logits.detach().argmax(dim=1) == colors).float().mean()
        return F.cross_entropy(logits, colors), {"color_accuracy": right}

    def predictions(self, images: Tensor, batch: Batch) -> Tensor:
        """Return the predictions for the corrupted patches: logits of colours, or normalised pixels."""
        tokens = self.compute(self._encoder[0], images, batch["source"])  # (images, patches, width)
        return self.compute(self.predict, at(tokens, batch["corrupted"])).float()

    def pictures(self, batch: Batch, draw: Draw) -> Tensor:
        images, patch = batch["image"], self.patch
        given = self.prepare(batch, draw)
        patches, corrupted, source = cut_patches(images, patch), given["corrupted"], given["source"]
        left = torch.where((source == MASK)[:, :, None], GREY, at(patches, source.clamp(min=0)))
        predicted = self.predictions(self.normalize(images), given)
        if self.cells:
            colors = predicted.unflatten(2, (self.cells**2, self.num_colors)).argmax(dim=3)
            painted = paint_colors(colors, self.config.channels, patch, self.cells)
        else:
            painted = self.as_pixels(predicted)
        places = corrupted[:, :, None].expand(-1, -1, patches.shape[2])
        return self.panels(images, left, patches.scatter(1, places, painted))


class Corruption(nn.Module):
    """Replaces patch embeddings with the mask embedding or with another patch's, as `source` says."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mask = nn.Parameter(torch.zeros(1, 1, width))
        nn.init.normal_(self.mask, std=0.02)

    def forward(self, tokens: Tensor, source: Tensor) -> Tensor:
        taken = at(tokens, source.clamp(min=0))
        return torch.where((source == MASK)[:, :, None], self.mask.to(tokens.dtype), taken)


class Encoder(nn.Module):
    """A model without its pool and head. Corrupts some patch embeddings before positions are added."""

    def __init__(self, model: VisionTransformer | CompactTransformer, corruption: Corruption) -> None:
        super().__init__()
        self.model, self.corruption = model, corruption

    def forward(self, images: Tensor, source: Tensor) -> Tensor:
        tokens = self.model.encode(images, corrupt=lambda tokens: self.corruption(tokens, source))
        return tokens[:, self.model.config.num_prefix :]


def color_classes(images: Tensor, patch: int, cells: int) -> Tensor:
    """Return the colour classes of the patches of uint8 images, each of cells x cells: (images, patches, cells^2).

    A cell's colour is the mean of its pixels, weighted by area if a cell's border cuts pixels, with 3 bits per channel:
    floor(mean / 32). The class of (red, green, blue) is 64 red + 8 green + blue. Integer arithmetic makes this exact.
    """
    channels = images.shape[1]
    pixels = cut_patches(images, patch).unflatten(2, (channels, patch, patch))
    parts = cells // math.gcd(
        patch, cells
    )  # split pixels into parts, so that a cell is a whole number of them
    if parts > 1:
        pixels = pixels.repeat_interleave(parts, dim=3).repeat_interleave(parts, dim=4)
    side = patch * parts // cells
    tiles = pixels.unflatten(4, (cells, side)).unflatten(3, (cells, side))
    levels = tiles.sum(dim=(4, 6), dtype=torch.int32) // (side**2 * 256 // LEVELS)
    colors = sum(levels[:, :, channel] * LEVELS ** (channels - 1 - channel) for channel in range(channels))
    assert isinstance(colors, Tensor)
    return colors.flatten(2).long()


def paint_colors(colors: Tensor, channels: int, patch: int, cells: int) -> Tensor:
    """Return patches in the colours of classes, each the middle of its class's range: uint8, flattened."""
    powers = LEVELS ** torch.arange(channels - 1, -1, -1, device=colors.device)
    levels = colors[:, :, None] // powers[:, None] % LEVELS  # (images, patches, channels, cells^2)
    values = (levels * (256 // LEVELS) + 128 // LEVELS).byte().unflatten(3, (cells, cells))
    rows = torch.arange(patch, device=colors.device) * cells // patch
    return values[:, :, :, rows][:, :, :, :, rows].flatten(2)
