"""Image operations on uint8 batches, each image with its own amount, equal to what Pillow does to one image."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data.affine import (
    MATRICES,
    TAPS,
    Interpolation,
    Job,
    about_centre,
    fill_where,
    negative,
    outside,
    sampling_jobs,
    to_bytes,
)
from vitkit.data.draws import Draw
from vitkit.errors import InputError

Amounts = np.ndarray | Tensor | Sequence[float] | float
Fill = int | tuple[int, ...]

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Share of the area that erasing takes, the least ratio of the box's sides, and how many boxes are tried: timm's.
ERASE_AREA, ERASE_RATIO, ERASE_TRIES = (0.02, 1 / 3), 0.3, 10
# Pixels that a CPU works on at a time: their float or index copies stay in the cache.
CHUNK = 2**20


def invert(images: Tensor, amounts: Amounts = ()) -> Tensor:
    """Return the negatives; there is no amount."""
    return ~images


def posterize(images: Tensor, amounts: Amounts) -> Tensor:
    """Keep the highest bits of each value: 0 gives black, 8 the image itself."""
    # ImageOps.posterize's mask; int16, since a byte shifted by all its 8 bits is undefined.
    dropped = 8 - _column(amounts, images, torch.int16).clamp(0, 8)
    return images & (255 << dropped).to(torch.uint8)


def solarize(images: Tensor, amounts: Amounts) -> Tensor:
    """Invert the values that reach a threshold: 0 inverts all, 256 none."""
    # ImageOps.solarize keeps v < threshold; values are whole, so that the threshold may be rounded up. The mask is 255
    # where threshold - 1 - v is negative, and v ^ 255 is 255 - v.
    threshold = _column(amounts, images).ceil().clamp_(0, 256).to(torch.int16)
    return images ^ negative(threshold - 1 - images.to(torch.int16))


def solarize_add(images: Tensor, amounts: Amounts) -> Tensor:
    """Add to the values below 128."""
    # timm's solarize_add, min(255, v + addition): ~v is 255 - v, all that a byte has room for.
    addition = _column(amounts, images).clamp(0, 255).to(torch.uint8)
    is_dark = (images >> 7) - 1  # 255 below 128, else 0
    return images + (torch.minimum(addition, ~images) & is_dark)


def brightness(images: Tensor, amounts: Amounts) -> Tensor:
    """Multiply by a factor: 0 gives black, 1 the image itself."""
    return to_bytes(images.float().mul_(_column(amounts, images)))


def contrast(images: Tensor, amounts: Amounts) -> Tensor:
    """Scale the distance from the image's mean grey: 0 gives that grey, 1 the image itself."""
    # ImageEnhance.Contrast: int(mean + 0.5) of the grey image, in whole numbers, so that every device rounds alike.
    total = _grey(images).to(torch.int32).sum(dim=(1, 2, 3), keepdim=True)
    pixels = images.shape[-2] * images.shape[-1]
    mean = (2 * total + pixels) // (2 * pixels)  # rounded
    return _blend(mean.float(), images.float(), _column(amounts, images))


def color(images: Tensor, amounts: Amounts) -> Tensor:
    """Scale the distance of each pixel from its grey: 0 gives a grey image, 1 the image itself."""
    return _blend(_grey(images), images.float(), _column(amounts, images))


def sharpness(images: Tensor, amounts: Amounts) -> Tensor:
    """Scale the distance from the smoothed image: 0 smooths, 1 gives the image itself; the border stays."""
    # ImageFilter.SMOOTH: (1 1 1, 1 5 1, 1 1 1) / 13, rounded; Pillow copies the border. A sum of nine and four more of
    # the middle stay below 2**12, and rows and columns in turn take 4 additions instead of 8.
    values = images.to(torch.int16)
    middle = values[:, :, 1:-1, 1:-1]
    sums = values[:, :, :-2] + values[:, :, 1:-1] + values[:, :, 2:]
    sums = sums[..., :-2] + sums[..., 1:-1] + sums[..., 2:]  # (batch, channels, height - 2, width - 2)
    smooth = sums.add_(middle, alpha=4).float().mul_(1 / 13).add_(0.5).floor_()
    result = images.clone()
    result[:, :, 1:-1, 1:-1] = _blend(smooth, middle.float(), _column(amounts, images))
    return result


def hue(images: Tensor, amounts: Amounts) -> Tensor:
    """Turn the hue by a share of the colour circle, -0.5 to 0.5; grey images stay."""
    if images.shape[1] == 1:
        return images
    _check_colours(images)
    values = images.float()
    red, green, blue = values.unbind(1)
    # To HSV and back in closed form: channel n of red, green, blue is high - chroma * min(k, 4 - k, 1), at least 0, with
    # k = (hue + 5 - 2n) mod 6. A hue of 8 bits, as Pillow's HSV mode has it, would be coarser.
    high = values.amax(dim=1)
    chroma = high - values.amin(dim=1)
    scale = chroma.clamp(min=1)
    sector = torch.where(high == green, (blue - red) / scale + 2, (red - green) / scale + 4)
    sector = torch.where(high == red, (green - blue) / scale, sector)  # the hue, from 0 to 6
    turned = sector + 6 * _column(amounts, images).view(-1, 1, 1)
    place = (turned[:, None] + 5 - 2 * torch.arange(3, device=images.device).view(3, 1, 1)).remainder_(6)
    share = torch.minimum(place, 4 - place).clamp_(0, 1)
    return to_bytes(high[:, None] - chroma[:, None] * share + 0.5)


def autocontrast(images: Tensor, amounts: Amounts = ()) -> Tensor:
    """Stretch each channel from its lowest and highest value to 0 and 255; there is no amount."""
    # ImageOps.autocontrast's table, int(v * scale + offset), in its order of operations: it decides between two bytes.
    dtype = torch.float32 if images.device.type == "mps" else torch.float64  # Pillow's, which MPS lacks
    low, high = (edge(dim=(2, 3)).to(dtype)[..., None] for edge in (images.amin, images.amax))
    levels = torch.arange(256, device=images.device, dtype=dtype)
    scale = torch.full_like(low, 255).div_((high - low).clamp_(min=1))  # 255 / tensor would round twice
    tables = torch.where(high > low, levels * scale + -low * scale, levels)  # (batch, channels, 256)
    return _look_up(images, to_bytes(tables))


def equalize(images: Tensor, amounts: Amounts = ()) -> Tensor:
    """Flatten the histogram of each channel; there is no amount."""
    # ImageOps.equalize: step is the pixels but for those of the highest value, over 255; the table is the number of pixels
    # below a value, in steps, rounded by half a step. Without a step the channel stays.
    counts = _histograms(images)  # (batch, channels, 256)
    highest = images.amax(dim=(2, 3)).long()[..., None]
    step = (images.shape[-2] * images.shape[-1] - counts.gather(2, highest)) // 255
    below = counts.cumsum(dim=2) - counts
    levels = torch.arange(256, device=images.device)
    tables = ((below + step // 2) // step.clamp(min=1)).clamp_(max=255)
    return _look_up(images, torch.where(step > 0, tables, levels).to(torch.uint8))


def mirror(images: Tensor, amounts: Amounts = ()) -> Tensor:
    """Swap left and right; there is no amount."""
    return images.flip(3)


def cutout(images: Tensor, amounts: Amounts, fill: Fill = 0) -> Tensor:
    """Fill one box (top, left, bottom, right) of each image, given as (batch, 4)."""
    return _paint(images, _tensor(amounts, images).view(-1, 4), _fill(fill, images))


def rotate(
    images: Tensor, amounts: Amounts, fill: Fill = 0, interpolation: Interpolation = "nearest"
) -> Tensor:
    """Turn counter-clockwise by degrees about the centre."""
    return _one("Rotate", images, amounts, fill, interpolation)


def shear_x(
    images: Tensor, amounts: Amounts, fill: Fill = 0, interpolation: Interpolation = "nearest"
) -> Tensor:
    """Move each row left by the amount times its distance from the top."""
    return _one("ShearX", images, amounts, fill, interpolation)


def shear_y(
    images: Tensor, amounts: Amounts, fill: Fill = 0, interpolation: Interpolation = "nearest"
) -> Tensor:
    """Move each column up by the amount times its distance from the left."""
    return _one("ShearY", images, amounts, fill, interpolation)


def translate_x(
    images: Tensor, amounts: Amounts, fill: Fill = 0, interpolation: Interpolation = "nearest"
) -> Tensor:
    """Move left by pixels."""
    return _one("TranslateX", images, amounts, fill, interpolation)


def translate_y(
    images: Tensor, amounts: Amounts, fill: Fill = 0, interpolation: Interpolation = "nearest"
) -> Tensor:
    """Move up by pixels."""
    return _one("TranslateY", images, amounts, fill, interpolation)


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "AutoContrast": autocontrast,
    "Equalize": equalize,
    "Invert": invert,
    "Rotate": rotate,
    "Posterize": posterize,
    "Solarize": solarize,
    "SolarizeAdd": solarize_add,
    "Color": color,
    "Contrast": contrast,
    "Brightness": brightness,
    "Sharpness": sharpness,
    "ShearX": shear_x,
    "ShearY": shear_y,
    "TranslateX": translate_x,
    "TranslateY": translate_y,
    "Cutout": cutout,
    "Hue": hue,
    "Mirror": mirror,
}


class Assignment(NamedTuple):
    """One operation for some images of a batch."""

    name: str
    rows: np.ndarray
    "Which images: int64 (images,)."
    amounts: np.ndarray
    "(images,), or (images, 4) boxes for Cutout."
    interpolation: Interpolation = "nearest"


def apply(images: Tensor, parts: Sequence[Assignment], fill: Fill = 0) -> Tensor:
    """Return the images with each part's operation done to its rows; a row may be in one part, or in none."""
    _check_images(images)
    height, width = images.shape[-2:]
    jobs = [
        Job(functools.partial(_direct, part.name), part.rows, (part.amounts.astype(np.float32),))
        for part in parts
        if part.name not in MATRICES and len(part.rows)
    ]
    moved = [part for part in parts if part.name in MATRICES and len(part.rows)]
    if moved:
        rows = np.concatenate([part.rows for part in moved])
        matrices = np.concatenate([MATRICES[part.name](part.amounts, height, width) for part in moved])
        taps = np.concatenate([np.full(len(part.rows), TAPS[part.interpolation]) for part in moved])
        jobs += sampling_jobs(rows, matrices, taps, height, width)
    return _run(images, jobs, fill)


def _check_images(images: Tensor) -> None:
    if images.ndim != 4 or images.dtype != torch.uint8:
        raise InputError(
            f"augmentation takes uint8 images (batch, channels, height, width), "
            f"not {str(images.dtype).removeprefix('torch.')} {tuple(images.shape)}"
        )


def _run(images: Tensor, jobs: Sequence[Job], fill: Fill) -> Tensor:
    """Sort the images by job, run each job on its own, and put all back in their places."""
    if not jobs:
        return images
    rows = np.concatenate([job.rows for job in jobs])
    is_left = np.ones(len(images), bool)
    is_left[rows] = False
    order = np.concatenate([rows, np.flatnonzero(is_left)])
    assert len(order) == len(images), "an image is in two parts"
    colour = np.array(_per_channel(fill, images.shape[1])).astype(np.uint8).reshape(1, -1, 1, 1)
    arrays = (array for job in jobs for array in job.arrays)
    sent = iter(send(images.device, colour, order, np.argsort(order), *arrays))
    filling, there, back = next(sent), next(sent), next(sent)
    # Sorted by job, so that each runs on a slice: two gathers in all, however many operations a batch drew.
    images = images.contiguous().index_select(0, there)
    room = CHUNK // max(1, math.prod(images.shape[1:]))
    pieces, start = [], 0
    for job in jobs:
        stop = start + len(job.rows)
        inputs = (images[start:stop], *(next(sent) for _ in job.arrays))
        size = max(1, room // job.memory) if images.device.type == "cpu" else len(images)
        for first in range(0, stop - start, size):
            pieces.append(job.run(*(item[first : first + size] for item in inputs), fill=filling))
        start = stop
    return torch.cat([*pieces, images[start:]]).index_select(0, back)


def send(device: torch.device, *arrays: np.ndarray) -> list[Tensor]:
    """Move arrays to a device: to a GPU in one copy, which doesn't wait for it."""
    arrays = tuple(map(np.ascontiguousarray, arrays))
    if device.type == "cpu":
        return list(map(torch.from_numpy, arrays))
    sizes = [-(-array.nbytes // 16) * 16 for array in arrays]  # each array starts at a multiple of 16 bytes
    buffer = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.type == "cuda")
    for piece, array in zip(buffer.split(sizes), arrays, strict=True):
        piece.numpy()[: array.nbytes] = array.reshape(-1).view(np.uint8)
    return [
        piece[: array.nbytes].view(torch.from_numpy(array[:0]).dtype).view(array.shape)
        for piece, array in zip(buffer.to(device, non_blocking=True).split(sizes), arrays, strict=True)
    ]


def flip(images: Tensor, draw: Draw, probability: float = 0.5) -> Tensor:
    """Swap left and right of some images."""
    _check_images(images)
    chosen = draw.uniform("flip")[:, 0] < probability
    [mask] = send(images.device, chosen.reshape(-1, 1, 1, 1))
    return torch.where(mask, mirror(images), images)


def pad_crop(
    images: Tensor, draw: Draw, padding: int = 4, mode: Literal["zero", "reflect"] = "zero"
) -> Tensor:
    """Pad each side, and cut out the old size at a random place."""
    # 2 * padding + 1 places in each direction, all equally likely: CIFAR's usual crop.
    places = np.floor(draw.uniform("place", 2) * (2 * padding + 1)).astype(np.int64)
    return crop_padded(images, places[:, 0], places[:, 1], padding, mode)


def crop_padded(
    images: Tensor, top: np.ndarray, left: np.ndarray, padding: int, mode: Literal["zero", "reflect"]
) -> Tensor:
    """Pad each side, and cut out the old size at these places of the padded images."""
    images = images.contiguous()
    batch, channels, height, width = images.shape
    rows = np.arange(height) + top[:, None] - padding  # (batch, height)
    columns = np.arange(width) + left[:, None] - padding
    if mode == "reflect":
        if padding >= min(height, width):
            raise InputError(
                f"pad_crop: a reflection of {padding} pixels needs larger images than {height}x{width}"
            )
        # |i| reflects at the first pixel, h - 1 - |h - 1 - i| at the last; neither repeats the edge, as in torch's reflect.
        rows = height - 1 - abs(height - 1 - abs(rows))
        columns = width - 1 - abs(width - 1 - abs(columns))
        source, wide = images, width
    else:
        # All that lies outside is a frame of one zero pixel, instead of a padded copy of every image.
        rows, columns = np.clip(rows + 1, 0, height + 1), np.clip(columns + 1, 0, width + 1)
        source, wide = F.pad(images, (1, 1, 1, 1)), width + 2
    row, column = send(images.device, rows * wide, columns)
    index = (row[:, :, None] + column[:, None, :]).view(batch, 1, -1).expand(-1, channels, -1)
    return source.view(batch, channels, -1).gather(2, index).view(images.shape)


def color_jitter(
    images: Tensor,
    draw: Draw,
    brightness: float = 0.0,
    contrast: float = 0.0,
    saturation: float = 0.0,
    hue: float = 0.0,
) -> Tensor:
    """Change brightness, contrast, saturation and hue by random factors, in an order of each image's own."""
    names = ("Brightness", "Contrast", "Color", "Hue")
    spreads = np.array([brightness, contrast, saturation, hue])
    if (spreads < 0).any() or hue > 0.5:
        raise InputError(f"color_jitter: {spreads.tolist()} must be 0 or more, and hue 0.5 at most")
    # torchvision's ColorJitter: factors from max(0, 1 - s) to 1 + s, the hue from -h to h, in an order drawn per image.
    low, high = np.maximum(1 - spreads, 0), 1 + spreads
    low[3], high[3] = -hue, hue
    factors = low + (high - low) * draw.uniform("factor", 4)
    order = np.argsort(draw.uniform("order", 4), axis=1)
    for turn in range(4):
        rows = [np.flatnonzero(order[:, turn] == number) for number in range(4)]
        parts = [
            Assignment(name, rows[i], factors[rows[i], i]) for i, name in enumerate(names) if spreads[i] > 0
        ]
        images = apply(images, parts)
    return images


def affine(
    images: Tensor,
    draw: Draw,
    degrees: float = 10.0,
    shear: float = 0.1,
    fill: Fill = 0,
) -> Tensor:
    """Turn each image by up to so many degrees and shear it by up to such a share, either way; bilinear."""
    random = 2 * draw.uniform("affine", 2) - 1
    height, width = images.shape[-2:]
    matrices = about_centre(degrees * random[:, 0], shear * random[:, 1], height, width)
    rows, taps = np.arange(len(images)), np.full(len(images), TAPS["bilinear"])
    return _run(images, sampling_jobs(rows, matrices, taps, height, width), fill)


def erase(
    images: Tensor,
    draw: Draw,
    probability: float = 0.25,
    mode: Literal["pixel", "const"] = "pixel",
    mean: tuple[float, ...] = IMAGENET_MEAN,
    std: tuple[float, ...] = IMAGENET_STD,
) -> Tensor:
    """Fill a random box of some images with normal noise of the data's mean and deviation, or with the mean."""
    height, width = images.shape[-2:]
    rows = np.flatnonzero(draw.uniform("whether")[:, 0] < probability)
    boxes, found = erase_boxes(draw.uniform("box", 4 * ERASE_TRIES)[rows], height, width)
    rows, boxes = rows[found], boxes[found]
    means = np.array(_per_channel(mean, images.shape[1]))
    if mode == "const" or not len(rows):
        return apply(
            images, [Assignment("Cutout", rows, boxes)], tuple(np.rint(255 * means).astype(int).tolist())
        )
    deviations = np.array(_per_channel(std, images.shape[1]))
    # timm's noise is normal after images are normalised: mean + std * normal as a share of 255, before.
    levels = np.rint(255 * (means[:, None] + deviations[:, None] * _normal_quantiles()))
    seeds = (draw.uniform("noise")[rows, 0] * 2.0**53).astype(np.int64)
    tables = send(images.device, np.clip(levels, 0, 255).astype(np.uint8))[0]
    return _run(
        images, [Job(functools.partial(_paint_noise, tables), rows, (boxes, seeds), memory=4)], fill=0
    )


def erase_boxes(random: np.ndarray, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return boxes (images, 4) by timm's rule, the first try that fits, and for which images one did."""
    random = random.reshape(-1, 4, ERASE_TRIES)
    # timm draws try after try; here all tries are drawn at once, so that an image takes the same numbers whichever fits.
    area = height * width * (ERASE_AREA[0] + (ERASE_AREA[1] - ERASE_AREA[0]) * random[:, 0])
    # Log-uniform from ERASE_RATIO to its inverse: tall and wide boxes are equally likely.
    ratio = np.exp(math.log(ERASE_RATIO) * (1 - 2 * random[:, 1]))
    heights, widths = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (heights < height) & (widths < width)
    rows, first = np.arange(len(random)), fits.argmax(axis=1)
    tall, wide = heights[rows, first], widths[rows, first]
    top = np.floor(random[rows, 2, first] * (height - tall + 1))
    left = np.floor(random[rows, 3, first] * (width - wide + 1))
    return np.stack([top, left, top + tall, left + wide], axis=1).astype(np.float32), fits[rows, first]


def normalize(
    images: Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    dtype: torch.dtype = torch.float32,
    out: Tensor | None = None,
) -> Tensor:
    """Return (value / 255 - mean) / std in float.

    On a CPU most of the time goes into fresh memory for the result: a trainer that is done with the last
    batch passes it as `out`.
    """
    # (v - 255 mean) / (255 std): two passes in place over bytes cast once, where the formula has three.
    numbers = np.array([mean, std], np.float32).reshape(2, -1, 1, 1) * np.float32(255)
    shift, scale = send(images.device, numbers[0], 1 / numbers[1])
    values = images.float() if out is None else out.copy_(images)
    return values.sub_(shift).mul_(scale).to(dtype)


def _direct(name: str, images: Tensor, amounts: Tensor, fill: Tensor) -> Tensor:
    if name == "Cutout":
        return _paint(images, amounts, fill)
    return OPERATIONS[name](images, amounts)


def _one(name: str, images: Tensor, amounts: Amounts, fill: Fill, interpolation: Interpolation) -> Tensor:
    amounts = amounts.cpu().numpy() if isinstance(amounts, Tensor) else np.asarray(amounts)
    if not amounts.ndim:
        amounts = np.full(len(images), amounts)
    if len(amounts) != len(images):
        raise InputError(
            f"{name}: {len(amounts)} amounts for {len(images)} images; give one, or one for each"
        )
    return apply(images, [Assignment(name, np.arange(len(images)), amounts, interpolation)], fill)


def _tensor(amounts: Amounts, images: Tensor) -> Tensor:
    if isinstance(amounts, Tensor):
        return amounts.to(images.device, torch.float32)
    return torch.tensor(np.asarray(amounts), dtype=torch.float32, device=images.device)


def _column(amounts: Amounts, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the amounts as (batch, 1, 1, 1)."""
    return _tensor(amounts, images).to(dtype).view(-1, 1, 1, 1)


def _per_channel(values: float | tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Spread one value over the channels, or take the average of three for a grey image."""
    if not isinstance(values, tuple):
        return (values,) * channels
    if channels == 1:
        return (sum(values) / len(values),)
    if len(values) != channels:
        raise InputError(f"{values} has {len(values)} values, the images have {channels} channels")
    return values


def _fill(fill: Fill, images: Tensor) -> Tensor:
    colour = np.array(_per_channel(fill, images.shape[1])).astype(np.uint8)
    return send(images.device, colour)[0].view(1, -1, 1, 1)


def _blend(base: Tensor, values: Tensor, factor: Tensor) -> Tensor:
    return to_bytes(values.sub_(base).mul_(factor).add_(base))


def _check_colours(images: Tensor) -> None:
    if images.shape[1] not in (1, 3):
        raise InputError(f"colour operations take 1 or 3 channels, not {images.shape[1]}")


def _grey(images: Tensor) -> Tensor:
    """Return Pillow's conversion to grey: float (batch, 1, height, width) of whole numbers."""
    _check_colours(images)
    if images.shape[1] == 1:
        return images.float()
    red, green, blue = images.split(1, dim=1)
    # ITU-R 601-2 luma in 1/65536 as Pillow's L24 macro rounds it: (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16.
    # Below 2**24, so exact in float32.
    total = red.float().mul_(19595).add_(green.float(), alpha=38470).add_(blue.float(), alpha=7471)
    return total.add_(32768).mul_(2.0**-16).floor_()


def _look_up(images: Tensor, tables: Tensor) -> Tensor:
    """Replace each value by its entry in the channel's table (batch, channels, 256)."""
    batch, channels = images.shape[:2]
    return tables.gather(2, images.reshape(batch, channels, -1).long()).view(images.shape)


def _histograms(images: Tensor) -> Tensor:
    """Count the values of each channel: int64 (batch, channels, 256)."""
    batch, channels = images.shape[:2]
    if images.device.type == "cpu":
        first = torch.arange(0, batch * channels * 256, 256, dtype=torch.int32).view(batch, channels, 1, 1)
        counts = torch.bincount((images.to(torch.int32) + first).flatten(), minlength=batch * channels * 256)
        return counts.view(batch, channels, 256)
    # On a GPU bincount waits for the device.
    counts = torch.zeros(batch, channels, 256, dtype=torch.int64, device=images.device)
    places = images.reshape(batch, channels, -1).long()
    return counts.scatter_add_(
        2, places, torch.ones((), dtype=torch.int64, device=images.device).expand_as(places)
    )


def _paint(images: Tensor, boxes: Tensor, colour: Tensor) -> Tensor:
    """Put a colour, or a picture of the same size, into a box (top, left, bottom, right) of each image."""
    top, left, bottom, right = boxes.to(torch.int16)[:, :, None].unbind(1)  # each (batch, 1)
    y, x = (torch.arange(size, device=images.device, dtype=torch.int16) for size in images.shape[-2:])
    rows, columns = outside(y, top, bottom), outside(x, left, right)
    return fill_where(rows[:, None, :, None] | columns[:, None, None, :], colour, images)


@functools.cache
def _normal_quantiles() -> np.ndarray:
    """The middles of 4096 equally likely intervals of the normal distribution."""
    return torch.special.ndtri((torch.arange(4096, dtype=torch.float64) + 0.5) / 4096).numpy()


def _paint_noise(tables: Tensor, images: Tensor, boxes: Tensor, seeds: Tensor, fill: Tensor) -> Tensor:
    """Put random entries of each channel's table (channels, 4096) into a box of each image.

    Which entry is a hash of the image's seed and the pixel, in whole numbers, so the same on every device.
    """
    batch, channels, height, width = images.shape
    # Constants of SplitMix64 as signed numbers; `&` cuts off the sign that `>>` drags in.
    words = seeds[:, None] + torch.arange(height * width, device=images.device) * -0x61C8864680B583EB
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1)):  # SplitMix64's
        words.bitwise_xor_((words >> shift).bitwise_and_((1 << (64 - shift)) - 1)).mul_(factor)
    # Each channel has 12 bits of its own; from the fifth on they repeat.
    shifts = 52 - 13 * (torch.arange(channels, device=images.device) % 4)[:, None]
    places = (words[:, None] >> shifts).bitwise_and_(4095)  # (batch, channels, pixels)
    return _paint(images, boxes, tables.expand(batch, -1, -1).gather(2, places).view(images.shape))
