"""A task by frozen features: a ridge head fitted on all of its training images, in closed form."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from vitkit.evaluate.features import Features, frozen_features
from vitkit.evaluate.fewshot import FewShot
from vitkit.predictor import Predictor
from vitkit.train.log import Listener
from vitkit.transfer.vtab.tasks import Exercise


def fit_frozen(predictor: Predictor, task: Exercise, listener: Listener) -> dict[str, Any]:
    """Return the accuracy of a ridge head on the test split; features come from the cache if they are there."""
    began = time.perf_counter()
    train = _features(predictor, task.splits["train800val200"], None, listener)
    test = _features(predictor, task.splits["test"], train.class_names, listener)
    answers = FewShot().fit(train.x, train.labels).predict(test.x)
    return {"accuracy": float(np.mean(answers == test.labels)), "seconds": time.perf_counter() - began}


def _features(
    predictor: Predictor, data: str, classes: tuple[str, ...] | None, listener: Listener
) -> Features:
    first = True

    def progress(done: int, total: int) -> None:
        nonlocal first
        if first:
            listener.start(0, total)
        first = False
        listener.stepped(done)

    try:
        return frozen_features(predictor, data, default="train", classes=classes, progress=progress)
    finally:
        listener.stop()
