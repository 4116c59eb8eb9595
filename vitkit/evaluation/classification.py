"""Loss and accuracy of a classifier while it trains."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitkit.data.fetch import BadImages
from vitkit.data.sources.source import Source
from vitkit.evaluation.metrics import mean_average_precision
from vitkit.evaluation.passes import SourcePass
from vitkit.models.configs import Preprocessing
from vitkit.models.model import Model
from vitkit.objectives.supervised import cross_entropy, one_hot
from vitkit.world import World


class Classification:
    """Loss and accuracy; for images with several labels, loss and mean average precision."""

    def __init__(
        self,
        source: Source,
        preprocessing: Preprocessing,
        *,
        world: World,
        batch_size: int = 64,
        workers: int | None = None,
        sigmoid: bool = False,
        bad_images: BadImages | None = None,
    ) -> None:
        """sigmoid: whether the loss judges classes one by one, as in training."""
        self.images = SourcePass(
            source,
            preprocessing,
            world=world,
            batch_size=batch_size,
            workers=workers,
            bad_images=bad_images,
        )
        self.source, self.sigmoid = source, sigmoid

    @property
    def bad(self) -> dict[str, str]:
        """This process's images that could not be read, with what is wrong with each."""
        return self.images.bad

    def run(self, model: Model, dtype: torch.dtype = torch.float32) -> dict[str, float]:
        """Return the metrics of a model, the same on every process."""
        if self.source.has_several_labels:
            indices, scores = self.images.logits(model, dtype)
            labels = self.source.labels[indices]
            targets = torch.tensor(labels, dtype=torch.float32)
            losses = cross_entropy(torch.from_numpy(scores), targets, self.sigmoid)
            precision = mean_average_precision(scores, labels)
            return {"loss": float(losses.double().mean()), "mean_average_precision": precision}

        def judge(images: Tensor, indices: np.ndarray) -> Tensor:
            logits = self.images.compute(model, images, dtype)
            labels = torch.from_numpy(self.source.labels[indices]).to(logits.device)
            losses = cross_entropy(logits, one_hot(labels, logits.shape[1]), self.sigmoid)
            return torch.stack((losses, (logits.argmax(1) == labels).to(losses)), 1)

        loss, accuracy = self.images.means(model, judge)
        return {"loss": loss, "accuracy": accuracy}
