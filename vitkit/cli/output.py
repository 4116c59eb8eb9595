"""How verbs speak: results on standard output, notes on standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Sequence
from typing import Literal


def print_json(value: object) -> None:
    """Print one JSON document; NaN and infinities are refused, since JSON has none."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def note(message: str) -> None:
    """Say something beside the result; where nobody listens any more, work goes on without a word."""
    try:
        sys.stderr.write(f"{message}\n")
    except BrokenPipeError:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (until the process ends)


def print_table(
    title: str | None,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str | None = None,
    right: Collection[str] = (),
) -> None:
    """Print a table with whole, unstyled cells; columns named in `right` are right-aligned."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    names = min(24, max((len(row[0]) for row in rows), default=0))
    for place, column in enumerate(columns):
        # A name must be whole to be copied: a narrow terminal folds cells, the first column last; nothing ends in dots.
        justify: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(Text(column), justify=justify, overflow="fold", min_width=0 if place else names)
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        unlimited = console.options.update(max_width=sys.maxsize)
        console.width = max(1, console.measure(table, options=unlimited).maximum)
    if title:
        console.print(title, soft_wrap=True)
    console.print(table)
    if caption:
        console.print(caption, soft_wrap=True)
