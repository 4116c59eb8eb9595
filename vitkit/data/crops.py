"""From an image of any size to a fixed one: the crops and resizes that workers do, one image at a time."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitkit.data.draws import Draw
from vitkit.errors import InputError
from vitkit.models.configs import Size, as_size

Interpolation = Literal["bilinear", "bicubic"]
RandomInterpolation = Interpolation | Literal["random"]
Box = tuple[int, int, int, int]  # top, left, height, width


def inception_crop(
    image: Tensor,
    random: np.random.Generator,
    size: Size,
    area_min: float = 0.05,
    area_max: float = 1.0,
    ratio_min: float = 3 / 4,
    ratio_max: float = 4 / 3,
    interpolation: RandomInterpolation = "bilinear",
) -> Tensor:
    """Cut out a random box by share of the area and ratio of the sides, and resize it."""
    top, left, height, width = inception_box(
        image.shape[-2], image.shape[-1], random, (area_min, area_max), (ratio_min, ratio_max)
    )
    if interpolation == "random":
        interpolation = "bicubic" if random.random() < 0.5 else "bilinear"
    return resample(image[:, top : top + height, left : left + width], as_size(size), interpolation)


def inception_box(
    height: int,
    width: int,
    random: np.random.Generator,
    area: tuple[float, float],
    ratio: tuple[float, float],
) -> Box:
    """Return a random box: ten tries, then the largest centred one whose ratio is allowed."""
    # torchvision's RandomResizedCrop.get_params, after Inception's distorted boxes (Szegedy et al. 2015): the area is
    # uniform, the ratio log-uniform, sides are rounded.
    for _ in range(10):
        target = height * width * random.uniform(*area)
        aspect = math.exp(random.uniform(math.log(ratio[0]), math.log(ratio[1])))
        box_width, box_height = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < box_width <= width and 0 < box_height <= height:
            top = int(random.integers(0, height - box_height + 1))
            left = int(random.integers(0, width - box_width + 1))
            return top, left, box_height, box_width
    # No try fitted, as with very long images: as much of the image as the ratio allows.
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
    image: Tensor, random: np.random.Generator, size: Size, interpolation: Interpolation = "bilinear"
) -> Tensor:
    """Resize so that the shorter side has this length, or that a box of this size is just covered; the ratio stays."""
    return resample(image, covering(image.shape[-2], image.shape[-1], size), interpolation)


def covering(height: int, width: int, size: Size) -> tuple[int, int]:
    """Return the smallest size of the same ratio that covers a box, rounded as torchvision (square) and timm do."""
    rows, columns = as_size(size)
    if rows == columns:
        short = min(height, width)
        # torchvision cuts the fraction off.
        resized = int(rows * height / short), int(rows * width / short)
    else:
        ratio = min(height / rows, width / columns)
        # timm's ResizeKeepRatio rounds both.
        resized = round(height / ratio), round(width / ratio)
    if Image.MAX_IMAGE_PIXELS and resized[0] * resized[1] > Image.MAX_IMAGE_PIXELS:
        raise InputError(
            f"an image of {height}x{width} pixels is too long and thin: "
            f"it would be resized to {resized[0]}x{resized[1]}"
        )
    return resized


def central_crop(image: Tensor, random: np.random.Generator | Draw, size: Size) -> Tensor:
    """Cut out the centre of an image, or of each image of a batch."""
    height, width = fitting(image, size, "central_crop")
    # Halves go to the even side, as in torchvision's center_crop.
    top, left = round((image.shape[-2] - height) / 2), round((image.shape[-1] - width) / 2)
    return image[..., top : top + height, left : left + width]


def random_crop(image: Tensor, random: np.random.Generator, size: Size) -> Tensor:
    """Cut out a box at a random place."""
    height, width = fitting(image, size, "random_crop")
    top = int(random.integers(0, image.shape[-2] - height + 1))
    left = int(random.integers(0, image.shape[-1] - width + 1))
    return image[:, top : top + height, left : left + width]


def resample(image: Tensor, size: tuple[int, int], interpolation: Interpolation) -> Tensor:
    """Resize uint8 (channels, height, width), antialiased."""
    if image.shape[-2:] == size:
        return image
    # On bytes torch works with weights in fixed point, as Pillow does, which is quicker than by way of float.
    return F.interpolate(image[None], size, mode=interpolation, antialias=True, align_corners=False)[0]


def fitting(image: Tensor, size: Size, name: str) -> tuple[int, int]:
    """Return the height and width of a crop, if the image holds it."""
    height, width = as_size(size)
    if image.shape[-2] < height or image.shape[-1] < width:
        have = f"{image.shape[-2]}x{image.shape[-1]}"
        raise InputError(
            f"{name}({height}x{width}) needs larger images than {have}: put resize_small before it"
        )
    return height, width
