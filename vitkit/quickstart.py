"""The quickstart: pre-train on shapes without labels, fine-tune on digits, beside the same model from scratch."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from vitkit.training.log import Listener, Silent
from vitkit.training.run import TrainResult, train

SEEDS = (0, 1, 2)
# Training data by how much of it is labelled; few labels need more epochs for as many steps.
LABELS = {
    "10 labels a class": ("digits:train[10shot,seed={seed}]", "duration=200"),
    "all 1,157 labels": ("digits:train", "duration=80 epochs"),
}


def quickstart(
    folder: str | Path = "runs/quickstart", *, force: bool = False, listener: Listener | None = None
) -> dict[str, Any]:
    """Return the accuracy on digits' test split of a pre-trained model and of the same from scratch."""
    folder, listener = Path(folder), listener or Silent()

    def run(name: str, recipe: str, *changes: str) -> TrainResult:
        listener.note(f"\n{name}: vit train {recipe} {' '.join(changes)}".rstrip())
        result = train(recipe, changes, run=str(folder / name), device="cpu", force=force, listener=listener)
        assert result is not None  # one process
        if result.status == "stopped":
            listener.note("stopped; the same command goes on")
            raise KeyboardInterrupt
        return result

    run("shapes", "shapes", "duration=2.5 epochs")
    rows: list[dict[str, Any]] = []
    for labels, (data, duration) in LABELS.items():
        found: dict[str, list[float]] = {"pre-trained": [], "scratch": []}
        for seed in SEEDS if "{seed}" in data else SEEDS[:1]:
            for start, accuracies in found.items():
                changes = [f"data.train={data.format(seed=seed)}", duration, f"seed={seed}"]
                if start == "pre-trained":
                    changes.append(f"model.name={folder / 'shapes'}")
                name = f"digits-{start}-{labels.split()[0]}-{seed}"
                accuracies.append(run(name, "digits", *changes).metrics["test/accuracy"] or 0.0)
        means = {start: statistics.mean(accuracies) for start, accuracies in found.items()}
        rows.append({"labels": labels, "seeds": len(found["scratch"]), **means})
    model = folder / f"digits-pre-trained-all-{SEEDS[0]}"
    return {
        "accuracy": rows,
        "model": str(model / "model"),
        "next": [
            f"vit report {model}",
            "vit data digits:test --out digits.png",
            "vit train cifar10_cct7 --explain",
        ],
    }
