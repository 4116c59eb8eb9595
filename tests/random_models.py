"""Models of which no trained weight is zero, and images for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitkit.models import build
from vitkit.models.configs import ModelConfig


def make(config: ModelConfig, scale: float = 0.3, dtype: torch.dtype = torch.float32) -> Any:
    """Return a model with weights large enough to tell its parts apart."""
    torch.manual_seed(0)
    model = build(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=scale)
    return model.eval()


def images_for(
    config: ModelConfig, batch: int = 2, seed: int = 1, dtype: torch.dtype = torch.float32
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, config.channels, *config.size, generator=generator, dtype=dtype)
