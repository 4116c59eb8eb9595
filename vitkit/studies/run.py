"""`vit study run`: carries out the runs of a study in worker processes, from where each stands; one that fails costs no other."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from queue import Empty
from typing import Literal

from vitkit.config import Bounds, Changes, as_changes
from vitkit.errors import InputError, did_you_mean
from vitkit.notes import Note
from vitkit.predictor import choose_device
from vitkit.results import Result
from vitkit.runs import named_path
from vitkit.studies.board import Board, showing_board
from vitkit.studies.cluster import Cluster, connected
from vitkit.studies.config import Study, StudyRun, read_study
from vitkit.studies.jobs import Job
from vitkit.studies.plan import check_runs
from vitkit.studies.records import RunState, read_state
from vitkit.studies.sharing import best_sharing
from vitkit.studies.workers import ENDS, Machine, Report, Reports, Site, Worker
from vitkit.training.stop import StopRequest, listening

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
    workers: int | Literal["auto"] = "auto",
    on: str | None = None,
    run: str | os.PathLike[str] | None = None,
    device: str = "auto",
    progress: bool = True,
) -> StudyResult:
    """Carry out a study: train and measure every unfinished run. The same call again resumes.

    study: name or file. changes: settings of the study itself, as in `["grid.seed=[0]"]`.
    only: a pattern of run names. limit: seconds after which all runs stop; the same call resumes them.
    workers: runs at once, on each GPU or on the CPU; auto is 1 on the CPU, and measured on a GPU.
    on: "ray", or "ray=ADDRESS", carries out the runs on a Ray cluster whose machines share the study's folder.
    run: the study's folder, by default runs/NAME of the study.
    Several such calls, in other processes or on other machines that share the folder, divide the runs between them.
    """
    began = time.monotonic()
    if workers != "auto":
        Bounds(at_least=1).check("workers", workers)
    Bounds(above=0).check("limit", limit)
    found = read_study(study, changes)
    folder = named_path(found.name if run is None else run)
    chosen = choose_runs(found, only)
    costs, warnings = check_runs(found, chosen, folder, choose_device(device if on is None else "cpu"))
    options = {"--run": run, "--device": None if device == "auto" else device, "--on": on}
    words = ["vit", "study", "run", os.fspath(study), *map(str, as_changes(changes))]
    words += [
        word for name, value in options.items() if value is not None for word in (name, os.fspath(value))
    ]
    states = {each.name: read_state(each, folder, found.config.measure) for each in chosen}
    done = {name for name, state in states.items() if state.status == "done"}
    left = [each for each in chosen if each.name not in done]
    until = None if limit is None else began + limit
    with open_site(on, device, folder) as site:
        site.divide(best_sharing(left, folder, site, progress) if workers == "auto" else workers)
        with listening() as stop, showing_board(costs, done, progress) as board:
            for line in warnings:
                board.print_line(Note(line, "warning"))
            crew = Crew(found, folder, site, words, board, stop)
            is_complete = crew.carry_out(left, until)
    ends = [read_state(each, folder, found.config.measure) for each in chosen]
    ends = [
        replace(state, status="failed", message=crew.failures[state.name])
        if state.name in crew.failures
        else state
        for state in ends
    ]
    status = "stopped" if not is_complete else "failed" if crew.failures else "done"
    return StudyResult(found.name, str(folder), status, tuple(ends), time.monotonic() - began)


@contextmanager
def open_site(on: str | None, device: str, folder: Path) -> Iterator[Site]:
    """Yield where runs are carried out: this machine, or the Ray cluster of `--on ray[=ADDRESS]`."""
    if on is None:
        yield Machine(choose_device(device))
        return
    name, _, address = on.partition("=")
    if name != "ray":
        raise InputError(f"--on is {on!r}; expected ray, or ray=ADDRESS, such as ray=10.0.0.1:6379")
    with connected(address or None) as ray, Cluster(ray, device, folder) as cluster:
        yield cluster


def choose_runs(study: Study, only: str) -> list[StudyRun]:
    """Return the runs whose names match a pattern."""
    chosen = [run for run in study.runs if fnmatchcase(run.name, only)]
    if not chosen:
        names = [run.name for run in study.runs]
        hint = did_you_mean(only, names) or f"; they are called {', '.join(names[:3])}"
        raise InputError(f"no run of {study.name} matches {only!r}{hint}")
    return chosen


class Crew:
    """The workers of a study, and which run each of them works on."""

    def __init__(
        self, study: Study, folder: Path, site: Site, command: list[str], board: Board, stop: StopRequest
    ) -> None:
        self.study, self.folder, self.site = study, folder, site
        self.command, self.board, self.stop = command, board, stop
        self.failures: dict[str, str] = {}
        self.workers: list[Worker] = []
        self.reports = Reports()
        self.waiting: deque[StudyRun] = deque()
        self.elsewhere: list[tuple[float, StudyRun]] = []
        "Runs that other processes work on, and when to look again."
        self.lost = Counter[str]()
        "How often the worker of a run was killed."
        self.is_stopping = self.was_cut = False
        self.by_name = {run.name: run for run in study.runs}

    def carry_out(self, runs: Sequence[StudyRun], until: float | None) -> bool:
        """Carry out runs; return False if a stop was asked for, or the time was up, before all had ended."""
        self.waiting.extend(runs)
        try:
            while self.waiting or self.elsewhere or self._is_at_work():
                if not self.is_stopping and (self.stop or (until is not None and time.monotonic() >= until)):
                    self.is_stopping = True
                    for worker in self.workers:
                        worker.stop()
                if not self.is_stopping:
                    self._give_work()
                elif not self._is_at_work():
                    return not (self.waiting or self.elsewhere or self.was_cut)
                self.board.tick()
                try:
                    worker, report = self.reports.get(timeout=0.2)
                except Empty:
                    continue
                if report is None:
                    self._has_ended(worker)
                elif worker.job is None:  # it couldn't begin, as no other could
                    raise InputError(report["message"])
                else:
                    self._hear(worker, worker.job, report)
            return not self.was_cut
        finally:
            for worker in self.workers:
                self.site.end(worker)

    def _is_at_work(self) -> bool:
        return any(worker.job is not None for worker in self.workers)

    def _give_work(self) -> None:
        now = time.monotonic()
        for entry in [entry for entry in self.elsewhere if entry[0] <= now]:
            self.elsewhere.remove(entry)
            self.waiting.append(entry[1])
        idle = [worker for worker in self.workers if worker.job is None]
        while self.waiting:
            if len(idle) < len(self.waiting) and (new := self.site.start(self.reports)) is not None:
                self.workers.append(new)
                idle.append(new)
            worker = next((worker for worker in idle if worker.is_ready), None)
            if worker is None:
                return
            run = self.waiting.popleft()
            state = read_state(run, self.folder, self.study.config.measure)
            self.board.start(run.name)
            if state.status == "done":  # by another process
                self.board.end(run.name, state)
                continue
            idle.remove(worker)
            measures = self.study.config.measure
            job = Job(run.name, self.folder / run.name, run.config, measures, self.site.device)
            worker.send(job, [*self.command, "--only", run.name])

    def _hear(self, worker: Worker, name: str, report: Report) -> None:
        kind = report.pop("kind")
        if kind not in ENDS:
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
        self.workers.remove(worker)
        name, worker.job = worker.job, None
        message = "" if name is None else worker.how_it_ended()
        self.site.end(worker)
        if name is None:
            return
        self.lost[name] += 1
        if self.is_stopping:  # asked to stop before it could listen
            self.board.give_back(name)
            self.was_cut = True
        elif self.lost[name] < self.site.tries:
            self.board.give_back(name)
            self.board.print_line(Note(f"{name}: {message}; it resumes", "warning"))
            self.waiting.appendleft(self.by_name[name])
        else:
            self._fail(name, message)

    def _fail(self, name: str, message: str) -> None:
        self.failures[name] = message
        self.board.end(name, None, message)
