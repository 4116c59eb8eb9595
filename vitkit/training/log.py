"""What a run says of itself while it trains: sums between lines, metrics.jsonl, TensorBoard, Weights & Biases."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from vitkit.runs import RunFolder
from vitkit.training.config import Tracker
from vitkit.world import World


class Totals:
    """Sums of a step's metrics since the last line, on the device, so that no step waits for them."""

    def __init__(self, names: Sequence[str], world: World) -> None:
        self.names, self.world = tuple(names), world
        self.sums = torch.zeros(len(names) + 1, device=world.device)  # the last one counts
        self.first_bad = torch.full((), -1, device=world.device, dtype=torch.int64)

    def add(self, step: int, values: Mapping[str, Tensor]) -> None:
        """Count a step; the first whose values are not finite is remembered."""
        row = torch.stack([values[name].detach().float() for name in self.names])
        self.sums[:-1] += row
        self.sums[-1] += 1
        is_first = ~row.isfinite().all() & (self.first_bad < 0)
        self.first_bad = torch.where(is_first, step, self.first_bad)

    def bad_step(self) -> int | None:
        """Return the first step whose loss or gradient was not finite on any process, if there was one."""
        step = int(self.first_bad)
        if self.world.ranks > 1:
            steps = self.world.gather(torch.tensor([step]))
            step = min((int(value) for value in steps if value >= 0), default=-1)
        return None if step < 0 else step

    def share(self) -> None:
        """Give every process the mean of all sums: a checkpoint holds one process's, for any number of them."""
        self.sums.copy_(self.world.sum(self.sums) / self.world.ranks)

    def take(self) -> dict[str, float]:
        """Return the means over steps and processes, and begin anew."""
        *sums, count = self.world.sum(self.sums).tolist()
        self.sums.zero_()
        return {name: total / max(1.0, count) for name, total in zip(self.names, sums, strict=True)}


class Listener(Protocol):
    """Someone who follows a run: a progress bar, plain lines."""

    def note(self, line: str) -> None:
        """Hear something beside the metrics."""

    def start(self, step: int, total: int) -> None:
        """Hear that training goes on from a step."""

    def stepped(self, step: int) -> None:
        """Hear that a step is done."""

    def metrics(self, line: Mapping[str, Any]) -> None:
        """Hear a line of metrics.jsonl."""

    def stop(self) -> None:
        """Hear that training is over."""


class Silent:
    """A listener that says nothing."""

    def note(self, line: str) -> None: ...
    def start(self, step: int, total: int) -> None: ...
    def stepped(self, step: int) -> None: ...
    def metrics(self, line: Mapping[str, Any]) -> None: ...
    def stop(self) -> None: ...


class Journal:
    """Writes each line of metrics everywhere it goes; only the first process has a folder."""

    def __init__(self, folder: RunFolder | None, listener: Listener, trackers: Sequence[Tracker]) -> None:
        self.folder, self.listener, self.trackers = folder, listener, trackers
        self.sinks: list[Sink] = []

    def open(self, step: int) -> None:
        """Begin after a step; trackers forget what came later, where they can."""
        if self.folder is not None:
            self.sinks = open_trackers(self.trackers, self.folder.path, step, self.listener)

    def write(self, line: dict[str, Any]) -> None:
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
    """A run in Weights & Biases, resumed as the one that it was; a run begun anew is another."""

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
    """Return the trackers that can be had; for each other, one line says what it needs."""
    sinks: list[Sink] = []
    for name in trackers:
        try:
            sinks.append(TRACKERS[name](folder, step))
        except Exception as error:  # such as Weights & Biases without a key
            if not isinstance(error, ImportError):
                listener.note(
                    f"{name} can't be used: {str(error).splitlines()[0]}; metrics go to metrics.jsonl"
                )
                continue
            listener.note(
                f'{name} is not installed: pip install "vitkit[track]"; metrics go to metrics.jsonl'
            )
    return sinks


def _numbers(line: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [
        (name if "/" in name else f"train/{name}", value)
        for name, value in line.items()
        if name not in ("step", "epoch") and isinstance(value, int | float)
    ]
