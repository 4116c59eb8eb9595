"""One run of a study, start to end: training, then each measurement, kept in `measured/` of its run folder."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vitkit.config import as_changes, from_dict, to_dict
from vitkit.errors import InputError
from vitkit.evaluation.fewshot import fewshot
from vitkit.evaluation.knn import knn
from vitkit.evaluation.probe import probe
from vitkit.evaluation.run import evaluate
from vitkit.files import take_lock, write_json
from vitkit.notes import Note, kind_of
from vitkit.progress import Progress
from vitkit.results import from_json
from vitkit.runs import read_record
from vitkit.runs.reading import FINETUNE
from vitkit.studies.config import MeasureConfig
from vitkit.studies.measures import finetune_changes
from vitkit.studies.records import LOCKS, MEASURED, check_weights, is_trained, read_measured
from vitkit.training.config import TrainConfig
from vitkit.training.run import train_config
from vitkit.training.stop import obey
from vitkit.transfer.finetune import FinetuneRequest

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
        check_weights(job.path, job.measure)
        if not is_trained(job.path):
            trained = train_config(job.config, job.path, device=job.device, listener=_Follower(tell))
            if trained is None or trained.status != "done":
                return "stopped"
        for measure in job.measure:
            if read_measured(job.path, measure) is None:
                _measure(job, measure, tell, tune)
    except KeyboardInterrupt:
        return "stopped"
    finally:
        lock.close()
    return "done"


def _measure(job: Job, measure: MeasureConfig, tell: Tell, tune: Tune) -> None:
    """Measure a trained model in one way, and write what was found."""
    began = time.perf_counter()
    tell("measuring", name=measure.name)
    found = MEASURES[measure.by](job, measure, Shown(measure.name, tell), tune)
    document = {
        "measure": to_dict(measure),
        **found,
        "seconds": time.perf_counter() - began,
    }
    made = job.path / MEASURED / measure.word
    write_json(made.with_name(f"{measure.word}.json"), document)
    # Of a fine-tuning, only its records are of use.
    for folder in {path.parent for path in made.rglob("model.safetensors")} | {*made.rglob("checkpoints")}:
        shutil.rmtree(folder)


class Shown:
    """Reports how much of a measure is done, in images or steps, and stops if the worker was asked to."""

    def __init__(self, name: str, tell: Tell) -> None:
        self.name, self.tell, self.last = name, tell, 0.0

    def __call__(self, done: int, total: int) -> None:
        obey()
        if (now := time.monotonic()) - self.last >= EVERY:
            self.last = now
            self.tell("measuring", name=self.name, done=done, of=total)


class _Follower:
    """Reports the steps of a run, and its warnings; those of a fine-tuning as a part of its measure."""

    def __init__(self, tell: Tell, measure: str | None = None) -> None:
        self.tell, self.measure, self.total, self.last = tell, measure, 0, 0.0

    def note(self, line: Note) -> None:
        if kind_of(line) == "warning":
            self.tell("warning", text=str(line))

    def start(self, step: int, total: int) -> None:
        self.total = total
        self._tell_step(step)

    def stepped(self, step: int) -> None:
        if (now := time.monotonic()) - self.last >= EVERY:
            self.last = now
            self._tell_step(step)

    def _tell_step(self, step: int) -> None:
        if self.measure is None:
            self.tell("step", step=step, of=self.total)
        else:
            self.tell("measuring", name=self.measure, done=step, of=self.total)

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


def _finetune(job: Job, measure: MeasureConfig, show: Shown, tune: Tune) -> dict[str, Any]:
    changes = finetune_changes(measure)
    path, model, follower = (
        job.path / MEASURED / measure.word,
        str(job.path),
        _Follower(show.tell, measure.name),
    )
    request = FinetuneRequest(model, measure.data, tuple(as_changes(changes)), seeds=measure.seeds)
    options: dict[str, Any] = {"run": path, "force": _holds_another(path, request)}
    options |= {"seeds": measure.seeds, "device": job.device, "listener": follower}
    found = tune(model, measure.data, changes, **options)
    if found.status != "done":
        raise KeyboardInterrupt
    return {"accuracy": found.accuracy, "std": found.std, "values": list(found.values)}


def _holds_another(path: Path, request: FinetuneRequest) -> bool:
    """Return whether a fine-tuning is here that was asked for in another way, before the study was changed."""
    if not (path / FINETUNE).exists():
        return False
    there = from_json(FinetuneRequest, read_record(path, "finetune")["settings"])
    return there != request


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
