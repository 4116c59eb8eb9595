"""`vit report`: curves and results of runs as a page."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Folders of runs or fine-tunings, such as runs/NAME."),
    ],
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder to write; else RUN/report, or ./report for several runs."),
    ] = None,
    inspect: Annotated[
        bool,
        typer.Option("--inspect", help="Also draw where the models look, on a few images of their data."),
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an earlier report.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Draw curves, results and models of one or several runs: vit report runs/digits

    Writes index.html, one page that needs no other file, and its curves as curves.png: curves, evaluations, the worst
    mistakes where they were measured, filters and positions of the model.
    Several runs, or the seeds of a fine-tuning, are drawn together, with what differs in their configs.
    """
    from vitkit.cli.output import note, print_json
    from vitkit.cli.progress import progress_bar
    from vitkit.reports.runs import report as run

    with progress_bar("inspecting") if inspect else nullcontext() as progress:
        result = run(runs, out=out, inspect=inspect, device=device, force=force, progress=progress)
    for line in result["left_out"]:
        note(f"left out: {line}")
    if json:
        print_json(result)
    else:
        print(result["html"])
        print(result["png"])
