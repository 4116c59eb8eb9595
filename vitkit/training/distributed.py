"""How several processes train one model: a copy each (DDP), or a part of every weight each (FSDP2). PyTorch's own engine."""

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
    """Give each process a part of every weight (FSDP2), gathered block by block where it is used."""
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
    if hasattr(objective.model, "encode"):  # what masking calls in place of forward
        register_fsdp_forward_method(objective.model, "encode")


def blocks(module: nn.Module) -> list[nn.Module]:
    """Return the encoder blocks of a transformer, or the stages of a ResNet."""
    lists = [child for child in module.modules() if isinstance(child, nn.ModuleList)]
    return [block for children in lists for block in children]


def replicate(objective: Objective, world: World) -> nn.Module:
    """Return the objective with gradients averaged over all processes (DDP)."""
    device_ids = [world.device] if world.device.type == "cuda" else None
    with warnings.catch_warnings():
        # Its successor, forward_sync_buffers, is not in every PyTorch that we support.
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
        return nn.parallel.DistributedDataParallel(objective, device_ids=device_ids, broadcast_buffers=False)


@contextmanager
def gradients_stay(module: nn.Module, model: Model, held: bool) -> Iterator[None]:
    """Keep gradients on this process while `held`: only the last micro-batch of a step sends them."""
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
    """Let a process take the memory of a step and send nothing; sharded weights are of no use from then on."""
    from torch.distributed.fsdp import FSDPModule

    silence: Any = _Silence()
    for module in forward.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(silence)
            module.set_custom_reduce_scatter(silence)
    with forward.no_sync() if isinstance(forward, nn.parallel.DistributedDataParallel) else nullcontext():
        yield


class _Silence:
    """What FSDP2 gathers weights and reduces gradients by, where nothing is sent: zeros, in the same memory."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, **_: object) -> None:
        output_tensor.zero_()


def whole(tensor: Tensor) -> Tensor:
    """Return a weight that is spread over processes as one tensor, on all of them."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
