"""The tables of weight formats.

A new format needs a file with the functions of `Layout`, its name in `vitkit.weights.Format`, a row in `FORMATS` and a
place in `LAYOUTS`; a format that is a folder also needs its branch in `convert.save`. CONTRIBUTING.md lists its tests too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, get_args

from vitkit.errors import InputError
from vitkit.models.configs import ModelConfig
from vitkit.weights import Format, google, huggingface, timm, torchvision
from vitkit.weights.files import Document, Numeric, Reading, Tensors, write_npz, write_pth, write_safetensors


class Layout(Protocol):
    """Another library's names and shapes for the same tensors. Each format's file defines these functions."""

    def matches(self, names: Collection[str]) -> bool:
        """Return whether a file with tensors of these names has this layout."""

    def read(self, theirs: Tensors, /, extra: Document | None = None) -> Reading:
        """Return the tensors under our names; `extra` is the config.json of the folder they are in."""

    def write(self, config: ModelConfig, ours: Tensors, /) -> Tensors:
        """Return the tensors under their names."""

    def unsupported(self, config: ModelConfig, /) -> str | None:
        """Return the reason why the layout can't store this model, or None."""

    def numerics(self, config: ModelConfig, /) -> Mapping[str, Numeric]:
        """Return the numerics that are fixed in their code, whatever the config says."""


@dataclass(frozen=True)
class WrittenFormat:
    """How a format is written."""

    peer: str
    "Name for messages of the code that reads it."
    layout: Layout | None
    "None for our own names, which any config can use."
    endings: tuple[str, ...]
    "Endings of single files."
    has_folder: bool
    "Whether it can be written as a folder."


FORMATS: dict[Format, WrittenFormat] = {
    "vitkit": WrittenFormat("vitkit", None, (".safetensors", ".pth"), True),
    "npz": WrittenFormat("Google's code", google, (".npz",), False),
    "timm": WrittenFormat("timm", timm, (".safetensors", ".pth"), True),
    "hf": WrittenFormat("transformers", huggingface, (), True),
    "torchvision": WrittenFormat("torchvision", torchvision, (".pth", ".safetensors"), False),
}
# In the order in which layouts are tried. timm's names are the most generic, so timm comes last.
LAYOUTS: tuple[Layout, ...] = (google, huggingface, torchvision, timm)
# Functions that write a single file, by its ending. Any other path is a folder.
WRITERS: dict[str, Callable[[Path, Tensors], None]] = {
    ".safetensors": write_safetensors,
    ".pth": write_pth,
    ".npz": write_npz,
}
# Endings of files that we don't write; without this list they would become folders.
OTHER_ENDINGS = (".pt", ".bin", ".ckpt", ".h5", ".onnx", ".msgpack", ".tflite", ".gguf", ".pkl")


def format_of(path: Path, to: Format | None) -> Format:
    """Return the format to write: `to`, or the one that the path's ending implies. Refuse a path that doesn't fit it."""
    if to is None:
        to = "npz" if path.suffix == ".npz" else "vitkit"
    if to not in FORMATS:
        raise InputError(f"unknown format {to!r}; expected one of {', '.join(get_args(Format))}")
    row = FORMATS[to]
    if path.suffix in OTHER_ENDINGS:
        raise InputError(f"{path.name} can't be written: weight files end in .safetensors, .pth or .npz")
    if path.suffix in WRITERS and path.suffix not in row.endings:
        kinds = f"a file that ends in {' or '.join(row.endings)}" if row.endings else "a folder"
        raise InputError(f"format {to} can't be written to {path.name}: it needs {kinds}")
    if path.suffix not in WRITERS and not row.has_folder:
        raise InputError(
            f"format {to} is a single file: give a path that ends in {' or '.join(row.endings)}, not {path.name}"
        )
    return to
