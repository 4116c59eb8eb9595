"""Damaged copies of a JSON document: each value in turn is gone, or has another type."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

OTHERS: tuple[Any, ...] = (None, "x", 7, [None])


def damaged_copies(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield each damaged copy with a name that says what is wrong."""
    for path in _paths(document):
        for other in ("gone", *OTHERS):
            made = copy.deepcopy(document)
            *outer, last = path
            place = made
            for key in outer:
                place = place[key]
            if other == "gone":
                del place[last]
            else:
                place[last] = other
            yield f"{'.'.join(map(str, path))} {other!r}", made


def _paths(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(document, dict | list):
        for key in document if isinstance(document, dict) else range(len(document)):
            yield from _paths(document[key], (*path, key))
