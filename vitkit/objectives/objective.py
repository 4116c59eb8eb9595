"""The interface of an objective: a module that holds the model and turns a batch into a loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vitkit.data.draws import Draw
from vitkit.models.configs import Preprocessing
from vitkit.models.model import Model, run_in

Batch = dict[str, Tensor]
Loss = tuple[Tensor, dict[str, Tensor]]


class Objective(nn.Module):
    """`forward(batch) -> (loss, metrics)`, both means over the batch's images.

    Parameters other than the model's (a decoder, a mask token) are saved in checkpoints, but never in the model folder.
    """

    metric_names: tuple[str, ...] = ("loss", "gradient_norm")
    "Metrics of a step: these two, and what `forward` adds."
    mean: Tensor
    scale: Tensor

    def __init__(self, model: Model, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.model = model
        self.dtype = torch.float32
        "The dtype of activations."
        columns = (preprocessing.mean, preprocessing.std)
        mean, std = (torch.tensor(values).reshape(-1, 1, 1) * 255 for values in columns)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("scale", 1 / std, persistent=False)

    def prepare(self, batch: Batch, draw: Draw) -> Batch:
        """Return the batch with the step's random choices added. They are drawn here, outside compiled code."""
        return batch

    def forward(self, batch: Batch) -> Loss:
        raise NotImplementedError

    def cost(self, macs: int, parameters: int) -> tuple[int, int]:
        """Return the multiply-adds of one image's forward pass and all parameters, given those of the model."""
        return macs, parameters

    def pictures(self, batch: Batch, draw: Draw) -> Tensor | None:
        """Return pictures of what is learned: uint8 (images, 3, channels, height, width), or None.

        The three are the image, the image with patches hidden, and the model's prediction.
        """
        return None

    def normalize(self, images: Tensor) -> Tensor:
        """Return uint8 images as the model's input."""
        return (images.float() - self.mean) * self.scale

    def compute(self, module: nn.Module, *inputs: Any) -> Tensor:
        """Return module(*inputs), computed in the objective's dtype."""
        return run_in(self.dtype, module, *inputs)
