"""`vit fewshot`, `vit probe`, `vit knn`: accuracy of frozen features, by three ways to learn from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from vitkit.cli.options import (
    BadImages,
    BatchSize,
    Device,
    Evaluate,
    ImageSize,
    Json,
    Model,
    Seeds,
    TrainData,
    Verbose,
    parse_floats,
    parse_integers,
    parse_size,
)
from vitkit.cli.output import announcer, print_json, print_table
from vitkit.errors import InputError
from vitkit.progress import progress_bar

if TYPE_CHECKING:
    from vitkit.evaluation.fewshot import FewShotResult, PreprocessingChoice
    from vitkit.evaluation.knn import KNNResult
    from vitkit.evaluation.probe import ProbeResult


def fewshot(
    model: Model,
    data: TrainData,
    shots: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of images per class to learn from.")
    ] = "1,5,10,25",
    seeds: Seeds = 3,
    l2: Annotated[str, typer.Option(metavar="NUMBER|sweep", help="Regularisation strength.")] = "1024",
    preprocessing: Annotated[
        str,
        typer.Option(metavar="model|protocol", help="Prepare images as the model or the protocol states."),
    ] = "model",
    evaluate: Evaluate = None,
    device: Device = "auto",
    batch_size: BatchSize = 64,
    image_size: ImageSize = None,
    bad_images: BadImages = "skip",
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Measure features with a few images per class: vit fewshot Ti/16@pretrained cifar10

    The network is frozen; ridge regression in closed form learns from 1, 5, 10 and 25 images of each class and is
    measured on the test split. Features are cached.
    """
    numbers, strength = parse_integers("--shots", shots), _parse_l2(l2)
    size = parse_size(image_size)
    from vitkit.evaluation.fewshot import fewshot as run_fewshot

    with progress_bar("features") as progress:
        result = run_fewshot(
            model,
            data,
            shots=numbers,
            seeds=seeds,
            l2=strength,
            preprocessing=cast("PreprocessingChoice", preprocessing),
            evaluate=evaluate,
            device=device,
            batch_size=batch_size,
            image_size=size,
            bad_images=bad_images,
            progress=progress,
        )
    rows = [
        [
            f"{row.shots:,}",
            f"{row.accuracy:.2%}",
            "" if row.std is None else f"{row.std:.2%}",
            f"{row.l2:g}",
        ]
        for row in result.results
    ]
    _print_measured(result, ["shots", "accuracy", "std", "l2"], rows, json, verbose)


def probe(
    model: Model,
    data: TrainData,
    l2: Annotated[
        float | None,
        typer.Option(help="Regularisation strength; by default chosen on images held out of train."),
    ] = None,
    evaluate: Evaluate = None,
    device: Device = "auto",
    batch_size: BatchSize = 64,
    image_size: ImageSize = None,
    bad_images: BadImages = "skip",
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Measure features with a linear classifier: vit probe Ti/16@pretrained cifar10

    The network is frozen; multinomial logistic regression learns from all images of train and is measured on the test
    split. Features are cached.
    """
    size = parse_size(image_size)
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
            bad_images=bad_images,
            progress=progress,
        )
    cells = {"accuracy": f"{result.accuracy:.2%}", "calibration error": f"{result.calibration_error:.2%}"}
    if found := result.calibration:
        cells[f"at temperature {found.temperature:.3g}"] = f"{found.error_after:.2%}"
    cells |= {"l2": f"{result.l2:g}", "training images": f"{result.num_train:,}"}
    _print_measured(result, list(cells), [list(cells.values())], json, verbose)


def knn(
    model: Model,
    data: TrainData,
    k: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Numbers of neighbours that vote; by default 20, or all training images if there are fewer.",
        ),
    ] = None,
    temperature: Annotated[
        str, typer.Option(metavar="T,T,...", help="Lower values give the nearest neighbours more weight.")
    ] = "0.07",
    evaluate: Evaluate = None,
    device: Device = "auto",
    batch_size: BatchSize = 64,
    image_size: ImageSize = None,
    bad_images: BadImages = "skip",
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Measure features by nearest neighbours: vit knn Ti/16@pretrained cifar10 --k 10,20

    The network is frozen and nothing is learned: the images of train whose features are nearest vote for their
    classes. Features are cached.
    """
    numbers = None if k is None else parse_integers("--k", k)
    temperatures = parse_floats("--temperature", temperature)
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
            bad_images=bad_images,
            progress=progress,
        )
    rows = [[f"{row.k:,}", f"{row.temperature:g}", f"{row.accuracy:.2%}"] for row in result.results]
    _print_measured(result, ["k", "temperature", "accuracy"], rows, json, verbose)


def _parse_l2(text: str) -> float | Literal["sweep"]:
    if text == "sweep":
        return "sweep"
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--l2 is {text!r}; expected a number above 0, or sweep") from None


def _print_measured(
    result: FewShotResult | ProbeResult | KNNResult,
    columns: list[str],
    rows: list[list[str]],
    json: bool,
    verbose: bool,
) -> None:
    """Print what was measured of frozen features, as a table or as one JSON document."""
    announce = announcer(verbose)
    for line in result.notes:
        announce(line)
    if json:
        print_json(result)
        return
    title = f"{result.model}, {result.train} to {result.test} ({result.num_test:,} images)"
    print_table(title, columns, rows, result.protocol, right=columns)
