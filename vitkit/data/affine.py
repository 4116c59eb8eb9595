"""Moves of pixels, each image by its own matrix, as Pillow samples them: nearest, bilinear or bicubic."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Interpolation = Literal["nearest", "bilinear", "bicubic"]
# Input pixels that each direction of an output pixel takes in.
TAPS: dict[str, int] = {"nearest": 1, "bilinear": 2, "bicubic": 4}
# Sums of weights fall short of a whole number by the rounding of float32; Pillow's, in float64, don't.
EPSILON = 1e-3


class Job(NamedTuple):
    """What runs on the device: a function of images and arrays with a row for each."""

    run: Callable[..., Tensor]
    rows: np.ndarray
    arrays: tuple[np.ndarray, ...]
    memory: int = 1
    "How much more it takes than others."


def _matrices(amounts: np.ndarray, place: int) -> np.ndarray:
    """Return identity matrices with the amounts at one place."""
    result = np.tile([1.0, 0.0, 0.0, 0.0, 1.0, 0.0], (len(amounts), 1))
    result[:, place] = amounts
    return result


def about_centre(degrees: np.ndarray, shear: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the matrices of a turn counter-clockwise after a shear of the rows, the image's centre in its place."""
    # Without shear it is Image.rotate's. It leads from output to input, hence a turn by -degrees; c and f keep the centre.
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    a, b, d, e = cosine, cosine * shear - sine, sine, sine * shear + cosine
    x, y = width / 2, height / 2
    return np.stack([a, b, x - a * x - b * y, d, e, y - d * x - e * y], axis=1)


# Operations that move pixels: amounts, height and width -> Pillow's six numbers (images, 6).
# The output pixel (x, y) shows the input at (ax + by + c, dx + ey + f).
MATRICES: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "Rotate": lambda amounts, height, width: about_centre(amounts, np.zeros_like(amounts), height, width),
    "ShearX": lambda amounts, height, width: _matrices(amounts, 1),
    "ShearY": lambda amounts, height, width: _matrices(amounts, 3),
    "TranslateX": lambda amounts, height, width: _matrices(amounts, 2),
    "TranslateY": lambda amounts, height, width: _matrices(amounts, 5),
}


def sampling_jobs(
    rows: np.ndarray, matrices: np.ndarray, taps: np.ndarray, height: int, width: int
) -> list[Job]:
    """Sort moves into jobs: nearest pixel; smooth along rows or columns alone, which is cheap; smooth in the plane."""
    a, b, c, d, e, f = matrices.T
    # A shear or a translation moves whole lines: its weights are one set a line, not one a pixel.
    along_x = (taps > 1) & (a == 1) & (d == 0) & (e == 1) & (f == 0)
    along_y = (taps > 1) & (a == 1) & (b == 0) & (c == 0) & (e == 1) & ~along_x
    plane = ~along_x & ~along_y
    jobs = []
    if (some := taps == 1).any():
        jobs.append(Job(_nearest, rows[some], (_fixed_point(matrices[some]),)))
    if along_x.any():
        moves = b[along_x, None] * (np.arange(height) + 0.5) + c[along_x, None]
        slide = functools.partial(_slide, axis=3)
        jobs.append(Job(slide, rows[along_x], _slide_arrays(moves, taps[along_x], width)))
    if along_y.any():
        moves = d[along_y, None] * (np.arange(width) + 0.5) + f[along_y, None]
        slide = functools.partial(_slide, axis=2)
        jobs.append(Job(slide, rows[along_y], _slide_arrays(moves, taps[along_y], height)))
    for count in (2, 4):
        if (some := plane & (taps == count)).any():
            smooth = functools.partial(_smooth, taps=count)
            jobs.append(Job(smooth, rows[some], (matrices[some].astype(np.float32),), memory=4))
    return jobs


def _fixed_point(matrices: np.ndarray) -> np.ndarray:
    """Return the numbers for pixel corners in 1/65536, rounded as Pillow does, moved by one for the frame of fill."""
    a, b, c, d, e, f = matrices.T
    # Pillow's affine_fixed: places of pixel centres (x + 0.5, y + 0.5) in 1/65536, FIX(v) = floor(v * 65536 + 0.5).
    corners = np.stack([a, b, c + (a + b) / 2 + 1, d, e, f + (d + e) / 2 + 1], axis=1)
    # Places this far outside are fill whatever they are, and their offsets can't wrap around int32.
    return np.clip(np.floor(corners * 65536 + 0.5), -(2**29), 2**29).astype(np.int32)


def _nearest(images: Tensor, numbers: Tensor, fill: Tensor) -> Tensor:
    """Show at each pixel the input pixel that its matrix names, or fill."""
    batch, channels, height, width = images.shape
    # What lies outside is clamped to a frame of fill, which spares a mask.
    framed = fill.expand(batch, channels, height + 2, width + 2).contiguous()
    framed[:, :, 1:-1, 1:-1] = images
    a, b, c, d, e, f = numbers[:, :, None, None].unbind(1)  # each (batch, 1, 1)
    x = torch.arange(width, device=images.device, dtype=torch.int32)
    y = torch.arange(height, device=images.device, dtype=torch.int32)[:, None]
    column = (a * x + (b * y + c)).bitwise_right_shift_(16).clamp_(0, width + 1)
    row = (d * x + (e * y + f)).bitwise_right_shift_(16).clamp_(0, height + 1)
    index = row.mul_(width + 2).add_(column).long().view(batch, 1, -1).expand(-1, channels, -1)
    return framed.view(batch, channels, -1).gather(2, index).view(images.shape)


def _slide_arrays(moves: np.ndarray, taps: np.ndarray, size: int) -> tuple[np.ndarray, ...]:
    """Return for each line its first input pixel, four weights, and the first and last output pixel not filled."""
    whole = np.floor(moves)
    distance = moves - whole
    none = np.zeros_like(distance)
    # Both kinds have four taps, so that a batch of both is one job.
    linear, cubic = np.stack([none, 1 - distance, distance, none]), np.stack(_cubic(distance))
    weights = np.where((taps == 2)[:, None], linear, cubic).swapaxes(0, 1)  # (images, 4, lines)
    # Output x shows input x + 0.5 + move, which exists from 0 up to size: Pillow fills where the centre is outside, and
    # repeats the edge for taps that are.
    limits = np.ceil(np.stack([-0.5 - moves, size - 0.5 - moves], axis=1))  # (images, 2, lines)
    return (
        np.clip(whole - 1, -size - 3, size).astype(np.int64),
        weights.astype(np.float32),
        np.clip(limits, 0, size).astype(np.int16),
    )


def _slide(images: Tensor, first: Tensor, weights: Tensor, limits: Tensor, fill: Tensor, axis: int) -> Tensor:
    """Move each row (axis 3) or column (axis 2) by a distance of its own, smoothly."""
    batch, channels, height, width = images.shape
    size, line = images.shape[axis], (-1 if axis == 3 else -2)
    steps = torch.arange(size + 3, device=images.device)
    if axis == 3:
        index = (first[:, :, None] + steps).clamp_(0, width - 1)
        index += torch.arange(0, height * width, width, device=images.device)[:, None]
    else:
        index = (first[:, None] + steps[:, None]).clamp_(0, height - 1).mul_(width)
        index += torch.arange(width, device=images.device)
    values = images.view(batch, channels, -1).gather(2, index.view(batch, 1, -1).expand(-1, channels, -1))
    values = values.float().view(batch, channels, *index.shape[1:])
    share = weights[:, :, None].unsqueeze(line)  # (batch, 4, 1, height, 1) or (batch, 4, 1, 1, width)
    result = values.narrow(axis, 0, size) * share[:, 0]
    for tap in range(1, 4):
        result.addcmul_(values.narrow(axis, tap, size), share[:, tap])
    low, high = limits[:, :, None].unsqueeze(line).unbind(1)
    place = (steps[:size] if axis == 3 else steps[:size, None]).to(torch.int16)
    return fill_where(outside(place, low, high), to_bytes(result.add_(EPSILON)), fill)


def _smooth(images: Tensor, matrices: Tensor, fill: Tensor, taps: int) -> Tensor:
    """Show at each pixel the weighted input around the place that its matrix names, or fill."""
    height, width = images.shape[-2:]
    a, b, c, d, e, f = matrices[:, :, None, None].unbind(1)  # each (batch, 1, 1)
    x = torch.arange(width, device=images.device) + 0.5
    y = (torch.arange(height, device=images.device) + 0.5)[:, None]
    column, row = a * x + (b * y + c), d * x + (e * y + f)  # (batch, height, width)
    beyond = _outside_plane(column, width) | _outside_plane(row, height)
    if taps == 2:
        # grid_sample without align_corners: -1 and 1 are the outer edges of the first and last pixel.
        grid = torch.stack([column.mul_(2 / width).sub_(1), row.mul_(2 / height).sub_(1)], dim=-1)
        result = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    else:
        result = _sample_cubic(images, column.sub_(0.5), row.sub_(0.5))
    return fill_where(beyond[:, None], to_bytes(result.add_(EPSILON)), fill)


def _sample_cubic(images: Tensor, column: Tensor, row: Tensor) -> Tensor:
    """Return the bicubic values at places (batch, height, width); torch's grid_sample has another kernel."""
    batch, channels, height, width = images.shape
    column, row = column.clamp_(-1, width - 0.5), row.clamp_(-1, height - 0.5)
    left, above = column.floor(), row.floor()
    # Two pixels on each side hold every tap of a place inside; Pillow's XCLIP and YCLIP repeat the edge too.
    framed = F.pad(images.float(), (2, 2, 2, 2), mode="replicate").view(batch, channels, -1)
    wide = width + 4
    index = (above.int() + 1).mul_(wide).add_(left.int() + 1).long()  # from float to int64 is a slow cast
    index = index.view(batch, 1, -1).expand(-1, channels, -1)
    reach = framed.shape[2] - 3 * (wide + 1)  # of the first tap's view; the last one's ends with the frame
    across, down = _cubic(column - left), _cubic(row - above)
    result = torch.zeros(images.shape, device=images.device)
    for j in range(4):
        # Along the row first, then across, in Pillow's order of sums.
        line = torch.zeros_like(result)
        for i in range(4):
            tap = framed[:, :, j * wide + i :][:, :, :reach].gather(2, index)
            line.addcmul_(tap.view(images.shape), across[i][:, None])
        result.addcmul_(line, down[j][:, None])
    return result


def _outside_plane(place: Tensor, size: int) -> Tensor:
    """Return 255 where a place isn't from 0 up to size, else 0."""
    pixel = place.floor().clamp_(-1, size).to(torch.int16)
    return negative(pixel | (size - 1 - pixel))


def _cubic(distance: Any) -> list[Any]:
    """Return the weights of the two pixels before and the two after: Keys' kernel with a = -1, which is Pillow's."""
    square, cube = distance**2, distance**3
    return [2 * square - cube - distance, cube - 2 * square + 1, square + distance - cube, cube - square]


# Arithmetic on bytes in the forms that torch does fast, which other operations use too.


def negative(values: Tensor) -> Tensor:
    """Return 255 where int16 values are negative, else 0. Masks are bit operations: on bytes, torch's are many
    times faster than its comparisons and `where`."""
    return (values >> 15).to(torch.uint8)


def outside(place: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return 255 where a place isn't from low to high - 1, else 0; all int16."""
    return negative((place - low) | (high - 1 - place))


def to_bytes(values: Tensor) -> Tensor:
    """Clip and cut off the fraction, as Pillow does; the step over int16 is vectorised, the direct cast isn't."""
    return values.clamp_(0, 255).to(torch.int16).to(torch.uint8)


def fill_where(mask: Tensor, images: Tensor, others: Tensor) -> Tensor:
    """Return others where the mask is 255, and images where it is 0."""
    return images ^ ((images ^ others) & mask)
