"""How far logits are from labels: the cross-entropy that training lowers and that measurements report."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Return labels (images,) as float targets (images, classes); targets come back as they are."""
    return labels if labels.ndim == 2 else F.one_hot(labels, num_classes).float()


def cross_entropy(
    logits: Tensor, targets: Tensor, sigmoid: bool = False, label_smoothing: float = 0.0
) -> Tensor:
    """Return each image's loss: over all classes, or summed over classes that are judged one by one."""
    if label_smoothing:
        targets = targets * (1 - label_smoothing) + label_smoothing / logits.shape[1]
    if sigmoid:
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(dim=1)
    return -(targets * logits.log_softmax(dim=1)).sum(dim=1)
