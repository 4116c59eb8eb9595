"""`vit finetune --suite paper`: the suite's table beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from vitkit.cli.output import note, print_json, print_table
from vitkit.cli.progress import follow


def finetune_suite(
    model: str,
    suite: str,
    data: str | None,
    changes: Sequence[str],
    *,
    seeds: int | None,
    json: bool,
    **options: Any,
) -> None:
    """Run a suite and print it."""
    from vitkit.transfer.suite import SEEDS, run_suite

    with follow() as listener:
        seeds = SEEDS if seeds is None else seeds
        result = run_suite(model, suite, data, changes, seeds=seeds, listener=listener, **options)
    if json:
        print_json(result)
    else:
        print_suite(result)
    if result["status"] != "done":
        raise typer.Exit(130 if result["status"] == "stopped" else 1)


def print_suite(result: dict[str, Any]) -> None:
    """Print the table of a suite beside the paper's."""
    from vitkit.transfer.suite_table import CAPTION, cells, remarks, title

    columns, rows = cells(result)
    print_table(
        title(result), columns, rows, "\n".join([CAPTION, *remarks(result)]), right=[columns[1], *columns[3:]]
    )
    note(f"kept: {result['run']}/suite.json and suite.md")
    if result["status"] == "stopped":
        note("stopped; the same command goes on")
