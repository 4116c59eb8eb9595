"""Frozen dataclasses from YAML, mappings and `key=value`, and back: types checked, unknown keys refused with a suggestion."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import math
import operator
import re
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar, Union

from vitkit.errors import InputError, did_you_mean


class DataclassInstance(Protocol):
    """Any dataclass: what the functions here accept."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


D = TypeVar("D", bound=DataclassInstance)

MOST_BITS = 10_000
"Of a whole number in a YAML text; Python refuses to print much larger ones."
MOST_VALUES = 100_000
MOST_LEVELS = 50
"Size of a YAML text's values, aliases written out."
MOST_CHARACTERS = 200
"Values are shown up to this length in error messages."


@dataclass(frozen=True)
class Bounds:
    """Numbers that a setting admits, declared with its field: `depth: Annotated[int, Bounds(at_least=1)]`.

    They hold for each number of a tuple. Every number must be finite, and a whole one must fit into 64 bits.
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def __str__(self) -> str:
        words = [
            f"{field.name.replace('_', ' ')} {limit}"
            for field in dataclasses.fields(self)
            if (limit := getattr(self, field.name)) is not None
        ]
        return " and ".join(words) or "finite"

    def admit(self, number: float) -> bool:
        """Return whether a number lies within the bounds."""
        return (
            math.isfinite(number)
            and (self.at_least is None or number >= self.at_least)
            and (self.above is None or number > self.above)
            and (self.at_most is None or number <= self.at_most)
            and (self.below is None or number < self.below)
        )

    def check(self, name: str, value: Any) -> None:
        """Raise InputError if a value is a number outside of the bounds, or holds one."""
        for number in value if isinstance(value, tuple | list) else (value,):
            if isinstance(number, int) and number.bit_length() > 63:
                raise InputError(f"{name} must be below 2**63, not {shown(number)}")
            if isinstance(number, Real) and not self.admit(float(number)):
                plain = number.item() if hasattr(number, "item") else number  # NumPy's
                raise InputError(f"{name} must be {self}, not {shown(plain).removesuffix('.0')}")


Count = Annotated[int, Bounds(at_least=1)]
CountOrZero = Annotated[int, Bounds(at_least=0)]
Positive = Annotated[float, Bounds(above=0)]
NotNegative = Annotated[float, Bounds(at_least=0)]
Rate = Annotated[float, Bounds(at_least=0, below=1)]
Share = Annotated[float, Bounds(above=0, below=1)]


def check_bounds(config: DataclassInstance) -> None:
    """Raise InputError if a number is outside of the bounds declared with its field."""
    for name, bounds in _bounds(type(config)).items():
        bounds.check(name, getattr(config, name))


@functools.cache
def _bounds(cls: type[DataclassInstance]) -> dict[str, Bounds]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: _find_bounds(hints[field.name]) or Bounds() for field in dataclasses.fields(cls)}


def _find_bounds(hint: Any) -> Bounds | None:
    """Return the bounds inside an annotation, such as those of `Count | Literal["auto"] | None`."""
    if isinstance(hint, Bounds):
        return hint
    return next(filter(None, map(_find_bounds, typing.get_args(hint))), None)


def shown(value: Any) -> str:
    """Return a value as an error message shows it: its start, if it is long."""
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return "a very large number"  # Python refuses to print it
    text = repr(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."


def to_dict(config: DataclassInstance) -> dict[str, Any]:
    """Return the settings as plain JSON and YAML types."""
    return {
        field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config) if field.init
    }


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


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
            hint = did_you_mean(str(name), names) or f"; there are {', '.join(names)}"
            raise InputError(f"unknown setting {name!r} in {where}{hint}")
        try:
            if (section := _section(hints[name])) and isinstance(value, Mapping):
                checked[name] = from_dict(section, value, name)
            else:
                checked[name] = convert(value, hints[name])
        except TypeError:
            expected = admitted_values(hints[name])
            raise InputError(f"{name} in {where} is {shown(value)}; expected {expected}") from None
    return checked


def _section(hint: Any) -> Any:
    """Return the dataclass that an annotation names, alone or as one of several options; else None."""
    options = (hint, *typing.get_args(hint))
    return next((option for option in options if dataclasses.is_dataclass(option)), None)


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
    if origin is dict:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise TypeError
        return dict(value)
    if origin is tuple:
        if args == (int, int) and isinstance(value, str):
            value = _sides(value)
        if not isinstance(value, (list, tuple)) and args[-1] is Ellipsis:
            value = [value]  # one of several, as in track=tensorboard
        if not isinstance(value, (list, tuple)):
            raise TypeError
        if args[-1] is Ellipsis:
            return tuple(convert(item, args[0]) for item in value)
        if len(value) != len(args):
            raise TypeError
        return tuple(convert(item, arg) for item, arg in zip(value, args, strict=True))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        if value.bit_length() > 1023:
            raise TypeError  # larger than any float
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)  # 1e3
    if hint is int and not isinstance(value, bool):
        return operator.index(value)  # numpy's whole numbers as well
    if hint is int:
        raise TypeError
    if not isinstance(value, hint):
        raise TypeError
    return value


def _sides(text: str) -> tuple[int, int]:
    """Return (height, width) of 384 or 384x512, or raise TypeError."""
    match = re.fullmatch(r"(\d{1,6})(?:x(\d{1,6}))?", text)
    if match is None:
        raise TypeError
    return int(match[1]), int(match[2] or match[1])


def admitted_values(hint: Any) -> str:
    """Return in words what values an annotation admits."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(repr(arg) for arg in args)
    if origin in (Union, types.UnionType):
        return " or ".join(admitted_values(arg) for arg in args)
    if args == (int, int):
        return "HEIGHTxWIDTH such as 224x160"
    if origin is tuple:
        return "a list of " + " and ".join(admitted_values(arg) for arg in args if arg is not Ellipsis)
    if origin is dict or dataclasses.is_dataclass(hint):
        return "a mapping of settings"
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return words.get(hint, "nothing (null)" if hint is type(None) else str(hint))


def check_choice(name: str, value: str, kind: Any) -> None:
    """Refuse a setting that is none of the words that its type allows."""
    options = typing.get_args(kind)
    if value not in options:
        hint = did_you_mean(str(value), options) or ";"
        raise InputError(f"{name} is {value!r}{hint} expected {', '.join(options)}")


def read_yaml(text: str, where: str) -> dict[str, Any]:
    """Return the mapping that a YAML text holds; nothing in it is executed."""
    import yaml

    try:
        settings = yaml.load(text, _dialect()[0])
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(f"{where}{place}: {problem}") from None
    except RecursionError:
        raise InputError(f"{where}: nested more than {MOST_LEVELS} levels deep") from None
    _check_extent(settings, where)
    if not isinstance(settings, dict):
        raise InputError(f"{where} holds no settings; expected lines such as 'seed: 1'")
    return settings


def _check_extent(settings: Any, where: str) -> None:
    """Refuse what recursion or copying could not survive: deep nesting, aliases in circles or without end."""
    pending, count = [(settings, 0)], 0
    while pending:
        value, level = pending.pop()
        count += 1
        if level > MOST_LEVELS:
            raise InputError(f"{where}: nested more than {MOST_LEVELS} levels deep")
        if count > MOST_VALUES:
            raise InputError(f"{where}: more than {MOST_VALUES:,} values")
        if isinstance(value, dict):
            pending += [(item, level + 1) for item in value.values()]
        elif isinstance(value, list):
            pending += [(item, level + 1) for item in value]


def write_yaml(settings: Mapping[str, Any]) -> str:
    """Return the YAML text that `read_yaml` reads as these settings."""
    import yaml

    return yaml.dump(settings, Dumper=_dialect()[1], sort_keys=False, width=100)


@functools.cache
def _dialect() -> tuple[Any, Any]:
    """PyYAML's SafeLoader and SafeDumper with YAML 1.2's 1e-3, unique keys, and dates that are texts."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            seen: set[str] = set()
            for key, _ in node.value:
                if str(key.value) in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"{key.value} is given twice", problem_mark=key.start_mark
                    )
                seen.add(str(key.value))
            return node

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                value = super().construct_object(node, deep)
            except (ValueError, KeyError):  # 0b_, !!bool x, or more digits than Python converts
                value = math.nan
            is_number = isinstance(value, int | float)
            if is_number and (
                value.bit_length() > MOST_BITS if isinstance(value, int) else not math.isfinite(value)
            ):
                problem = f"{shown(node.value)} is no number, or too large"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
            return value

    # Dates are no settings: a name may look like one, and even like one that there isn't.
    Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: node.value)

    class Dumper(yaml.SafeDumper):
        pass

    for kind in (Loader, Dumper):
        number = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
        kind.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    return Loader, Dumper


def merge(settings: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Return nested settings with changes such as 'optimizer.learning_rate=1e-3' made.

    Values are read as YAML; a mapping takes the place of the whole section, as in 'schedule={name: constant}'.
    """
    _refuse_undone(changes)
    merged = {
        key: merge(value, ()) if isinstance(value, Mapping) else value for key, value in settings.items()
    }
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals or not path.strip():
            raise InputError(f"{shown(change)} is no setting; expected key=value, such as seed=1")
        value = _value(text)
        section, names = merged, path.strip().split(".")
        if len(names) > MOST_LEVELS:
            raise InputError(f"{shown(change)}: nested more than {MOST_LEVELS} levels deep")
        for name in names[:-1]:
            below = section.get(name)
            if below is None:
                below = section[name] = {}
            elif not isinstance(below, dict):
                raise InputError(
                    f"{shown(change)}: {name} is {shown(below)}, which has no settings of its own"
                )
            section = below
        section[names[-1]] = value
    return merged


def _refuse_undone(changes: Sequence[str]) -> None:
    """Refuse a change of a setting before one of its whole section, which would drop it."""
    paths = [change.partition("=")[0].strip() for change in changes]
    for place, path in enumerate(paths):
        for before, other in zip(changes, paths[:place], strict=False):
            if other.startswith(f"{path}."):
                raise InputError(f"{before} is undone by {changes[place]}, which comes later: put that first")


def _value(text: str) -> Any:
    if not text.strip():
        return ""
    try:
        return read_yaml(f"value: {text}", text)["value"]
    except InputError:  # such as a pattern, '*.bias'
        return text.strip()


def meanings(cls: type[DataclassInstance]) -> dict[str, str]:
    """Return what each field of a dataclass means: the text beneath it in its source, or in a base class."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for line, below in zip(body.body, body.body[1:], strict=False):
            if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found[line.target.id] = str(below.value.value)
    return found
