"""Folders of finished studies, written without training: what a run leaves behind, and accuracies that follow a rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from vitkit.config import to_dict, write_yaml
from vitkit.runs import CONFIG
from vitkit.studies.config import MeasureConfig, Study, StudyRun

TEXT = """\
# Two families at every compute.
recipe: digits
settings: {data.train: './nowhere:train'}
data_images: 1000
grid:
  model:
    ViT: {group: ViT, model.name: Ti/16}
    ResNet: {group: ResNet, recipe: shapes}
  size: {S: {optimizer.weight_decay: 0.1}, M: {optimizer.weight_decay: 0.2}, L: {optimizer.weight_decay: 0.3}}
  duration: [100, 200, 400, 800]
  seed: [0, 1]
measure:
  - {by: fewshot, data: cifar10, shots: 5, name: CIFAR-10 5-shot}
  - {by: finetune, data: cifar100, name: CIFAR-100 fine-tuning}
figures: [compute, laws, images]
tables: [[model, size], [duration]]
"""
SIZES = {"S": 1, "M": 4, "L": 16}


def write_run(
    path: Path,
    run: StudyRun,
    measures: tuple[MeasureConfig, ...],
    accuracies: tuple[float, ...],
    *,
    exaflops: float,
    parameters: int,
    images: int = 1000,
    status: str = "done",
) -> None:
    """Write what a finished run leaves behind, weights aside."""
    (path / "measured").mkdir(parents=True)
    steps = int(run.config.duration)
    record = {
        "status": status,
        "step": steps,
        "steps": steps,
        "seconds": 36.0,
        "message": "" if status == "done" else "the reason",
        "best": None,
        "cost": {"parameters": parameters, "exaflops": exaflops},
        "data": {"images": images, "classes": 10},
        "environment": {"processes": 1},
    }
    (path / "run.json").write_text(json.dumps(record))
    (path / CONFIG).write_text(write_yaml(to_dict(run.config)))
    line = {"step": steps, "loss": 1.0, "images_per_second": 500.0, "learning_rate": 0.1}
    (path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    for measure, accuracy in zip(measures, accuracies, strict=True):
        found = {"measure": to_dict(measure), "accuracy": accuracy, "std": None, "seconds": 1.0}
        (path / "measured" / f"{measure.word}.json").write_text(json.dumps(found))


def write_study(study: Study, folder: Path, error: Callable[[StudyRun, float], float]) -> None:
    """Write all runs of a study such as TEXT; `error` follows from the run and its exaFLOPs."""
    for run in study.runs:
        size = SIZES[run.labels["size"]]
        exaflops = size * int(run.labels["duration"]) * 1e-3
        lost = error(run, exaflops)
        write_run(
            folder / run.name,
            run,
            study.config.measure,
            (1 - lost, 1 - lost / 2),
            exaflops=exaflops,
            parameters=1000 * size,
        )
