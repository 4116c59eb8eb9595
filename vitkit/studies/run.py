"""`vit study run`: carries out the runs of a study in worker processes, from where each stands; one that fails costs no other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from queue import Empty, Queue
from typing import IO, Any

import torch

from vitkit.config import Bounds, Changes, as_changes, to_dict
from vitkit.errors import InputError, did_you_mean
from vitkit.predictor import choose_device
from vitkit.results import Result
from vitkit.runs import CONFIG, named_path
from vitkit.runs.folder import check_settings
from vitkit.studies.board import Board, showing_board
from vitkit.studies.config import Study, StudyRun, read_study
from vitkit.studies.jobs import Job
from vitkit.studies.plan import Costs
from vitkit.studies.records import RunState, read_state
from vitkit.training.run import completed
from vitkit.training.stop import StopRequest, listening

WORKER = [sys.executable, "-m", "vitkit.cli.worker"]
AGAIN = 2.0
"Seconds after which a run is looked at again that another process works on."


@dataclass(frozen=True)
class StudyResult(Result):
    """What `vit study run --json` prints."""

    study: str
    run: str
    "The study's folder, with a folder for each run."
    status: str
    "done, failed (some runs did), or stopped."
    runs: tuple[RunState, ...]
    seconds: float

    _leads = ("study", "status", "run", "seconds")
    _tables = ("runs",)


def run_study(
    study: str | os.PathLike[str],
    changes: Changes = (),
    *,
    only: str = "*",
    limit: float | None = None,
    workers: int = 1,
    run: str | os.PathLike[str] | None = None,
    device: str = "auto",
    progress: bool = True,
) -> StudyResult:
    """Carry out a study: train and measure every unfinished run. The same call again resumes.

    study: name or file. changes: settings of the study itself, as in `["grid.seed=[0]"]`.
    only: a pattern of run names. limit: seconds after which all runs stop; the same call resumes them.
    workers: runs at once, on each GPU or on the CPU. run: the study's folder, by default runs/NAME of the study.
    Several such calls, in other processes or on other machines that share the folder, divide the runs between them.
    """
    began = time.monotonic()
    Bounds(at_least=1).check("workers", workers)
    Bounds(above=0).check("limit", limit)
    found, on = read_study(study, changes), choose_device(device)
    folder = named_path(found.name if run is None else run)
    chosen = choose_runs(found, only)
    costs = check_runs(found, chosen, folder)
    words = ["vit", "study", "run", os.fspath(study), *map(str, as_changes(changes))]
    words += [] if run is None else ["--run", os.fspath(run)]
    states = {each.name: read_state(each, folder, found.config.measure) for each in chosen}
    done = {name for name, state in states.items() if state.status == "done"}
    with listening() as stop, showing_board(costs, done, progress) as board:
        crew = Crew(found, folder, on.type, words, board, stop)
        until = None if limit is None else began + limit
        is_complete = crew.carry_out(
            [each for each in chosen if each.name not in done], environments(on, workers), until
        )
    ends = [read_state(each, folder, found.config.measure) for each in chosen]
    ends = [
        replace(state, status="failed", message=crew.failures[state.name])
        if state.name in crew.failures
        else state
        for state in ends
    ]
    status = "stopped" if not is_complete else "failed" if crew.failures else "done"
    return StudyResult(found.name, str(folder), status, tuple(ends), time.monotonic() - began)


def choose_runs(study: Study, only: str) -> list[StudyRun]:
    """Return the runs whose names match a pattern."""
    chosen = [run for run in study.runs if fnmatchcase(run.name, only)]
    if not chosen:
        names = [run.name for run in study.runs]
        hint = did_you_mean(only, names) or f"; they are called {', '.join(names[:3])}"
        raise InputError(f"no run of {study.name} matches {only!r}{hint}")
    return chosen


def check_runs(study: Study, runs: Sequence[StudyRun], folder: Path) -> dict[str, float]:
    """Refuse what can be known to fail before anything is spent; return the floating-point operations of each run."""
    costs = Costs(study)
    found = {run.name: costs.plan(run, lambda flops: flops).seconds for run in runs}
    if costs.absent:
        raise InputError(f"{costs.absent[0]!r} isn't here; `vit study plan` counts the cost without it")
    for run in runs:
        if (folder / run.name / CONFIG).exists():
            check_settings(folder / run.name, to_dict(run.config), complete=completed)
    return found


def environments(device: torch.device, workers: int) -> list[dict[str, str]]:
    """Return the variables of each worker: its GPU, or its share of the CPU's threads."""
    if device.type == "cuda":
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = shown.split(",") if shown else [str(index) for index in range(torch.cuda.device_count())]
        return [{"CUDA_VISIBLE_DEVICES": gpu} for _ in range(workers) for gpu in gpus]
    if workers == 1:
        return [{}]
    return [{"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // workers))}] * workers


class Worker:
    """A process that carries out one run after another, told on its standard input; its reports go to a queue."""

    def __init__(
        self, environment: Mapping[str, str], reports: Queue[tuple[Worker, dict[str, Any] | None]]
    ) -> None:
        self.job: str | None = None
        self.environment = environment
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (until the process ends)
        self.process = subprocess.Popen(
            WORKER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, **environment},
            start_new_session=True,  # Ctrl-C reaches it as a request to stop, once
        )
        self.listener = threading.Thread(target=self._listen, args=[reports], daemon=True)
        self.listener.start()

    def _listen(self, reports: Queue[tuple[Worker, dict[str, Any] | None]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            reports.put((self, json.loads(line)))
        reports.put((self, None))

    def send(self, job: Job, command: list[str]) -> None:
        assert self.process.stdin is not None
        self.job = job.name
        text = json.dumps({**job.to_json(), "command": command})
        with suppress(BrokenPipeError):  # it ended, which its last report says
            self.process.stdin.write(text.encode() + b"\n")
            self.process.stdin.flush()

    def stop(self) -> None:
        """Ask it to stop after this step; one without work ends."""
        self.process.send_signal(signal.SIGTERM)

    def how_it_ended(self) -> str:
        """Return why a worker ended that had work."""
        code = self.process.wait()
        if code < 0:
            name = signal.Signals(-code).name
            return f"its process was ended by {name}" + (
                ", perhaps for lack of memory" if name == "SIGKILL" else ""
            )
        self.errors.seek(0)
        last = self.errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        return f"its process ended with status {code}" + (f": {last}" if last else "")

    def close(self) -> None:
        assert self.process.stdin is not None
        with_work = self.job is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        if with_work:
            self.process.kill()
        self.process.wait()
        self.listener.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.close()


class Crew:
    """The workers of a study, and which run each of them works on."""

    def __init__(
        self, study: Study, folder: Path, device: str, command: list[str], board: Board, stop: StopRequest
    ) -> None:
        self.study, self.folder, self.device = study, folder, device
        self.command, self.board, self.stop = command, board, stop
        self.failures: dict[str, str] = {}
        self.reports: Queue[tuple[Worker, dict[str, Any] | None]] = Queue()
        self.waiting: deque[StudyRun] = deque()
        self.elsewhere: list[tuple[float, StudyRun]] = []
        "Runs that other processes work on, and when to look again."
        self.is_stopping = self.was_cut = False
        self.by_name = {run.name: run for run in study.runs}

    def carry_out(
        self, runs: Sequence[StudyRun], places: Sequence[Mapping[str, str]], until: float | None
    ) -> bool:
        """Carry out runs; return False if a stop was asked for, or the time was up, before all had ended."""
        self.waiting.extend(runs)
        crew: list[Worker] = []
        try:
            while self.waiting or self.elsewhere or any(worker.job for worker in crew):
                if not self.is_stopping and (self.stop or (until is not None and time.monotonic() >= until)):
                    self.is_stopping = True
                    for worker in crew:
                        worker.stop()
                if self.is_stopping:
                    if not any(worker.job for worker in crew):
                        return not (self.waiting or self.elsewhere or self.was_cut)
                else:
                    self._give_work(crew, places)
                self.board.tick()
                try:
                    worker, report = self.reports.get(timeout=0.2)
                except Empty:
                    continue
                if report is None:
                    crew.remove(worker)
                    self._has_ended(worker)
                else:
                    self._hear(worker, report)
            return not self.was_cut
        finally:
            for worker in crew:
                worker.close()

    def _give_work(self, crew: list[Worker], places: Sequence[Mapping[str, str]]) -> None:
        now = time.monotonic()
        for entry in [entry for entry in self.elsewhere if entry[0] <= now]:
            self.elsewhere.remove(entry)
            self.waiting.append(entry[1])
        idle = [worker for worker in crew if worker.job is None]
        free = list(places)
        for worker in crew:
            free.remove(worker.environment)
        while self.waiting and (idle or free):
            run = self.waiting.popleft()
            state = read_state(run, self.folder, self.study.config.measure)
            self.board.start(run.name)
            if state.status == "done":  # by another process
                self.board.end(run.name, state)
                continue
            if not idle:
                idle.append(Worker(free.pop(0), self.reports))
                crew.append(idle[0])
            job = Job(run.name, self.folder / run.name, run.config, self.study.config.measure, self.device)
            idle.pop(0).send(job, [*self.command, "--only", run.name])

    def _hear(self, worker: Worker, report: dict[str, Any]) -> None:
        name, kind = worker.job, report.pop("kind")
        assert name is not None
        if kind not in ("done", "stopped", "failed", "busy"):
            self.board.hear(name, kind, report)
            return
        worker.job, run = None, self.by_name[name]
        if kind == "done":
            self.board.end(name, read_state(run, self.folder, self.study.config.measure))
        elif kind == "failed":
            self._fail(name, report["message"])
        else:
            self.board.give_back(name, is_elsewhere=kind == "busy")
            if kind == "busy":
                self.elsewhere.append((time.monotonic() + AGAIN, run))
            else:
                self.was_cut = True

    def _has_ended(self, worker: Worker) -> None:
        name, worker.job = worker.job, None
        if name is not None and self.is_stopping:  # asked to stop before it could listen
            self.board.give_back(name)
            self.was_cut = True
        elif name is not None:
            self._fail(name, worker.how_it_ended())
        worker.close()

    def _fail(self, name: str, message: str) -> None:
        self.failures[name] = message
        self.board.end(name, None, message)
