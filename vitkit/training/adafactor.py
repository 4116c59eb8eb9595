"""Adafactor as Scaling ViT uses it, and the base class of our own optimisers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
import torch.distributed
from torch import Tensor
from torch.optim import Optimizer

Group = dict[str, Any]
MomentumDtype = Literal["float32", "bfloat16"]


class MomentumOptimizer(Optimizer):
    """An optimiser whose state `momentum_buffer` has the dtype of its group's `momentum_dtype`."""

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[Group],
        lr: float,
        momentum: float = 0.9,
        momentum_dtype: MomentumDtype = "bfloat16",
        weight_decay: float = 0.0,
    ) -> None:
        defaults = dict(lr=lr, momentum=momentum, momentum_dtype=momentum_dtype, weight_decay=weight_decay)
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            if parameters := [parameter for parameter in group["params"] if parameter.grad is not None]:
                self.update(group, parameters)

    def update(self, group: Group, parameters: list[Tensor]) -> None:
        """Update the parameters of one group, each of which has a gradient."""
        raise NotImplementedError

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        super().load_state_dict(state_dict)  # casts every tensor to its parameter's dtype
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state.get(parameter, {})
                if "momentum_buffer" in state:
                    state["momentum_buffer"] = state["momentum_buffer"].to(dtype_of(group))


def dtype_of(group: Group) -> torch.dtype:
    """Return the dtype of a group's momentum; groups hold its name, so that they can be saved as text."""
    return getattr(torch, group["momentum_dtype"])


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor, sharing its memory; other tensors are returned unchanged."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class Adafactor(MomentumOptimizer):
    """Adafactor as in big_vision: no scaling by parameter norm, no clipping, momentum as a plain average.

    If the two largest dimensions of a parameter have at least 32 entries, its second moment is stored as the means
    along each of them. It decays by 1 - t^-0.8, at most 0.999. Weight decay is decoupled and multiplied by the learning
    rate. Parameters may be DTensors: means are then over all shards.
    """

    def update(self, group: Group, parameters: list[Tensor]) -> None:
        # One parameter at a time: the point of this optimiser is to need little memory.
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state.update(_zero_state(parameter, group))
            state["step"] += 1
            # 0 at the first step, so the moments' initial zeros have no effect (Shazeer & Stern, 7.1).
            # In Shazeer & Stern it rises to 1; Scaling ViT caps it at Adam's default, which converged better.
            keep = min(0.999, 1.0 - float(state["step"]) ** -0.8)
            assert parameter.grad is not None
            gradient = local(parameter.grad)
            squares = gradient.square().add_(1e-30)  # avoids a division by zero
            if (dims := factored_dims(parameter.shape)) is not None:
                smaller, larger = dims
                rows, columns = local(state["row_square"]), local(state["column_square"])
                rows.lerp_(_mean(squares, larger, parameter), 1.0 - keep)
                columns.lerp_(_mean(squares, smaller, parameter), 1.0 - keep)
                # The outer product of both means, divided by the mean of all, approximates the second moment.
                row_factor = (rows / _mean(rows, smaller, parameter)).rsqrt_()
                update = gradient * row_factor * columns.rsqrt()
            else:
                square = local(state["square"])
                update = gradient * square.lerp_(squares, 1.0 - keep).rsqrt()
            if group["momentum"]:
                buffer = local(state["momentum_buffer"])
                update = buffer.float().lerp(update, 1.0 - group["momentum"])
                buffer.copy_(update)
            value = local(parameter)
            value.mul_(1.0 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])


def factored_dims(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the second largest and the largest dimension (of equals, the later counts as larger), or None if one is below 32."""
    order = sorted(range(len(shape)), key=lambda dim: (shape[dim], dim))
    return (order[-2], order[-1]) if len(shape) >= 2 and shape[order[-2]] >= 32 else None


def _zero_state(parameter: Tensor, group: Group) -> dict[str, Tensor]:
    state = {"step": torch.tensor(0.0)}
    if (dims := factored_dims(parameter.shape)) is not None:
        smaller, larger = dims
        state |= {
            "row_square": _zero_mean(parameter, larger),
            "column_square": _zero_mean(parameter, smaller),
        }
    else:
        state["square"] = torch.zeros_like(parameter)
    if group["momentum"]:
        state["momentum_buffer"] = torch.zeros_like(parameter, dtype=dtype_of(group))
    return state


def _zero_mean(parameter: Tensor, dim: int) -> Tensor:
    """Return zeros for a mean along `dim`, sharded like the parameter except along `dim`."""
    shape = [1 if index == dim else size for index, size in enumerate(parameter.shape)]
    if not hasattr(parameter, "placements"):
        return parameter.new_zeros(shape)
    from torch.distributed.tensor import DTensor, Replicate, zeros

    assert isinstance(parameter, DTensor)
    placements = [Replicate() if place.is_shard(dim) else place for place in parameter.placements]
    return zeros(shape, dtype=parameter.dtype, device_mesh=parameter.device_mesh, placements=placements)


def _mean(values: Tensor, dim: int, parameter: Tensor) -> Tensor:
    """Return the mean along a dimension, over all ranks if that dimension is sharded."""
    total = values.sum(dim, keepdim=True)
    mesh: Any = getattr(parameter, "device_mesh", None)
    for mesh_dim, place in enumerate(getattr(parameter, "placements", ())):
        if place.is_shard(dim):
            torch.distributed.all_reduce(total, group=mesh.get_group(mesh_dim))
    return total / parameter.shape[dim]
