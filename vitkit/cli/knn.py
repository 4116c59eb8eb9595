"""`vit knn`: accuracy of nearest neighbours of frozen features."""

from __future__ import annotations

from typing import Annotated

import typer

from vitkit.cli.arguments import parse_size
from vitkit.cli.fewshot import parse_numbers, print_measured
from vitkit.errors import InputError


def knn(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="NAME@FILE, a weight file, model folder or run.")
    ],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Images to compare with; train unless a split is named.")
    ],
    k: Annotated[str, typer.Option(metavar="N,N,...", help="Neighbours that vote.")] = "20",
    temperature: Annotated[
        str, typer.Option(metavar="T,T,...", help="The lower, the more the nearest count.")
    ] = "0.07",
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
    """Measure features by nearest neighbours: vit knn Ti/16@weights.safetensors cifar10 --k 10,20

    The network is frozen and nothing is learned: the images of train whose features are nearest vote for their
    classes. Features are kept in the cache.
    """
    numbers, temperatures = parse_numbers("--k", k), _parse_temperatures(temperature)
    size = None if image_size is None else parse_size(image_size)
    from vitkit.cli.progress import progress_bar
    from vitkit.evaluation.knn import knn as run_knn

    with progress_bar("features") as progress:
        result = run_knn(
            model,
            data,
            k=numbers,
            temperature=temperatures,
            evaluate=evaluate,
            device=device,
            batch_size=batch_size,
            image_size=size,
            progress=progress,
        )
    rows = [
        [f"{row['k']:,}", f"{row['temperature']:g}", f"{row['accuracy']:.2%}"] for row in result["results"]
    ]
    print_measured(result, ["k", "temperature", "accuracy"], rows, json)


def _parse_temperatures(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(
            f"--temperature is {text!r}; expected numbers with commas between, such as 0.07"
        ) from None
