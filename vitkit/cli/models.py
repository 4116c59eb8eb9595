"""`vit models`: the tables of models and of public weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vitkit.cli.options import Json, Pattern
from vitkit.cli.output import print_json, print_table
from vitkit.models.configs import Preprocessing, write_size

if TYPE_CHECKING:
    from vitkit.catalog import ModelRow, WeightsRow


def models(
    pattern: Pattern = "*",
    weights: Annotated[bool, typer.Option("--weights", help="List public weights instead.")] = False,
    json: Json = False,
) -> None:
    """List models, or public weights, by name: vit models 'cct*'"""
    from vitkit.catalog import models as list_rows

    if weights:
        found = list_rows(pattern, weights=True)
        if json:
            print_json(found)
        else:
            print_weights(found)
    else:
        rows = list_rows(pattern)
        if json:
            print_json(rows)
        else:
            print_models(rows)


def print_models(rows: list[ModelRow]) -> None:
    right = ["image", "classes", "tokens", "parameters", "MACs", "weights"]
    print_table(
        None,
        ["name", "other name", *right],
        [
            [
                row.name,
                row.other_name or "",
                write_size(row.image_size),
                str(row.num_classes),
                "" if row.tokens is None else str(row.tokens),
                f"{row.parameters / 1e6:,.2f} M",
                f"{row.macs / 1e9:,.2f} G",
                str(len(row.weights) or ""),
            ]
            for row in rows
        ],
        caption="Either name works everywhere, and so does another patch or image size of a ViT: B/20, "
        "vit_base_patch16_384.\nMACs are for one image. `vit models --weights` lists the public weights.",
        right=right,
    )


def print_weights(rows: list[WeightsRow]) -> None:
    right = ["size", "classes", "image", "top-1"]
    print_table(
        None,
        ["weights", "hub id", "licence", *right, "preprocessing"],
        [
            [
                row.weights + (" *" if row.default else ""),
                row.hub_id,
                row.licence,
                f"{row.size_bytes / 1e6:,.0f} MB",
                str(row.num_classes),
                write_size(row.preprocessing.image_size),
                "" if row.top1 is None else f"{row.top1:.2%}",
                preprocessing(row.preprocessing),
            ]
            for row in rows
        ],
        caption="* also NAME@pretrained. top-1 is ImageNet accuracy as published.",
        right=right,
    )


def preprocessing(settings: Preprocessing) -> str:
    mean, std = (numbers(values) for values in (settings.mean, settings.std))
    return f"{settings.interpolation}, crop {settings.crop_fraction:g}, mean {mean}, std {std}"


def numbers(channels: tuple[float, ...]) -> str:
    """Say a number for each channel, or the one that all share."""
    return ",".join(f"{number:g}" for number in dict.fromkeys(channels))
