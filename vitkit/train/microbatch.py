"""How many images one forward pass takes: a step's share, cut into equal parts of whole mixing groups."""

from __future__ import annotations

from collections.abc import Callable

import torch

from vitkit.errors import InputError


def sizes(count: int, group: int) -> list[int]:
    """Return the micro-batches that a process's share of a batch can be cut into, the largest first."""
    return [
        count // parts for parts in range(1, count + 1) if count % parts == 0 and count // parts % group == 0
    ]


def check(size: int, count: int, group: int) -> int:
    """Return a micro-batch that was asked for, or say which ones there are."""
    if size not in sizes(count, group):
        near = ", ".join(map(str, sizes(count, group)[:6]))
        raise InputError(
            f"micro_batch {size} doesn't divide {count} images into whole groups of {group}: try {near}"
        )
    return size


def largest_that_fits(count: int, group: int, attempt: Callable[[int], None]) -> int:
    """Return the largest micro-batch for which a forward and backward pass has enough memory."""
    for size in sizes(count, group):
        try:
            attempt(size)
            return size
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
    raise InputError(
        "out of memory even with the smallest micro-batch: set activation_checkpointing=true, or take a smaller model"
    )
