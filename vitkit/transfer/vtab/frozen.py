"""A task by frozen features: a ridge head fitted on all of its training images, in closed form."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from vitkit.evaluation.features import frozen_features
from vitkit.evaluation.fewshot import FewShot
from vitkit.predictor import Predictor
from vitkit.training.log import Listener
from vitkit.transfer.head import Told
from vitkit.transfer.vtab.tasks import Exercise


def fit_frozen(predictor: Predictor, task: Exercise, listener: Listener) -> dict[str, Any]:
    """Return the accuracy of a ridge head on the test split; features come from the cache if they are there."""
    began, progress = time.perf_counter(), Told(listener)
    train = frozen_features(predictor, task.splits["train800val200"], default="train", progress=progress)
    test = frozen_features(
        predictor, task.splits["test"], default="measure", classes=train.class_names, progress=progress
    )
    answers = FewShot().fit(train.x, train.labels).predict(test.x)
    return {"accuracy": float(np.mean(answers == test.labels)), "seconds": time.perf_counter() - began}
