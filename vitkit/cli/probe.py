"""`vit probe`: accuracy of logistic regression on frozen features."""

from __future__ import annotations

from typing import Annotated

import typer

from vitkit.cli.arguments import parse_size
from vitkit.cli.fewshot import print_measured


def probe(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="NAME@FILE, a weight file, model folder or run.")
    ],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Images to learn from; train unless a split is named.")
    ],
    l2: Annotated[
        float | None, typer.Option(help="Strength of regularisation; else chosen on a tenth of train.")
    ] = None,
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
    """Measure features with a linear classifier: vit probe Ti/16@weights.safetensors cifar10

    The network is frozen; multinomial logistic regression learns from all images of train and is measured on the test
    split. Features are kept in the cache.
    """
    size = None if image_size is None else parse_size(image_size)
    from vitkit.cli.progress import progress_bar
    from vitkit.evaluation.probe import probe as run_probe

    with progress_bar("features") as progress:
        result = run_probe(
            model,
            data,
            l2=l2,
            evaluate=evaluate,
            device=device,
            batch_size=batch_size,
            image_size=size,
            progress=progress,
        )
    rows = [[f"{result['accuracy']:.2%}", f"{result['l2']:g}", f"{result['num_train']:,}"]]
    print_measured(result, ["accuracy", "l2", "images learned from"], rows, json)
