"""Frozen dataclasses from YAML, mappings and `key=value`, and back. Types are checked; unknown keys get a suggestion."""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import inspect
import math
import operator
import os
import re
import sys
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar, Union

from vitkit.errors import InputError, did_you_mean
from vitkit.files import local_path


class DataclassInstance(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


D = TypeVar("D", bound=DataclassInstance)

MOST_BITS = 10_000
"Limit on an integer in YAML; Python refuses to print much larger ones."
MOST_VALUES = 100_000
MOST_LEVELS = 50
"Limits on the number and nesting of a YAML document's values, with aliases expanded."
MOST_CHARACTERS = 200
"Longest value in error messages."


@dataclass(frozen=True)
class Bounds:
    """The range of a setting, declared with its field: `depth: Annotated[int, Bounds(at_least=1)]`.

    It applies to each number of a tuple. Numbers must always be finite, and integers must fit into 64 bits.
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
        """Return whether a number is within the bounds."""
        return (
            math.isfinite(number)
            and (self.at_least is None or number >= self.at_least)
            and (self.above is None or number > self.above)
            and (self.at_most is None or number <= self.at_most)
            and (self.below is None or number < self.below)
        )

    def check(self, name: str, value: Any) -> None:
        """Raise InputError if a value is, or contains, a number outside the bounds."""
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
    """Raise InputError if a number is outside the bounds declared with its field."""
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
    """Return a value for an error message, truncated if it is long."""
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return "a very large number"  # Python refuses to print it
    text = repr(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."


def to_dict(config: DataclassInstance) -> dict[str, object]:
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
    """Build `cls` from a mapping; `where` names the mapping in error messages."""
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


def check_settings(
    cls: type[DataclassInstance], settings: Mapping[str, Any], where: str
) -> dict[str, object]:
    """Return the settings converted to the types of the fields of `cls`, or raise InputError."""
    hints = type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls) if field.init]
    checked = {}
    for name, value in settings.items():
        if name not in names:
            raise InputError(f"unknown setting {name!r} in {where}{_instead(cls, str(name), names)}")
        try:
            if (section := _section(hints[name])) and isinstance(value, Mapping):
                checked[name] = from_dict(section, value, name)
            else:
                checked[name] = convert(value, hints[name])
        except TypeError:
            expected = admitted_values(hints[name])
            raise InputError(f"{name} in {where} is {shown(value)}; expected {expected}") from None
    return checked


def _instead(cls: type[DataclassInstance], name: str, names: Sequence[str]) -> str:
    """Return a hint for an unknown setting; a class's `other_words` are other libraries' names for its settings."""
    word: str = getattr(cls, "other_words", {}).get(name, "")
    if word in names:
        return f": it is called {word} here"
    if " " in word:
        return f": {word}"
    return did_you_mean(name, names) or f"; expected one of {', '.join(names)}"


def _section(hint: Any) -> Any:
    """Return the dataclass in an annotation, itself or as an option of a union, or None."""
    options = (hint, *typing.get_args(hint))
    return next((option for option in options if dataclasses.is_dataclass(option)), None)


@functools.cache
def type_hints(cls: type[DataclassInstance]) -> dict[str, object]:
    """Return the annotations of a class; cached, since resolving them is slow."""
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
            value = [value]  # a single value, as in track=tensorboard
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
        return operator.index(value)  # NumPy's integers too
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
    """Return a description of the values that an annotation accepts."""
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
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return words.get(hint, "null" if hint is type(None) else str(hint))


def check_choice(name: str, value: str, kind: Any) -> None:
    """Raise InputError if a setting is not one of the words that its type allows."""
    options = typing.get_args(kind)
    if value not in options:
        hint = did_you_mean(str(value), options) or ";"
        raise InputError(f"{name} is {value!r}{hint} expected one of {', '.join(options)}")


def read_yaml(text: str, where: str) -> dict[str, Any]:
    """Return the mapping in a YAML document; nothing in it is executed."""
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
    """Refuse values that would break recursion or copying: deep nesting, or aliases that are circular or explode."""
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
    """Return settings as YAML that `read_yaml` reads back."""
    import yaml

    return yaml.dump(settings, Dumper=_dialect()[1], sort_keys=False, width=100)


@functools.cache
def _dialect() -> tuple[Any, Any]:
    """Return PyYAML's SafeLoader and SafeDumper, with YAML 1.2's 1e-3, unique keys, and dates as text."""
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
                problem = f"{shown(node.value)} is not a number, or too large"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
            return value

    # No setting is a date, but a name may look like one, even like an impossible one.
    Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: node.value)

    class Dumper(yaml.SafeDumper):
        def represent_text(self, text: str) -> Any:
            # Other styles fold line breaks into spaces, or take several lines.
            style = '"' if re.search("[\n\r\x85\u2028\u2029]", text) else None
            return self.represent_scalar("tag:yaml.org,2002:str", text, style)

    Dumper.add_representer(str, Dumper.represent_text)
    for kind in (Loader, Dumper):
        number = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
        kind.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    return Loader, Dumper


Changes = str | Sequence[str] | Mapping[str, Any]
"Settings to change: 'key=value' strings, or a mapping of dotted or nested names."


class Change(str):
    """A setting and its new value, as normalised text: 'optimizer.learning_rate=0.001'."""

    key: str
    "Its dotted name."
    value: Any

    def __new__(cls, key: str, value: Any) -> Change:
        change = super().__new__(cls, f"{key}={_flow_text(value)}")
        change.key, change.value = key, value
        return change

    def __getnewargs__(self) -> tuple[str, Any]:  # type: ignore[override]
        return self.key, self.value


def as_changes(changes: Changes = (), settings: Mapping[str, Any] | None = None) -> list[Change]:
    """Return changes in any form as a list, followed by settings from keyword arguments.

    A nested mapping changes only the settings that it names. To replace a whole section, give its dataclass, or text such
    as 'schedule={name: constant}'.
    """
    changes = [changes] if isinstance(changes, str) else changes
    given = _flattened(changes) if isinstance(changes, Mapping) else map(_parsed, changes)
    return [*given, *_flattened(settings or {})]


def _parsed(change: str) -> Change:
    """Parse a 'key=value' text; its value is read as YAML."""
    if isinstance(change, Change):
        return change
    if not isinstance(change, str):
        raise InputError(f"a change is {shown(change)}; expected 'key=value', or a mapping of settings")
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise InputError(f"{shown(change)} is not a setting; expected key=value, such as seed=1")
    return Change(key.strip(), _value(text))


def _flattened(settings: Mapping[str, Any], prefix: str = "") -> list[Change]:
    found: list[Change] = []
    for name, value in settings.items():
        if not isinstance(name, str):
            raise InputError(f"a setting's name is {shown(name)}; expected text, such as 'seed'")
        if isinstance(value, Mapping):
            found += _flattened(value, f"{prefix}{name}.")
        else:
            found.append(Change(prefix + name, _as_yaml_type(value)))
    return found


def _as_yaml_type(value: Any) -> Any:
    """Return a Python value as a YAML type; other values are returned unchanged, for a later error to name."""
    if isinstance(value, os.PathLike):
        return local_path(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, list | tuple):
        return [_as_yaml_type(item) for item in value]
    return value.item() if getattr(value, "shape", None) == () else value  # NumPy's numbers


def _flow_text(value: Any) -> str:
    """Return a value as one line of YAML."""
    import yaml

    try:
        text: str = yaml.dump(
            _without_points(value),
            Dumper=_dialect()[1],
            default_flow_style=True,
            allow_unicode=True,
            sort_keys=False,
            width=sys.maxsize,
        )
    except yaml.YAMLError:  # not a plain value
        return shown(value)
    return text.removesuffix("\n").removesuffix("\n...")


def _without_points(value: Any) -> Any:
    """Return a value with 3 instead of 3.0, since both mean the same setting."""
    if isinstance(value, dict):
        return {name: _without_points(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_points(item) for item in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if is_whole else value


def merge(settings: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Return nested settings with changes such as 'optimizer.learning_rate=1e-3' applied.

    Values are read as YAML. A mapping replaces the whole section, as in 'schedule={name: constant}'.
    """
    made = as_changes(changes)
    _refuse_undone(made)
    merged = {
        key: merge(value, ()) if isinstance(value, Mapping) else value for key, value in settings.items()
    }
    for change in made:
        section, names = merged, change.key.split(".")
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
        section[names[-1]] = copy.deepcopy(change.value)
    return merged


def _refuse_undone(changes: Sequence[Change]) -> None:
    """Raise InputError if a later change of a whole section would discard the change of one of its settings."""
    for place, change in enumerate(changes):
        for before in changes[:place]:
            if before.key.startswith(f"{change.key}."):
                raise InputError(f"{before} is overwritten by {change}, which comes later: swap them")


def _value(text: str) -> Any:
    if not text.strip():
        return ""
    try:
        return read_yaml(f"value: {text}", text)["value"]
    except InputError:  # for example a pattern, '*.bias'
        return text.strip()


def meanings(cls: type[DataclassInstance]) -> dict[str, str]:
    """Return the meaning of each field of a dataclass: the string below it in its source, or in a base class's."""
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
