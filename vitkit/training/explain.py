"""A config in words: every setting with its value and meaning, from the fields themselves."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitkit.config import from_dict, meanings
from vitkit.errors import InputError
from vitkit.models.configs import ModelConfig
from vitkit.results import Result
from vitkit.runs import CONFIG, read_config
from vitkit.training.build import build_model, check_family
from vitkit.training.config import TrainConfig
from vitkit.training.recipes import find, head, resolve
from vitkit.weights.load import find_source


@dataclass(frozen=True)
class Setting(Result):
    """A setting's value and what it means."""

    name: str
    value: object
    meaning: str


@dataclass(frozen=True)
class Explanation(Result):
    """What `vit train --explain --json` prints."""

    recipe: str
    settings: tuple[Setting, ...]
    notes: tuple[str, ...]


def explain(recipe: str | Path, changes: Sequence[str] = ()) -> Explanation:
    """Return the settings of a recipe with `key=value` changes, or of a run, each with its meaning."""
    if Path(recipe, CONFIG).is_file():
        if changes:
            raise InputError(f"a run has its own settings; to change some, explain its recipe: {changes[0]}")
        config = from_dict(TrainConfig, read_config(recipe), f"{recipe}/{CONFIG}")
        notes = [f"run: {recipe}"]
    else:
        config = resolve(recipe, changes)
        about = head(find(recipe).read_text(encoding="utf-8"))
        notes = [f"{key}: {value}" for key, value in about.items()]
    model = _model(config, notes)
    return Explanation(config.name, tuple(_rows(config, "", model)), tuple(notes))


def _model(config: TrainConfig, notes: list[str]) -> ModelConfig | None:
    """Return the config of the model that the run builds, or None and a note where its start isn't there."""
    name = config.model["name"]
    try:
        is_trained = find_source(name).path is not None
    except InputError as error:
        if not re.search(r"^/|[.~:@]", name):  # what every MODEL with weights has, and no name
            raise
        notes.append(f"model: the settings given alone, without those of its start: {error}")
        return None
    check_family(config)
    # Only the data knows the number of classes.
    settings = {key: value for key, value in config.model.items() if key != "num_classes"}
    with torch.device("cpu" if is_trained else "meta"):  # an untrained model needs no numbers here
        return build_model(dataclasses.replace(config, model=settings), ())[0].config


def _rows(config: Any, prefix: str, model: ModelConfig | None) -> Iterator[Setting]:
    words = meanings(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(config, TrainConfig) and field.name == "model":
            yield from _model_rows(value, model)
        elif dataclasses.is_dataclass(value):
            yield from _rows(value, f"{prefix}{field.name}.", model)
        else:
            yield Setting(f"{prefix}{field.name}", value, words[field.name])


def _model_rows(given: dict[str, Any], model: ModelConfig | None) -> Iterator[Setting]:
    yield Setting("model.name", given["name"], "Any MODEL; trained weights are the start.")
    meaning = "Whether a trained model gets a new head even for the classes that it knows."
    yield Setting("model.new_head", given.get("new_head", False), meaning)
    if model is None:
        for name, value in given.items():
            if name not in ("name", "new_head"):
                yield Setting(f"model.{name}", value, "A setting of the model.")
        return
    words = meanings(type(model))
    for field in dataclasses.fields(model):
        if field.name != "num_classes":
            yield Setting(f"model.{field.name}", getattr(model, field.name), words[field.name])
