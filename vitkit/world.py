"""The group of processes that torchrun starts: this process's rank, and communication within the group."""

from __future__ import annotations

import atexit
import gc
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.rendezvous import rendezvous

from vitkit.errors import InputError

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True)
class World:
    """This process within its group; without torchrun there is only one process."""

    rank: int
    ranks: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def device_name(self) -> str:
        """A readable name of the device: a GPU's product name, or the number of CPU threads."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        if self.device.type != "cpu":
            return self.device.type
        threads = torch.get_num_threads()
        return f"{threads} CPU thread{'s' if threads > 1 else ''}"

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of every process's values."""
        if self.ranks > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def any(self, claim: bool) -> bool:
        """Return whether the claim is true on any process. Runs on the CPU (gloo), so it waits for no GPU."""
        return bool(self.sum(torch.tensor(float(claim))))

    def gather(self, rows: Tensor) -> Tensor:
        """Return every process's rows on the CPU, in rank order."""
        rows = rows.cpu()
        if self.ranks == 1:
            return rows
        parts: list[Tensor] = [rows] * self.ranks
        dist.all_gather_object(parts, rows)
        return torch.cat(parts)

    def collect(self, found: dict[Key, Value]) -> dict[Key, Value]:
        """Return the entries of all processes, merged."""
        parts = [found] * self.ranks
        if self.ranks > 1:
            dist.all_gather_object(parts, found)
        return {key: value for part in parts for key, value in part.items()}

    def barrier(self) -> None:
        if self.ranks > 1:
            dist.barrier()


def wait(device: torch.device) -> None:
    """Wait until a device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


_worlds = itertools.count()


def _end_groups() -> None:
    """Free the process groups of sharded models, which PyTorch caches: their threads must not outlive Python.

    A thread that still has a tensor to free would abort the process, after all work is done. Models that are still
    referenced keep their groups.
    """
    for mesh in gc.get_objects():
        if type(mesh) is DeviceMesh:
            getattr(mesh, "_pg_registry", {}).clear()
    gc.collect()


def check_alone(advice: str) -> None:
    """Raise InputError with this advice if torchrun started several processes, for work that takes only one."""
    if _num_ranks() > 1:
        raise InputError(advice)


def is_first_process() -> bool:
    """Return whether this process writes to the terminal, which torchrun's processes share."""
    return os.environ.get("RANK", "0") == "0"


def _num_ranks() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def join_world(device: torch.device) -> Iterator[World]:
    """Join the processes that torchrun started, if it did."""
    if _num_ranks() == 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
        yield World(0, 1, device)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    # torchrun's store outlives restarts and earlier groups: without a prefix, processes would look for dead ones.
    store, rank, ranks = next(rendezvous("env://"))
    attempt, number = os.environ.get("TORCHELASTIC_RESTART_COUNT", 0), next(_worlds)
    if number == 0:
        atexit.register(_end_groups)
    store = dist.PrefixStore(f"attempt {attempt}, world {number}", store)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)
    try:
        yield World(rank, ranks, device)
        dist.barrier()  # a process that leaves early can take the others down
    finally:
        dist.destroy_process_group()
