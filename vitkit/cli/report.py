"""`vit report`: curves and results of runs as a page."""

from __future__ import annotations

from typing import Annotated

import typer


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run folders, such as runs/NAME.")],
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder to write; else RUN/report, or ./report for several runs."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an earlier report.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Draw curves and results of one or several runs: vit report runs/digits

    Writes index.html, one page that needs no other file, and its curves as curves.png.
    Several runs are drawn together, with what differs in their configs.
    """
    from vitkit.cli.output import print_json
    from vitkit.report.runs import report as run

    result = run(runs, out=out, force=force)
    if json:
        print_json(result)
    else:
        print(result["html"])
        print(result["png"])
