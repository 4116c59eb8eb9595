"""The size of micro-batches: a process's images of a step, split into equal parts of whole mixing groups."""

from __future__ import annotations

import numpy as np
import torch

from vitkit.data.draws import Draw
from vitkit.data.loader import Batch
from vitkit.errors import InputError
from vitkit.runs import RunFolder
from vitkit.training.build import RunParts
from vitkit.training.config import TrainConfig
from vitkit.training.distributed import alone, gradients_stay
from vitkit.training.optimizers import make_memory
from vitkit.world import World

SEARCHED = ("cuda",)  # devices that report running out of memory


def choose(config: TrainConfig, parts: RunParts, folder: RunFolder | None, world: World) -> int | None:
    """Return the images per forward pass, as set or as recorded with the run; None if the size has to be searched."""
    count, group = parts.loader.count, mixing_group(parts)
    if isinstance(config.micro_batch, int):
        return check(config.micro_batch, count, group)
    if config.micro_batch is None or world.device.type not in SEARCHED:
        return count
    known = folder.record["micro_batch"] if folder else None
    known = int(world.gather(torch.tensor([known or 0])).max())
    return known if known in sizes(count, group) else None


def mixing_group(parts: RunParts) -> int:
    """Return how many neighbouring images must stay in one micro-batch."""
    return parts.loader.group if parts.loader.pipeline.mix else 1


def sizes(count: int, group: int) -> list[int]:
    """Return the sizes of micro-batches that a process's part of a batch can be split into, largest first."""
    return [
        count // parts for parts in range(1, count + 1) if count % parts == 0 and count // parts % group == 0
    ]


def check(size: int, count: int, group: int) -> int:
    """Return the given micro-batch size, or raise InputError with the possible ones."""
    if size not in sizes(count, group):
        near = ", ".join(map(str, sizes(count, group)[:6]))
        raise InputError(
            f"micro_batch {size} doesn't divide {count} images into whole groups of {group}: try {near}"
        )
    return size


def largest_that_fits(parts: RunParts, world: World) -> int:
    """Return the largest micro-batch for which every process has enough memory. The parts can't be trained afterwards.

    Sizes grow until one fails, because FSDP2 gives no gradients after a failed backward pass. They are tried without
    compilation, which would run for every size, and without communication, so that no process waits for one that is
    out of memory.
    """
    found, batch = 0, parts.loader[0]
    world.sum(torch.zeros(1, device=world.device))  # NCCL allocates its memory on first use
    with alone(parts.forward), torch.compiler.set_stance("force_eager"):
        for size in reversed(sizes(parts.loader.count, mixing_group(parts))):
            if world.any(not fits(parts, batch, size)):
                break
            found = size
    if not found:
        raise InputError(
            "out of memory even with the smallest micro-batch: set activation_checkpointing=true, "
            "or use a smaller model"
        )
    return found


def fits(parts: RunParts, batch: Batch, size: int) -> bool:
    """Return whether this process has enough memory for a micro-batch."""
    try:
        attempt(parts, batch, size)
        return True
    except torch.OutOfMemoryError:
        return False


def attempt(parts: RunParts, batch: Batch, size: int) -> None:
    """Use the memory of a step: the second micro-batch runs while the gradients of the first are kept."""
    if not parts.optimizer.state:
        make_memory(parts.optimizer)
    stop = min(2 * size, parts.loader.count)
    for start in range(0, stop, size):
        part = {name: tensor[start : start + size] for name, tensor in batch.items()}
        part = parts.objective.prepare(part, Draw(0, 0, np.arange(start, start + size), "objective"))
        with gradients_stay(parts.forward, parts.model, held=start + size < stop):
            loss = parts.forward(part)[0]
            parts.loader.take_memory()
            loss.backward()
    parts.optimizer.zero_grad(set_to_none=True)
