"""`vit probe`: accuracy of logistic regression on frozen features."""

from __future__ import annotations

from typing import Annotated

import typer

from vitkit.cli.fewshot import print_measured
from vitkit.cli.options import BatchSize, Device, Evaluate, ImageSize, Json, Model, TrainData, parse_size
from vitkit.cli.progress import progress_bar


def probe(
    model: Model,
    data: TrainData,
    l2: Annotated[
        float | None, typer.Option(help="Regularisation strength; by default chosen on a tenth of train.")
    ] = None,
    evaluate: Evaluate = None,
    device: Device = "auto",
    batch_size: BatchSize = 64,
    image_size: ImageSize = None,
    json: Json = False,
) -> None:
    """Measure features with a linear classifier: vit probe Ti/16@weights.safetensors cifar10

    The network is frozen; multinomial logistic regression learns from all images of train and is measured on the test
    split. Features are cached.
    """
    from vitkit.evaluation.probe import probe as run_probe

    with progress_bar("features") as progress:
        result = run_probe(
            model,
            data,
            l2=l2,
            evaluate=evaluate,
            device=device,
            batch_size=batch_size,
            image_size=parse_size(image_size),
            progress=progress,
        )
    rows = [[f"{result.accuracy:.2%}", f"{result.l2:g}", f"{result.num_train:,}"]]
    print_measured(result, ["accuracy", "l2", "images learned from"], rows, json)
