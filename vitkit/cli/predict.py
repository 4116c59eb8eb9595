"""`vit predict`: the most likely classes of image files."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from vitkit.cli.arguments import parse_size
from vitkit.cli.output import note, print_json, print_table
from vitkit.errors import InputError


def predict(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="NAME@FILE, a weight file or a model folder.")
    ],
    images: Annotated[list[str], typer.Argument(metavar="IMAGE|FOLDER", help="Files, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="Classes to show for each image.")] = 5,
    names: Annotated[str | None, typer.Option(metavar="FILE", help="Class names, one a line.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Images that the model takes at once.")] = 32,
    image_size: Annotated[
        str | None, typer.Option(metavar="N|HxW", help="Another input size than the model's own.")
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Tensors that may be missing or unused; may be repeated."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print image,rank,name,index,probability.")] = False,
) -> None:
    """Name the likeliest classes of images: vit predict b16/ photo.jpg holidays/

    An image that can't be read is reported, the others are still done, and the exit status is 1.
    """
    if json and csv:
        raise InputError("--json and --csv exclude each other: give one")
    size = None if image_size is None else parse_size(image_size)

    from rich.console import Console
    from rich.progress import track

    from vitkit.data.images import find_images
    from vitkit.predictor import load

    files = find_images(images)
    predictor = load(model, device=device, image_size=size, names=names, accept=accept or ())
    for line in predictor.notes:
        note(line)
    console = Console(stderr=True)
    results = list(
        track(
            predictor.predict_files(files, top, batch_size),
            description="predicting",
            total=len(files),
            console=console,
            transient=True,
            disable=not console.is_terminal or len(files) <= batch_size,
        )
    )
    failures = [result["error"] for result in results if "error" in result]
    rows = [
        (result["image"], rank, guess["name"], guess["index"], guess["probability"])
        for result in results
        for rank, guess in enumerate(result.get("top", ()), start=1)
    ]
    if json:
        print_json(results)
    elif csv:
        print_csv(rows)
    elif rows:
        cells = [(image if rank == 1 else "", name, f"{share:.1%}") for image, rank, name, _, share in rows]
        print_table(predictor.name, ("image", "class", "probability"), cells, right=("probability",))
    for failure in failures:
        note(failure)
    if failures:
        note(f"{len(failures)} of {len(files)} images failed")
        raise typer.Exit(1)


def print_csv(rows: list[tuple[str, int, str, int, float]]) -> None:
    from csv import writer

    table = writer(sys.stdout, lineterminator="\n")
    table.writerow(("image", "rank", "name", "index", "probability"))
    table.writerows(rows)
