"""`vit finetune --suite paper`: the suite's table beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from vitkit.cli.output import note, print_json, print_table
from vitkit.cli.progress import follow

if TYPE_CHECKING:
    from vitkit.transfer.suite import SuiteResult


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
        print_json(result.to_json())
    else:
        print_suite(result)
    if result.status != "done":
        raise typer.Exit(130 if result.status == "stopped" else 1)


def print_suite(result: SuiteResult) -> None:
    """Print the table of a suite beside the paper's."""
    from vitkit.transfer.suite import CAPTION, table_cells, table_remarks, table_title

    columns, rows = table_cells(result)
    caption = "\n".join([CAPTION, *table_remarks(result)])
    print_table(table_title(result), columns, rows, caption, right=[columns[1], *columns[3:]])
    note(f"kept: {result.run}/suite.json and suite.md")
    if result.status == "stopped":
        note("stopped; run the same command again to resume")
