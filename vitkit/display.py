"""How results look in Python: a short repr, and a small HTML table with pictures in notebooks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitkit.markup import Html, element, embedded, join

MOST_LETTERS = 60
"Of a text in a repr."
MOST_NUMBERS = 4
MOST_ROWS = 20
MOST_PICTURES = 6
MOST_BYTES = 2**22
"Of a picture in a notebook, which keeps it in its file."
_FIT = "max-width:100%;height:auto"


def short(value: Any, deep: bool = True) -> str:
    """Return a value in a few words; a result inside another is shown if it is `deep`."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        return repr(text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 3]}...")
    if isinstance(value, Mapping):
        return f"{len(value)} entries"
    if isinstance(value, list | tuple) and not hasattr(value, "_asdict"):
        return _short_list(value, deep)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return repr(value) if deep else type(value).__name__
    return repr(value)


def _short_list(values: Sequence[Any], deep: bool) -> str:
    if all(isinstance(value, int | float) for value in values) and len(values) <= MOST_NUMBERS:
        return f"({', '.join(map(short, values))})"
    first = short(values[0], deep) if values else ""
    more = f", +{len(values) - 1}" if len(values) > 1 else ""
    return f"[{first}{more}]" if len(first) <= 2 * MOST_LETTERS else f"[{len(values)} entries]"


def known(value: Any, names: Iterable[str] = ()) -> dict[str, object]:
    """Return the fields of a dataclass that say something, by name: these, or all."""
    chosen = tuple(names) or tuple(field.name for field in dataclasses.fields(value))
    found = ((name, getattr(value, name)) for name in chosen)
    return {name: entry for name, entry in found if entry is not None and not _is_empty(entry)}


def _is_empty(value: Any) -> bool:
    return isinstance(value, str | list | tuple | Mapping) and not value


def short_text(value: Any, names: Iterable[str] = ()) -> str:
    """Return the repr of a dataclass: its name and its known fields, each in a few words."""
    fields = ", ".join(f"{name}={short(entry)}" for name, entry in known(value, names).items())
    return f"{type(value).__name__}({fields})"


def html_table(title: str, facts: Mapping[str, Any], *parts: Html) -> Html:
    """Return names and values as a small table under a title, then further parts."""
    rows = (
        element("tr", _cell("th", _words(name)), _cell("td", _readable(entry)))
        for name, entry in facts.items()
    )
    return element("div", element("b", title), element("table", *rows), *parts)


def rows_table(title: str, rows: Sequence[Any] | Mapping[str, Any]) -> Html:
    """Return dataclasses as a table of their plain fields, a mapping as names and values; of many, the first."""
    entries: list[dict[str, object]]
    if isinstance(rows, Mapping):
        entries = [
            {"": name, **(_plain(value) if dataclasses.is_dataclass(value) else {"value": value})}
            for name, value in rows.items()
        ]
    else:
        entries = [_plain(row) for row in rows]
    columns = list(dict.fromkeys(name for entry in entries for name in entry))
    head = element("tr", *(_cell("th", _words(name)) for name in columns))
    body = [
        element(
            "tr",
            *(_cell("td", _readable(value)) for value in map(entry.get, columns)),
        )
        for entry in entries[:MOST_ROWS]
    ]
    more = [element("p", f"{len(entries) - MOST_ROWS} more rows")] if len(entries) > MOST_ROWS else []
    return element("div", element("b", _words(title)), element("table", head, *body), *more)


def _plain(row: Any) -> dict[str, object]:
    return {
        name: value
        for name, value in ((field.name, getattr(row, field.name)) for field in dataclasses.fields(row))
        if value is None or isinstance(value, str | int | float)
    }


def pictures(images: Iterable[tuple[str, bytes]]) -> Html:
    """Return PNG pictures as parts of the page, the first few that are not too large."""
    fitting = [(name, png) for name, png in images if len(png) <= MOST_BYTES]
    return join(element("p", embedded(png, name, _FIT)) for name, png in fitting[:MOST_PICTURES])


def png_files(paths: Iterable[str | os.PathLike[str]]) -> list[tuple[str, bytes]]:
    """Return the PNG files among these that are still there."""
    files = [path for path in map(Path, paths) if path.suffix == ".png" and path.is_file()]
    return [(path.name, path.read_bytes()) for path in files[:MOST_PICTURES]]


def _cell(tag: str, text: str) -> Html:
    return element(tag, text, style="text-align:left")


def _readable(value: Any) -> str:
    """Return a value as a table's cell has it."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else short(value)


def _words(name: str) -> str:
    return name.replace("_", " ")
