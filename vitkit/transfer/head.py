"""A linear head on frozen features, put into the model as the start of its fine-tuning."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitkit.data.open import open_data
from vitkit.evaluation.features import frozen_features
from vitkit.evaluation.probe import Probe
from vitkit.models.model import HEAD, Model
from vitkit.predictor import Predictor, choose_device
from vitkit.training.build import build_model
from vitkit.training.config import TrainConfig
from vitkit.training.log import Listener
from vitkit.training.stop import obey
from vitkit.transfer.plan import Part
from vitkit.weights.convert import save

FITTED = "fitted.json"


@dataclass(frozen=True)
class FittedHead:
    """A model folder whose head alone has learned."""

    path: Path
    accuracy: float | None
    "On the images to choose by."
    seconds: float


def fit_head(config: TrainConfig, part: Part, path: Path, device: str, listener: Listener) -> FittedHead:
    """Fit a logistic regression on the features of a run's model and write the model with it as its head, once."""
    if (path / FITTED).is_file():
        known = json.loads((path / FITTED).read_text(encoding="utf-8"))
        return FittedHead(path, known["accuracy"], known["seconds"])
    began = time.perf_counter()
    model, preprocessing, _ = build_model(config, open_data(part.train).class_names)
    predictor = Predictor(model, preprocessing, (), device=choose_device(device))
    progress = Told(listener)
    train = frozen_features(predictor, part.train, default="train", progress=progress)
    listener.note(f"features of {len(train.labels):,} images; fitting the head")
    probe = Probe().fit(train.x, train.labels)
    if not probe.converged_:
        listener.note(f"the head did not converge in {probe.n_iter_:,} iterations; it is a start nonetheless")
    accuracy = None
    if part.dev:
        dev = frozen_features(
            predictor, part.dev, default="measure", classes=train.class_names, progress=progress
        )
        accuracy = float((probe.predict(dev.x) == dev.labels).mean())
        listener.note(f"the head alone: {accuracy:.2%} on {part.dev}")
    net = predictor.model.cpu()
    fill_head(net, *as_layer(probe, len(train.class_names)))
    save(net, path, class_names=train.class_names, preprocessing=predictor.preprocessing, force=True)
    found = FittedHead(path, accuracy, time.perf_counter() - began)
    (path / FITTED).write_text(json.dumps({"accuracy": accuracy, "seconds": found.seconds}), encoding="utf-8")
    return found


class Told:
    """Progress of features as notes, some seconds apart."""

    def __init__(self, listener: Listener, seconds: float = 10.0) -> None:
        self.listener, self.seconds, self.last = listener, seconds, time.perf_counter()

    def __call__(self, done: int, total: int) -> None:
        obey()
        if time.perf_counter() - self.last > self.seconds:
            self.last = time.perf_counter()
            self.listener.note(f"features: {done:,} of {total:,} images")


def as_layer(probe: Probe, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return a probe, which standardises its features, as weights and biases of one layer."""
    weight = np.zeros((num_classes, len(probe.mean_)))
    bias = np.full(num_classes, probe.intercept_.min() - 10.0)  # classes without images are never the answer
    weight[probe.classes_] = probe.coef_ / probe.scale_
    bias[probe.classes_] = probe.intercept_ - weight[probe.classes_] @ probe.mean_
    return torch.from_numpy(weight), torch.from_numpy(bias)


@torch.no_grad()
def fill_head(model: Model, weight: Tensor, bias: Tensor) -> None:
    """Give the head these weights (classes, width) and biases (classes,)."""
    for name, parameter in model.named_parameters():
        if name.startswith(HEAD):
            parameter.copy_((weight if parameter.ndim > 1 else bias).reshape(parameter.shape))
