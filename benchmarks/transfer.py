"""Transfer of a trained model on one GPU: frozen features, fine-tuning, the same model from scratch, and speed.

    python benchmarks/transfer.py Ti/16@weights.safetensors ./cifar10 ./cifar100 --steps 5000

Results are written after each part; the same command resumes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from vitkit.evaluation.fewshot import fewshot
from vitkit.evaluation.knn import knn
from vitkit.evaluation.probe import probe
from vitkit.runs.reading import read_metrics
from vitkit.training.build import build
from vitkit.training.loop import train_step
from vitkit.training.optimizers import set_learning_rate
from vitkit.transfer.finetune import finetune
from vitkit.transfer.plan import make_plan
from vitkit.world import World

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "transfer.json"
SETTINGS = ["protocol=paper", "data.cache=device", "compile=graphs"]


def settings(arguments: argparse.Namespace) -> list[str]:
    length = [f"duration={arguments.steps}"] if arguments.steps else []
    return [*SETTINGS, f"image_size={arguments.image_size}", *length, *arguments.set]


def frozen(arguments: argparse.Namespace, data: str) -> dict[str, Any]:
    """Return few-shot, nearest-neighbour and probe accuracy."""
    options: dict[str, Any] = {"batch_size": 256, "device": arguments.device}
    return {
        "fewshot": fewshot(arguments.model, data, **options).to_json(),
        "knn": knn(arguments.model, data, k=[10, 20, 50], **options).to_json(),
        "probe": probe(arguments.model, data, **options).to_json(),
    }


def tuned(arguments: argparse.Namespace, data: str, model: str) -> dict[str, Any]:
    """Fine-tune or train from scratch, and return the result; the run is kept in --runs."""
    start = "trained" if model == arguments.model else "scratch"
    run = str(Path(arguments.runs, f"{Path(data).name}-{start}").absolute())
    result = finetune(model, data, settings(arguments), run=run, device=arguments.device)
    keys = ("status", "accuracy", "steps", "batch_size", "learning_rate", "seconds", "measured_on")
    metrics = read_metrics(Path(run, "seed-0/run"))
    rates = [line["images_per_second"] for line in metrics if "images_per_second" in line]
    return {
        **{key: getattr(result, key) for key in keys},
        "images_per_second": sorted(rates)[len(rates) // 2],
    }


def speed(arguments: argparse.Namespace, data: str, steps: int = 40, rounds: int = 5) -> dict[str, Any]:
    """Return images per second of training with real batches and with one repeated batch, interleaved."""
    plan = make_plan(arguments.model, data, settings(arguments), arguments.device)
    config = plan.config(plan.whole)
    world = World(0, 1, torch.device(arguments.device))
    parts = build(config, world, plan.inputs(plan.whole))
    still = parts.loader[0]
    real = parts.loader.steps(0, 10**6)
    batches: dict[str, Callable[[], Any]] = {"synthetic": lambda: still, "real": lambda: next(real)}
    set_learning_rate(parts.optimizer, 1e-6)
    wait = torch.cuda.synchronize if world.device.type == "cuda" else lambda: None
    found: dict[str, list[float]] = {name: [] for name in batches}
    for turn in range(rounds + 1):
        for name, batch in batches.items():
            wait()
            began = time.perf_counter()
            for step in range(steps):
                train_step(config, parts, batch(), step, config.batch_size, world)
            wait()
            if turn:  # the first warms up
                found[name].append(steps * config.batch_size / (time.perf_counter() - began))
    medians = {name: sorted(values)[len(values) // 2] for name, values in found.items()}
    return {**medians, "share": medians["real"] / medians["synthetic"], "rounds": found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("data", nargs="+")
    parser.add_argument("--steps", type=int, help="number of steps, instead of the protocol's")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--set", nargs="*", default=[], help="key=value for fine-tuning")
    parser.add_argument("--parts", nargs="*", default=["frozen", "speed", "trained", "scratch"])
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    known = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    makers: dict[str, Callable[[str], dict[str, Any]]] = {
        "frozen": lambda data: frozen(arguments, data),
        "speed": lambda data: speed(arguments, data),
        "trained": lambda data: tuned(arguments, data, arguments.model),
        "scratch": lambda data: tuned(arguments, data, arguments.model.partition("@")[0]),
    }
    for data in arguments.data:
        for part in arguments.parts:
            key = f"{Path(data).name}/{part}"
            before = known.get(key, {"status": "stopped"})
            if before.get("status") != "stopped" and before["settings"] == settings(arguments):
                continue
            began = time.perf_counter()
            result = makers[part](data)
            seconds = time.perf_counter() - began
            known[key] = {**result, "wall_seconds": seconds, "settings": settings(arguments)}
            known["environment"] = {
                "device": torch.cuda.get_device_name() if arguments.device == "cuda" else arguments.device,
                "torch": torch.__version__,
                "date": datetime.date.today().isoformat(),
            }
            arguments.out.write_text(json.dumps(known, indent=1) + "\n")
            print(
                key,
                json.dumps({k: v for k, v in known[key].items() if isinstance(v, float | int | str)}),
                flush=True,
            )


if __name__ == "__main__":
    main()
