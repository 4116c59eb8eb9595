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
    """List runs with status, step, best metric, last loss and speed: vit runs

    The last updated comes first. To resume a run, repeat the command that started it.
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
        ["name", "status", "step", "best", "loss", "images/s", "time", "updated"],
        [
            [
                row.name,
                row.status,
                "" if row.step is None else f"{row.step:,} / {row.steps:,}",
                best(row.best),
                evaluated(row.loss),
                "" if row.images_per_second is None else f"{row.images_per_second:,.0f}",
                "" if row.seconds is None else numbers.clock(row.seconds),
                moment(row.updated),
            ]
            for row in rows
        ],
        right=["step", "images/s", "time"],
    )


def best(found: Evaluated | None) -> str:
    return f"{evaluated(found)} at step {found.step:,}" if found else ""


def evaluated(found: Evaluated | None) -> str:
    return f"{found.metric} {numbers.metric(found.metric, found.value)}" if found else ""


def moment(iso: str | None) -> str:
    """Say an ISO time in the local one."""
    from datetime import datetime

    return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M}" if iso else ""
