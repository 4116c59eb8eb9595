"""Learning from labels: softmax or sigmoid cross-entropy, label smoothing, soft targets from mixing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.errors import InputError
from vitkit.models.configs import Preprocessing
from vitkit.models.model import Model
from vitkit.objectives.objective import Batch, Loss, Objective


class Supervised(Objective):
    """Cross-entropy between the logits and the labels."""

    def __init__(
        self,
        model: Model,
        preprocessing: Preprocessing,
        *,
        sigmoid: bool,
        label_smoothing: float,
        is_multi_label: bool = False,
    ) -> None:
        if getattr(model.config, "pool", None) == "none":
            raise InputError(
                "the model has no pool, so it gives logits for each token, not for the image: set model.pool=mean"
            )
        super().__init__(model, preprocessing)
        self.sigmoid, self.label_smoothing = sigmoid, label_smoothing
        self.right = "top_class_accuracy" if is_multi_label else "accuracy"
        self.metric_names = ("loss", self.right, "gradient_norm")

    def forward(self, batch: Batch) -> Loss:
        logits = self.compute(self.model, self.normalize(batch["image"])).float()  # (images, classes)
        targets = one_hot(batch["label"], logits.shape[1])
        loss = cross_entropy(logits, targets, self.sigmoid, self.label_smoothing).mean()
        return loss, {self.right: share_right(logits, targets)}


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Return labels (images,) as float targets (images, classes); targets are returned unchanged."""
    return labels if labels.ndim == 2 else F.one_hot(labels, num_classes).float()


def cross_entropy(
    logits: Tensor, targets: Tensor, sigmoid: bool = False, label_smoothing: float = 0.0
) -> Tensor:
    """Return each image's loss: softmax cross-entropy, or binary cross-entropy summed over classes."""
    if label_smoothing:
        targets = targets * (1 - label_smoothing) + label_smoothing / logits.shape[1]
    if sigmoid:
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(dim=1)
    return -(targets * logits.log_softmax(dim=1)).sum(dim=1)


def share_right(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the share of images whose top class has the largest target; an image without labels counts as wrong."""
    chosen = targets.gather(1, logits.detach().argmax(dim=1, keepdim=True)).squeeze(1)
    return ((chosen >= targets.amax(dim=1)) & (chosen > 0)).to(torch.float32).mean()
