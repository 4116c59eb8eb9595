"""What the finished runs of a study found: one row for each, from records alone, and means over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitkit.config import from_dict
from vitkit.errors import InputError
from vitkit.results import Result
from vitkit.runs import CONFIG, RECORD, read_config, read_metrics, speed
from vitkit.runs.reading import finite, mapping
from vitkit.runs.records import read_object
from vitkit.studies.config import SEED, Study, StudyRun
from vitkit.studies.plan import family_of, model_of
from vitkit.studies.records import Measured, RunState, read_state
from vitkit.studies.usage import read_usage
from vitkit.training.config import TrainConfig
from vitkit.training.run import completed


@dataclass(frozen=True)
class StudyRow(Result):
    """A finished run: where it stands on each axis, what it cost, and what was measured."""

    name: str
    labels: dict[str, str]
    groups: tuple[str, ...]
    "Lines of figures that it belongs to: those that the study names, else its family."
    is_grouped: bool
    "Whether the study names them."
    model: str
    parameters: int
    images: int
    "Different images that it learned from."
    seen: int
    "Images that it was shown: steps times batch size."
    exaflops: float
    device_hours: float
    "Measured, of training; runs that share a device divide its time."
    gpu_busy: float | None
    "Share of this time in which the GPU had work, of any run; without NVML, the share not spent waiting for data."
    images_per_second: float | None
    measured: tuple[Measured, ...]

    _leads = ("name", "model", "exaflops", "measured")
    _tables = ("measured",)

    def accuracy(self, measure: str) -> Measured | None:
        """Return what was measured in one way."""
        return next((one for one in self.measured if one.name == measure), None)


@dataclass(frozen=True)
class Mean:
    """Runs that differ in their seed alone."""

    labels: dict[str, str]
    "Without the seed."
    row: StudyRow
    "Of the first seed."
    accuracy: float
    spread: float | None
    "Standard deviation over seeds, or of one run's measurement."
    runs: int

    @property
    def name(self) -> str:
        return ", ".join(self.labels.values()) or self.row.name


def collect(study: Study, folder: Path) -> tuple[list[StudyRow], list[RunState]]:
    """Return a row for each finished run, and how far the others have come."""
    rows, others = list[StudyRow](), list[RunState]()
    for run in study.runs:
        state = read_state(run, folder, study.config.measure)
        if state.status == "done":
            rows.append(_row(run, state))
        else:
            others.append(state)
    return rows, others


def _row(run: StudyRun, state: RunState) -> StudyRow:
    path = Path(state.path)
    record = read_object(path / RECORD)
    config = run.config
    if (path / CONFIG).exists():
        config = from_dict(TrainConfig, completed(read_config(path)), f"{path}/{CONFIG}")
    cost, data = mapping(record.get("cost")), mapping(record.get("data"))
    parameters, exaflops = finite(cost.get("parameters")), finite(cost.get("exaflops"))
    images, classes = finite(data.get("images")), finite(data.get("classes"))
    if parameters is None or exaflops is None or images is None or classes is None:
        raise InputError(
            f"{path / RECORD} is damaged: it has no cost or no data; remove {path} to run it again"
        )
    groups = run.groups or (family_of(model_of(config, int(classes))),)
    environment, usage = mapping(record.get("environment")), read_usage(path)
    processes = finite(environment.get("processes")) or 1
    lines = read_metrics(path)
    busy = usage.busy
    if busy is None and str(environment.get("device", "cpu")) != "cpu":
        busy = not_waiting(lines)
    measured = state.measured
    if not measured and state.best is not None:  # what was evaluated while it trained
        measured = (Measured(state.best.metric, state.best.value, None, 0.0),)
    return StudyRow(
        run.name,
        dict(run.labels),
        groups,
        bool(run.groups),
        str(config.model["name"]),
        int(parameters),
        int(images),
        state.steps * config.batch_size,
        exaflops,
        state.seconds * processes / usage.sharing / 3600,
        busy,
        speed(lines),
        measured,
    )


def not_waiting(lines: Iterable[Mapping[str, float | None]]) -> float | None:
    """Return the share of training that wasn't spent waiting for data; None if no line says it."""
    shares = [waited for line in lines if (waited := line.get("waiting")) is not None]
    return 1 - statistics.fmean(shares) if shares else None


def measures_of(rows: Iterable[StudyRow]) -> list[str]:
    """Return the names of what was measured, in order."""
    return list(dict.fromkeys(one.name for row in rows for one in row.measured))


def means_of(rows: Sequence[StudyRow], measure: str) -> list[Mean]:
    """Return the mean over seeds of one measure for each setting, in order of the runs."""
    found: dict[tuple[tuple[str, str], ...], list[StudyRow]] = {}
    for row in rows:
        if row.accuracy(measure) is not None:
            labels = tuple((axis, label) for axis, label in row.labels.items() if axis != SEED)
            found.setdefault(labels, []).append(row)
    means = []
    for labels, same in found.items():
        measured = [one for row in same if (one := row.accuracy(measure)) is not None]
        values = [one.accuracy for one in measured]
        spread = statistics.stdev(values) if len(values) > 1 else measured[0].std
        means.append(Mean(dict(labels), same[0], statistics.fmean(values), spread, len(values)))
    return means
