"""The Triton kernels of pooling: a program handles a group of windows and of channels.

The large images are (images, HEIGHT, WIDTH, CHANNELS) in memory. The small ones have half the height and width, rounded up.
Window (a, b) covers rows 2a - 1 to 2a + 1 and columns 2b - 1 to 2b + 1. Its pixels are numbered 0 to 8, row by row.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def at(
    image: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    channels: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the offsets of the channels at these positions, and a mask of those that exist."""
    exists = (row >= 0) & (row < ROWS) & (column >= 0) & (column < COLUMNS)
    place = (image * ROWS + row) * COLUMNS + column
    return place[:, None] * CHANNELS + channels[None, :], exists[:, None] & (channels < CHANNELS)[None, :]


@triton.jit
def read(d_y: tl.tensor, chosen: tl.tensor, place: tl.tensor, mask: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Return the pixel number that each window chose, and its gradient."""
    gradient = tl.load(d_y + place, mask=mask, other=0.0).to(tl.float32)
    return tl.load(chosen + place, mask=mask, other=9).to(tl.int32), gradient


@triton.jit
def pick(number: tl.tensor, gradient: tl.tensor, k: tl.constexpr) -> tl.tensor:
    """Return the gradient where the window chose pixel k, else 0."""
    return tl.where(number == k, gradient, 0.0)


@triton.jit
def write(d_x: tl.tensor, place: tl.tensor, total: tl.tensor, mask: tl.tensor) -> None:
    """Store the gradient of one of the four pixels of each window."""
    tl.store(d_x + place, total.to(d_x.dtype.element_ty), mask=mask)


@triton.jit
def forward(
    x: tl.tensor,
    y: tl.tensor,
    chosen: tl.tensor,
    windows: tl.tensor,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    POSITIONS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write the largest value of each window, at least 0, and its pixel number."""
    ROWS: tl.constexpr = (HEIGHT + 1) // 2
    COLUMNS: tl.constexpr = (WIDTH + 1) // 2
    window = tl.program_id(0).to(tl.int64) * POSITIONS + tl.arange(0, POSITIONS)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    image, row, column = window // (ROWS * COLUMNS), window // COLUMNS % ROWS, window % COLUMNS
    top = tl.full((POSITIONS, BLOCK), float("-inf"), tl.float32)
    number = tl.full((POSITIONS, BLOCK), 0, tl.int32)
    for k in tl.static_range(9):
        place, exists = at(
            image, 2 * row - 1 + k // 3, 2 * column - 1 + k % 3, channels, HEIGHT, WIDTH, CHANNELS
        )
        value = tl.load(x + place, mask=exists & (window < windows)[:, None], other=float("-inf")).to(
            tl.float32
        )
        greater = (value > top) | (value != value)  # like PyTorch: NaN wins, and so does the first of equals
        top = tl.where(greater, value, top)
        number = tl.where(greater, k, number)
    number = tl.where(top <= 0.0, 9, number)
    top = tl.where(top <= 0.0, 0.0, top)
    place, exists = at(image, row, column, channels, ROWS, COLUMNS, CHANNELS)
    exists &= (window < windows)[:, None]
    tl.store(y + place, top.to(y.dtype.element_ty), mask=exists)
    tl.store(chosen + place, number.to(tl.int8), mask=exists)


@triton.jit
def backward(
    d_x: tl.tensor,
    d_y: tl.tensor,
    chosen: tl.tensor,
    windows: tl.tensor,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    POSITIONS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write the gradients of each window's centre and of the pixels to its right, below it and diagonally below."""
    ROWS: tl.constexpr = (HEIGHT + 1) // 2
    COLUMNS: tl.constexpr = (WIDTH + 1) // 2
    window = tl.program_id(0).to(tl.int64) * POSITIONS + tl.arange(0, POSITIONS)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    image, row, column = window // (ROWS * COLUMNS), window // COLUMNS % ROWS, window % COLUMNS
    mine = (window < windows)[:, None]
    # Each pixel gathers from the windows that cover it: its own and those to the right, below and diagonally below. No two
    # programs add to the same pixel, so sums have a fixed order and need no atomics.
    place, exists = at(image, row, column, channels, ROWS, COLUMNS, CHANNELS)
    own, d_own = read(d_y, chosen, place, exists & mine)
    place, exists = at(image, row, column + 1, channels, ROWS, COLUMNS, CHANNELS)
    right, d_right = read(d_y, chosen, place, exists & mine)
    place, exists = at(image, row + 1, column, channels, ROWS, COLUMNS, CHANNELS)
    below, d_below = read(d_y, chosen, place, exists & mine)
    place, exists = at(image, row + 1, column + 1, channels, ROWS, COLUMNS, CHANNELS)
    diagonal, d_diagonal = read(d_y, chosen, place, exists & mine)

    place, exists = at(image, 2 * row, 2 * column, channels, HEIGHT, WIDTH, CHANNELS)
    write(d_x, place, pick(own, d_own, 4), exists & mine)
    place, exists = at(image, 2 * row, 2 * column + 1, channels, HEIGHT, WIDTH, CHANNELS)
    write(d_x, place, pick(own, d_own, 5) + pick(right, d_right, 3), exists & mine)
    place, exists = at(image, 2 * row + 1, 2 * column, channels, HEIGHT, WIDTH, CHANNELS)
    write(d_x, place, pick(own, d_own, 7) + pick(below, d_below, 1), exists & mine)
    place, exists = at(image, 2 * row + 1, 2 * column + 1, channels, HEIGHT, WIDTH, CHANNELS)
    total = (
        pick(own, d_own, 8)
        + pick(right, d_right, 6)
        + pick(below, d_below, 2)
        + pick(diagonal, d_diagonal, 0)
    )
    write(d_x, place, total, exists & mine)
