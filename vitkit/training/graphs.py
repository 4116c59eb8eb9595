"""A step's forward and backward passes, recorded once as a CUDA graph and replayed without Python's overhead."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitkit.data.loader import Batch

Passes = Callable[[Batch, float], dict[str, Tensor]]
WARM = 2
"Calls before recording: the first compiles, the second runs the compiled code."


def both_passes(forward: nn.Module, batch: Batch, share: float = 1.0) -> dict[str, Tensor]:
    """Add the gradients of `share` times the loss to the parameters; return the loss and metrics."""
    loss, metrics = forward(batch)
    (loss * share).backward()
    return {name: value.detach() for name, value in {"loss": loss, **metrics}.items()}


class Recorded:
    """Both passes over whole batches, which must all have the same shapes.

    Inputs, gradients and results are in fixed memory, which each call overwrites. Dropout follows the generator's seed
    at each call, as without a graph.
    """

    def __init__(self, forward: nn.Module) -> None:
        self.forward, self.parameters, self.calls = forward, tuple(forward.parameters()), 0

    def __call__(self, batch: Batch, share: float = 1.0) -> dict[str, Tensor]:
        assert share == 1.0, "graphs don't support micro-batches"
        self.calls += 1
        if self.calls <= WARM:
            return both_passes(self.forward, batch)
        if self.calls == WARM + 1:
            self._record(batch)
        for name, tensor in batch.items():
            self.inputs[name].copy_(tensor)
        self.graph.replay()
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return self.values

    def _record(self, batch: Batch) -> None:
        self.inputs = {name: tensor.clone() for name, tensor in batch.items()}
        for parameter in self.parameters:
            parameter.grad = None  # so the backward pass writes gradients, and doesn't accumulate
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):  # the loader has a thread
            self.values = both_passes(self.forward, self.inputs)
        self.gradients = [parameter.grad for parameter in self.parameters]
