"""Small run folders as training writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml


def training_line(step: int, **changes: Any) -> dict[str, Any]:
    return {
        "step": step,
        "epoch": step / 100,
        "loss": 2.0 / (1 + step / 50),
        "accuracy": 1 - 1 / (1 + step / 50),
        "learning_rate": 1e-3,
        "gradient_norm": 1.3,
        "images_per_second": 900.0,
        "waiting": 0.02,
        "seconds": step * 0.25,
        **changes,
    }


def evaluation_line(step: int, **changes: Any) -> dict[str, Any]:
    accuracy = 1 - 1 / (1 + step / 40)
    return {
        "step": step,
        "epoch": step / 100,
        "val/accuracy": accuracy,
        "val/loss": 1 - accuracy,
        "val_ema/accuracy": accuracy + 0.01,
        "val_ema/loss": 0.9 - accuracy,
        "seconds": step * 0.25,
        **changes,
    }


def write_run(
    path: Path,
    lines: list[dict[str, Any]] | None = None,
    config: dict[str, Any] | None = None,
    tail: str = "",
    **state: Any,
) -> Path:
    """Write a run of 400 steps; `tail` follows the last line of metrics, `state` replaces entries of run.json."""
    if lines is None:
        lines = [training_line(step) for step in range(20, 401, 20)]
        lines += [evaluation_line(step) for step in range(100, 401, 100)]
    path.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines) + tail
    (path / "metrics.jsonl").write_text(text, encoding="utf-8")
    config = config or {
        "model": "Ti/16",
        "data": {"train": "digits:train"},
        "optimizer": {"learning_rate": 0.001},
    }
    (path / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    document = {
        "name": path.name,
        "status": "done",
        "step": 400,
        "steps": 400,
        "command": f"vit train digits --run {path.name}",
        "started": "2026-03-01T12:00:11+00:00",
        "updated": "2026-03-01T12:14:02+00:00",
        "seconds": 3905.0,
        "environment": {"device": "NVIDIA H200", "torch": "2.11.0"},
        "micro_batch": None,
        "best": {"metric": "val_ema/accuracy", "value": 0.919, "step": 400},
        "cost": {"parameters": 5_717_416, "exaflops": 0.0451},
        "message": "",
        **state,
    }
    (path / "run.json").write_text(json.dumps(document), encoding="utf-8")
    return path
