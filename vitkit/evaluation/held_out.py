"""What a training run measures on its evaluation data: loss and accuracy, or the objective's own metrics."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitkit.data.draws import Draw
from vitkit.data.threads import Unreadable
from vitkit.evaluation.metrics import mean_average_precision
from vitkit.evaluation.passes import SourcePass
from vitkit.models.model import Model
from vitkit.objectives.objective import Objective
from vitkit.objectives.supervised import cross_entropy, one_hot


class HeldOut:
    """A measurement on every image of a source, each once, which a run repeats as its model learns."""

    def __init__(self, images: SourcePass) -> None:
        self.images, self.source = images, images.source

    @property
    def unreadable(self) -> tuple[Unreadable, ...]:
        """Images of all processes that could not be read in the last pass."""
        return tuple(self.images.bad.values())

    def run(self, model: Model, dtype: torch.dtype = torch.float32) -> dict[str, float]:
        """Return the metrics of a model, the same on every process."""
        raise NotImplementedError


class Classification(HeldOut):
    """Loss and accuracy; for multi-label images, loss and mean average precision."""

    def __init__(self, images: SourcePass, *, sigmoid: bool = False) -> None:
        """sigmoid: whether the loss judges classes one by one, as in training."""
        super().__init__(images)
        self.sigmoid = sigmoid

    def run(self, model: Model, dtype: torch.dtype = torch.float32) -> dict[str, float]:
        if self.source.is_multi_label:
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


class OwnMetrics(HeldOut):
    """The metrics of an objective without labels, with the same random choices every time."""

    def __init__(self, objective: Objective, images: SourcePass, seed: int) -> None:
        super().__init__(images)
        self.objective, self.seed = objective, seed
        self.names = [name for name in objective.metric_names if name != "gradient_norm"]

    def run(self, model: Model, dtype: torch.dtype = torch.float32) -> dict[str, float]:
        """Return the metrics, the same on every process; model and dtype are the objective's own."""
        return dict(zip(self.names, self.images.means(self.objective, self._measure), strict=True))

    def _measure(self, images: Tensor, indices: np.ndarray) -> Tensor:
        """Return the means over some images, once for each; `forward` itself: a last, smaller batch isn't worth compiling."""
        batch = self.objective.prepare({"image": images}, Draw(self.seed, 0, indices, "held out"))
        loss, metrics = self.objective.forward(batch)
        values = {"loss": loss, **metrics}
        row = torch.tensor([float(values[name]) for name in self.names], dtype=torch.float64)
        return row.expand(len(images), -1)
