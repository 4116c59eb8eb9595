"""`vit runs`: the runs in a folder, and how far each has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from vitkit.cli.options import Json
from vitkit.cli.output import note, print_json, print_table
from vitkit.figures import numbers

if TYPE_CHECKING:
    from vitkit.runs.reading import Evaluated, RunRow


def runs(
    root: Annotated[str, typer.Argument(metavar="ROOT", help="The folder of runs, or one run.")] = "runs",
    json: Json = False,
) -> None:
    """List runs with status, step, result and time: vit runs

    The last updated comes first. A fine-tuning is one row, with the accuracy that it reported; vit runs RUN lists its
    parts. To resume a run, repeat the command that started it.
    """
    from vitkit.runs import list_runs

    rows = list_runs(root)
    if json:
        print_json(rows)
        return
    if not rows:
        note(f"no runs in {root}; `vit train RECIPE` makes one")
        return
    print_runs(rows)
    for row in rows:
        if row.message:
            note(f"{row.name}: {row.message}")


def print_runs(rows: Sequence[RunRow]) -> None:
    print_table(
        None,
        ["name", "status", "step", "result", "time", "updated"],
        [
            [
                row.name,
                row.status,
                "" if row.step is None else f"{row.step:,} / {row.steps:,}",
                result(row),
                "" if row.seconds is None else numbers.clock(row.seconds),
                moment(row.updated),
            ]
            for row in rows
        ],
        right=["step", "time"],
    )


def result(row: RunRow) -> str:
    """Return what was reported of the finished model, else the best measurement while it trained, else the last loss."""
    if row.results:
        return ", ".join(
            f"{found.metric.replace('_', ' ')} {numbers.metric(found.metric, found.value)} on {found.data}"
            for found in row.results
        )
    if row.best:
        return f"{evaluated(row.best)} at step {row.best.step:,}"
    return evaluated(row.loss) if row.loss else ""


def evaluated(found: Evaluated) -> str:
    return f"{found.metric} {numbers.metric(found.metric, found.value)}"


def moment(iso: str | None) -> str:
    """Say an ISO time in the local one."""
    from datetime import datetime

    return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M}" if iso else ""
