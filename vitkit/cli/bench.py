"""`vit bench`: how fast models run, next to other libraries in the same process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from vitkit.cli.options import Calibrate, Device, ImageSize, Json, Overwrite, parse_integers, parse_size
from vitkit.cli.output import note, print_json, print_table
from vitkit.errors import InputError
from vitkit.notes import visible

if TYPE_CHECKING:
    from vitkit.timing.results import BenchResult


def bench(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Models, exported folders, or efficientnet_b0 and efficientnet_b7 to compare with.",
        ),
    ],
    device: Device = "auto",
    batch_size: Annotated[str, typer.Option(metavar="N,N", help="Numbers of images in a batch.")] = "1,8,64",
    threads: Annotated[int | None, typer.Option(metavar="N", help="CPU threads.")] = None,
    precision: Annotated[
        str,
        typer.Option(
            metavar="auto|float32|bfloat16|float8",
            help="Precision, or several: bfloat16,float8. auto is bfloat16 on CUDA, else float32.",
        ),
    ] = "auto",
    peers: Annotated[
        bool,
        typer.Option(
            "--peers", help="Also measure timm, transformers, torchvision, ONNX Runtime and OpenVINO."
        ),
    ] = False,
    compile: Annotated[
        bool, typer.Option("--compile", help="Also measure each model with torch.compile.")
    ] = False,
    merge: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="Also measure with this many patches merged in each layer."),
    ] = None,
    calibrate: Calibrate = None,
    data: Annotated[
        str | None, typer.Option(metavar="DATA", help="Also measure top-1 accuracy on these images.")
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Measure training steps instead.")] = False,
    image_size: ImageSize = None,
    rounds: Annotated[int, typer.Option(metavar="N", help="Turns of each candidate.")] = 10,
    memory: Annotated[bool, typer.Option("--memory/--no-memory", help="Measure peak memory.")] = True,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write bench.md, bench.csv, bench.json and bench.png.")
    ] = None,
    force: Overwrite = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV with timm's column names.")] = False,
    json: Json = False,
) -> None:
    """Measure speed and memory of models: vit bench Ti/16 --peers --batch-size 1,8

    Candidates take turns in one process, so that ratios hold on a noisy machine.
    """
    if csv and json:
        raise InputError("--json and --csv both print the result: give one of them")
    merges = [] if merge is None else parse_integers("--merge", merge)
    sizes, size = parse_integers("--batch-size", batch_size), parse_size(image_size)

    from vitkit.timing.results import as_csv
    from vitkit.timing.run import bench as measure

    result = measure(
        models,
        device,
        sizes,
        threads,
        precision.split(","),
        peers,
        data,
        train,
        compile=compile,
        merge=merges,
        calibrate=calibrate,
        image_size=size,
        rounds=rounds,
        memory=memory,
        out=out,
        force=force,
    )
    for line in result.notes:
        note(line)
    if json:
        print_json(result)
    elif csv:
        text = as_csv(result.rows)
        sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    else:
        print_result(result)
    if result.files:
        note(f"written: {', '.join(result.files)}")


def print_result(result: BenchResult) -> None:
    """Print the table of speeds and the table of facts."""
    from vitkit.timing.results import CAPTION, FACTS, SPEEDS, fact_cells, speed_cells, title

    for head, columns, cells, caption in (
        (title(result), SPEEDS, speed_cells(result.rows), None),
        (None, FACTS, fact_cells(result.rows), CAPTION),
    ):
        right = [name for name, is_right in columns.items() if is_right]
        print_table(head, list(columns), cells, caption, right=right)
