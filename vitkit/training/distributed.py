"""Training on several processes with PyTorch's DDP (a copy of the model each) or FSDP2 (a part of every weight each)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vitkit.models.model import Model
from vitkit.objectives.objective import Objective
from vitkit.world import World


def shard(objective: Objective, dtype: torch.dtype) -> None:
    """Shard every weight over all processes (FSDP2); blocks gather their weights when they run."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    device = next(objective.parameters()).device.type
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for module in objective.children():
        for block in blocks(module):
            fully_shard(block, mesh=mesh, mp_policy=policy)
        if any(True for _ in module.parameters()):
            fully_shard(module, mesh=mesh, mp_policy=policy)
    if hasattr(objective.model, "encode"):  # called by masking objectives instead of forward
        register_fsdp_forward_method(objective.model, "encode")


def blocks(module: nn.Module) -> list[nn.Module]:
    """Return the encoder blocks of a transformer, or the stages of a ResNet."""
    lists = [child for child in module.modules() if isinstance(child, nn.ModuleList)]
    return [block for children in lists for block in children]


def replicate(objective: Objective, world: World) -> nn.Module:
    """Return the objective with gradients averaged over all processes (DDP)."""
    device_ids = [world.device] if world.device.type == "cuda" else None
    with warnings.catch_warnings():
        # Its replacement, forward_sync_buffers, is not in every PyTorch that we support.
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
        return nn.parallel.DistributedDataParallel(objective, device_ids=device_ids, broadcast_buffers=False)


@contextmanager
def gradients_stay(module: nn.Module, model: Model, held: bool) -> Iterator[None]:
    """Don't synchronise gradients while `held`: only the last micro-batch of a step does."""
    if isinstance(module, nn.parallel.DistributedDataParallel) and held:
        with module.no_sync():
            yield
        return
    if hasattr(model, "set_requires_gradient_sync"):  # sharded by FSDP2, as are the objective's own layers
        for part in module.modules():
            if set_sync := getattr(part, "set_requires_gradient_sync", None):
                set_sync(not held, recurse=False)
    yield


@contextmanager
def alone(forward: nn.Module) -> Iterator[None]:
    """Let a process use the memory of a step without communication; sharded weights are invalid afterwards."""
    from torch.distributed.fsdp import FSDPModule

    silence: Any = _Silence()
    for module in forward.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(silence)
            module.set_custom_reduce_scatter(silence)
    with forward.no_sync() if isinstance(forward, nn.parallel.DistributedDataParallel) else nullcontext():
        yield


class _Silence:
    """Replaces FSDP2's communication: fills the same memory with zeros and sends nothing."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, **_: object) -> None:
        output_tensor.zero_()


def whole(tensor: Tensor) -> Tensor:
    """Return a sharded weight as one tensor, on all processes."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
