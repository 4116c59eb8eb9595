"""How verbs print: results on standard output, notes on standard error; control characters are always shown escaped."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Sequence
from typing import Any, Literal, TextIO

from vitkit.notes import visible
from vitkit.results import as_json


class StandardOutput:
    """Standard output whose errors, such as a full disk, name it."""

    name = "standard output"

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except OSError as error:
            error.filename = self.name
            raise

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            error.filename = self.name
            raise


def print_json(value: object) -> None:
    """Print one JSON document, of a result or of plain values; NaN and infinities are refused, since JSON has none."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False, default=as_json) + "\n")


def print_line(text: str) -> None:
    """Print one line of the result."""
    sys.stdout.write(f"{visible(text)}\n")


def print_csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows as CSV; a file gets the very names, a terminal visible ones."""
    from csv import writer
    from io import StringIO

    text = StringIO()
    table = writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(rows)
    sys.stdout.write(visible(text.getvalue()) if sys.stdout.isatty() else text.getvalue())


def note(message: str) -> None:
    """Print a line next to the result; if standard error is closed or full, work continues without."""
    try:
        sys.stderr.write(f"{visible(message)}\n")
    except OSError:
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
        table.add_column(
            Text(visible(column, keep="")), justify=justify, overflow="fold", min_width=0 if place else names
        )
    for row in rows:
        table.add_row(*(Text(visible(cell, keep="")) for cell in row))
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        unlimited = console.options.update(max_width=sys.maxsize)
        console.width = max(1, console.measure(table, options=unlimited).maximum)
    if title:
        console.print(visible(title), soft_wrap=True)
    console.print(table)
    if caption:
        console.print(visible(caption), soft_wrap=True)
