"""The exported folder: a graph and a config.json, which is that of a model folder with an entry about the graph."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from pathlib import Path

from vitkit.config import check_choice
from vitkit.errors import InputError
from vitkit.files import digest
from vitkit.runtimes import Precision, Runtime
from vitkit.weights.files import read_json
from vitkit.weights.folder import CARD, Stored, read_stored

FORMAT_VERSION = 1
ENTRY = "export"
"Key of config.json that only exported folders have."
CONFIG = "config.json"
GRAPHS: dict[Runtime, tuple[str, ...]] = {
    "onnx": ("model.onnx", "model.onnx.data"),
    "openvino": ("model.xml", "model.bin"),
}
"Files of a graph, the one to open first; an ONNX graph has the second only if it is large."
FILES = {CONFIG, CARD, *(name for names in GRAPHS.values() for name in names)}
OPSETS = range(18, 24)
"Versions of ONNX's operators that can be read."
OUTPUTS = ({"logits"}, {"features"}, {"logits", "features"})


@dataclass(frozen=True)
class ExportedFolder:
    """An exported folder whose files are as they were written."""

    path: Path
    stored: Stored
    runtime: Runtime
    precision: Precision
    outputs: tuple[str, ...]
    sha256: dict[str, str]
    "Of each file of the graph."

    @property
    def graph(self) -> Path:
        return self.path / GRAPHS[self.runtime][0]

    @property
    def graph_sha256(self) -> str:
        """Return the digest of the file with the weights, the last one there is."""
        return self.sha256[[name for name in GRAPHS[self.runtime] if name in self.sha256][-1]]


def is_exported(path: Path) -> bool:
    """Return whether a path is an exported folder, or looks like one that was damaged."""
    if not (path / CONFIG).is_file():
        return False
    try:
        return ENTRY in read_json(path / CONFIG)
    except InputError:
        return False


def read_folder(path: Path) -> ExportedFolder:
    """Read and check an exported folder."""
    document = read_json(path / CONFIG)
    try:
        return _read(path, document)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _read(path: Path, document: dict[str, object]) -> ExportedFolder:
    entry = document[ENTRY]
    if not isinstance(entry, dict):
        raise InputError(f"the entry {ENTRY!r} of {CONFIG} is not an object")
    version = entry.get("format_version")
    if version != FORMAT_VERSION:
        raise InputError(
            f"its export has format version {version!r}; this version of vitkit reads {FORMAT_VERSION}: export it again"
        )
    runtime = typing.cast(Runtime, entry.get("runtime"))
    precision, opset = typing.cast(Precision, entry.get("precision")), entry.get("opset")
    check_choice("runtime", runtime, Runtime)
    check_choice("precision", precision, Precision)
    if opset not in OPSETS:
        raise InputError(
            f"its graph has ONNX opset {opset!r}; this version of vitkit reads {OPSETS[0]} to {OPSETS[-1]}: export it again"
        )
    outputs = entry.get("outputs")
    if (
        not isinstance(outputs, list)
        or not all(isinstance(name, str) for name in outputs)
        or set(outputs) not in OUTPUTS
    ):
        raise InputError("'outputs' is not a list of logits, features or both")
    sums = entry.get("sha256")
    names = GRAPHS[runtime]
    if not isinstance(sums, dict) or not sums or not set(sums) <= set(names) or names[0] not in sums:
        raise InputError(f"'sha256' doesn't name the files of the graph, {' and '.join(names)}")
    for name, known in sums.items():
        if not (path / name).is_file():
            raise InputError(f"{name} is missing: export the model again")
        if digest(path / name) != known:
            raise InputError(
                f"{name} is not the file that was exported (its SHA-256 differs from {CONFIG}'s): export the model again"
            )
    return ExportedFolder(path, read_stored(document.get("vitkit")), runtime, precision, tuple(outputs), sums)
