"""Who carries out the runs of a study: what is asked of a worker and of where it works, and worker processes on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import Queue
from typing import IO, Any, Protocol

import torch

from vitkit.machine import num_cores
from vitkit.studies.jobs import Job

COMMAND = [sys.executable, "-m", "vitkit.cli.worker"]
Report = dict[str, Any]
Reports = Queue[tuple["Worker", Report | None]]
"What workers report, and None from one that has ended."
ENDS = ("done", "stopped", "failed", "busy")
"Kinds of the last report of a run; those before say how far it is."


class Worker(Protocol):
    """Carries out one run after another."""

    job: str | None
    "The run it works on."
    is_ready: bool
    "Whether it can be sent a run."

    def send(self, job: Job, command: list[str]) -> None:
        """Give it a run, which records the command."""

    def stop(self) -> None:
        """Ask it to stop after this step; one without work ends."""

    def how_it_ended(self) -> str:
        """Return why a worker ended that had work."""


class Site(Protocol):
    """Where workers are: this machine, or a cluster."""

    device: str
    "That runs are on: cpu, cuda or mps."
    device_name: str
    tries: int
    "How often a run is started whose worker is killed."

    def divide(self, workers: int) -> None:
        """Set how many workers share each GPU, or the CPU, before any is started."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns there, with a GPU of its own."""

    def start(self, reports: Reports) -> Worker | None:
        """Start one more worker; None if there is no room for it now."""

    def end(self, worker: Worker) -> None:
        """Make room: end a worker, even at work."""


@dataclass(frozen=True)
class Place:
    """Room for one worker."""

    environment: Mapping[str, str]
    "Variables of its process: its GPU, its share of the cores."
    sharing: int
    "How many places share its device."


def places(device: torch.device, workers: int) -> list[Place]:
    """Return room for so many workers on each GPU, or on the CPU; together they use every core once."""
    if device.type == "cuda":
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = shown.split(",") if shown else [str(index) for index in range(torch.cuda.device_count())]
        share = threads(min(torch.get_num_threads(), num_cores() // (workers * len(gpus))))
        return [Place({"CUDA_VISIBLE_DEVICES": gpu} | share, workers) for _ in range(workers) for gpu in gpus]
    if workers == 1:
        return [Place({}, 1)]
    return [Place(threads(torch.get_num_threads() // workers), workers)] * workers


def threads(cores: float) -> dict[str, str]:
    """Return the variables that keep a process to its share of the cores, while it computes and while it compiles."""
    count = str(max(1, int(cores)))
    return {"OMP_NUM_THREADS": count, "TORCHINDUCTOR_COMPILE_THREADS": count}


class LocalWorker:
    """A process that is told its runs on standard input; a thread puts its reports into a queue."""

    def __init__(self, place: Place, reports: Reports) -> None:
        self.job: str | None = None
        self.is_ready = True
        self.place = place
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (until the process ends)
        self.process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, **place.environment},
            start_new_session=True,  # Ctrl-C reaches it as a request to stop, once
        )
        self.listener = threading.Thread(target=self._listen, args=[reports], daemon=True)
        self.listener.start()

    def _listen(self, reports: Reports) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                report = json.loads(line)
            except json.JSONDecodeError:  # cut off by a kill
                continue
            self.is_ready = not report.pop("ends", False)
            reports.put((self, report))
        reports.put((self, None))

    def send(self, job: Job, command: list[str]) -> None:
        assert self.process.stdin is not None
        self.job = job.name
        text = json.dumps({**job.to_json(), "command": command, "sharing": self.place.sharing})
        with suppress(BrokenPipeError):  # it ended, which its last report says
            self.process.stdin.write(text.encode() + b"\n")
            self.process.stdin.flush()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def how_it_ended(self) -> str:
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
        """End the process, even at work."""
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


class Machine:
    """This machine: a process in each place."""

    tries = 1  # one that is killed here has mostly asked for too much memory

    def __init__(self, device: torch.device) -> None:
        self.on, self.device = device, device.type
        self.device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        self.free = list[Place]()

    def divide(self, workers: int) -> None:
        self.free = places(self.on, workers)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def start(self, reports: Reports) -> LocalWorker | None:
        return LocalWorker(self.free.pop(0), reports) if self.free else None

    def end(self, worker: Worker) -> None:
        assert isinstance(worker, LocalWorker)
        worker.close()
        self.free.insert(0, worker.place)
