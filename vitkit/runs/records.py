"""The kinds of run folders: which files each command writes, and how its record and settings are read.

Needs no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from vitkit.config import read_yaml
from vitkit.errors import InputError
from vitkit.files import read_file, read_text
from vitkit.results import R, Result, Unreadable, from_json, restored

ROOT = "runs"
CONFIG, RECORD, METRICS, LOCK = "config.yaml", "run.json", "metrics.jsonl", ".lock"
FORMAT = "vitkit run 1"
"Marks a record as ours, and says its version."


@dataclass(frozen=True)
class Evaluated(Result):
    """What one evaluation found."""

    metric: str
    "Such as 'val_ema/accuracy'."
    value: float
    step: int


@dataclass(frozen=True)
class KeptModel(Result):
    """The weights that a model folder holds."""

    step: int
    sha256: str
    "Checksum of its config and weights."


class DataFacts(NamedTuple):
    """What a record says of data."""

    images: int
    classes: int
    class_names: str
    "A digest."
    began_with: int | None = None
    "Images at the start, where others were accepted on resume."
    fingerprint: str | None = None


class Environment(NamedTuple):
    """What a run's numbers depend on, besides its config."""

    vitkit: str = ""
    torch: str = ""
    python: str = ""
    device: str = ""
    processes: int = 1
    threads: int = 1
    compile_seconds: float = 0.0


class Field(NamedTuple):
    """A field of a record."""

    type: Any
    start: Any
    "In a new record."


# What a list of runs shows, and its types.
_SHOWN = {
    "status": str,
    "step": int,
    "steps": int,
    "best": Evaluated | None,
    "seconds": float,
    "updated": str,
    "message": str,
}
_SKIPPED = Field(tuple[Unreadable, ...], [])


@dataclass(frozen=True)
class Kind:
    """What one command writes into its folder; `--force` removes this and nothing else."""

    words: str
    record: str
    "The file with the command's status and results, which marks the folder as its own."
    writes: Mapping[str, str | None]
    """Patterns of paths in the folder, besides its record. A value is the kind of a run inside, of which only what that
    kind writes is removed. `{part}` stands for each of the names that the command passes as `parts`."""
    marks: tuple[str, ...]
    "Fields that a record had before records had a format."
    has_config: bool = False
    "Settings are in config.yaml, not in the record."
    fields: Mapping[str, Field] = field(default_factory=dict)
    "Besides those of every kind."
    is_data: bool = False
    "A data set, equal bytes for equal input: its record says no times, and its lock is removed when it is closed."

    @property
    def starts(self) -> dict[str, Any]:
        return {name: field.start for name, field in self.fields.items()}

    @property
    def elsewhere(self) -> str:
        return "choose another folder" if self.is_data else "choose another --run"


_MADE_OF_A_MODEL = dict.fromkeys(("model", "evaluation", "inspection", "report"))
KINDS = {
    "train": Kind(
        "a training run",
        RECORD,
        {
            **dict.fromkeys(
                (METRICS, "checkpoints", "model-last", "pictures", "tensorboard", "wandb", "measured")
            ),
            **_MADE_OF_A_MODEL,
        },
        ("name", "command", "started", "environment", "cost"),
        has_config=True,
        fields={
            "step": Field(int, 0),
            "steps": Field(int, 0),
            "command": Field(str, ""),
            "seconds": Field(float, 0.0),
            "environment": Field(Environment, {}),
            "micro_batch": Field(int | None, None),
            "data": Field(DataFacts, {}),
            "measured": Field(DataFacts, {}),
            "best": Field(Evaluated | None, None),
            "models": Field(Mapping[str, list[KeptModel]], {}),
            "cost": Field(Mapping[str, float], {}),
            "unreadable": _SKIPPED,
        },
    ),
    "finetune": Kind(
        "a fine-tuning",
        "finetune.json",
        {
            **dict.fromkeys(("seed-*/run", "sweep/*/run"), "train"),
            **dict.fromkeys(("seed-*/head", "sweep/*/head")),
            **_MADE_OF_A_MODEL,
        },
        ("request", "status"),
        fields={"data": Field(DataFacts, {}), "unreadable": _SKIPPED},
    ),
    "vtab": Kind(
        "a VTAB run",
        "vtab.json",
        {
            **dict.fromkeys(("{part}", "tuning/{part}/*"), "finetune"),
            **dict.fromkeys(("{part}.json", "results.json", "vtab.png")),
        },
        ("model", "data", "protocol", "seeds", "sweep", "steps"),
    ),
    # A suite passes `force` to the command of each data set, which clears its own folder.
    "suite": Kind(
        "a suite",
        "suite.json",
        dict.fromkeys(("suite.md", "real-accuracy.json")),
        ("status", "model", "seeds", "protocol", "results", "failures"),
    ),
    "pack": Kind(
        "a packed data set",
        "pack.json",
        dict.fromkeys(("classes.txt", *(f"*-{'[0-9]' * 6}.{to}" for to in ("tar", "parquet")))),
        ("source", "settings", "content", "shards"),
        fields={
            "source": Field(str, ""),
            "content": Field(Mapping[str, str], {}),
            "complete": Field(bool, False),
            "shards": Field(Mapping[str, Mapping[str, Any]], {}),
        },
        is_data=True,
    ),
    # Parts of a file of features that isn't finished.
    "embed": Kind(
        "unfinished features",
        "embed.json",
        {f"{'[0-9]' * 10}-{'[0-9]' * 10}.parquet": None},
        ("settings",),
        is_data=True,
    ),
}


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the settings that a run was started with."""
    path = Path(folder, CONFIG)
    if not os.path.exists(path):
        raise InputError(f"{folder} is not a run folder: it has no {CONFIG}; `vit runs` lists runs")
    try:
        return read_yaml(read_text(path), str(path))
    except InputError as error:
        raise InputError(f"{error}; restore it, or remove {folder}") from None


def read_record(folder: str | os.PathLike[str], kind: str = "train") -> dict[str, Any]:
    """Return the record of a run that its command wrote, in this version or an earlier one."""
    path = Path(folder, KINDS[kind].record)
    if not path.is_file():
        raise InputError(f"{path} is missing")
    record = read_object(path)
    if "format" not in record:
        record = _completed(record, kind, path)
    elif record["format"] != FORMAT:
        raise InputError(f"{path} has format {record['format']!r}; this version reads {FORMAT!r}")
    elif record.get("kind") != kind:
        raise InputError(f"{path} is damaged: 'kind' is {record.get('kind')!r}, not {kind!r}")
    _check_types(
        record, _SHOWN if kind == "train" else {"status": str, "settings": Mapping[str, Any] | None}, path
    )
    fields = KINDS[kind].fields
    # A field that nothing was written to yet fits.
    written = [name for name in fields if name in record and record[name] != fields[name].start]
    _check_types(record, {name: fields[name].type for name in written}, path)
    record = {**KINDS[kind].starts, **record}
    if kind != "train":
        return record
    try:
        datetime.fromisoformat(record["updated"])
    except ValueError:
        raise InputError(
            f"{path} is damaged: 'updated' is {record['updated']!r}, which is not a time"
        ) from None
    return record


def _completed(record: dict[str, Any], kind: str, path: Path) -> dict[str, Any]:
    """Return a record from before records had a format, with the fields that it has today."""
    if missing := [name for name in KINDS[kind].marks if name not in record]:
        raise InputError(f"{path} is damaged, or not written by vitkit: it has no {missing[0]!r}")
    settings = {"finetune": record.get("request"), "vtab": record}.get(kind)
    return {"status": "running", "settings": settings, **record}


def read_object(path: Path) -> dict[str, Any]:
    """Read a file of one JSON object, NaN as None; {} where there is no file."""
    if not os.path.lexists(path):
        return {}
    content = read_file(path)
    try:
        found = json.loads(content, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InputError(f"{path} is damaged: expected one JSON object")
    return found


def read_result(kind: type[R], path: Path) -> R | None:
    """Return what a file keeps of work that is done; None if it is missing or damaged, so that the work is done again."""
    try:
        found = read_object(path)
        return from_json(kind, found, path) if found else None
    except InputError:
        return None


def _check_types(record: dict[str, object], types: Mapping[str, Any], path: Path) -> None:
    try:
        for name, kind in types.items():
            if name not in record:
                raise InputError(f"it has no {name!r}")
            restored(kind, record[name], name)
    except InputError as error:
        raise InputError(f"{path} is damaged: {error}") from None
