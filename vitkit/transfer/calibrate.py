"""A fine-tuned model's confidence: its head is divided by a temperature fitted on images that it has not learned from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from vitkit.data.sources.source import Source
from vitkit.evaluation.measured import Predictions, check_finite
from vitkit.evaluation.passes import SourcePass
from vitkit.evaluation.temperature import (
    Calibration,
    FittedTemperature,
    fit_temperature,
    measure_calibration,
)
from vitkit.files import folder_written_whole
from vitkit.models.configs import OwnConfig
from vitkit.models.model import HEAD, Model
from vitkit.predictor import choose_device
from vitkit.training.stop import obey
from vitkit.weights.folder import Origin, Stored, describe_folder, fill_folder
from vitkit.weights.load import LoadedModel, load_model
from vitkit.world import World


@dataclass(frozen=True)
class CalibratedModel:
    """The model folder that a fine-tuning leaves."""

    path: Path
    stored: Stored
    fitted: FittedTemperature | None
    "What the head is divided by."
    why_not: str | None = None
    "Why no temperature was fitted."

    def measure(self, predictions: Predictions, measured_on: str, origin: Origin) -> Calibration | None:
        """Return what the temperature changed, by this model's predictions; the folder's config and card tell it, too.

        origin: what else has become known for the card.
        """
        found, told = None, None
        if self.fitted is not None:
            logits = predictions.logits * self.fitted.temperature
            found = measure_calibration(logits, predictions.labels, self.fitted)
            told = {**found.to_json(), "measured_on": measured_on}
        describe_folder(self.path, replace(self.stored, calibration=told, origin=origin))
        return found


def write_calibrated(
    model: str | Path,
    path: Path,
    held_out: Source | None,
    device: str,
    divided: FittedTemperature | None = None,
    module: nn.Module | None = None,
) -> CalibratedModel:
    """Write a run's model as the folder `path`, its head divided by a temperature, which divides the logits.

    Whatever opens the folder then gives calibrated probabilities. held_out: images to fit the temperature on. divided:
    the temperature that the head is divided by already. module: the user's own, whose weights the run's model has.
    """
    loaded, fitted, why_not = load_model(model, module=module), divided, None
    config = loaded.model.config
    if isinstance(config, OwnConfig) and not config.new_head:
        why_not = f"no temperature was fitted: {config.module} has a head of its own"
    elif held_out is None:
        why_not = "no temperature was fitted: no images were held out; data with a val split has some"
    elif held_out.is_multi_label != loaded.multi_label:
        why_not = "no temperature was fitted: a softmax has no probabilities for multi-label images"
    elif divided is None:
        fitted = fit_on(loaded, held_out, device)
        divide_head(loaded.model, fitted.temperature)
    stored = Stored(loaded.model.config, loaded.preprocessing, loaded.class_names, loaded.multi_label)
    with folder_written_whole(path) as part:
        fill_folder(part, stored, loaded.model.state_dict())
    return CalibratedModel(path, stored, fitted, None if fitted else why_not)


def fit_on(loaded: LoadedModel, held_out: Source, device: str) -> FittedTemperature:
    """Fit a temperature on the images of a source that can be read."""
    world = World(0, 1, choose_device(device))
    # Whether they are too many was judged when the run measured these images.
    images = SourcePass(held_out, loaded.preprocessing, world=world, bad_images="any")
    rows = images.logits(loaded.model.to(world.device), progress=obey)
    loaded.model.cpu()
    check_finite(rows.values, loaded.name)
    temperature = fit_temperature(rows.values, held_out.labels[rows.indices])
    return FittedTemperature(temperature, held_out.data_name, len(rows.indices))


@torch.no_grad()
def divide_head(model: Model, temperature: float) -> None:
    """Divide the logits of a model."""
    for name, parameter in model.named_parameters():
        if name.startswith(HEAD):
            parameter.div_(temperature)
