"""`vit eval`: how well a model classifies labelled images."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Annotated, Any, cast

import typer

from vitkit.cli.options import Accept, BatchSize, Device, ImageSize, Json, Model, Names, Overwrite, parse_size
from vitkit.cli.output import note, print_json, print_table
from vitkit.cli.progress import progress_bar

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
    accept: Accept = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write confusion.png, mistakes.png and results.json.")
    ] = None,
    force: Overwrite = False,
    json: Json = False,
) -> None:
    """Measure a model on labelled images: vit eval runs/photos ./photos --out results/

    Classes are matched by name. Every image counts once, on any number of processes:
    torchrun --nproc-per-node=8 -m -- vitkit eval MODEL DATA
    """
    size = parse_size(image_size)

    from vitkit.evaluation.classes import Among
    from vitkit.evaluation.run import evaluate

    # torchrun's processes share one terminal, and the first alone has a bar there.
    with progress_bar("measuring") if os.environ.get("RANK", "0") == "0" else nullcontext() as progress:
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
            out=out,
            force=force,
            progress=progress,
            announce=note,
        )
    if not result:  # another process than the first
        return
    if json:
        print_json(result)
    else:
        print_result(result)
    if result["files"]:
        note(f"written: {', '.join(result['files'])}")
    elif not json:
        pictures = "the confusion matrix and the worst mistakes as pictures, and "
        note(f"--out DIR writes {pictures if 'confusion' in result else ''}all results as JSON")


def print_result(result: dict[str, Any]) -> None:
    """Print the overall numbers, then the worst classes."""
    title = (
        f"{result['model']} on {result['data']}: {result['images']:,} images, {result['classes']:,} classes"
    )
    print_table(title, ["", "value"], overall(result), right=["value"])
    if "per_class" in result:
        print_classes(result)


def overall(result: dict[str, Any]) -> list[list[str]]:
    """Return the rows of numbers over all images."""
    rows = []
    for key, words in (
        ("accuracy", "top-1 accuracy"),
        ("top_5_accuracy", "top-5 accuracy"),
        ("balanced_accuracy", "balanced accuracy"),
        ("macro_f1", "macro F1"),
        ("calibration_error", "calibration error (15 equal bins)"),
        ("mean_average_precision", "mean average precision"),
    ):
        if result.get(key) is not None:
            rows.append([words, f"{result[key]:.2%}"])
    if "loss" in result:
        rows.append(["loss", f"{result['loss']:.4f}"])
    if real := result.get("real"):
        share = "none labelled" if real["accuracy"] is None else f"{real['accuracy']:.2%}"
        rows.append([f"ReaL accuracy ({real['images']:,} images with labels)", share])
    return rows


def print_classes(result: dict[str, Any]) -> None:
    """Print the classes that fare worst, and what each is taken for most often."""
    rows, has_several = result["per_class"], "mean_average_precision" in result
    key = "average_precision" if has_several else "recall"
    worst = sorted(rows, key=lambda row: (row[key], -row["images"]))[:MOST_CLASSES]
    cells = [[row["class"], f"{row['images']:,}", f"{row[key]:.1%}"] for row in worst]
    columns = ["class", "images", "average precision" if has_several else "accuracy"]
    if not has_several:
        columns += ["precision", "F1", "most often taken for"]
        for cell, row in zip(cells, worst, strict=True):
            precision = "" if row["precision"] is None else f"{row['precision']:.1%}"
            cell += [precision, f"{row['f1']:.1%}", taken_for(row["class"], result["confusion"])]
    more = len(rows) - len(worst)
    caption = f"The worst classes first; {more:,} more are in --json." if more else "The worst classes first."
    right = ["images", "accuracy", "average precision", "precision", "F1"]
    print_table(None, columns, cells, caption, right=right)


def taken_for(name: str, confusion: dict[str, dict[str, int]]) -> str:
    """Return the class that a class is mistaken for most often."""
    wrong = [(other, images) for other, images in confusion[name].items() if other != name]
    return f"{wrong[0][0]} ({wrong[0][1]:,})" if wrong else ""
