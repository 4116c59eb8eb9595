"""`vit eval`: how well a model classifies labelled images."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, cast

import typer

from vitkit.cli.options import (
    Accept,
    BadImages,
    BatchSize,
    Calibrate,
    Device,
    ImageSize,
    Json,
    Merge,
    Model,
    Names,
    Overwrite,
    Precision,
    Verbose,
    parse_size,
)
from vitkit.cli.output import announcer, note, print_json, print_table
from vitkit.progress import progress_bar

if TYPE_CHECKING:
    from vitkit.evaluation.run import Evaluation

MOST_CLASSES = 10


def eval(
    model: Model,
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="SOURCE[:SPLIT]; the default split is test, else val.")
    ],
    real: Annotated[
        str | None, typer.Option(metavar="FILE", help="ReaL's real.json, for ImageNet's validation images.")
    ] = None,
    mapping: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="JSON or CSV that maps the data's classes to the model's."),
    ] = None,
    classes: Annotated[
        str, typer.Option(help="head: choose among all classes of the model; data: only among the data's.")
    ] = "head",
    names: Names = None,
    device: Device = "auto",
    batch_size: BatchSize = 64,
    image_size: ImageSize = None,
    precision: Precision = None,
    merge: Merge = None,
    calibrate: Calibrate = None,
    accept: Accept = None,
    bad_images: BadImages = "skip",
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write confusion.png, mistakes.png and results.json.")
    ] = None,
    force: Overwrite = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Measure a model on labelled images: vit eval runs/photos ./photos --out results/

    Classes are matched by name. Every image counts once, on any number of processes:

    torchrun --nproc-per-node=8 -m -- vitkit eval MODEL DATA
    """
    size = parse_size(image_size)

    from vitkit.evaluation.classes import Among
    from vitkit.evaluation.run import evaluate
    from vitkit.world import is_first_process

    is_first = is_first_process()
    with progress_bar("measuring") if is_first else nullcontext() as progress:
        result = evaluate(
            model,
            data,
            real=real,
            mapping=mapping,
            classes=cast(Among, classes),
            names=names,
            device=device,
            batch_size=batch_size,
            image_size=size,
            accept=accept or (),
            precision=precision,
            merge=merge,
            calibrate=calibrate,
            bad_images=bad_images,
            out=out,
            force=force,
            progress=progress,
            announce=announcer(verbose),
        )
    if not is_first:
        return
    if json:
        print_json(result)
    else:
        print_result(result)
    if result.files:
        note(f"written: {', '.join(result.files)}")
    elif not json:
        pictures = "the confusion matrix and the worst mistakes as pictures, and "
        note(f"--out DIR writes {pictures if result.confusion else ''}all results as JSON")


def print_result(result: Evaluation) -> None:
    """Print the overall numbers, then the worst classes."""
    from vitkit.models.precision import in_words

    facts = [
        f"{result.images:,} images",
        f"{result.classes:,} classes",
        *in_words(result.precision, result.merge),
    ]
    title = f"{result.model} on {result.data}: {', '.join(facts)}"
    print_table(title, ["", "value"], overall(result), right=["value"])
    if result.per_class is not None:
        print_classes(result)


def overall(result: Evaluation) -> list[list[str]]:
    """Return the rows of numbers over all images."""
    from vitkit.evaluation.metrics import BINS

    shares = {
        "top-1 accuracy": result.accuracy,
        "top-5 accuracy": result.top_5_accuracy,
        "balanced accuracy": result.balanced_accuracy,
        "macro F1": result.macro_f1,
        f"calibration error ({BINS} equal bins)": result.calibration_error,
        "calibration error by chance alone": result.calibration_by_chance,
        "mean average precision": result.mean_average_precision,
    }
    rows = [[words, f"{share:.2%}"] for words, share in shares.items() if share is not None]
    if result.loss is not None:
        rows.append(["loss", f"{result.loss:.4f}"])
    if real := result.real:
        share = "none labelled" if real.accuracy is None else f"{real.accuracy:.2%}"
        rows.append([f"ReaL accuracy ({real.images:,} images with labels)", share])
    return rows


def print_classes(result: Evaluation) -> None:
    """Print the classes with the lowest scores, and what each is most often predicted as."""
    from vitkit.evaluation.measured import ClassPrecision, ClassScore

    def score(row: ClassScore | ClassPrecision) -> float:
        return row.recall if isinstance(row, ClassScore) else row.average_precision

    rows: Sequence[ClassScore | ClassPrecision] = result.per_class or ()
    worst = sorted(rows, key=lambda row: (score(row), -row.images))[:MOST_CLASSES]
    columns = ["class", "images", "average precision"]
    if result.confusion is not None:
        columns = ["class", "images", "accuracy", "precision", "F1", "most often predicted as"]
    cells = []
    for row in worst:
        cell = [row.name, f"{row.images:,}", f"{score(row):.1%}"]
        if isinstance(row, ClassScore) and result.confusion is not None:
            precision = "" if row.precision is None else f"{row.precision:.1%}"
            cell += [precision, f"{row.f1:.1%}", predicted_as(row.name, result.confusion[row.name])]
        cells.append(cell)
    more = len(rows) - len(worst)
    caption = f"The worst classes first; {more:,} more are in --json." if more else "The worst classes first."
    right = ["images", "accuracy", "average precision", "precision", "F1"]
    print_table(None, columns, cells, caption, right=right)


def predicted_as(name: str, predictions: dict[str, int]) -> str:
    """Return the class that a class is most often predicted as instead."""
    wrong = [(other, images) for other, images in predictions.items() if other != name]
    return f"{wrong[0][0]} ({wrong[0][1]:,})" if wrong else ""
