"""Results: what a verb returns, a frozen dataclass whose `to_json` is what `--json` prints; short in Python, a table in notebooks."""

from __future__ import annotations

import dataclasses
import math
import os
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, Union

from vitkit.display import html_table, known, pictures, rows_table, short_text
from vitkit.notes import worded

R = TypeVar("R", bound="Result")


@dataclass(frozen=True)
class Result:
    """Base of what verbs return, and of their rows.

    A field is a key of the document under its own name, or under metadata["json"] where that is no Python name. With
    metadata["optional"] the document has the key only where there is a value.
    """

    _leads: ClassVar[tuple[str, ...]] = ()
    "What repr shows; all fields where there are none."
    _tables: ClassVar[tuple[str, ...]] = ()
    "Fields whose rows a notebook shows as tables."

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__repr__" not in vars(cls):  # else the decorator gives each class a repr with all of its fields
            cls.__repr__ = Result.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return short_text(self, self._leads)

    def _repr_html_(self) -> str:
        """Return the result as notebooks show it; names are escaped, and pictures are a part of it."""
        rows = {name: value for name in self._tables if (value := getattr(self, name))}
        facts = {name: value for name, value in known(self, self._leads).items() if not _is_rows(value)}
        tables = [rows_table(name, value) for name, value in rows.items()]
        return html_table(type(self).__name__, facts, *tables, pictures(self._pictures()))

    def _pictures(self) -> Iterable[tuple[str, bytes]]:
        """Return PNG pictures of the result, each with its name."""
        return ()

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values; numbers that are not finite are None."""
        return {
            field.metadata.get("json", field.name): as_json(getattr(self, field.name))
            for field in dataclasses.fields(self)
            if not field.metadata.get("optional") or getattr(self, field.name) is not None
        }


def _is_rows(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list | tuple) and any(isinstance(entry, Result) for entry in value)
    )


def as_json(value: Any) -> Any:
    """Return a value as JSON has it: lists, objects, text, finite numbers, None."""
    if isinstance(value, Result):
        return value.to_json()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if hasattr(value, "_asdict"):  # a named tuple
        return as_json(value._asdict())
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(entry) for entry in value]
    if hasattr(value, "tolist"):  # NumPy's and torch's arrays and numbers
        return as_json(value.tolist())
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return worded(value) if isinstance(value, str) else value


def from_json(kind: type[R], document: Mapping[str, Any]) -> R:
    """Return the result that `to_json` made a document of; keys that are no fields are ignored."""
    hints = typing.get_type_hints(kind)
    keys = {field.name: field.metadata.get("json", field.name) for field in dataclasses.fields(kind)}
    return kind(
        **{name: _restored(hints[name], document[key]) for name, key in keys.items() if key in document}
    )


def _restored(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if value is None:
        return None
    if origin in (Union, types.UnionType):
        *others, last = [option for option in arguments if option is not type(None)]
        for option in others:
            with suppress(TypeError):  # the document has not the keys of this one
                return _restored(option, value)
        return _restored(last, value)
    if isinstance(hint, type) and issubclass(hint, Result):
        return from_json(hint, value)
    if hasattr(hint, "_make") and isinstance(value, Mapping):  # a named tuple
        return hint(**value)
    if origin in (tuple, list, Sequence):
        entries = [_restored(arguments[0], entry) for entry in value]
        return entries if origin is list else tuple(entries)
    if origin in (dict, Mapping):
        return {key: _restored(arguments[1], entry) for key, entry in value.items()}
    return value
