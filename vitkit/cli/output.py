"""How verbs print: results on standard output, notes on standard error; control characters are always shown escaped."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal, TextIO

from vitkit.notes import is_shown, say, visible
from vitkit.results import as_json

if TYPE_CHECKING:
    from rich.table import Table

LEAST_NAME, LEAST_TEXT = 32, 12
"Characters that the first column and others with text keep on a narrow terminal, if they have so many."
SPACE = 1
"Characters between columns there."


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
    """Print a line next to the result."""
    say(message)


def announcer(verbose: bool) -> Callable[[str], None]:
    """Return what prints the notes of a command that are shown."""
    return lambda line: note(line) if is_shown(line, verbose) else None


def print_table(
    title: str | None,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str | None = None,
    right: Collection[str] = (),
) -> None:
    """Print a table with whole, unstyled cells; columns named in `right` are right-aligned.

    On a terminal that is too narrow, left-aligned columns wrap; if that isn't enough, each row is a paragraph. Nothing
    is cut off: a name must be whole to be copied. In a pipe or a file, a table is as wide as it needs to be, unless the
    variable COLUMNS says how wide.
    """
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(markup=False, highlight=False, emoji=False)
    heads = [visible(column, keep="") for column in columns]
    cells = [[visible(cell, keep="") for cell in row] for row in rows]
    is_right = [column in right for column in columns]
    table = _make_table(heads, cells, is_right)
    natural = console.measure(table, options=console.options.update(max_width=sys.maxsize)).maximum
    if title:
        console.print(visible(title), soft_wrap=True)
    is_limited = console.is_terminal or os.environ.get("COLUMNS", "").isdecimal()
    if not is_limited:
        console.width = max(1, natural)
    if natural <= console.width:
        console.print(table)
    elif widths := _fitted(heads, cells, is_right, console.width):
        console.print("", _make_table(heads, cells, is_right, widths), "", sep="\n")
    else:
        for name, *values in cells:
            pairs = [f"{head} {cell}".strip() for head, cell in zip(heads[1:], values, strict=True) if cell]
            console.print(Text(f"\n{name}", overflow="fold"))
            console.print(Padding(Text("; ".join(pairs), overflow="fold"), (0, 0, 0, 4)))
        console.print()
    if caption:
        console.print(visible(caption), soft_wrap=not is_limited)


def _fitted(
    heads: Sequence[str], cells: Sequence[Sequence[str]], is_right: Sequence[bool], room: int
) -> list[int]:
    """Return widths of columns that fit a terminal, [] where none do: numbers and names stay whole, texts wrap."""
    from rich.cells import cell_len

    natural, least = list[int](), list[int]()
    for place, head in enumerate(heads):
        widest = max((cell_len(row[place]) for row in cells), default=0)
        shortest = widest if is_right[place] else min(widest, LEAST_TEXT if place else LEAST_NAME)
        word = max((cell_len(word) for word in head.split()), default=1)
        natural.append(max(widest, word))
        least.append(max(shortest, word))
    free = room - sum(least) - SPACE * (len(heads) - 1)
    if free < 0:
        return []
    wanted = [full - short for full, short in zip(natural, least, strict=True)]
    share = min(1.0, free / max(1, sum(wanted)))
    return [short + int(want * share) for short, want in zip(least, wanted, strict=True)]


def _make_table(
    heads: Sequence[str],
    cells: Sequence[Sequence[str]],
    is_right: Sequence[bool],
    widths: Sequence[int] | None = None,
) -> Table:
    """Return the table as wide as it is, or with these widths and less space between columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    if widths is None:
        table = Table(box=SIMPLE_HEAD)
    else:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=0)
    for place, head in enumerate(heads):
        justify: Literal["left", "right"] = "right" if is_right[place] else "left"
        width = None if widths is None else widths[place]
        table.add_column(Text(head), justify=justify, overflow="fold", width=width)
    for row in cells:
        table.add_row(*map(Text, row))
    return table
