"""Images for the check of an export that got none: parts of two photos that are built in."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitkit.data.images import prepare
from vitkit.models.configs import Preprocessing

BUILT_IN = "parts of two built-in photos"
CROPS = 16


def built_in(preprocessing: Preprocessing) -> Tensor:
    """Return prepared parts of scikit-learn's two sample photos, always the same."""
    from sklearn.datasets import load_sample_images

    photos, draw = load_sample_images().images, np.random.default_rng(0)
    channels = np.arange(len(preprocessing.mean)) % 3
    parts = []
    for place in range(CROPS):
        photo = photos[place % len(photos)][..., channels]
        side = int(draw.integers(160, min(photo.shape[:2])))
        top, left = (int(draw.integers(0, length - side + 1)) for length in photo.shape[:2])
        part = photo[top : top + side, left : left + side]
        parts.append(prepare(part[..., 0] if len(channels) == 1 else part, preprocessing))
    return torch.stack(parts)
