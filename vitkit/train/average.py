"""A running average of the weights during training (Polyak, EMA), evaluated beside the weights themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitkit.errors import InputError


class Average:
    """The exponential moving average of a model's trained parameters, in float32 and without bias correction.

    It starts at the weights that the model has now. Buffers and frozen parameters are not averaged. The model
    is always the bare one, not its DDP or compiled wrapper; sharded by FSDP2, its average is sharded alike.
    """

    def __init__(self, model: nn.Module, decay: float = 0.9999) -> None:
        if not 0.0 <= decay < 1.0:
            raise InputError(f"the decay of averaged weights must be at least 0 and below 1, not {decay:g}")
        self.decay = decay
        self.weights: dict[str, Tensor] = {
            name: parameter.detach().to(torch.float32, copy=True)
            for name, parameter in _parameters(model).items()
            if parameter.requires_grad
        }

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards the model's weights; call it after each step of the optimiser."""
        weights = [parameter.float() for parameter in self._averaged(model)]
        torch._foreach_lerp_(list(self.weights.values()), weights, 1.0 - self.decay)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Give the model its averaged weights for the length of a `with` block, then its own, bit for bit."""
        own = [parameter.detach().clone() for parameter in self._averaged(model)]
        try:
            self._fill(model, self.weights.values())
            yield
        finally:
            self._fill(model, own)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averaged weights by parameter name, not copied."""
        return dict(self.weights)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over averaged weights."""
        if wrong := state.keys() ^ self.weights.keys():
            name = min(wrong)
            which = "unknown" if name in state else "missing"
            raise InputError(f"averaged weights are of another model: {name!r} is {which}")
        for name, weight in self.weights.items():
            weight.copy_(state[name])

    def _averaged(self, model: nn.Module) -> list[Tensor]:
        parameters = _parameters(model)
        return [parameters[name] for name in self.weights]

    @torch.no_grad()
    def _fill(self, model: nn.Module, weights: Iterable[Tensor]) -> None:
        for parameter, weight in zip(self._averaged(model), weights, strict=True):
            parameter.copy_(weight)


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return parameters by name; where FSDP2 still holds gathered copies after a forward pass, they are dropped."""
    for module in model.modules():
        if reshard := getattr(module, "reshard", None):
            reshard()
    return dict(model.named_parameters())
