"""Recipes: one YAML file per published run, with its command, cost and result at the head. Also `--explain`."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import vitkit
from vitkit.config import (
    Change,
    Changes,
    as_changes,
    check_settings,
    from_dict,
    meanings,
    merge,
    read_yaml,
    type_hints,
)
from vitkit.errors import InputError, did_you_mean
from vitkit.files import local_path, read_text
from vitkit.models.configs import ModelConfig
from vitkit.models.names import SHAPE, model_config
from vitkit.models.own import OWN
from vitkit.results import Result
from vitkit.runs import CONFIG, ROOT, read_config, read_record
from vitkit.runs.reading import FINETUNE, mapping
from vitkit.training.config import TrainConfig

# Other names for settings, for suggestions.
WORDS = {
    "lr": "optimizer.learning_rate",
    "wd": "optimizer.weight_decay",
    "ema": "average",
    **dict.fromkeys(("epochs", "steps", "num_epochs", "max_steps"), "duration"),
    **dict.fromkeys(("batch", "bs"), "batch_size"),
}
FOLDER = Path(vitkit.__file__).parent / "recipes"


def resolve(recipe: str | os.PathLike[str], changes: Changes = ()) -> TrainConfig:
    """Return the config of a recipe, by name or file, with changes applied.

    objective=NAME is short for 'objective={name: NAME}', since the settings of one objective don't apply to another.
    model.name=NAME drops the recipe's settings of the model's shape, and those that the new model's family doesn't have.
    """
    path = find(recipe)
    settings = read_yaml(read_text(path), path.name)
    if isinstance(settings.get("objective"), str):
        settings["objective"] = {"name": settings["objective"]}
    made = as_changes(changes)
    for place, change in enumerate(made):
        if change.key == "objective" and isinstance(change.value, str):
            made[place] = Change("objective", {"name": change.value})
        if change.key == "model.name" and isinstance(settings.get("model"), dict):
            settings["model"] = _for_name(settings["model"], str(change.value))
    settings = merge(settings, made)
    for section, value in settings.items():
        inside = (f"{section}.{name}" for name in value) if isinstance(value, dict) else ()
        for name in (section, *inside):
            if where := elsewhere(name):
                raise InputError(f"unknown setting {name!r} in the config; did you mean {where!r}?")
    return from_dict(TrainConfig, {"name": path.stem, **settings}, "the config")


def _for_name(model: dict[str, object], name: str) -> dict[str, object]:
    """Return a recipe's model settings for another model name, without settings that the name fixes."""
    if name.startswith(OWN):
        return {}
    if name == model.get("name") or not any(key in model for key in SHAPE):
        return model
    kept = {key: value for key, value in model.items() if key not in SHAPE}
    try:
        family = type(model_config(name))
    except InputError:  # trained weights, whose family isn't known yet
        return kept
    return {key: value for key, value in kept.items() if key == "name" or _fits(family, key, value)}


def _fits(family: type[ModelConfig], key: str, value: Any) -> bool:
    try:
        check_settings(family, {key: value}, "model")
    except InputError:
        return False
    return True


def elsewhere(name: str) -> str | None:
    """Return the full name of a setting that is given without its section, or by another name."""
    if name in type_hints(TrainConfig):
        return None
    section, _, word = name.rpartition(".")
    if section:
        meant = WORDS.get(word, "")
        return meant if meant.startswith(f"{section}.") else None
    for section, hint in type_hints(TrainConfig).items():
        if dataclasses.is_dataclass(hint) and name in {field.name for field in dataclasses.fields(hint)}:
            return f"{section}.{name}"
    return WORDS.get(name)


def find(recipe: str | os.PathLike[str]) -> Path:
    """Return a recipe's file; an existing path wins over a name."""
    path = Path(recipe)
    if path.is_file():
        return path
    names = {file.stem: file for file in sorted(FOLDER.glob("*.yaml"))}
    if str(recipe) in names:
        return names[str(recipe)]
    if path.suffix in (".yaml", ".yml"):
        raise InputError(f"no such recipe file: {recipe}")
    if Path(ROOT, recipe, CONFIG).is_file():
        raise InputError(
            f"{str(recipe)!r} is a run, not a recipe: `vit train {Path(ROOT, recipe)}` resumes it"
        )
    for place in (path, Path(ROOT, recipe)):
        if (place / FINETUNE).is_file():
            raise InputError(
                f"{place} is a fine-tuning, not a recipe; to resume it: {_finetuning_command(place)}"
            )
    if path.is_dir():
        data = local_path(recipe)
        raise InputError(
            f"{str(recipe)!r} is a folder, not a recipe; if it holds your images: vit finetune MODEL {data}"
        )
    if len(path.parts) > 1:
        raise InputError(f"no such recipe file: {recipe}")
    hint = did_you_mean(str(recipe), names)
    images = "" if hint else "; to train on images of your own: vit finetune MODEL ./FOLDER"
    raise InputError(f"unknown recipe {str(recipe)!r}{hint or ';'} `vit recipes` lists them all{images}")


def _finetuning_command(path: Path) -> str:
    """Return the command that resumes a fine-tuning."""
    request = mapping(read_record(path, "finetune")["settings"])
    flags = {"--sweep": request.get("sweep"), "--seeds": request.get("seeds"), "--run": path}
    words = ["vit", "finetune", request.get("model"), request.get("data"), *(request.get("changes") or ())]
    return shlex.join(
        map(str, [*words, *(word for flag in flags.items() if flag[1] is not None for word in flag)])
    )


def list_recipes(pattern: str = "*") -> list[dict[str, str]]:
    """Return the recipes whose names match, each with the fields of its head."""
    paths = [path for path in sorted(FOLDER.glob("*.yaml")) if fnmatch.fnmatchcase(path.stem, pattern)]
    if not paths:
        hint = did_you_mean(pattern, (path.stem for path in FOLDER.glob("*.yaml"))) or ";"
        raise InputError(f"no recipe matches {pattern!r}{hint} `vit recipes` lists them all")
    return [{"name": path.stem, **head(read_text(path))} for path in paths]


def head(text: str) -> dict[str, str]:
    """Return the fields of the comment at a recipe's head: its first line, then lines such as '# Result: ...'."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line[1:].strip())
    found = {"about": lines[0] if lines else ""}
    key = "about"
    for line in lines[1:]:
        if match := re.fullmatch(r"([A-Z][a-z]+): (.*)", line):
            key = match[1].lower()
            found[key] = match[2]
        elif line:
            found[key] += " " + line
    return found


@dataclass(frozen=True)
class Setting(Result):
    """A setting's value and what it means."""

    name: str
    value: object
    meaning: str


@dataclass(frozen=True)
class Explanation(Result):
    """The result of `explain`, as printed by `vit train --explain --json`."""

    recipe: str
    settings: tuple[Setting, ...]
    notes: tuple[str, ...]


def explain(recipe: str | os.PathLike[str], changes: Changes = ()) -> Explanation:
    """Return the settings of a recipe with changes applied, or of a run, each with its meaning."""
    if Path(recipe, CONFIG).is_file():
        if made := as_changes(changes):
            raise InputError(f"the settings of a run can't be changed; explain its recipe instead: {made[0]}")
        config = from_dict(TrainConfig, read_config(recipe), f"{recipe}/{CONFIG}")
        notes = [f"run: {recipe}"]
    else:
        config = resolve(recipe, changes)
        about = head(read_text(find(recipe)))
        notes = [f"{key}: {value}" for key, value in about.items()]
    model = _model(config, notes)
    return Explanation(config.name, tuple(_rows(config, "", model)), tuple(notes))


def _model(config: TrainConfig, notes: list[str]) -> ModelConfig | None:
    """Return the config of the model that the run builds; if its weights can't be found, add a note and return None."""
    from vitkit.training.build import build_model, check_family
    from vitkit.weights.load import find_model

    name = config.model["name"]
    try:
        is_trained = find_model(name).path is not None
    except InputError as error:
        if not re.search(r"^/|[.~:@]", name):  # only a MODEL with weights has these characters
            raise
        notes.append(f"model: only the given settings are shown, because its weights can't be found: {error}")
        return None
    check_family(config)
    # Only the data knows the number of classes.
    settings = {key: value for key, value in config.model.items() if key != "num_classes"}
    with torch.device("cpu" if is_trained else "meta"):  # an untrained model needs no values here
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


def _model_rows(given: dict[str, object], model: ModelConfig | None) -> Iterator[Setting]:
    yield Setting("model.name", given["name"], "Any MODEL; training starts from its weights, if it has any.")
    meaning = "Whether a trained model gets a new head even if the classes are the same."
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
