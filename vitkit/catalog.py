"""What there is to use: the table of models with their cost, and the table of public weights. No torch needed."""

from __future__ import annotations

import fnmatch
from contextlib import suppress
from typing import Any

from vitkit.costs import cost_of
from vitkit.errors import InputError
from vitkit.models.names import canonical_name, list_models, model_config, other_name
from vitkit.weights.public import PUBLIC, PublicWeights


def models(pattern: str = "*", weights: bool = False) -> list[dict[str, Any]]:
    """List models by a name or pattern in either dialect, or their public weights by NAME[@TAG]."""
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
    """Return the listed models that match, or the one name itself where it means a model that isn't listed."""
    names = list_models(pattern)
    with suppress(InputError):  # a name wins over a pattern: b/16 is not B/16, though patterns ignore case
        return [pattern] if canonical_name(pattern) in (pattern, *names) or not names else names
    if names:
        return names
    if any(wildcard in pattern for wildcard in "*?["):
        raise InputError(f"no model matches {pattern!r}; `vit models` lists them all")
    model_config(pattern)
    return [pattern]


def model_row(name: str) -> dict[str, Any]:
    config, paper_name = model_config(name), canonical_name(name)
    cost = cost_of(config)
    return {
        "name": paper_name,
        "other_name": other_name(paper_name) if name == paper_name else name,
        "image_size": list(config.size),
        "num_classes": config.num_classes,
        "tokens": cost.tokens,
        "parameters": cost.parameters,
        "macs": cost.macs,
        "weights": [entry.tag for entry in PUBLIC if entry.name == paper_name],
    }


def weights_row(entry: PublicWeights) -> dict[str, Any]:
    return {
        "weights": f"{entry.name}@{entry.tag}",
        "default": entry.default,
        "hub_id": entry.hub_id,
        "size_bytes": entry.size_bytes(),
        "licence": entry.licence,
        "num_classes": entry.num_classes,
        "preprocessing": {
            "image_size": [entry.image_size, entry.image_size],
            "crop_fraction": entry.crop_fraction,
            "interpolation": entry.interpolation,
            "mean": list(entry.mean),
            "std": list(entry.std),
        },
        "top1": None if entry.top1 is None else round(entry.top1 / 100, 6),
        "source": entry.source,
    }
