"""Pre-training without labels on one GPU: masked patches and MAE, then fine-tuning on few and on all labels.

    python benchmarks/selfsup.py --data cifar10 --together
    python benchmarks/selfsup.py --data digits --device cpu --steps 200 --finetune-steps 100 --seeds 0 1 \
        --model image_size=8 patch=2 width=32 depth=2 heads=2 mlp_width=64

Both objectives see the training images, but never their labels. Each pre-trained model and one from scratch are fine-tuned
with the same settings and steps, and measured on the test split once, at the end. A seed applies to everything:
pre-training, the choice of labels, and fine-tuning. Results are written after each part; the same command resumes.
--together trains all seeds at once, each in its own process, since a small model leaves most of a GPU idle.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from vitkit import train
from vitkit.config import merge
from vitkit.progress import Lines
from vitkit.world import World

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "selfsup.json"
MODEL = {
    "name": "Ti/16",
    "image_size": 32,
    "patch": 4,
    "width": 192,
    "depth": 12,
    "heads": 3,
    "mlp_width": 768,
    "pool": "mean",
    "positions": "sincos_2d",
}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "masked_patches": {"name": "masked_patches"},
    "mae": {"name": "mae", "decoder_width": 96, "decoder_depth": 4},
}
# The shifts of the published RandAugment can erase images of 32 pixels completely.
RANDAUGMENT = "timm_randaugment(rand-m9-mstd0.5-inc1)"
STARTS = (*OBJECTIVES, "scratch")
SHARES = ("1%", "10%", "100%")


def recipes(arguments: argparse.Namespace) -> dict[str, Path]:
    """Write the settings of pre-training and of fine-tuning as recipes; return their files."""
    model = merge({"model": MODEL}, [f"model.{change}" for change in arguments.model])["model"]
    size = model["image_size"]
    on_gpu = arguments.device == "cuda"
    shared: dict[str, Any] = {
        "schedule": {"warmup": "5%"},
        "select": "last",
        "compile": "graphs" if on_gpu else False,
        "log_every": "5%",
        "checkpoint_every": "20%",
    }
    cache = "device" if on_gpu else "none"
    found = {
        "pretrain": {
            "model": model,
            "data": {
                "train": f"{arguments.data}:train",
                "evaluate": f"{arguments.data}:test",
                "pipeline": f"inception_crop({size},0.5,1.0)|flip",
                "cache": cache,
            },
            "duration": arguments.steps,
            "batch_size": 512,
            "optimizer": {
                "learning_rate": 1e-3,
                "weight_decay": 0.05,
                "betas": [0.9, 0.95],
                "clip_norm": 1.0,
            },
            "evaluate_every": "20%",
            **shared,
        },
        "finetune": {
            "model": model,
            "data": {
                "train": f"{arguments.data}:train",
                "evaluate": f"{arguments.data}:test",
                "pipeline": f"inception_crop({size},0.5,1.0)|flip|{RANDAUGMENT}|mixup(0.2)",
                "cache": cache,
            },
            "duration": arguments.finetune_steps,
            "batch_size": 256,
            "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.05, "clip_norm": 1.0},
            "evaluate_every": "100%",
            **shared,
        },
    }
    files = {name: arguments.runs / f"{name}.yaml" for name in found}
    arguments.runs.mkdir(parents=True, exist_ok=True)
    for name, settings in found.items():
        text = yaml.safe_dump(merge(settings, arguments.set), sort_keys=False)
        files[name].write_text(f"# {name} of benchmarks/selfsup.py\n{text}")
    return files


def known_results(arguments: argparse.Namespace, files: Mapping[str, Path]) -> dict[str, Any]:
    """Return the results so far and the settings; refuse to overwrite results of other settings."""
    known: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    settings = {name: yaml.safe_load(file.read_text()) for name, file in files.items()}
    settings["objectives"] = OBJECTIVES
    if known.get("settings", settings) != settings:
        sys.exit(f"{arguments.out} has results of other settings: choose another file with --out")
    return {"parts": {}, **known, "settings": settings}


def run(arguments: argparse.Namespace, recipe: Path, name: str, *changes: str) -> dict[str, Any]:
    """Train to the end; return the result with its command and the time of the whole call."""
    path, began = str(arguments.runs / name), time.perf_counter()
    result = train(recipe, changes, run=path, device=arguments.device, listener=Lines())
    assert result is not None  # one process
    if result.status != "done":
        sys.exit("stopped; the same command resumes")
    command = ["vit", "train", str(recipe), *changes, "--run", path, "--device", arguments.device]
    return {**result.to_json(), "command": shlex.join(command), "wall_seconds": time.perf_counter() - began}


def pretrain(arguments: argparse.Namespace, recipe: Path, start: str, seed: int) -> dict[str, Any]:
    """Pre-train without labels; the last seed's last picture is saved next to the results."""
    words = ", ".join(f"{name}: {value}" for name, value in OBJECTIVES[start].items())
    result = run(arguments, recipe, f"{start}-{seed}", f"objective={{{words}}}", f"seed={seed}")
    picture = arguments.out.with_name(f"{arguments.out.stem}_{start}.png")
    shutil.copyfile(result["pictures"][-1], picture)
    keys = ("command", "steps", "metrics", "seconds", "wall_seconds", "cost")
    return {**{key: result[key] for key in keys}, "picture": picture.name}


def finetune(
    arguments: argparse.Namespace, recipe: Path, start: str, share: str, seed: int
) -> dict[str, Any]:
    """Fine-tune a pre-trained model, or train from scratch, on a share of the labels; each seed has its own labels."""
    part = "" if share == "100%" else f"[:{share},seed={seed}]"
    changes = [f"data.train={arguments.data}:train{part}", f"seed={seed}"]
    if start != "scratch":
        changes.append(f"model={{name: {arguments.runs / f'{start}-{seed}'}}}")
    result = run(arguments, recipe, f"{start}-{share.rstrip('%')}-{seed}", *changes)
    keys = ("command", "steps", "seconds", "wall_seconds")
    return {"accuracy": result["metrics"]["test/accuracy"], **{key: result[key] for key in keys}}


def summary(parts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the mean and sample standard deviation of the accuracies for each start and share."""
    found: dict[str, dict[str, Any]] = {}
    for share in SHARES:
        for start in STARTS:
            prefix = f"{start}/{share}/"
            values = [part["accuracy"] for key, part in sorted(parts.items()) if key.startswith(prefix)]
            if values:
                deviation = statistics.stdev(values) if len(values) > 1 else None
                row = {"mean": statistics.mean(values), "std": deviation, "values": values}
                found.setdefault(share, {})[start] = row
    return found


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the summary as Markdown, in percent."""

    def cell(row: Mapping[str, Any] | None) -> str:
        if row is None:
            return ""
        return f"{row['mean']:.2%}" + ("" if row["std"] is None else f" ± {100 * row['std']:.2f}")

    lines = [f"| labels | {' | '.join(STARTS)} |", "|---|" + "---|" * len(STARTS)]
    lines += [
        f"| {share} | {' | '.join(cell(row.get(start)) for start in STARTS)} |" for share, row in rows.items()
    ]
    return "\n".join(lines)


def train_together(arguments: argparse.Namespace, known: dict[str, Any]) -> None:
    """Run this file once per seed, all at the same time, and merge their results with those so far."""
    given = [word for word in sys.argv[1:] if word != "--together"]
    running: dict[Path, subprocess.Popen[bytes]] = {}
    for seed in arguments.seeds:
        folder = arguments.runs / f"seed-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        own = ["--seeds", str(seed), "--runs", str(folder), "--out", str(folder / arguments.out.name)]
        with open(folder / "log.txt", "a") as log:
            command = [sys.executable, __file__, *given, *own]  # the last of repeated options wins
            running[folder] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        print(f"seed {seed}: {folder / 'log.txt'}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: [process.terminate() for process in running.values()])
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches them too: wait until they end
    undone = [folder for folder, process in running.items() if process.wait()]
    for folder in running:
        file = folder / arguments.out.name
        found = json.loads(file.read_text()) if file.is_file() else {}
        if found.get("settings") == known["settings"]:
            known = {**found, "parts": {**known["parts"], **found["parts"]}}
            for picture in folder.glob("*.png"):
                shutil.copyfile(picture, arguments.out.with_name(picture.name))
    if known["parts"]:
        known |= {"command": command_line(), "accuracy": summary(known["parts"])}
        arguments.out.write_text(json.dumps(known, indent=1) + "\n")
    print(table(summary(known["parts"])))
    if undone:
        logs = ", ".join(str(folder / "log.txt") for folder in undone)
        sys.exit(f"stopped or failed, see {logs}; the same command resumes")


def command_line() -> str:
    return shlex.join(["python", "benchmarks/selfsup.py", *sys.argv[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--data", default="cifar10", help="DATA with train and test, without its split")
    parser.add_argument("--steps", type=int, default=10_000, help="steps of pre-training")
    parser.add_argument("--finetune-steps", type=int, default=5_000)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--together", action="store_true", help="all seeds at once")
    parser.add_argument("--model", nargs="*", default=[], help="settings of the model, key=value")
    parser.add_argument("--set", nargs="*", default=[], help="settings of all runs, key=value")
    words = [*STARTS, *SHARES]
    parser.add_argument(
        "--parts", nargs="*", default=words, choices=words, help="starts and shares of labels"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/selfsup"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    files = recipes(arguments)
    known = known_results(arguments, files)
    if arguments.together:
        return train_together(arguments, known)
    parts: dict[str, Any] = known["parts"]
    known |= {
        "command": command_line(),
        "date": datetime.date.today().isoformat(),
        "machine": World(0, 1, torch.device(arguments.device)).device_name,
        "torch": torch.__version__,
    }
    starts = [start for start in STARTS if start in arguments.parts]
    shares = [share for share in SHARES if share in arguments.parts]
    jobs: list[tuple[Any, ...]] = []
    for seed in arguments.seeds:
        jobs += [("pretrain", start, seed) for start in starts if start in OBJECTIVES]
        jobs += [(start, share, seed) for share in shares for start in starts]
    for job in jobs:
        key = "/".join(map(str, job))
        if key in parts:
            continue
        if job[0] == "pretrain":
            parts[key] = pretrain(arguments, files["pretrain"], *job[1:])
        else:
            parts[key] = finetune(arguments, files["finetune"], *job)
        known["accuracy"] = summary(parts)
        arguments.out.write_text(json.dumps(known, indent=1) + "\n")
        print(f"{key}: {parts[key].get('accuracy', 'done')}, {parts[key]['wall_seconds']:.0f} s", flush=True)
    print(table(summary(parts)))


if __name__ == "__main__":
    main()
