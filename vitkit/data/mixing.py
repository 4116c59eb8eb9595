"""Mixup and cutmix: each image and target is mixed with its neighbour inside a fixed group, alike on every rank."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from vitkit.data.draws import Draw
from vitkit.data.operations import CHUNK
from vitkit.errors import InputError


def mixup(images: Tensor, targets: Tensor, draw: Draw, alpha: float, group: int) -> tuple[Tensor, Tensor]:
    """Blend images and targets (batch, classes) with their neighbours; one weight for the whole step."""
    # Zhang et al. 2018 draw the weight from Beta(alpha, alpha); one for the batch, as in their code and big_vision's.
    weight = float(draw.for_step("mixup").beta(alpha, alpha))
    # Either neighbour may be the heavier one; this is big_vision's order, and the pairs are the same.
    return blend(images, targets, max(weight, 1 - weight), _checked(group, images, targets, draw))


def cutmix(images: Tensor, targets: Tensor, draw: Draw, alpha: float, group: int) -> tuple[Tensor, Tensor]:
    """Put a box of the neighbour into each image, one box for the whole step; targets follow the area."""
    random = draw.for_step("cutmix")
    box = cut_box(float(random.beta(alpha, alpha)), images.shape[-2], images.shape[-1], random)
    return paste(images, targets, box, _checked(group, images, targets, draw))


def mix(
    images: Tensor,
    targets: Tensor,
    draw: Draw,
    mixup_alpha: float = 0.8,
    cutmix_alpha: float = 1.0,
    switch_probability: float = 0.5,
    *,
    group: int,
) -> tuple[Tensor, Tensor]:
    """Do cutmix in a share of the steps and mixup in the others; an alpha of 0 leaves that one out."""
    if mixup_alpha <= 0 and cutmix_alpha <= 0:
        raise InputError("mix: both alphas are 0; give mixup_alpha or cutmix_alpha, or leave mix out")
    is_cut = mixup_alpha <= 0 or (cutmix_alpha > 0 and draw.for_step("switch").random() < switch_probability)
    if is_cut:
        return cutmix(images, targets, draw, cutmix_alpha, group)
    return mixup(images, targets, draw, mixup_alpha, group)


def blend(images: Tensor, targets: Tensor, weight: float, group: int) -> tuple[Tensor, Tensor]:
    """Return weight * own + (1 - weight) * neighbour; uint8 images are rounded."""
    if images.is_floating_point():
        mixed = images * weight + _neighbours(images, group) * (1 - weight)
    else:
        groups = max(1, CHUNK // (group * math.prod(images.shape[1:])))
        size = group * groups if images.device.type == "cpu" else len(images)
        mixed = torch.cat([_blend_bytes(part, weight, group) for part in images.split(size)])
    return mixed, targets * weight + _neighbours(targets, group) * (1 - weight)


def _blend_bytes(images: Tensor, weight: float, group: int) -> Tensor:
    # Rounded once, after the sum: between 0 and 255 without a clamp, since the weights sum to 1.
    sums = images.float().mul_(weight).add_(_neighbours(images, group).float(), alpha=1 - weight)
    return sums.round_().to(torch.int16).to(torch.uint8)  # the direct cast isn't vectorised


def paste(
    images: Tensor, targets: Tensor, box: tuple[int, int, int, int], group: int
) -> tuple[Tensor, Tensor]:
    """Return images with the neighbour's box (top, left, bottom, right), and targets weighted by the areas."""
    top, left, bottom, right = box
    mixed = images.clone()
    mixed[:, :, top:bottom, left:right] = _neighbours(images[:, :, top:bottom, left:right], group)
    weight = 1 - (bottom - top) * (right - left) / (images.shape[-2] * images.shape[-1])
    return mixed, targets * weight + _neighbours(targets, group) * (1 - weight)


def cut_box(weight: float, height: int, width: int, random: np.random.Generator) -> tuple[int, int, int, int]:
    """Return a box of the image's shape that takes 1 - weight of its area, cut off where it leaves the image."""
    # Yun et al. 2019: sides are sqrt(1 - weight) of the image's, the centre is uniform. What leaves the image is lost, so
    # that `paste` weighs targets by the area that is left.
    share = np.sqrt(1 - weight)
    tall, wide = int(height * share), int(width * share)
    y, x = int(random.integers(height)), int(random.integers(width))
    return (
        max(0, y - tall // 2),
        max(0, x - wide // 2),
        min(height, y + (tall + 1) // 2),
        min(width, x + (wide + 1) // 2),
    )


def _neighbours(values: Tensor, group: int) -> Tensor:
    """Return for each row the one before it in its group; for the first, the last."""
    # A roll inside the group, not a flip of the batch as in timm: ranks and micro-batches that hold whole groups mix alike.
    return values.unflatten(0, (-1, group)).roll(1, dims=1).flatten(0, 1)


def _checked(group: int, images: Tensor, targets: Tensor, draw: Draw) -> int:
    if group < 2 or len(images) % group or (draw.positions[::group] % group).any():
        raise InputError(
            f"can't mix {len(images)} images from position {int(draw.positions[0])} in groups of {group}: "
            "a batch must hold whole groups, of 2 images or more"
        )
    if targets.shape[:1] != images.shape[:1] or targets.ndim != 2 or not targets.is_floating_point():
        raise InputError(
            f"mixing takes float targets (batch, classes), not {targets.dtype} {tuple(targets.shape)}"
        )
    return group
