"""One run of a study, start to end: training, then each measurement, kept in `measured/` of its run folder."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vitkit.config import from_dict, to_dict
from vitkit.errors import InputError
from vitkit.evaluation.fewshot import fewshot
from vitkit.evaluation.knn import knn
from vitkit.evaluation.probe import probe
from vitkit.evaluation.run import evaluate
from vitkit.files import take_lock, write_file
from vitkit.notes import Note, kind_of
from vitkit.progress import Progress
from vitkit.studies.config import MeasureConfig
from vitkit.studies.records import LOCKS, MEASURED, read_measured
from vitkit.training.config import TrainConfig
from vitkit.training.run import train_config
from vitkit.training.stop import obey

EVERY = 0.5
"Seconds between two reports of a step."
Tune = Callable[..., Any]
"Fine-tunes a model: `vitkit.finetune`."


class Busy(InputError):
    """Another process works on the run."""


class Tell(Protocol):
    """Receives what a run reports, each with plain JSON values."""

    def __call__(self, kind: str, **values: Any) -> None: ...


@dataclass(frozen=True)
class Job:
    """What a worker is told of one run."""

    name: str
    path: Path
    config: TrainConfig
    measure: tuple[MeasureConfig, ...]
    device: str

    def to_json(self) -> dict[str, Any]:
        """Return the job as plain JSON values."""
        measure = [to_dict(entry) for entry in self.measure]
        return {
            "name": self.name,
            "path": str(self.path),
            "config": to_dict(self.config),
            "measure": measure,
            "device": self.device,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Job:
        """Return the job that `to_json` wrote."""
        measure = tuple(from_dict(MeasureConfig, entry, "measure") for entry in values["measure"])
        config = from_dict(TrainConfig, values["config"], values["name"])
        return cls(values["name"], Path(values["path"]), config, measure, values["device"])


def carry_out(job: Job, tell: Tell, tune: Tune) -> str:
    """Train and measure a run, from where it stands; return 'done', or 'stopped' after a stop request.

    Only one process at a time works on a run: another gets Busy, which says who does.
    """
    job.path.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = take_lock(job.path.parent / LOCKS.format(name=job.name))
    except InputError as error:
        raise Busy(str(error)) from None
    try:
        follower = _Follower(tell)
        trained = train_config(job.config, job.path, device=job.device, listener=follower)
        if trained is None or trained.status != "done":
            return "stopped"
        for measure in job.measure:
            if read_measured(job.path, measure) is None:
                _measure(job, measure, tell, tune, follower)
    except KeyboardInterrupt:
        return "stopped"
    finally:
        lock.close()
    return "done"


def _measure(job: Job, measure: MeasureConfig, tell: Tell, tune: Tune, follower: _Follower) -> None:
    """Measure a trained model in one way, and write what was found."""
    began = time.perf_counter()
    tell("measuring", name=measure.name)
    found = MEASURES[measure.by](job, measure, Shown(measure.name, tell), tune, follower)
    document = {
        "measure": to_dict(measure),
        **found,
        "seconds": time.perf_counter() - began,
    }
    write_file(
        job.path / MEASURED / f"{measure.word}.json", json.dumps(document, indent=2, allow_nan=False) + "\n"
    )


class Shown:
    """Reports how many images are done, and stops if the worker was asked to."""

    def __init__(self, name: str, tell: Tell) -> None:
        self.name, self.tell, self.last = name, tell, 0.0

    def __call__(self, done: int, total: int) -> None:
        obey()
        if (now := time.monotonic()) - self.last >= EVERY:
            self.last = now
            self.tell("measuring", name=self.name, done=done, of=total)


class _Follower:
    """Reports the steps of a run, and its warnings."""

    def __init__(self, tell: Tell) -> None:
        self.tell, self.total, self.last = tell, 0, 0.0

    def note(self, line: Note) -> None:
        if kind_of(line) == "warning":
            self.tell("warning", text=str(line))

    def start(self, step: int, total: int) -> None:
        self.total = total
        self.tell("step", step=step, of=total)

    def stepped(self, step: int) -> None:
        if (now := time.monotonic()) - self.last >= EVERY:
            self.last = now
            self.tell("step", step=step, of=self.total)

    def metrics(self, line: Mapping[str, Any]) -> None: ...
    def stop(self) -> None: ...


def _fewshot(job: Job, measure: MeasureConfig, show: Progress, *_: Any) -> dict[str, Any]:
    shots = [measure.shots]
    found = fewshot(
        *_arguments(job, measure), shots=shots, seeds=measure.seeds, **_options(job, measure, show)
    )
    row = found.results[0]
    return {"accuracy": row.accuracy, "std": row.std, "values": list(row.accuracies)}


def _knn(job: Job, measure: MeasureConfig, show: Progress, *_: Any) -> dict[str, Any]:
    found = knn(*_arguments(job, measure), k=measure.neighbours, **_options(job, measure, show))
    return {"accuracy": found.results[0].accuracy}


def _probe(job: Job, measure: MeasureConfig, show: Progress, *_: Any) -> dict[str, Any]:
    return {"accuracy": probe(*_arguments(job, measure), **_options(job, measure, show)).accuracy}


def _test(job: Job, measure: MeasureConfig, show: Progress, *_: Any) -> dict[str, Any]:
    found = evaluate(*_arguments(job, measure), device=job.device, progress=show)
    return {"accuracy": found.accuracy, "loss": found.loss}


def _finetune(
    job: Job, measure: MeasureConfig, show: Progress, tune: Tune, follower: _Follower
) -> dict[str, Any]:
    changes = dict(measure.settings)
    if measure.evaluate is not None:
        changes["data.evaluate"] = measure.evaluate
    options: dict[str, Any] = {"seeds": measure.seeds, "run": job.path / MEASURED / measure.word}
    found = tune(*_arguments(job, measure), changes, **options, device=job.device, listener=follower)
    if found.status != "done":
        raise KeyboardInterrupt
    return {"accuracy": found.accuracy, "std": found.std, "values": list(found.values)}


def _arguments(job: Job, measure: MeasureConfig) -> tuple[str, str]:
    return str(job.path), measure.data


def _options(job: Job, measure: MeasureConfig, show: Progress) -> dict[str, Any]:
    return {"evaluate": measure.evaluate, "device": job.device, "progress": show}


MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    "fewshot": _fewshot,
    "knn": _knn,
    "probe": _probe,
    "test": _test,
    "finetune": _finetune,
}
