"""Several processes that share a port: each has a model of its own; one that dies is replaced."""

from __future__ import annotations

import multiprocessing
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from vitkit.errors import InputError
from vitkit.notes import say
from vitkit.serving.metrics import GAUGES, ROW, Metrics
from vitkit.serving.service import Service, answer, listen

GRACE = 40.0
"Seconds that workers have to finish what they accepted."
SOON = 10.0
"A worker that ends within so many seconds of its start waits before it is started again, twice as long each time."
LONGEST_WAIT = 30.0


@dataclass
class _Worker:
    """A process, and what is known about it."""

    number: int
    process: Any
    pipe: Connection
    started: float
    is_ready: bool = False
    error: str | None = None


def supervise(service: Service, address: socket.socket, count: int, on_ready: Callable[[], None]) -> Metrics:
    """Run workers until a signal comes, and return what they counted.

    address: a bound socket, which keeps the port. on_ready: called once all workers answer.
    """
    if not sys.platform.startswith("linux"):
        raise InputError(
            "several workers share a port only on Linux: give one worker, or one server for each port"
        )
    if not isinstance(service.model, str):
        raise InputError(
            "several workers load the model themselves: give its name or path, not the model itself"
        )
    context = multiprocessing.get_context("spawn")
    numbers = context.RawArray("d", ROW * (count + 1))
    rows = rows_of(numbers, count + 1)
    metrics = Metrics(rows, count)
    port = address.getsockname()[1]
    stopping = threading.Event()

    def start(number: int) -> _Worker:
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_work,
            args=(service, port, number, count, numbers, theirs),
            name=f"worker {number}",
            daemon=True,
        )
        process.start()
        theirs.close()
        return _Worker(number, process, ours, time.monotonic())

    def stop(*_: object) -> None:
        stopping.set()

    before = {
        sign: signal.signal(sign, stop)
        for sign in (signal.SIGINT, signal.SIGTERM)
        if threading.current_thread() is threading.main_thread()
    }
    workers = dict[int, _Worker]()
    try:
        workers |= {number: start(number) for number in range(count)}
        while not all(worker.is_ready for worker in workers.values()) and not stopping.is_set():
            for worker in workers.values():
                is_alive = worker.process.is_alive()  # before it is heard: its last words come first
                _hear(worker, 0.05)
                if worker.error is not None:
                    raise InputError(worker.error)
                if not is_alive and not worker.is_ready:
                    raise InputError(f"a worker ended at its start, with status {worker.process.exitcode}")
        if not stopping.is_set():
            on_ready()
        _keep(workers, start, metrics, rows, stopping)
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)
        _end([worker.process for worker in workers.values()])
    return metrics


def rows_of(numbers: Any, count: int) -> list[Any]:
    """Return shared numbers as rows that can be written to."""
    whole = memoryview(numbers).cast("B").cast("d")
    return [whole[ROW * number : ROW * (number + 1)] for number in range(count)]


def _hear(worker: _Worker, seconds: float) -> None:
    """Take what a worker has to say."""
    try:
        if worker.pipe.poll(seconds):
            kind, words = worker.pipe.recv()
            worker.is_ready |= kind == "ready"
            worker.error = words if kind == "error" else worker.error
    except (EOFError, OSError):
        pass


def _keep(
    workers: dict[int, _Worker],
    start: Callable[[int], _Worker],
    metrics: Metrics,
    rows: list[Any],
    stopping: threading.Event,
) -> None:
    """Replace workers that die, until the server is stopped."""
    due, pauses = dict[int, float](), dict[int, float]()
    while not stopping.is_set():
        running = [worker.process.sentinel for number, worker in workers.items() if number not in due]
        wait(running, timeout=0.2)
        now = time.monotonic()
        for number, worker in workers.items():
            is_alive = worker.process.is_alive()
            _hear(worker, 0)
            if stopping.is_set() or number in due or is_alive:
                continue
            is_early = now - worker.started < SOON
            pauses[number] = min(LONGEST_WAIT, 2 * pauses.get(number, 0.5)) if is_early else 0.0
            due[number] = now + pauses[number]
            for name in GAUGES:
                Metrics(rows, number).set(name, 0.0)
            reason = worker.error or f"status {worker.process.exitcode}"
            say(f"worker {number} has ended ({reason}) and is started again")
        for number in [number for number, at in due.items() if at <= now]:
            del due[number]
            workers[number].pipe.close()
            workers[number] = start(number)
            metrics.add("vit_worker_restarts_total")


def _end(processes: list[Any]) -> None:
    """Let workers finish what they accepted; kill those that don't."""
    for process in processes:
        if process.is_alive():
            process.terminate()
    deadline = time.monotonic() + GRACE
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _work(service: Service, port: int, number: int, count: int, numbers: Any, pipe: Connection) -> None:
    """Be one worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one passes it on
    stops = list[Callable[[], None]]()

    def stop_early(*_: object) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop_early)

    def on_ready(engine: object, stop: Callable[[], None]) -> None:
        stops.append(stop)
        pipe.send(("ready", ""))
        threading.Thread(target=wait_for_end, name="parent", daemon=True).start()

    def wait_for_end() -> None:
        """Stop if the process that started this one is gone."""
        try:
            pipe.recv()
        except (EOFError, OSError):
            stops[0]()

    try:
        metrics = Metrics(rows_of(numbers, count + 1), number)
        answer(
            service, lambda: listen(service.host, port, shared=True), on_ready, metrics, ends_if_stuck=True
        )
    except InputError as error:
        pipe.send(("error", str(error)))
        sys.exit(2)
