"""The quickstart: pre-train on shapes without labels, fine-tune on digits, beside the same model from scratch."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path

from vitkit.notes import Note
from vitkit.results import Result
from vitkit.training.log import Listener, Silent
from vitkit.training.run import TrainResult, train

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


@dataclass(frozen=True)
class QuickstartResult(Result):
    """What `vit quickstart --json` prints."""

    accuracy: tuple[QuickstartRow, ...]
    model: str
    next: tuple[str, ...]
    "Commands to try."


def quickstart(
    folder: str | Path = "runs/quickstart", *, force: bool = False, listener: Listener | None = None
) -> QuickstartResult:
    """Return the accuracy on digits' test split of a pre-trained model and of the same from scratch."""
    folder, listener = Path(folder), listener or Silent()

    def run(name: str, recipe: str, *changes: str) -> TrainResult:
        listener.note(Note(f"\n{name}: vit train {recipe} {' '.join(changes)}".rstrip(), "progress"))
        result = train(recipe, changes, run=str(folder / name), device="cpu", force=force, listener=listener)
        assert result is not None  # one process
        if result.status == "stopped":
            listener.note(Note("stopped; run the same command again to resume"))
            raise KeyboardInterrupt
        return result

    run("shapes", "shapes", "duration=2.5 epochs")
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
        rows.append(QuickstartRow(labels, len(found["scratch"]), pre_trained, scratch))
    model = folder / f"digits-pre-trained-all-{SEEDS[0]}"
    commands = (
        f"vit report {model}",
        "vit data digits:test --out digits.png",
        "vit train cifar10_cct7 --explain",
    )
    return QuickstartResult(tuple(rows), str(model / "model"), commands)
