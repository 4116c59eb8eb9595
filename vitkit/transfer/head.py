"""A linear head on frozen features, put into the model as the start of its fine-tuning."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitkit.data.sources.source import Source
from vitkit.data.threads import Unreadable
from vitkit.data.unreadable import BadImageRule
from vitkit.evaluation.features import frozen_features
from vitkit.evaluation.probe import Probe
from vitkit.evaluation.temperature import FittedTemperature
from vitkit.files import write_json
from vitkit.models.model import HEAD, Model
from vitkit.notes import Note
from vitkit.predictor import Predictor, choose_device
from vitkit.progress import Listener
from vitkit.results import Result
from vitkit.runs import CONFIG, data_facts
from vitkit.runs.records import read_result
from vitkit.training.build import Inputs, build_model
from vitkit.training.config import TrainConfig
from vitkit.training.stop import obey
from vitkit.weights.convert import save
from vitkit.weights.folder import Origin
from vitkit.weights.load import LoadedModel, load_model, own_module

FITTED = "fitted.json"


@dataclass(frozen=True)
class FittedHead:
    """A model folder whose head alone has learned."""

    path: Path
    loaded: LoadedModel
    accuracy: float | None
    "On the images to choose by."
    seconds: float
    temperature: FittedTemperature | None = None
    "That its weights are divided by; None in folders of earlier versions."
    unreadable: tuple[Unreadable, ...] = ()
    "Images that were skipped."


@dataclass(frozen=True)
class HeadRecord(Result):
    """What the folder of a fitted head keeps besides the model."""

    accuracy: float | None
    seconds: float
    temperature: FittedTemperature | None = None
    data: Mapping[str, object] | None = None
    "What it was fitted on; None in folders of earlier versions."
    unreadable: tuple[Unreadable, ...] = ()


def fit_head(
    config: TrainConfig, inputs: Inputs, dev: Source | None, path: Path, device: str, listener: Listener
) -> FittedHead:
    """Fit a logistic regression on the features of a run's model and write the model with it as its head, once.

    dev: images to choose by, if there are any. A head that was fitted on another number of images is fitted again,
    unless a run has started from it.
    """
    assert inputs.train is not None
    began = time.perf_counter()
    names = inputs.train.class_names
    data = data_facts(len(inputs.train), names)
    known, has_started = read_result(HeadRecord, path / FITTED), (path.parent / "run" / CONFIG).is_file()
    if known and (known.data in (None, data) or has_started):
        loaded = load_model(path, module=None if inputs.start is None else own_module(inputs.start))
        return FittedHead(path, loaded, known.accuracy, known.seconds, known.temperature, known.unreadable)
    (path / FITTED).unlink(missing_ok=True)  # a model folder alone is replaced
    model, preprocessing, _ = build_model(config, names, inputs.start)
    predictor = Predictor(model, preprocessing, (), device=choose_device(device))
    progress = FeatureNotes(listener)
    rule = BadImageRule(config.data.bad_images, "setting")
    train = frozen_features(predictor, inputs.train, progress=progress, bad_images=rule)
    listener.note(Note(f"features of {len(train.labels):,} images; fitting the head", "progress"))
    probe = Probe().fit(train.x, train.labels)
    if not probe.converged_:
        text = f"the head did not converge in {probe.n_iter_:,} iterations; training starts from it anyway"
        listener.note(Note(text, "warning"))
    accuracy, unreadable = None, [*train.bad.values()]
    if dev is not None:
        chosen_by = frozen_features(predictor, dev, progress=progress, bad_images=rule)
        unreadable += [*chosen_by.bad.values()]
        accuracy = float((probe.predict(chosen_by.x) == chosen_by.labels).mean())
        listener.note(Note(f"head only: {accuracy:.2%} on {dev.data_name}", "progress"))
    net = predictor.model.cpu()
    fill_head(net, *as_layer(probe, len(names)))
    origin = Origin(str(config.model["name"]), inputs.train.data_name, len(train.labels))
    save(net, path, class_names=names, preprocessing=predictor.preprocessing, origin=origin, force=True)
    seconds = time.perf_counter() - began
    fitted_on = f"held-out images of {inputs.train.data_name}"
    divided = FittedTemperature(probe.temperature_, fitted_on, probe.held_out_)
    record = HeadRecord(accuracy, seconds, divided, data, tuple(unreadable))
    write_json(path / FITTED, record.to_json())
    loaded = LoadedModel(net, predictor.preprocessing, names, path.name)
    return FittedHead(path, loaded, accuracy, seconds, divided, record.unreadable)


class FeatureNotes:
    """Progress of features as notes, some seconds apart."""

    def __init__(self, listener: Listener, seconds: float = 10.0) -> None:
        self.listener, self.seconds, self.last = listener, seconds, time.perf_counter()

    def __call__(self, done: int, total: int) -> None:
        obey()
        if time.perf_counter() - self.last > self.seconds:
            self.last = time.perf_counter()
            self.listener.note(Note(f"features: {done:,} of {total:,} images", "progress"))


def as_layer(probe: Probe, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return a probe, which standardises its features and has a temperature, as weights and biases of one layer."""
    weight = np.zeros((num_classes, len(probe.mean_)))
    bias = np.full(num_classes, probe.intercept_.min() - 10.0)  # classes without images are never the answer
    weight[probe.classes_] = probe.coef_ / probe.scale_
    bias[probe.classes_] = probe.intercept_ - weight[probe.classes_] @ probe.mean_
    return torch.from_numpy(weight / probe.temperature_), torch.from_numpy(bias / probe.temperature_)


@torch.no_grad()
def fill_head(model: Model, weight: Tensor, bias: Tensor) -> None:
    """Give the head these weights (classes, width) and biases (classes,)."""
    for name, parameter in model.named_parameters():
        if name.startswith(HEAD):
            parameter.copy_((weight if parameter.ndim > 1 else bias).reshape(parameter.shape))
