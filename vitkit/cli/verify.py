"""`vit verify`: whether features tell if two images show the same identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vitkit.cli.options import (
    BadImages,
    BatchSize,
    Device,
    ImageSize,
    Json,
    Model,
    Overwrite,
    Verbose,
    parse_size,
)
from vitkit.cli.output import announcer, note, print_json, print_table
from vitkit.progress import progress_bar

if TYPE_CHECKING:
    from vitkit.evaluation.verify import Interval, Verification


def verify(
    model: Model,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Identities as classes; the default split is test, else val, else every image.",
        ),
    ],
    pairs: Annotated[
        str | None, typer.Option(metavar="FILE", help="Pairs in LFW's format; by default all pairs.")
    ] = None,
    num_pairs: Annotated[
        int,
        typer.Option(min=100, metavar="N", help="Number of pairs of each kind to draw, if there are more."),
    ] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed for drawing pairs and folds.")] = 0,
    device: Device = "auto",
    batch_size: BatchSize = 64,
    image_size: ImageSize = None,
    bad_images: BadImages = "skip",
    out: Annotated[str | None, typer.Option(metavar="DIR", help="Write roc.png and results.json.")] = None,
    force: Overwrite = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Measure verification, such as of faces: vit verify runs/faces ./people --out results/

    Two images count as the same identity if their features are similar enough. Reports ROC, AUC, equal error
    rate, true accept rates at false accept rates, and accuracy over folds. Features are cached.
    """
    size = parse_size(image_size)
    from vitkit.evaluation.verify import verify as run_verify

    with progress_bar("features") as progress:
        result = run_verify(
            model,
            data,
            pairs=pairs,
            num_pairs=num_pairs,
            seed=seed,
            device=device,
            batch_size=batch_size,
            image_size=size,
            bad_images=bad_images,
            out=out,
            force=force,
            progress=progress,
            announce=announcer(verbose),
        )
    if json:
        print_json(result)
    else:
        print_result(result)
    if result.files:
        note(f"written: {', '.join(result.files)}")
    elif not json:
        note("--out DIR writes the ROC as a picture and all results as JSON")


def print_result(result: Verification) -> None:
    """Print a row for each measure."""

    def percents(interval: Interval | None) -> str:
        return "" if interval is None else f"{interval[0]:.1%} to {interval[1]:.1%}"

    auc = "" if result.auc_interval is None else "{:.4f} to {:.4f}".format(*result.auc_interval)
    error = percents(result.equal_error_interval)
    rows = [
        ["AUC", f"{result.auc:.4f}", auc, ""],
        ["equal error rate", f"{result.equal_error_rate:.2%}", error, f"{result.equal_error_threshold:.3f}"],
    ]
    for rate in result.accept_rates:
        name = f"true accepts at {100 * rate.far:g}% false ones"
        rows.append([name, f"{rate.tar:.2%}", percents(rate.interval), f"{rate.threshold:.3f}"])
    if found := result.accuracy:
        name = f"accuracy over {found.folds} folds"
        rows.append([name, f"{found.mean:.2%}", f"std {found.std:.2%}", f"{found.threshold:.3f}"])
    time = result.latency
    rows.append(
        [
            f"latency per image, {time.device}",
            f"{time.median:.1f} ms",
            f"90% within {time.slowest:.1f} ms",
            "",
        ]
    )
    title = (
        f"{result.model} on {result.data}: {result.images:,} images of {result.identities:,} identities, "
        f"{result.same_pairs:,} same and {result.different_pairs:,} different pairs"
    )
    print_table(title, ["", "value", "95% interval", "threshold"], rows, right=["value", "threshold"])
