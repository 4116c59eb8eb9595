"""`vit report`: curves and results of runs as a page."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

import typer

from vitkit.cli.options import Device, Json, Overwrite
from vitkit.cli.output import note, print_json, print_line
from vitkit.progress import progress_bar


def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Folders of runs or fine-tunings, such as runs/NAME."),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Folder to write; the default is RUN/report, or ./report for several runs."
        ),
    ] = None,
    inspect: Annotated[
        bool,
        typer.Option("--inspect", help="Also draw where the models look, on a few images of their data."),
    ] = False,
    device: Device = "auto",
    force: Overwrite = False,
    json: Json = False,
) -> None:
    """Draw curves, results and models of one or several runs: vit report runs/digits

    Writes index.html, one page that needs no other file, and curves.png. The page has curves, evaluations, the worst
    mistakes if they were measured, and the model's filters and positions.
    Several runs, or the seeds of a fine-tuning, are drawn together, with the settings that differ.
    """
    from vitkit.reports.runs import report as run

    with progress_bar("inspecting (image passes)") if inspect else nullcontext() as progress:
        result = run(runs, out=out, inspect=inspect, device=device, force=force, progress=progress)
    for line in result.left_out:
        note(f"skipped: {line}")
    if json:
        print_json(result)
    else:
        print_line(result.html)
        print_line(result.png)
