"""What a checkpoint holds: parameters, the optimiser's memory, the average, and the sums since the last line."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from vitkit.training.build import Parts
from vitkit.training.log import Totals
from vitkit.training.optimizers import set_learning_rate


def state_tensors(parts: Parts, totals: Totals) -> dict[str, Any]:
    """Return every tensor of the training state by name; they share memory with the run's own."""
    return {
        "objective": dict(parts.objective.state_dict()),
        "optimizer": optimizer_tensors(parts),
        "average": parts.average.state_dict() if parts.average else {},
        "totals": {"sums": totals.sums},
    }


def optimizer_tensors(parts: Parts) -> dict[str, dict[str, Tensor]]:
    """Return the optimiser's memory by parameter name."""
    names = {id(parameter): name for name, parameter in parts.objective.named_parameters()}
    return {
        names[id(parameter)]: {key: value for key, value in state.items() if isinstance(value, Tensor)}
        for parameter, state in parts.optimizer.state.items()
    }


def make_memory(optimizer: Optimizer) -> None:
    """Let the optimiser make its memory, by a step that changes nothing, so that a checkpoint can fill it."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    decays = [group["weight_decay"] for group in optimizer.param_groups]
    set_learning_rate(optimizer, 0.0)
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, decay in zip(optimizer.param_groups, decays, strict=True):
        group["weight_decay"] = decay
