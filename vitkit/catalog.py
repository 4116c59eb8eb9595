"""The table of models with their cost, and the table of public weights. Needs no torch."""

from __future__ import annotations

import fnmatch
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, overload

from vitkit.costs import cost_of
from vitkit.errors import InputError
from vitkit.models.configs import Preprocessing
from vitkit.models.names import canonical_name, list_models, model_config, other_name
from vitkit.results import Result
from vitkit.weights.public import PUBLIC, PublicWeights


@dataclass(frozen=True)
class ModelRow(Result):
    """A model and its cost."""

    name: str
    other_name: str | None
    image_size: tuple[int, int]
    num_classes: int
    tokens: int | None
    parameters: int
    macs: int
    weights: tuple[str, ...]
    "Tags of its public weights."


@dataclass(frozen=True)
class WeightsRow(Result):
    """Public weights."""

    weights: str
    "NAME@TAG."
    default: bool
    "Whether NAME@pretrained means these."
    hub_id: str
    size_bytes: int
    licence: str
    num_classes: int
    preprocessing: Preprocessing
    top1: float | None
    "Published ImageNet accuracy, from 0 to 1."
    source: str | None


@overload
def models(pattern: str = "*", weights: Literal[False] = False) -> list[ModelRow]: ...
@overload
def models(pattern: str = "*", *, weights: Literal[True]) -> list[WeightsRow]: ...
def models(pattern: str = "*", weights: bool = False) -> list[ModelRow] | list[WeightsRow]:
    """Return models by name or pattern in either dialect, or their public weights by NAME[@TAG]."""
    if not weights:
        return [model_row(name) for name in find_names(pattern)]
    name, _, tag = pattern.partition("@")
    names = {canonical_name(found) for found in find_names(name)}
    rows = [
        weights_row(entry)
        for entry in PUBLIC
        if entry.name in names
        and (fnmatch.fnmatchcase(entry.tag, tag or "*") or (tag == "pretrained" and entry.default))
    ]
    if not rows:
        raise InputError(f"no public weights for {pattern!r}; `vit models --weights` lists them all")
    return rows


def find_names(pattern: str) -> list[str]:
    """Return the listed models that match, or the name itself if it is a model that isn't listed."""
    names = list_models(pattern)
    with suppress(InputError):  # a name wins over a pattern: b/16 is not B/16, although patterns ignore case
        return [pattern] if canonical_name(pattern) in (pattern, *names) or not names else names
    if names:
        return names
    if any(wildcard in pattern for wildcard in "*?["):
        raise InputError(f"no model matches {pattern!r}; `vit models` lists them all")
    model_config(pattern)
    return [pattern]


def model_row(name: str) -> ModelRow:
    config, paper_name = model_config(name), canonical_name(name)
    cost = cost_of(config)
    return ModelRow(
        paper_name,
        other_name(paper_name) if name == paper_name else name,
        config.size,
        config.num_classes,
        cost.tokens,
        cost.parameters,
        cost.macs,
        tuple(entry.tag for entry in PUBLIC if entry.name == paper_name),
    )


def weights_row(entry: PublicWeights) -> WeightsRow:
    return WeightsRow(
        f"{entry.name}@{entry.tag}",
        entry.default,
        entry.hub_id,
        entry.size_bytes(),
        entry.licence,
        entry.num_classes,
        Preprocessing(entry.image_size, entry.crop_fraction, entry.interpolation, entry.mean, entry.std),
        None if entry.top1 is None else round(entry.top1 / 100, 6),
        entry.source,
    )
