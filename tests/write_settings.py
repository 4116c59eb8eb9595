"""Writes `vitkit/settings.py` from the config dataclasses: `make settings`. A test compares the two."""

from __future__ import annotations

import dataclasses
import json
import os
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Union

from vitkit.config import meanings
from vitkit.models.configs import CompactConfig, HybridConfig, ResNetConfig, ViTConfig
from vitkit.training.config import TrainConfig
from vitkit.transfer.protocols import TransferConfig

FILE = Path(__file__).parents[1] / "vitkit" / "settings.py"
PATH = os.PathLike[str]
PATHS = {"DataConfig": ("train", "evaluate"), "FrozenConfig": ("data",)}
"Settings that may be a path, by their section."
FAMILIES = (ViTConfig, HybridConfig, ResNetConfig, CompactConfig)
HEAD = '''"""The settings that functions take as keyword arguments, for editors and type checkers.

Written by `make settings` from the config dataclasses, which say what each means and check it.
"""

# fmt: off
from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, TypedDict
'''
Fields = dict[str, tuple[list[Any], str]]
"Name of a setting -> its types, of which one will do, and its meaning."


def fields_of(*classes: Any) -> Fields:
    """The fields of dataclasses; what several have admits what any of them does."""
    found: Fields = {}
    for cls in classes:
        hints, words = typing.get_type_hints(cls), meanings(cls)
        for field in dataclasses.fields(cls):
            kinds, meaning = found.get(field.name, ([], words[field.name]))
            own = [*([PATH] if field.name in PATHS.get(cls.__name__, ()) else []), hints[field.name]]
            found[field.name] = ([*kinds, *own], meaning)
    return found


def sections(cls: Any) -> dict[str, Any]:
    """The dataclasses among a config's fields, by the names of theirs."""
    return {
        kind.__name__: kind for kind in typing.get_type_hints(cls).values() if dataclasses.is_dataclass(kind)
    }


def atoms(hint: Any) -> list[Any]:
    """Return an annotation's alternatives."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        return [atom for argument in typing.get_args(hint) for atom in atoms(argument)]
    return [hint]


def source(*hints: Any) -> str:
    """Return annotations, of which any will do, as source code; all words that they admit become one Literal."""
    found = [atom for hint in hints for atom in atoms(hint)]
    words = [word for atom in found if typing.get_origin(atom) is Literal for word in typing.get_args(atom)]
    literal = f"Literal[{', '.join(json.dumps(word) for word in dict.fromkeys(words))}]"
    return " | ".join(
        dict.fromkeys(literal if typing.get_origin(atom) is Literal else plain(atom) for atom in found)
    )


def plain(hint: Any) -> str:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        if arguments[-1] is Ellipsis:
            return f"Sequence[{source(arguments[0])}]"
        return f"tuple[{', '.join(map(source, arguments))}]"
    if hint == PATH:
        return "os.PathLike[str]"
    if dataclasses.is_dataclass(hint):
        return settings_name(hint)
    return "None" if hint is type(None) else hint.__name__


def settings_name(cls: Any) -> str:
    return cls.__name__.removesuffix("Config") + "Settings"


def written(name: str, about: str, fields: Fields, base: str = "TypedDict, total=False") -> str:
    lines = [f"class {name}({base}):", f'    """{about}"""', ""]
    for field, (kinds, meaning) in fields.items():
        lines += [f"    {field}: {source(*kinds)}", f"    {json.dumps(meaning, ensure_ascii=False)}"]
    return "\n".join(lines)


def only(fields: Mapping[str, Any], names: Iterable[str]) -> Fields:
    return {name: fields[name] for name in names}


def text() -> str:
    """Return the whole module."""
    run, transfer = fields_of(TrainConfig), fields_of(TransferConfig)
    own = {
        "name": ([str, PATH], "Any MODEL."),
        "new_head": ([bool], "Whether a trained model gets a new head."),
    }
    every = {name: field for name, field in run.items() if name not in ("model", "data")}
    every["objective"][0].append(str)  # its name, short for a section with that name alone
    parts = [
        written("ModelSettings", "Of a model; each family has some of them.", fields_of(*FAMILIES)),
        written("ModelSection", "Of the model of a run.", own, "ModelSettings, total=False"),
        *(
            written(settings_name(cls), cls.__doc__.splitlines()[0], fields_of(cls))
            for cls in sections(TrainConfig).values()
        ),
        written("TrainSettings", "Of a training run, besides its model and data.", every),
        "class _Sections(TypedDict, total=False):\n"
        '    """Sections whose names are arguments of `train`."""\n\n'
        "    model: ModelSection\n    data: DataSettings",
        written(
            "TaskSettings",
            "Of a fine-tuning whose protocol is fixed.",
            only(transfer, ("image_size", "head_first")),
            "TrainSettings, _Sections, total=False",
        ),
        written(
            "FinetuneSettings",
            "Of a fine-tuning.",
            only(transfer, [name for name in transfer if name not in ("image_size", "head_first")]),
            "TaskSettings, total=False",
        ),
    ]
    return HEAD + "\n\n" + "\n\n\n".join(parts) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
