"""`vit models`: the tables of models and of public weights."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def models(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="A name or a quoted pattern.")] = "*",
    weights: Annotated[bool, typer.Option("--weights", help="List public weights instead.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List models, or public weights, by name: vit models 'cct*'"""
    from vitkit.catalog import models as list_rows
    from vitkit.cli.output import print_json

    rows = list_rows(pattern, weights=weights)
    if json:
        print_json(rows)
    elif weights:
        print_weights(rows)
    else:
        print_models(rows)


def print_models(rows: list[dict[str, Any]]) -> None:
    from vitkit.cli.output import print_table

    numbers = ["image", "classes", "tokens", "parameters", "MACs"]
    print_table(
        None,
        ["name", "other name", *numbers, "weights"],
        [
            [
                row["name"],
                row["other_name"] or "",
                size(row["image_size"]),
                str(row["num_classes"]),
                "" if row["tokens"] is None else str(row["tokens"]),
                f"{row['parameters'] / 1e6:,.2f} M",
                f"{row['macs'] / 1e9:,.2f} G",
                " ".join(row["weights"]),
            ]
            for row in rows
        ],
        caption="MACs: multiply-accumulates for one image. Either name works everywhere, and so does any other "
        "patch or image size: B/20, vit_base_patch16_384.",
        right=numbers,
    )


def print_weights(rows: list[dict[str, Any]]) -> None:
    from vitkit.cli.output import print_table

    numbers = ["size", "classes", "image", "top-1"]
    print_table(
        None,
        ["weights", "hub id", "licence", *numbers, "preprocessing"],
        [
            [
                row["weights"] + (" *" if row["default"] else ""),
                row["hub_id"],
                row["licence"],
                f"{row['size_bytes'] / 1e6:,.0f} MB",
                str(row["num_classes"]),
                size(row["preprocessing"]["image_size"]),
                "" if row["top1"] is None else f"{row['top1']:.2%}",
                preprocessing(row["preprocessing"]),
            ]
            for row in rows
        ],
        caption="* what the bare tag-less name of the model loads. top-1: as published by the source.",
        right=numbers,
    )


def size(sides: list[int]) -> str:
    height, width = sides
    return str(height) if height == width else f"{height}x{width}"


def preprocessing(settings: dict[str, Any]) -> str:
    crop = settings["crop_fraction"]
    mean, std = (",".join(f"{number:g}" for number in settings[key]) for key in ("mean", "std"))
    return f"{settings['interpolation']}, {'no crop' if crop is None else f'crop {crop:g}'}, mean {mean}, std {std}"
