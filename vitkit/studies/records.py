"""What a study's folder says of its runs: which are done, how far the others have come, what was measured.

Each run is an ordinary run folder, and what was measured of it is in `measured/` there. Folders that were filled on
several machines are merged by copying them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitkit.config import to_dict
from vitkit.errors import InputError
from vitkit.results import Result, from_json
from vitkit.runs import RECORD, Evaluated
from vitkit.runs.reading import finite, mapping
from vitkit.runs.records import read_object
from vitkit.studies.config import MeasureConfig, StudyRun

MEASURED = "measured"
LOCKS = ".{name}.lock"
"In the study's folder: held by the process that works on a run."
Status = Literal["done", "failed", "stopped", "waiting"]


@dataclass(frozen=True)
class Measured(Result):
    """What was measured of a trained model in one way."""

    name: str
    accuracy: float
    std: float | None
    "Over seeds, if there are several."
    seconds: float


@dataclass(frozen=True)
class RunState(Result):
    """How far a run of a study has come."""

    name: str
    labels: dict[str, str]
    path: str
    status: Status
    step: int
    steps: int
    seconds: float
    "Of training."
    best: Evaluated | None
    measured: tuple[Measured, ...]
    message: str

    _leads = ("name", "status", "step", "steps", "measured")
    _tables = ("measured",)


def read_state(run: StudyRun, folder: Path, measures: tuple[MeasureConfig, ...]) -> RunState:
    """Return what a run's folder says; a run that isn't there is waiting."""
    path = folder / run.name
    record = read_object(path / RECORD)
    measured = tuple(
        found for found in (read_measured(path, measure) for measure in measures) if found is not None
    )
    status: Status = "waiting" if not record else "failed" if record.get("status") == "failed" else "stopped"
    if record.get("status") == "done":
        status = "done" if len(measured) == len(measures) else "stopped"
    best = mapping(record.get("best"))
    return RunState(
        run.name,
        dict(run.labels),
        str(path),
        status,
        int(finite(record.get("step")) or 0),
        int(finite(record.get("steps")) or 0),
        float(finite(record.get("seconds")) or 0.0),
        from_json(Evaluated, best) if best else None,
        measured,
        str(record.get("message") or "") if status == "failed" else "",
    )


def read_measured(path: Path, measure: MeasureConfig) -> Measured | None:
    """Return what was measured of a run in this way; None if it wasn't, or with other settings."""
    file = path / MEASURED / f"{measure.word}.json"
    found = read_object(file)
    if found.get("measure") != to_dict(measure):
        return None
    accuracy, seconds = finite(found.get("accuracy")), finite(found.get("seconds"))
    if accuracy is None or seconds is None:
        raise InputError(f"{file} is damaged: it has no accuracy; remove it to measure again")
    return Measured(measure.name, accuracy, finite(found.get("std")), seconds)


def is_trained(path: Path) -> bool:
    """Return whether a run is finished and has no checkpoint, so that training it again would start over."""
    return read_object(path / RECORD).get("status") == "done" and not any(path.glob("checkpoints/[0-9]*"))


def check_weights(path: Path, measures: tuple[MeasureConfig, ...]) -> None:
    """Refuse to measure a finished run whose weights weren't kept."""
    missing = next((measure.name for measure in measures if read_measured(path, measure) is None), None)
    if missing is not None and is_trained(path) and not (path / "model" / "model.safetensors").is_file():
        raise InputError(
            f"{path} is finished but has no weights, so {missing!r} can't be measured: copy its model/ here, remove "
            f"the measure, or remove {path} to train it again"
        )
