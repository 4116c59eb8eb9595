"""From images of any size to a fixed one: crops and resizes, of one image on a worker or of a batch on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data.draws import Draw
from vitkit.data.images import covering
from vitkit.data.operations import send
from vitkit.errors import InputError
from vitkit.kernels import runs_triton
from vitkit.models.configs import Size, as_size

Interpolation = Literal["bilinear", "bicubic"]
RandomInterpolation = Interpolation | Literal["random"]
Box = tuple[int, int, int, int]  # top, left, height, width
TRIES = 10


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
    """Return a random box: a few tries, then the largest centred one whose ratio is allowed."""
    # torchvision's RandomResizedCrop.get_params, after Inception's distorted boxes (Szegedy et al. 2015): the area is
    # uniform, the ratio log-uniform, sides are rounded.
    for _ in range(TRIES):
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
    """Resize to height and width; the aspect ratio may change."""
    return resample(image, as_size(size), interpolation)


def resize_small(
    image: Tensor, random: np.random.Generator, size: Size, interpolation: Interpolation = "bilinear"
) -> Tensor:
    """Resize so that the shorter side has this length, or that a box of this size is just covered; the ratio stays."""
    return resample(image, covering(image.shape[-2], image.shape[-1], size), interpolation)


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


def batched_inception_crop(
    images: Tensor,
    draw: Draw,
    size: Size,
    area_min: float = 0.05,
    area_max: float = 1.0,
    ratio_min: float = 3 / 4,
    ratio_max: float = 4 / 3,
    interpolation: RandomInterpolation = "bilinear",
) -> Tensor:
    """Cut out a random box of each image by share of the area and ratio of the sides, and resize it."""
    height, width = images.shape[-2:]
    # As inception_box, all ten tries drawn at once: an image takes the same numbers whichever try fits.
    random = draw.uniform("inception", 4 * TRIES).reshape(-1, 4, TRIES)  # (images, numbers, tries)
    area = height * width * (area_min + (area_max - area_min) * random[:, 0])
    low, high = math.log(ratio_min), math.log(ratio_max)
    # Log-uniform, as in torchvision's RandomResizedCrop: 3/4 is as likely as 4/3.
    aspect = np.exp(low + (high - low) * random[:, 1])
    widths, heights = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
    rows, first = np.arange(len(images)), fits.argmax(axis=1)
    found = fits[rows, first]
    side = np.clip(width / height, ratio_min, ratio_max)  # the largest box whose ratio is allowed
    box_width = np.where(found, widths[rows, first], min(width, round(height * side)))
    box_height = np.where(found, heights[rows, first], min(height, round(width / side)))
    top = np.floor(np.where(found, random[rows, 2, first], 0.5) * (height - box_height + 1))
    left = np.floor(np.where(found, random[rows, 3, first], 0.5) * (width - box_width + 1))
    boxes = np.stack([top, left, box_height, box_width], axis=1)
    if interpolation == "random":
        return resample_boxes(images, boxes, as_size(size), draw.uniform("interpolation")[:, 0] < 0.5)
    return resample_boxes(images, boxes, as_size(size), np.full(len(images), interpolation == "bicubic"))


def batched_resize(
    images: Tensor, draw: Draw, size: Size, interpolation: Interpolation = "bilinear"
) -> Tensor:
    """Resize to height and width; the aspect ratio may change."""
    if images.shape[-2:] == as_size(size):
        return images
    floats = F.interpolate(images.float(), as_size(size), mode=interpolation, antialias=True)
    return floats.round_().clamp_(0, 255).to(torch.uint8)


def batched_resize_small(
    images: Tensor, draw: Draw, size: Size, interpolation: Interpolation = "bilinear"
) -> Tensor:
    """Resize so that the shorter side has this length, or that a box of this size is just covered; the ratio stays."""
    return batched_resize(images, draw, covering(images.shape[-2], images.shape[-1], size), interpolation)


def batched_random_crop(images: Tensor, draw: Draw, size: Size) -> Tensor:
    """Cut out a box at a random place of each image."""
    height, width = fitting(images, size, "random_crop")
    random = draw.uniform("random", 2)
    top = np.floor(random[:, 0] * (images.shape[-2] - height + 1)).astype(np.int64)
    left = np.floor(random[:, 1] * (images.shape[-1] - width + 1)).astype(np.int64)
    rows, columns = send(images.device, top[:, None] + np.arange(height), left[:, None] + np.arange(width))
    batch = torch.arange(len(images), device=images.device)
    return images.permute(0, 2, 3, 1)[batch[:, None, None], rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )


def resample_boxes(images: Tensor, boxes: np.ndarray, size: tuple[int, int], cubic: np.ndarray) -> Tensor:
    """Resize one box (top, left, height, width) of each image, antialiased: two matrix products per channel.

    cubic: which images are resized bicubically, the others bilinearly; bool (images,).
    """
    places, is_cubic = send(images.device, boxes.astype(np.float32), cubic)
    kernel = _kernel(cubic, is_cubic[:, None, None])
    rows = _weights(places[:, 0], places[:, 2], images.shape[-2], size[0], kernel)
    columns = _weights(places[:, 1], places[:, 3], images.shape[-1], size[1], kernel)
    if runs_triton(images):
        from vitkit.kernels import resampling  # needs Triton

        return resampling.resample(images, rows, columns)
    with _full_precision(images.device):
        # (images, 1, new, old) @ (images, channels, height, width) @ (images, 1, old, new): the filter is separable.
        mixed = rows[:, None] @ images.float() @ columns[:, None].transpose(-2, -1)
    if cubic.any():  # others stay between the pixels they mix
        mixed.clamp_(0, 255)
    return mixed.round_().to(torch.uint8)


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """Multiply in float32, so that the pixels don't depend on autocast or on what training allows for products."""
    products, is_full = _products(device), is_full_precision(device)
    before = products.fp32_precision
    if not is_full:
        products.fp32_precision = "ieee"
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        if not is_full:
            products.fp32_precision = before


def is_full_precision(device: torch.device) -> bool:
    """Tell whether products of float32 are computed in float32 anyway, so that nothing is switched for them."""
    return _products(device).fp32_precision in ("ieee", "none")


def _products(device: torch.device) -> Any:
    return getattr(torch.backends, "cuda" if device.type == "cuda" else "mkldnn").matmul


def _weights(start: Tensor, length: Tensor, old: int, new: int, kernel: Callable[[Tensor], Tensor]) -> Tensor:
    """Return each image's resampling matrix (images, new, old) for the pixels from start to start + length."""
    # Pillow's precompute_coeffs: the filter is as wide as `scale` input pixels where the image shrinks (antialiasing), and
    # one where it grows; pixels outside of the box get no weight, and the rest is scaled to sum to 1.
    scale = (length / new)[:, None, None]
    centre = (torch.arange(new, device=start.device) + 0.5)[
        None, :, None
    ] * scale  # in the box, from its start
    pixel = torch.arange(old, device=start.device)[None, None, :] + 0.5 - start[:, None, None]
    distance = ((pixel - centre) / scale.clamp(min=1.0)).abs()
    weights = kernel(distance)  # (images, new, old)
    weights = weights * ((pixel > 0) & (pixel < length[:, None, None]))
    return weights / weights.sum(dim=-1, keepdim=True)


def _cubic(distance: Tensor) -> Tensor:
    """Keys' kernel with a = -0.5, as Pillow's and torch's antialiased bicubic."""
    near = (1.5 * distance - 2.5) * distance * distance + 1.0
    far = ((-0.5 * distance + 2.5) * distance - 4.0) * distance + 2.0
    return torch.where(distance < 1.0, near, torch.where(distance < 2.0, far, 0.0))


def _linear(distance: Tensor) -> Tensor:
    return (1.0 - distance).clamp(min=0.0)


def _kernel(cubic: np.ndarray, is_cubic: Tensor) -> Callable[[Tensor], Tensor]:
    if cubic.all() or not cubic.any():
        return _cubic if cubic.any() else _linear
    return lambda distance: torch.where(is_cubic, _cubic(distance), _linear(distance))
