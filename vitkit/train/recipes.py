"""Recipes: one YAML file per published run, its command, cost and result at the head; and the configs they become."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vitkit
from vitkit.config import from_dict, merge, read_yaml, type_hints
from vitkit.errors import InputError, did_you_mean
from vitkit.models.names import SHAPE
from vitkit.train.config import TrainConfig
from vitkit.train.runs import CONFIG, ROOT

# Other words for settings.
WORDS = {
    "lr": "optimizer.learning_rate",
    "wd": "optimizer.weight_decay",
    "ema": "average",
    **dict.fromkeys(("epochs", "steps", "num_epochs", "max_steps"), "duration"),
    **dict.fromkeys(("batch", "bs"), "batch_size"),
}
FOLDER = Path(vitkit.__file__).parent / "recipes"


def resolve(recipe: str | Path, changes: Sequence[str] = ()) -> TrainConfig:
    """Return the config of a recipe, by name or file, with `key=value` changes made.

    objective=NAME is short for 'objective={name: NAME}', since settings of one objective mean nothing to another; and
    model.name=NAME takes the place of a model that the recipe gives a shape of its own, but for its image size.
    """
    path = find(recipe)
    settings = read_yaml(_text(path), path.name)
    if isinstance(settings.get("objective"), str):
        settings["objective"] = {"name": settings["objective"]}
    model = settings.get("model")
    is_renamed = any(change.partition("=")[0].strip() == "model.name" for change in changes)
    if is_renamed and isinstance(model, dict) and any(key in model for key in SHAPE):
        settings["model"] = {key: model[key] for key in model if key == "image_size"}
    whole = [re.sub(r"^objective=(\w+)$", r"objective={name: \1}", change) for change in changes]
    settings = merge(settings, whole)
    for name in settings:
        if where := elsewhere(name):
            raise InputError(f"unknown setting {name!r} in the config; did you mean {where!r}?")
    return from_dict(TrainConfig, {"name": path.stem, **settings}, "the config")


def elsewhere(name: str) -> str | None:
    """Return the full name of a setting that was named without its section, or by another word."""
    if name in type_hints(TrainConfig):
        return None
    for section, hint in type_hints(TrainConfig).items():
        if dataclasses.is_dataclass(hint) and name in {field.name for field in dataclasses.fields(hint)}:
            return f"{section}.{name}"
    return WORDS.get(name)


def find(recipe: str | Path) -> Path:
    """Return a recipe's file; an existing path wins over a name."""
    path = Path(recipe)
    if path.is_file():
        return path
    names = {file.stem: file for file in sorted(FOLDER.glob("*.yaml"))}
    if str(recipe) in names:
        return names[str(recipe)]
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        raise InputError(f"no such recipe file: {recipe}")
    if Path(ROOT, recipe, CONFIG).is_file():
        raise InputError(
            f"{str(recipe)!r} is a run, no recipe: `vit train {Path(ROOT, recipe)}` goes on with it"
        )
    hint = did_you_mean(str(recipe), names) or ";"
    raise InputError(f"unknown recipe {str(recipe)!r}{hint} `vit recipes` lists them all")


def list_recipes(pattern: str = "*") -> list[dict[str, Any]]:
    """Return the recipes whose names match, each with what its head says of it."""
    paths = [path for path in sorted(FOLDER.glob("*.yaml")) if fnmatch.fnmatchcase(path.stem, pattern)]
    if not paths:
        hint = did_you_mean(pattern, (path.stem for path in FOLDER.glob("*.yaml"))) or ";"
        raise InputError(f"no recipe matches {pattern!r}{hint} `vit recipes` lists them all")
    return [{"name": path.stem, **head(_text(path))} for path in paths]


def head(text: str) -> dict[str, str]:
    """Return what the comment at a recipe's head says: its first line, then lines such as '# Result: ...'."""
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


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}") from None
