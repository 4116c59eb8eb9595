"""`vit knn`: accuracy of nearest neighbours of frozen features."""

from __future__ import annotations

from typing import Annotated

import typer

from vitkit.cli.fewshot import print_measured
from vitkit.cli.options import (
    BatchSize,
    Device,
    Evaluate,
    ImageSize,
    Json,
    Model,
    TrainData,
    parse_floats,
    parse_integers,
    parse_size,
)
from vitkit.cli.progress import progress_bar


def knn(
    model: Model,
    data: TrainData,
    k: Annotated[str, typer.Option(metavar="N,N,...", help="Numbers of neighbours that vote.")] = "20",
    temperature: Annotated[
        str, typer.Option(metavar="T,T,...", help="Lower values give the nearest neighbours more weight.")
    ] = "0.07",
    evaluate: Evaluate = None,
    device: Device = "auto",
    batch_size: BatchSize = 64,
    image_size: ImageSize = None,
    json: Json = False,
) -> None:
    """Measure features by nearest neighbours: vit knn Ti/16@weights.safetensors cifar10 --k 10,20

    The network is frozen and nothing is learned: the images of train whose features are nearest vote for their
    classes. Features are cached.
    """
    numbers, temperatures = parse_integers("--k", k), parse_floats("--temperature", temperature)
    size = parse_size(image_size)
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
    rows = [[f"{row.k:,}", f"{row.temperature:g}", f"{row.accuracy:.2%}"] for row in result.results]
    print_measured(result, ["k", "temperature", "accuracy"], rows, json)
