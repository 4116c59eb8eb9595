"""The quickstart: pre-train on shapes without labels, fine-tune on digits, next to the same model from scratch."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from vitkit.errors import InputError
from vitkit.files import write_json
from vitkit.notes import Note
from vitkit.progress import Listener, Silent
from vitkit.results import Result, from_json
from vitkit.runs.records import read_object
from vitkit.training.run import TrainResult, train

RECORD = "quickstart.json"
SEEDS = (0, 1, 2)
# Training data by how much of it is labelled; few labels need more epochs for as many steps.
LABELS = {
    "10 labels a class": ("digits:train[10shot,seed={seed}]", "duration=200"),
    "all 1,157 labels": ("digits:train", "duration=80 epochs"),
}


@dataclass(frozen=True)
class QuickstartRow(Result):
    """Mean accuracy over seeds, by where training starts."""

    labels: str
    seeds: int
    pre_trained: float = field(metadata={"json": "pre-trained"})
    scratch: float
    values: Mapping[str, tuple[float, ...]]
    "Of each seed, by where training starts."


@dataclass(frozen=True)
class QuickstartResult(Result):
    """What `vit quickstart --json` prints and its folder keeps."""

    accuracy: tuple[QuickstartRow, ...]
    model: str
    next: tuple[str, ...]
    "Commands to try."
    seconds: float | None
    "Time of the whole quickstart; None if it was resumed."
    date: str
    environment: Mapping[str, str | float]


def quickstart(
    folder: str | os.PathLike[str] = "runs/quickstart",
    *,
    force: bool = False,
    listener: Listener | None = None,
) -> QuickstartResult:
    """Return the accuracy on digits' test split of a pre-trained model and of the same from scratch.

    The same call again resumes; of one that is finished the result is in the folder.
    """
    folder, listener = Path(folder), listener or Silent()
    if (folder / RECORD).is_file() and not force:
        listener.note(Note(f"{folder} is already finished; --force starts over", "progress"))
        try:
            return from_json(QuickstartResult, read_object(folder / RECORD), folder / RECORD)
        except InputError as error:
            raise InputError(f"{error}; --force starts over") from None
    (folder / RECORD).unlink(missing_ok=True)  # so that an interrupted new start doesn't pass as finished
    is_whole, began = force or not folder.exists(), time.perf_counter()

    def run(name: str, recipe: str, *changes: str) -> TrainResult:
        listener.note(Note(f"\n{name}: vit train {recipe} {' '.join(changes)}".rstrip(), "progress"))
        result = train(recipe, changes, run=str(folder / name), device="cpu", force=force, listener=listener)
        if result.status == "stopped":
            again = "the same command without --force" if force else "the same command again"
            listener.note(Note(f"stopped; run {again} to resume"))
            raise KeyboardInterrupt
        return result

    environment = run("shapes", "shapes", "duration=2.5 epochs").environment
    rows: list[QuickstartRow] = []
    for labels, (data, duration) in LABELS.items():
        found: dict[str, list[float]] = {"pre-trained": [], "scratch": []}
        for seed in SEEDS if "{seed}" in data else SEEDS[:1]:
            for start, accuracies in found.items():
                changes = [f"data.train={data.format(seed=seed)}", duration, f"seed={seed}"]
                if start == "pre-trained":
                    changes.append(f"model.name={folder / 'shapes'}")
                name = f"digits-{start}-{labels.split()[0]}-{seed}"
                accuracies.append(run(name, "digits", *changes).metrics["test/accuracy"] or 0.0)
        pre_trained, scratch = (statistics.mean(found[start]) for start in ("pre-trained", "scratch"))
        values = {start: tuple(accuracies) for start, accuracies in found.items()}
        rows.append(QuickstartRow(labels, len(found["scratch"]), pre_trained, scratch, values))
    model = folder / f"digits-pre-trained-all-{SEEDS[0]}"
    commands = (
        f"vit report {model}",
        "vit data digits:test --out digits.png",
        "vit train cifar10_cct7 --explain",
    )
    result = QuickstartResult(
        tuple(rows),
        str(model / "model"),
        commands,
        time.perf_counter() - began if is_whole else None,
        datetime.now(UTC).date().isoformat(),
        environment,
    )
    write_json(folder / RECORD, result.to_json())
    return result
