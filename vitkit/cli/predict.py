"""`vit predict`: the most likely classes of image files."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

import typer

from vitkit.cli.options import Accept, BatchSize, Device, ImageSize, Json, Model, Names, parse_size
from vitkit.cli.output import note, print_csv, print_json, print_table
from vitkit.cli.progress import progress_bar
from vitkit.errors import InputError


def predict(
    model: Model,
    images: Annotated[list[str], typer.Argument(metavar="IMAGE|FOLDER", help="Files, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="Number of classes to show for each image.")] = 5,
    names: Names = None,
    device: Device = "auto",
    batch_size: BatchSize = 32,
    image_size: ImageSize = None,
    accept: Accept = None,
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print image,rank,name,index,probability.")] = False,
) -> None:
    """Name the likeliest classes of images: vit predict b16/ photo.jpg holidays/

    An image that can't be read is reported, the others are still done, and the exit status is 1.
    """
    if json and csv:
        raise InputError("--json and --csv exclude each other: give one")
    size = parse_size(image_size)

    from vitkit.data.images import find_images
    from vitkit.predictor import load
    from vitkit.predictor import predict as run_predict

    files = find_images(images)  # before the model is loaded
    predictor = load(model, device=device, image_size=size, names=names, accept=accept or ())
    for line in predictor.notes:
        note(line)
    with progress_bar("predicting") if len(files) > batch_size else nullcontext() as progress:
        results = run_predict(predictor, files, top=top, batch_size=batch_size, progress=progress)
    failures = [result.error for result in results if result.error is not None]
    rows = [
        (result.image, rank, guess.name, guess.index, guess.probability)
        for result in results
        for rank, guess in enumerate(result.top or (), start=1)
    ]
    if json:
        print_json(results)
    elif csv:
        print_csv(("image", "rank", "name", "index", "probability"), rows)
    elif rows:
        cells = [(image if rank == 1 else "", name, f"{share:.1%}") for image, rank, name, _, share in rows]
        print_table(predictor.name, ("image", "class", "probability"), cells, right=("probability",))
    for failure in failures:
        note(failure)
    if failures:
        note(f"{len(failures)} of {len(files)} images failed")
        raise typer.Exit(1)
