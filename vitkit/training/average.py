"""The moving average (EMA) of the weights during training, evaluated in addition to the weights themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """The exponential moving average of a model's trained parameters, in float32 and without bias correction.

    It starts at the model's current weights. Buffers and frozen parameters are not averaged. The model is always
    the bare one, not a DDP or compiled wrapper. If it is sharded by FSDP2, so is the average.
    """

    def __init__(self, model: nn.Module, decay: float = 0.9999) -> None:
        self.decay, self.model = decay, model
        self._drop_gathered()
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.weights: dict[str, Tensor] = {
            name: parameter.detach().to(torch.float32, copy=True)
            for name, parameter in self.parameters.items()
        }

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the model's weights; call it after each step of the optimiser."""
        # Polyak & Juditsky 1992, with ViT's decay (table 2, ImageNet): average + (1 - decay) * (weight - average). It starts
        # at the weights, so it needs no bias correction.
        weights = [parameter.float() for parameter in self.parameters.values()]
        torch._foreach_lerp_(list(self.weights.values()), weights, 1.0 - self.decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the averaged weights within a `with` block, then restore the model's own, bit for bit."""
        own = [parameter.detach().clone() for parameter in self.parameters.values()]
        try:
            self._fill(self.weights.values())
            yield
        finally:
            self._fill(own)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averaged weights by parameter name, not copied."""
        return dict(self.weights)

    @torch.no_grad()
    def _fill(self, weights: Iterable[Tensor]) -> None:
        self._drop_gathered()
        for parameter, weight in zip(self.parameters.values(), weights, strict=True):
            parameter.copy_(weight)

    def _drop_gathered(self) -> None:
        """Drop the gathered copies of parameters that FSDP2 may still hold after a forward pass."""
        for module in self.model.modules():
            if reshard := getattr(module, "reshard", None):
                reshard()
