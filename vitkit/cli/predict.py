"""`vit predict`: the most likely classes of image files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitkit.cli.options import (
    Accept,
    BatchSize,
    Calibrate,
    Device,
    ImageSize,
    Json,
    Merge,
    Model,
    Names,
    Precision,
    Verbose,
    parse_size,
)
from vitkit.cli.output import announcer, note, print_csv, print_json, print_table
from vitkit.errors import InputError

if TYPE_CHECKING:
    from vitkit.data.threads import Unreadable
    from vitkit.predictor import PredictedImage, Prediction


def predict(
    model: Model,
    images: Annotated[list[str], typer.Argument(metavar="IMAGE|FOLDER", help="Files, or folders of them.")],
    top: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of classes to show for each image.")
    ] = 5,
    names: Names = None,
    device: Device = "auto",
    batch_size: BatchSize = 32,
    image_size: ImageSize = None,
    precision: Precision = None,
    merge: Merge = None,
    calibrate: Calibrate = None,
    accept: Accept = None,
    verbose: Verbose = False,
    json: Json = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Print image, rank, name, index, probability as CSV.")
    ] = False,
) -> None:
    """Name the likeliest classes of images: vit predict b16/ photo.jpg holidays/

    Unreadable images are listed with the reason. The exit status is 1 if you named an unreadable file yourself, not just
    its folder, or if no image can be read.
    """
    if json and csv:
        raise InputError("--json and --csv both print the result: give one of them")
    size = parse_size(image_size)

    from vitkit.data.unreadable import skipped_notes
    from vitkit.predictor import predict as run_predict

    results = run_predict(
        model,
        images,
        top=top,
        names=names,
        device=device,
        batch_size=batch_size,
        image_size=size,
        accept=accept or (),
        precision=precision,
        merge=merge,
        calibrate=calibrate,
        announce=announcer(verbose),
    )
    skipped = results.unreadable
    rows = [
        (result.image, rank, guess.name, guess.index, guess.probability)
        for result in results
        for rank, guess in enumerate(result.top or (), start=1)
    ]
    if json:
        print_json(results)
    elif csv:
        print_csv(("image", "rank", "name", "index", "probability"), rows)
    else:
        print_result(model, results, skipped)
    for line in skipped_notes(skipped, "--json"):
        note(line)
    if not rows or {entry.image for entry in skipped} & {str(Path(image)) for image in images}:
        raise typer.Exit(1)


def print_result(model: str, results: Sequence[PredictedImage], skipped: Sequence[Unreadable]) -> None:
    """Print the classes of one image below each other, those of several in a row for each; then what can't be read."""
    read = [(result.image, result.top) for result in results if result.top]
    columns = ["image", "class", "probability"]
    if len(read) == 1:
        [(image, top)] = read
        cells = [[image if place == 0 else "", *name_and_percent(guess)] for place, guess in enumerate(top)]
    else:
        rest = [", ".join(" ".join(name_and_percent(guess)) for guess in top[1:]) for _, top in read]
        cells = [
            [image, *name_and_percent(top[0]), more] for (image, top), more in zip(read, rest, strict=True)
        ]
        columns.append("then")
    blank = [""] * (len(columns) - 2)
    cells += [[entry.image, f"can't be read: {entry.reason}", *blank] for entry in skipped]
    print_table(model, columns, cells, right=["probability"])


def name_and_percent(guess: Prediction) -> tuple[str, str]:
    return guess.name, f"{guess.probability:.1%}"
