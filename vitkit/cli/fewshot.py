"""`vit fewshot`: accuracy of frozen features with a few images a class."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from vitkit.cli.arguments import parse_size
from vitkit.cli.output import note, print_json, print_table
from vitkit.errors import InputError


def fewshot(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="NAME@FILE, a weight file, model folder or run.")
    ],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Images to learn from; train unless a split is named.")
    ],
    shots: Annotated[
        str, typer.Option(metavar="N,N,...", help="Images a class to learn from.")
    ] = "1,5,10,25",
    seeds: Annotated[int, typer.Option(min=1, help="Choices of images that are averaged.")] = 3,
    l2: Annotated[str, typer.Option(metavar="NUMBER|sweep", help="Strength of regularisation.")] = "1024",
    evaluate: Annotated[
        str | None, typer.Option(metavar="DATA", help="Images to measure on; else test, else val, of DATA.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Images that the model takes at once.")] = 64,
    image_size: Annotated[
        str | None, typer.Option(metavar="N|HxW", help="Another input size than the model's own.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Measure features with a few images a class: vit fewshot Ti/16@weights.safetensors cifar10

    The network is frozen; ridge regression in closed form learns from 1, 5, 10 and 25 images of each class and is
    measured on the test split. Features are kept in the cache.
    """
    numbers, strength = parse_numbers("--shots", shots), _parse_l2(l2)
    size = None if image_size is None else parse_size(image_size)
    from vitkit.cli.progress import progress_bar
    from vitkit.evaluation.fewshot import fewshot as run_fewshot

    with progress_bar("features") as progress:
        result = run_fewshot(
            model,
            data,
            shots=numbers,
            seeds=seeds,
            l2=strength,
            evaluate=evaluate,
            device=device,
            batch_size=batch_size,
            image_size=size,
            progress=progress,
        )
    rows = [
        [
            f"{row['shots']:,}",
            f"{row['accuracy']:.2%}",
            "" if row["std"] is None else f"{row['std']:.2%}",
            f"{row['l2']:g}",
        ]
        for row in result["results"]
    ]
    print_measured(result, ["shots", "accuracy", "std", "l2"], rows, json)


def parse_numbers(flag: str, text: str) -> list[int]:
    """Return the whole numbers of '1,5,10'."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise InputError(
            f"{flag} is {text!r}; expected whole numbers with commas between, such as 1,5,10"
        ) from None


def _parse_l2(text: str) -> float | Literal["sweep"]:
    if text == "sweep":
        return "sweep"
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--l2 is {text!r}; expected a number above 0, or sweep") from None


def print_measured(result: dict[str, Any], columns: list[str], rows: list[list[str]], json: bool) -> None:
    """Print what was measured of frozen features, as a table or as one JSON document."""
    for line in result["notes"]:
        note(line)
    if json:
        print_json(result)
        return
    title = f"{result['model']}, {result['train']} to {result['test']} ({result['num_test']:,} images)"
    print_table(title, columns, rows, result["protocol"], right=columns)
