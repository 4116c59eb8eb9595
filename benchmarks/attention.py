"""Attention beyond all pairs: time and memory against the number of tokens, and a study of accuracy on CIFAR-100.

    python benchmarks/attention.py time --device cpu
    python benchmarks/attention.py time --device cuda [--compile]
    python benchmarks/attention.py steps --device cuda
    python benchmarks/attention.py study --data cifar100 --device cuda
    python benchmarks/attention.py show

`time` measures one attention module, projections included, for square grids of patches, in rounds that interleave the
kinds. `steps` measures training steps of the study's model. `study` trains that model with each kind and seed, all at
the same time, each in its own process; the same command resumes. `show` draws the figure and prints the tables of all
results so far.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from vitkit.config import merge
from vitkit.doctor import cpu_name
from vitkit.models import create_model
from vitkit.models.attention import build_attention
from vitkit.models.attention.attention import Attention, join_heads, unpack
from vitkit.models.configs import Preprocessing, ViTConfig
from vitkit.objectives.supervised import Supervised
from vitkit.training.optimizers import OptimizerConfig, build_optimizer

RESULTS = Path(__file__).parents[1] / "docs" / "results"
KINDS = ("full", "axial", "local", "sparse", "linformer", "reformer")
DENSE = "dense"
"Full attention that builds the matrix of all pairs."
SIDES = (14, 24, 32, 48, 64, 96, 128)
WIDTH, HEADS = {"cpu": 192, "cuda": 768}, {"cpu": 3, "cuda": 12}
TOKENS = {"cpu": 1, "cuda": 65536}
"Tokens in a batch: as many images as make these, at least one."
MOST_DENSE = {"cpu": 4096, "cuda": 9216}
STUDY = {
    "name": "Ti/16",
    "image_size": 64,
    "patch": 2,
    "width": 128,
    "depth": 6,
    "heads": 4,
    "mlp_width": 512,
    "pool": "mean",
    "positions": "sincos_2d",
    "num_classes": 100,
}


class Dense(nn.Module):
    """The same function as full attention, without a fused kernel."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = unpack(self.attention.project(x))
        return self.attention.proj(join_heads(self.attention.weights(q, k) @ v))


class Axial(nn.Module):
    """Both attentions of an axial block."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.rows, self.columns = build_attention(config, "rows"), build_attention(config, "columns")

    def forward(self, x: Tensor) -> Tensor:
        return self.columns(self.rows(x))


def module(kind: str, side: int, device: str) -> nn.Module:
    config = ViTConfig(
        image_size=side, patch=1, width=WIDTH[device], heads=HEADS[device],
        attention="full" if kind == DENSE else kind,  # type: ignore[arg-type]
    )  # fmt: skip
    torch.manual_seed(0)
    if kind == "axial":
        return Axial(config)
    attention = build_attention(config)
    return Dense(attention) if kind == DENSE else attention


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(call: Callable[[], object], device: str, at_least: float) -> float:
    """Return the mean time of a call, repeated for at least this long."""
    synchronize(device)
    began, calls = time.perf_counter(), 0
    while not calls or time.perf_counter() - began < at_least:
        call()
        calls += 1
        synchronize(device)
    return (time.perf_counter() - began) / calls


def measure_side(side: int, device: str, rounds: int, compiled: bool) -> list[dict[str, Any]]:
    """Return a row for each kind at one number of tokens."""
    tokens = side * side + 1
    images = max(1, round(TOKENS[device] / tokens))
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    kinds = [kind for kind in (*KINDS, DENSE) if kind != DENSE or side * side <= MOST_DENSE[device]]
    if compiled:
        kinds.remove(DENSE)
    calls: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for kind in kinds:
        torch.manual_seed(0)
        attention: Any = module(kind, side, device).to(device, dtype)
        if compiled:
            attention.compile(dynamic=False)
        x = torch.randn(images, tokens, WIDTH[device], device=device, dtype=dtype)

        def forward(attention: nn.Module = attention, x: Tensor = x) -> None:
            with torch.no_grad():
                attention(x)

        def both(attention: nn.Module = attention, x: Tensor = x) -> None:
            attention(x.requires_grad_()).sum().backward()
            x.grad = None
            for parameter in attention.parameters():
                parameter.grad = None

        rows[kind] = {"kind": kind, "tokens": tokens, "images": images}
        try:
            forward(), both()
            rows[kind]["peak_bytes"] = peak_bytes(both, device)
            calls[kind] = forward, both
        except torch.OutOfMemoryError:
            rows[kind]["out_of_memory"] = True
    times: dict[str, list[list[float]]] = {kind: [[], []] for kind in calls}
    for number in range(rounds):
        for kind in sorted(calls, reverse=number % 2 == 1):
            for place, call in enumerate(calls[kind]):
                times[kind][place].append(seconds(call, device, 0.02 if device == "cuda" else 0.1))
    for kind, (forwards, backwards) in times.items():
        rows[kind]["forward_ms"] = 1000 * statistics.median(forwards) / images
        rows[kind]["training_ms"] = 1000 * statistics.median(backwards) / images
    return list(rows.values())


def peak_bytes(call: Callable[[], object], device: str) -> int | None:
    """Return the most memory that a call takes beyond what is there before it, for the whole batch."""
    if device != "cuda":
        return None
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def time_kinds(arguments: argparse.Namespace) -> None:
    device = arguments.device
    rows = []
    for side in arguments.sides:
        torch._dynamo.reset()
        rows += measure_side(side, device, arguments.rounds, arguments.compile)
        for row in rows[-len(KINDS) - 1 :]:
            print(json.dumps(row), flush=True)
        save(
            f"time_{device}{'_compiled' if arguments.compile else ''}",
            {"width": WIDTH[device], "heads": HEADS[device], "rows": rows},
            device,
        )


def settings(kind: str) -> dict[str, Any]:
    """Return the study's model with one kind of attention; an axial block is two layers."""
    depth = {"depth": STUDY["depth"] // 2} if kind == "axial" else {}  # type: ignore[operator]
    return {**STUDY, **depth, "attention": kind}


def training_step(kind: str, images: int, device: str) -> Callable[[], None]:
    name, own = "Ti/16", {key: value for key, value in settings(kind).items() if key != "name"}
    torch.manual_seed(0)
    model = create_model(name, **own)
    objective = Supervised(model, Preprocessing(), sigmoid=False, label_smoothing=0.0).to(device).train()
    objective.dtype = torch.bfloat16 if device == "cuda" else torch.float32
    objective.compile(dynamic=False)
    optimizer = build_optimizer(model, OptimizerConfig(weight_decay=0.05))
    batch = {
        "image": torch.randint(0, 256, (images, 3, 64, 64), dtype=torch.uint8, device=device),
        "label": torch.randint(0, 100, (images,), device=device),
    }

    def step() -> None:
        loss, _ = objective(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def measure_steps(arguments: argparse.Namespace) -> None:
    """Training images per second and memory of the study's model, in rounds that interleave the kinds."""
    device, images = arguments.device, arguments.batch
    steps, rows = {}, {}
    for kind in arguments.kinds:
        step = training_step(kind, images, device)
        for _ in range(3):
            step()
        rows[kind] = {"kind": kind, "peak_bytes": peak_bytes(step, device)}
        steps[kind] = step
        print(f"{kind} compiled", flush=True)
    rates: dict[str, list[float]] = {kind: [] for kind in steps}
    for number in range(arguments.rounds):
        for kind in sorted(steps, reverse=number % 2 == 1):
            rates[kind].append(images / seconds(steps[kind], device, 0.5))
    for kind, values in rates.items():
        rows[kind]["images_per_second"] = statistics.median(values)
        rows[kind]["rounds"] = values
        print(json.dumps(rows[kind]), flush=True)
    save("steps", {"batch_size": images, "model": STUDY, "rows": list(rows.values())}, device)


def recipe(arguments: argparse.Namespace, kind: str) -> dict[str, Any]:
    on_gpu = arguments.device == "cuda"
    found = {
        "model": settings(kind),
        "data": {
            "train": f"{arguments.data}:train",
            "evaluate": f"{arguments.data}:test",
            "pipeline": "inception_crop(64,0.4,1.0)|flip",
            "cache": "device" if on_gpu else "none",
        },
        "duration": arguments.steps,
        "batch_size": 128,
        "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.05, "clip_norm": 1.0},
        "schedule": {"warmup": "10%"},
        "select": "last",
        "compile": on_gpu,
        "log_every": "10%",
        "evaluate_every": "100%",
        "checkpoint_every": "20%",
    }
    return merge(found, arguments.set)


def study(arguments: argparse.Namespace) -> None:
    """Train each kind with each seed, all at once; a run that is finished is only read."""
    arguments.runs.mkdir(parents=True, exist_ok=True)
    running = {}
    for kind in arguments.kinds:
        file = arguments.runs / f"{kind}.yaml"
        file.write_text(
            f"# benchmarks/attention.py study\n{yaml.safe_dump(recipe(arguments, kind), sort_keys=False)}"
        )
        for seed in arguments.seeds:
            name = f"{kind}-{seed}"
            command = [
                *(sys.executable, "-m", "vitkit", "train", str(file), f"seed={seed}"),
                *("--run", str(arguments.runs / name), "--device", arguments.device, "--json"),
            ]  # fmt: skip
            log = open(arguments.runs / f"{name}.log", "w")  # noqa: SIM115
            out = open(arguments.runs / f"{name}.json", "w")  # noqa: SIM115
            threads = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "2"}
            running[kind, seed] = subprocess.Popen(command, stdout=out, stderr=log, env=threads)
            if not arguments.together:
                running[kind, seed].wait()
    rows, failed = [], []
    for (kind, seed), process in running.items():
        process.wait()
        text = (arguments.runs / f"{kind}-{seed}.json").read_text()
        with contextlib.suppress(json.JSONDecodeError):
            result = json.loads(text)
            if result["status"] == "done":
                rows.append(
                    {
                        "kind": kind,
                        "seed": seed,
                        "accuracy": result["metrics"]["test/accuracy"],
                        "seconds": result["seconds"],
                    }
                )
                print(json.dumps(rows[-1]), flush=True)
                continue
        failed.append(f"{kind}-{seed}")
    save(
        "study",
        {
            "recipe": recipe(arguments, "full"),
            "rows": rows,
        },
        arguments.device,
    )
    if failed:
        sys.exit(f"not finished: {', '.join(failed)}; the same command resumes")


def save(name: str, found: dict[str, Any], device: str) -> None:
    """Put a part of the results into attention.json."""
    file = RESULTS / "attention.json"
    known = json.loads(file.read_text()) if file.is_file() else {}
    known[name] = {
        "command": shlex.join(["python", "benchmarks/attention.py", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "machine": torch.cuda.get_device_name() if device == "cuda" else cpu_name(),
        "threads": None if device == "cuda" else torch.get_num_threads(),
        "torch": torch.__version__,
        **found,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(known, indent=1) + "\n")


def show(arguments: argparse.Namespace) -> None:
    """Draw time against tokens, and print the tables of docs/results/attention.md."""
    known = json.loads((RESULTS / "attention.json").read_text())
    for name in ("time_cpu", "time_cuda", "time_cuda_compiled"):
        if name in known:
            for measure in ("forward_ms", "training_ms", "peak_bytes"):
                print(f"\n{name} {measure}\n{time_table(known[name]['rows'], measure)}")
    if "study" in known:
        print(study_table(known))
    draw(known, RESULTS / "attention.png")


def time_table(rows: list[dict[str, Any]], measure: str) -> str:
    tokens = sorted({row["tokens"] for row in rows})
    cells = {(row["kind"], row["tokens"]): row.get(measure) for row in rows}
    scale = 2**20 if measure == "peak_bytes" else 1
    images = {row["tokens"]: row["images"] if measure == "peak_bytes" else 1 for row in rows}

    def cell(kind: str, count: int) -> str:
        value = cells.get((kind, count))
        if value is None:
            return ""
        value /= scale * images[count]
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"

    lines = [f"| tokens | {' | '.join(f'{count:,}' for count in tokens)} |", "|---|" + "---:|" * len(tokens)]
    for kind in (*KINDS, DENSE):
        lines.append(f"| {kind} | {' | '.join(cell(kind, count) for count in tokens)} |")
    return "\n".join(lines)


def study_table(known: dict[str, Any]) -> str:
    speeds = {row["kind"]: row for row in known.get("steps", {"rows": []})["rows"]}
    lines = ["| attention | accuracy | images/s | memory, GiB |", "|---|---:|---:|---:|"]
    for kind in KINDS:
        values = [100 * row["accuracy"] for row in known["study"]["rows"] if row["kind"] == kind]
        if len(values) > 1:
            accuracy = f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"
            speed = speeds.get(kind, {})
            memory = (speed.get("peak_bytes") or 0) / 2**30
            lines.append(f"| {kind} | {accuracy} | {speed.get('images_per_second', 0):,.0f} | {memory:.1f} |")
    return "\n".join(lines)


def draw(known: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = {
        "time_cpu": "two CPU cores, float32",
        "time_cuda": "one H200, bfloat16",
        "time_cuda_compiled": "one H200, compiled",
    }
    panels = [name for name in names if name in known]
    figure, axes = plt.subplots(1, len(panels), figsize=(5.2 * len(panels), 4.2), squeeze=False)
    for axis, name in zip(axes[0], panels, strict=True):
        for kind in (*KINDS, DENSE):
            rows = [row for row in known[name]["rows"] if row["kind"] == kind and "training_ms" in row]
            style = "--" if kind == DENSE else "-"
            label = {"full": "full (fused)", DENSE: "full (unfused)"}.get(kind, kind)
            tokens, times = [row["tokens"] for row in rows], [row["training_ms"] for row in rows]
            axis.plot(tokens, times, style, marker="o", markersize=3, label=label)
        axis.set(xscale="log", yscale="log", xlabel="tokens", title=names[name])
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("forward and backward, ms an image")
    axes[0][-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("what", choices=["time", "steps", "study", "show"])
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--sides", nargs="*", type=int, default=list(SIDES), help="patches along each side")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--batch", type=int, default=256, help="images of a training step")
    parser.add_argument("--data", default="cifar100", help="DATA with train and test, without its split")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--together", action="store_true", help="all runs at once, for a large GPU")
    parser.add_argument("--set", nargs="*", default=[], help="settings of all runs, key=value")
    parser.add_argument("--runs", type=Path, default=Path("runs/attention"))
    arguments = parser.parse_args()
    {"time": time_kinds, "steps": measure_steps, "study": study, "show": show}[arguments.what](arguments)


if __name__ == "__main__":
    main()
