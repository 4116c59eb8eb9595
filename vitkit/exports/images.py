"""Images for calibration and for the check: some of a source, or parts of two photos that are built in."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitkit.data.images import prepare
from vitkit.data.loader import EvaluationLoader
from vitkit.data.operations import normalize
from vitkit.data.pipeline import evaluation_pipeline
from vitkit.data.sources.source import Source, Subset
from vitkit.errors import InputError
from vitkit.models.configs import Preprocessing

MOST, LEAST = 64, 16
"Images that are taken for calibration, and those that it needs."
BUILT_IN = "parts of two built-in photos"
CROPS = 16


def from_source(source: Source, preprocessing: Preprocessing, most: int = MOST) -> Tensor:
    """Return prepared images that are spread evenly over a source; unreadable ones are skipped."""
    places = np.linspace(0, len(source) - 1, min(most, len(source))).round().astype(np.int64)
    loader = EvaluationLoader(
        Subset(source, places), evaluation_pipeline(preprocessing), batch_size=most, workers=0
    )
    batches = [batch["image"] for batch in loader]
    if not batches:
        raise InputError(f"{source.name}:{source.split} has no readable images")
    return normalize(torch.cat(batches), preprocessing.mean, preprocessing.std)


def for_calibration(source: Source, preprocessing: Preprocessing) -> Tensor:
    """Return images to calibrate int8 on."""
    if len(source) < LEAST:
        raise InputError(
            f"{source.name}:{source.split} has {len(source)} images; int8 needs {LEAST} or more to calibrate on, better {MOST}"
        )
    images = from_source(source, preprocessing)
    if len(images) < LEAST:
        raise InputError(
            f"only {len(images)} of the images of {source.name}:{source.split} can be read; int8 needs {LEAST} or more"
        )
    return images


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
