"""From an image of any size to a fixed one: the crops and resizes that workers do, one image at a time."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from vitkit.errors import InputError
from vitkit.models.configs import Size, as_size

Interpolation = Literal["bilinear", "bicubic"]
Box = tuple[int, int, int, int]  # top, left, height, width


def inception_crop(
    image: Tensor,
    random: np.random.Generator,
    size: Size,
    area_min: float = 0.05,
    area_max: float = 1.0,
    ratio_min: float = 3 / 4,
    ratio_max: float = 4 / 3,
    interpolation: Interpolation = "bilinear",
) -> Tensor:
    """Cut out a random box by share of the area and ratio of the sides, and resize it."""
    top, left, height, width = inception_box(
        image.shape[-2], image.shape[-1], random, (area_min, area_max), (ratio_min, ratio_max)
    )
    return resample(image[:, top : top + height, left : left + width], as_size(size), interpolation)


def inception_box(
    height: int,
    width: int,
    random: np.random.Generator,
    area: tuple[float, float],
    ratio: tuple[float, float],
) -> Box:
    """Return a random box: ten tries, then the largest centred one whose ratio is allowed."""
    for _ in range(10):
        target = height * width * random.uniform(*area)
        aspect = math.exp(random.uniform(math.log(ratio[0]), math.log(ratio[1])))
        box_width, box_height = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < box_width <= width and 0 < box_height <= height:
            top = int(random.integers(0, height - box_height + 1))
            left = int(random.integers(0, width - box_width + 1))
            return top, left, box_height, box_width
    box_width, box_height = width, height
    if width / height < ratio[0]:
        box_height = min(height, round(width / ratio[0]))
    elif width / height > ratio[1]:
        box_width = min(width, round(height * ratio[1]))
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def resize(
    image: Tensor, random: np.random.Generator, size: Size, interpolation: Interpolation = "bilinear"
) -> Tensor:
    """Resize to height and width, whatever the ratio of the sides was."""
    return resample(image, as_size(size), interpolation)


def resize_small(
    image: Tensor, random: np.random.Generator, size: int, interpolation: Interpolation = "bilinear"
) -> Tensor:
    """Resize so that the shorter side has this length, the ratio of the sides kept."""
    height, width = image.shape[-2:]
    short = min(height, width)
    return resample(image, (int(size * height / short), int(size * width / short)), interpolation)


def central_crop(image: Tensor, random: np.random.Generator, size: Size) -> Tensor:
    """Cut out the centre."""
    height, width = _fitting(image, as_size(size), "central_crop")
    top, left = round((image.shape[-2] - height) / 2), round((image.shape[-1] - width) / 2)
    return image[:, top : top + height, left : left + width]


def random_crop(image: Tensor, random: np.random.Generator, size: Size) -> Tensor:
    """Cut out a box at a random place."""
    height, width = _fitting(image, as_size(size), "random_crop")
    top = int(random.integers(0, image.shape[-2] - height + 1))
    left = int(random.integers(0, image.shape[-1] - width + 1))
    return image[:, top : top + height, left : left + width]


def resample(image: Tensor, size: tuple[int, int], interpolation: Interpolation) -> Tensor:
    """Resize uint8 (channels, height, width), antialiased."""
    if image.shape[-2:] == size:
        return image
    return F.interpolate(image[None], size, mode=interpolation, antialias=True, align_corners=False)[0]


def _fitting(image: Tensor, size: tuple[int, int], name: str) -> tuple[int, int]:
    if image.shape[-2] < size[0] or image.shape[-1] < size[1]:
        have, want = (f"{height}x{width}" for height, width in (image.shape[-2:], size))
        raise InputError(f"{name}({want}) needs larger images than {have}: put resize_small before it")
    return size
