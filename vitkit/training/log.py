"""Logging of a run: sums between lines, metrics.jsonl, TensorBoard, Weights & Biases."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from vitkit.errors import first_line
from vitkit.notes import Note
from vitkit.progress import Listener
from vitkit.runs import RunFolder
from vitkit.training.config import Tracker
from vitkit.world import World


class Totals:
    """Sums of the metrics since the last line, kept on the device so that no step waits for them."""

    def __init__(self, names: Sequence[str], world: World) -> None:
        self.names, self.world = tuple(names), world
        self.sums = torch.zeros(len(names) + 1, device=world.device)  # the last one counts steps
        self.first_bad = torch.full((), -1, device=world.device, dtype=torch.int64)

    def add(self, step: int, values: Mapping[str, Tensor]) -> None:
        """Add a step; remember the first one whose values are not finite."""
        row = torch.stack([values[name].detach().float() for name in self.names])
        self.sums[:-1] += row
        self.sums[-1] += 1
        is_first = ~row.isfinite().all() & (self.first_bad < 0)
        self.first_bad = torch.where(is_first, step, self.first_bad)

    def bad_step(self) -> int | None:
        """Return the first step whose loss or gradient was not finite on some process, or None."""
        step = int(self.first_bad)
        if self.world.ranks > 1:
            steps = self.world.gather(torch.tensor([step]))
            step = min((int(value) for value in steps if value >= 0), default=-1)
        return None if step < 0 else step

    def share(self) -> None:
        """Set every process's sums to the mean of all: a checkpoint holds only one, for any number of processes."""
        self.sums.copy_(self.world.sum(self.sums) / self.world.ranks)

    def take(self) -> dict[str, float]:
        """Return the means over steps and processes, and reset the sums."""
        *sums, count = self.world.sum(self.sums).tolist()
        self.sums.zero_()
        return {name: total / max(1.0, count) for name, total in zip(self.names, sums, strict=True)}


class Stopwatch:
    """Measures how long training takes and how fast its steps are, without compilation.

    A rate is over the steps since the last line, without evaluations and checkpoints, and without steps that compile:
    these take about a hundred times as long.
    """

    def __init__(
        self,
        batch_size: int,
        waited: Callable[[], float],
        compilations: Callable[[], int],
        warm_up: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Start the clock.

        waited: returns the seconds spent waiting for data so far.
        compilations: returns the number of compilations so far.
        warm_up: number of first steps that always count as compilation.
        """
        self.batch_size, self.waited, self.compilations, self.clock = batch_size, waited, compilations, clock
        self.warm_up = warm_up
        self.start(0, 0.0)

    def start(self, step: int, seconds: float) -> None:
        """Resume at a step, after this many seconds of training."""
        self.earlier, self.began = seconds, self.clock()
        self.skip_to_now(step)

    @property
    def seconds(self) -> float:
        """Training time so far, including earlier parts of a resumed run."""
        return self.earlier + self.clock() - self.began

    def skip_to_now(self, step: int) -> None:
        """Measure steps from now on: the time since the last step was not spent on training."""
        self.line_began = self.step_began = self.clock()
        self.line_step, self.line_waited, self.compiled = step, self.waited(), self.compilations()

    def stepped(self, wait: Callable[[], None]) -> float:
        """End a step. If it compiled, wait for the device and return its seconds; otherwise return 0."""
        is_compiling = self.warm_up > 0 or self.compilations() > self.compiled
        self.warm_up = max(0, self.warm_up - 1)
        if is_compiling:
            wait()
        now = self.clock()
        took = now - self.step_began if is_compiling else 0.0
        self.began, self.line_began, self.step_began = self.began + took, self.line_began + took, now
        self.line_step, self.compiled = self.line_step + is_compiling, self.compilations()
        return took

    def line(self, step: int) -> dict[str, float]:
        """Return the rate since the last line and the share of time spent waiting, or nothing if no step counts."""
        elapsed, steps, waited = self.clock() - self.line_began, step - self.line_step, self.waited()
        if steps < 1:
            return {}
        elapsed = max(elapsed, 1e-9)
        return {
            "images_per_second": steps * self.batch_size / elapsed,
            "waiting": min(1.0, (waited - self.line_waited) / elapsed),
        }


class Journal:
    """Writes each line of metrics to the folder, the listener and trackers; only the first process has a folder."""

    def __init__(self, folder: RunFolder | None, listener: Listener, trackers: Sequence[Tracker]) -> None:
        self.folder, self.listener, self.trackers = folder, listener, trackers
        self.sinks: list[Sink] = []

    def open(self, step: int) -> None:
        """Open the trackers after a step; they drop later steps, if they can."""
        if self.folder is not None:
            self.sinks = open_trackers(self.trackers, self.folder.path, step, self.listener)

    def write(self, line: dict[str, object]) -> None:
        if self.folder is None:
            return
        self.folder.append(line)
        self.listener.metrics(line)
        for sink in self.sinks:
            sink.write(line)

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()
        self.sinks = []


class Sink(Protocol):
    """A tracker of metrics."""

    def write(self, line: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Event files in RUN/tensorboard."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, line: Mapping[str, Any]) -> None:
        for name, value in _numbers(line):
            self.writer.add_scalar(name, value, line["step"])

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """A run in Weights & Biases. A resumed run keeps its id; a run that starts over gets a new one."""

    def __init__(self, folder: Path, step: int) -> None:
        import wandb

        from vitkit.runs import read_config, read_record

        birth = f"{folder.resolve()} {read_record(folder)['started']}"
        self.run: Any = wandb.init(
            project="vitkit",
            name=folder.as_posix(),
            id=hashlib.sha256(birth.encode()).hexdigest()[:16],
            resume="allow",
            dir=folder,
            config=read_config(folder),
        )

    def write(self, line: Mapping[str, Any]) -> None:
        self.run.log(dict(_numbers(line)), step=line["step"])

    def close(self) -> None:
        self.run.finish()


TRACKERS: dict[str, type[TensorBoard] | type[WeightsAndBiases]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}


def open_trackers(trackers: Sequence[Tracker], folder: Path, step: int, listener: Listener) -> list[Sink]:
    """Return the trackers that can be opened; add a note for each one that can't."""
    sinks: list[Sink] = []
    for name in trackers:
        try:
            sinks.append(TRACKERS[name](folder, step))
        except Exception as error:  # such as Weights & Biases without a key
            what = f"can't be used: {first_line(error)}"
            if isinstance(error, ImportError):
                what = 'is not installed: pip install "vitkit[track]"'
            listener.note(Note(f"{name} {what}; metrics are only in metrics.jsonl", "warning"))
    return sinks


def _numbers(line: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [
        (name if "/" in name else f"train/{name}", value)
        for name, value in line.items()
        if name not in ("step", "epoch") and isinstance(value, int | float)
    ]
