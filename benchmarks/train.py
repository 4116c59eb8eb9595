"""Training throughput of our model and timm's, interleaved in one run: bf16, compiled, synthetic input.

Both take the same step: uint8 images normalised on the device, softmax cross-entropy, gradient norm clipped to 1, fused
AdamW. timm's model runs under autocast, as in timm's trainer; ours runs as in `vit train`.

    python benchmarks/train.py --models B/16 L/16
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F

from vitkit.costs import cost_of
from vitkit.models import create_model
from vitkit.models.configs import Preprocessing
from vitkit.models.names import model_config, other_name
from vitkit.objectives.supervised import Supervised
from vitkit.training.estimate import matrix_rate
from vitkit.training.optimizers import OptimizerConfig, build_optimizer, clip_gradients

RESULTS = Path(__file__).parents[1] / "docs" / "results"
BATCHES = {"B/16": 256, "L/16": 128, "H/14": 64}
Step = Callable[[], None]


def ours(name: str, batch: dict[str, torch.Tensor]) -> Step:
    """Return our training step."""
    model = create_model(name)
    objective = Supervised(model, Preprocessing(), sigmoid=False, label_smoothing=0.0).cuda().train()
    objective.dtype = torch.bfloat16
    objective.compile(dynamic=False)
    optimizer = build_optimizer(model, OptimizerConfig(weight_decay=0.1))

    def step() -> None:
        loss, _ = objective(batch)
        loss.backward()
        clip_gradients(optimizer, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def timms(name: str, batch: dict[str, torch.Tensor]) -> Step:
    """Return the same step with timm's model."""
    other = other_name(name)
    assert other is not None
    model = timm.create_model(other).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1, fused=True)

    @torch.compile(dynamic=False)
    def loss_of(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            logits = model((images.float() - 127.5) / 127.5)
        return F.cross_entropy(logits.float(), labels)

    def step() -> None:
        loss_of(batch["image"], batch["label"]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def rate(step: Step, images: int, steps: int) -> float:
    """Return images per second over some steps."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return images * steps / (time.perf_counter() - began)


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Return the median rates of both over interleaved rounds."""
    count = BATCHES[name]
    config = model_config(name)
    images = torch.randint(0, 256, (count, 3, *config.size), dtype=torch.uint8, device="cuda")
    batch = {"image": images, "label": torch.randint(0, 1000, (count,), device="cuda")}
    torch._dynamo.reset()
    steps = {"vitkit": ours(name, batch), "timm": timms(name, batch)}
    for step in steps.values():
        rate(step, count, 5)  # compiles and warms up
    rates: dict[str, list[float]] = {peer: [] for peer in steps}
    for number in range(rounds):
        for peer in sorted(steps, reverse=number % 2 == 1):
            rates[peer].append(rate(steps[peer], count, 20))
        print(
            f"{name} round {number + 1}: " + ", ".join(f"{p} {r[-1]:,.0f}/s" for p, r in rates.items()),
            file=sys.stderr,
        )
    medians = {peer: statistics.median(values) for peer, values in rates.items()}
    pairs = zip(rates["vitkit"], rates["timm"], strict=True)
    return {
        "batch_size": count,
        "images_per_second": medians,
        "ratio_to_timm": statistics.median(own / other for own, other in pairs),
        "teraflops_per_second": medians["vitkit"] * 6 * cost_of(config).macs / 1e12,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["B/16"], choices=list(BATCHES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    result = {
        "command": "python benchmarks/train.py " + " ".join(sys.argv[1:]),
        "date": datetime.date.today().isoformat(),
        "machine": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "matrix_teraflops_per_second": matrix_rate(torch.device("cuda"), torch.bfloat16) / 1e12,
        "models": {name: measure(name, arguments.rounds) for name in arguments.models},
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "train_speed.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
