"""Results: what a verb returns, a frozen dataclass whose `to_json` is what `--json` prints; short in Python, a table in notebooks."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import reprlib
import sys
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, Union, cast

from vitkit.display import html_table, known, pictures, rows_table, short_text
from vitkit.errors import InputError
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


class Unreadable(NamedTuple):
    """An image that can't be read."""

    image: str
    reason: str
    data: str = ""
    "The DATA that it belongs to, with its split; empty for files that were given one by one."


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


def from_json(kind: type[R], document: object, path: str | os.PathLike[str] = "the document") -> R:
    """Return the result that `to_json` made a document of; keys that are no fields are ignored.

    path: the file that the document is from, which the error about a damaged one names.
    """
    try:
        return cast(R, restored(kind, document))
    except InputError as error:
        raise InputError(f"{path} is damaged: {error}") from None


def restored(hint: Any, value: Any, name: str = "") -> Any:
    """Return a value of JSON as the type that it was written from; the error names the field that has another type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _restored_option(arguments, value, name)
    if dataclasses.is_dataclass(hint) or hasattr(hint, "_make"):
        return _restored_fields(hint, value, name)
    if origin in (tuple, list, Sequence):
        if not isinstance(value, list | tuple):
            raise _mismatch(value, name)
        is_fixed = origin is tuple and arguments[-1] is not Ellipsis
        if is_fixed and len(value) != len(arguments):
            raise _mismatch(value, name)
        hints = arguments if is_fixed else [arguments[0]] * len(value)
        entries = [restored(one, entry, name) for one, entry in zip(hints, value, strict=True)]
        return entries if origin is list else tuple(entries)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise _mismatch(value, name)
        return {key: restored(arguments[1], entry, _inner(name, key)) for key, entry in value.items()}
    if origin is Literal:
        fits = value in arguments
    elif hint is float:
        # A whole number may be too large for a float, which formats need.
        fits = type(value) in (int, float) and abs(value) <= sys.float_info.max
    elif hint in (str, int, bool, None, type(None)):
        fits = type(value) is (hint or type(None)) or (hint is str and isinstance(value, str))
    else:
        fits = True
    if not fits:
        raise _mismatch(value, name)
    return value


def _restored_option(options: Sequence[Any], value: Any, name: str) -> Any:
    """Return a value as the first type of a union that it fits."""
    *others, last = [option for option in options if option is not type(None)]
    if value is None and type(None) in options:
        return None
    for option in others:
        with suppress(InputError):
            return restored(option, value, name)
    return restored(last, value, name)


def _restored_fields(kind: Any, value: Any, name: str) -> Any:
    """Return the dataclass or named tuple whose fields a document has."""
    if not isinstance(value, Mapping):
        raise _mismatch(value, name)
    keys = {field: field for field in getattr(kind, "_fields", ())}
    if not keys:
        keys = {field.name: field.metadata.get("json", field.name) for field in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind)
    found = {
        field: restored(hints[field], value[key], _inner(name, key))
        for field, key in keys.items()
        if key in value
    }
    try:
        return kind(**found)
    except TypeError:  # a field that has no default
        missing = next(
            key for field, key in keys.items() if field not in found and not _has_default(kind, field)
        )
        raise InputError(f"{_inner(name, missing)!r} is missing") from None


def _has_default(kind: Any, name: str) -> bool:
    return inspect.signature(kind).parameters[name].default is not inspect.Parameter.empty


def _inner(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _mismatch(value: Any, name: str) -> InputError:
    shown = reprlib.repr(value)
    return InputError(f"{name!r} is {shown}" if name else f"expected an object, got {shown}")
