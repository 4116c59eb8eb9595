"""Frozen dataclasses from plain mappings and back: types checked, unknown keys refused with a suggestion."""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol, TypeVar, Union

from vitkit.errors import InputError, did_you_mean


class DataclassInstance(Protocol):
    """Any dataclass: what the functions here accept."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


D = TypeVar("D", bound=DataclassInstance)


def to_dict(config: DataclassInstance) -> dict[str, Any]:
    """Return the settings as plain JSON and YAML types."""
    return {
        field.name: list(value) if isinstance(value := getattr(config, field.name), tuple) else value
        for field in dataclasses.fields(config)
        if field.init
    }


def from_dict(cls: type[D], settings: Mapping[str, Any], where: str) -> D:
    """Build `cls` from a mapping; `where` names its place in error messages."""
    settings = check_settings(cls, settings, where)
    missing = [
        field.name
        for field in dataclasses.fields(cls)
        if field.init
        and field.name not in settings
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise InputError(f"missing setting {missing[0]!r} in {where}")
    return cls(**settings)


def override(config: D, settings: Mapping[str, Any], where: str) -> D:
    """Return a copy of `config` with some settings replaced."""
    return dataclasses.replace(config, **check_settings(type(config), settings, where))


def check_settings(cls: type[DataclassInstance], settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the settings converted to the types of the fields of `cls`, or raise InputError."""
    hints = type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls) if field.init]
    checked = {}
    for name, value in settings.items():
        if name not in names:
            raise InputError(f"unknown setting {name!r} in {where}{did_you_mean(name, names)}")
        try:
            checked[name] = convert(value, hints[name])
        except TypeError:
            expected = describe(hints[name])
            raise InputError(f"{name} in {where} is {value!r}; expected {expected}") from None
    return checked


@functools.cache
def type_hints(cls: type[DataclassInstance]) -> dict[str, Any]:
    """Return the annotations of a class; resolving them is slow."""
    return typing.get_type_hints(cls)


def convert(value: Any, hint: Any) -> Any:
    """Return `value` as an instance of the annotation `hint`, or raise TypeError."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value not in args:
            raise TypeError
        return value
    if origin in (Union, types.UnionType):
        for option in args:
            try:
                return convert(value, option)
            except TypeError:
                continue
        raise TypeError
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise TypeError
        if args[-1] is Ellipsis:
            return tuple(convert(item, args[0]) for item in value)
        if len(value) != len(args):
            raise TypeError
        return tuple(convert(item, arg) for item, arg in zip(value, args, strict=True))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is int and not isinstance(value, bool):
        return operator.index(value)  # numpy's whole numbers as well
    if hint is int:
        raise TypeError
    if not isinstance(value, hint):
        raise TypeError
    return value


def describe(hint: Any) -> str:
    """Say in words what values an annotation admits."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(repr(arg) for arg in args)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(arg) for arg in args)
    if origin is tuple:
        return "a list of " + " and ".join(describe(arg) for arg in args if arg is not Ellipsis)
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return words.get(hint, "nothing" if hint is type(None) else str(hint))
