"""A config in words: every setting with its value and meaning, from the fields themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vitkit.config import meanings
from vitkit.models.names import model_config
from vitkit.train.config import TrainConfig
from vitkit.train.recipes import find, head, resolve
from vitkit.weights.load import find_source, load_model


def explain(recipe: str | Path, changes: Sequence[str] = ()) -> dict[str, Any]:
    """Return a recipe's settings, each with its meaning."""
    config = resolve(recipe, changes)
    about = head(find(recipe).read_text(encoding="utf-8"))
    notes = [f"{key}: {value}" for key, value in about.items()]
    return {"recipe": config.name, "settings": list(_rows(config, "")), "notes": notes}


def _rows(config: Any, prefix: str) -> Iterator[dict[str, Any]]:
    words = meanings(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(config, TrainConfig) and field.name == "model":
            yield from _model_rows(value)
        elif dataclasses.is_dataclass(value):
            yield from _rows(value, f"{prefix}{field.name}.")
        else:
            value = list(value) if isinstance(value, tuple) else value
            yield {"name": f"{prefix}{field.name}", "value": value, "meaning": words[field.name]}


def _model_rows(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    name = settings["name"]
    given = {key: value for key, value in settings.items() if key not in ("name", "num_classes")}
    yield {"name": "model.name", "value": name, "meaning": "Any MODEL; trained weights are the start."}
    if find_source(name).path is None:
        model = model_config(name, **given)
    else:
        model = dataclasses.replace(load_model(name).model.config, **given)
    words = meanings(type(model))
    for field in dataclasses.fields(model):
        if field.name != "num_classes":
            value = getattr(model, field.name)
            value = list(value) if isinstance(value, tuple) else value
            yield {"name": f"model.{field.name}", "value": value, "meaning": words[field.name]}
