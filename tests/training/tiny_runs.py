"""Runs of a second: a tiny recipe, a listener that acts at a step, and what a run left behind, bit by bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from vitkit import train
from vitkit.notes import kind_of
from vitkit.runs import read_metrics
from vitkit.training import checkpoints

TIMINGS = ("images_per_second", "waiting", "seconds", "peak_share")
RECIPE = """\
# A tiny ViT on a few digits.
# Command: vit train tiny
model: {name: Ti/16, image_size: 8, patch: 4, width: 16, depth: 2, heads: 2, mlp_width: 32}
data: {train: 'digits:train[:128]', evaluate: 'digits:test[:65]', pipeline: 'pad_crop(1)|mixup(0.2)', group: 4}
duration: 12
batch_size: 16
average: 0.9
optimizer: {learning_rate: 3e-3, weight_decay: 0.05, clip_norm: 1.0}
schedule: {warmup: 2}
log_every: 5
evaluate_every: 6
checkpoint_every: 4
"""


class Listener:
    """Hears what a run says, and acts when a step is done."""

    def __init__(self, at: Mapping[int, Callable[[], object]] | None = None) -> None:
        self.at = at or {}
        self.notes: list[str] = []
        self.lines: list[dict[str, Any]] = []
        self.started = -1
        self.steps: list[int] = []

    def note(self, line: str) -> None:
        self.notes.append(line)

    def start(self, step: int, total: int) -> None:
        self.started = step

    def stepped(self, step: int) -> None:
        self.steps.append(step)
        self.at.get(step, lambda: None)()

    def metrics(self, line: Mapping[str, Any]) -> None:
        self.lines.append(dict(line))

    def stop(self) -> None: ...


def warnings(listener: Listener) -> list[str]:
    """Return what a run warned of, apart from the tiny recipe's average, which is long for so few steps."""
    return [
        note for note in listener.notes if kind_of(note) == "warning" and "average of the weights" not in note
    ]


def write_recipe(folder: Path, text: str = RECIPE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny.yaml"
    path.write_text(text)
    return path


def run_tiny(
    path: Path, *changes: str, at: Mapping[int, Callable[[], object]] | None = None, **options: Any
) -> Any:
    """Train the tiny recipe in the run folder `path`."""
    listener = options.pop("listener", None) or Listener(at)
    recipe = options.pop("recipe", None) or write_recipe(path.parent)
    return train(recipe, changes, run=str(path), listener=listener, **{"device": "cpu", **options})


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl without timings."""
    return [
        {name: value for name, value in line.items() if name not in TIMINGS} for line in read_metrics(path)
    ]


def tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a run's newest checkpoint, which must be whole."""

    def refuse(message: str) -> None:
        raise AssertionError(message)

    found = checkpoints.latest(path / "checkpoints", refuse)
    assert found is not None
    stored: Any = dcp.FileSystemReader(found.path).read_metadata().state_dict_metadata
    state = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in stored.items()}
    found.load(state)
    return state


def model_files(path: Path) -> dict[str, bytes]:
    return {
        f"{folder}/{name}": (path / folder / name).read_bytes()
        for folder in ("model", "model-last")
        for name in ("model.safetensors", "config.json")
    }


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def differences(one: Path, other: Path) -> list[str]:
    """Return what differs between two finished runs beside their timings."""
    found = []
    ours, theirs = tensors(one), tensors(other)
    if ours.keys() != theirs.keys():
        found.append(f"names of tensors: {sorted(ours.keys() ^ theirs.keys())}")
    found += [name for name in ours.keys() & theirs.keys() if bits(ours[name]) != bits(theirs[name])]
    if lines(one) != lines(other):
        found.append("metrics.jsonl")
    files, others = model_files(one), model_files(other)
    found += [name for name in files if files[name] != others[name]]
    records = [json.loads((path / "run.json").read_text()) for path in (one, other)]
    found += [
        name for name in ("status", "step", "steps", "best", "cost") if records[0][name] != records[1][name]
    ]
    return sorted(found)
