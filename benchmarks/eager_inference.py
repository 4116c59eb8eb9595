"""Eager CPU inference of ViT-B/16, ours and timm's: speed in interleaved rounds, peak memory in separate processes.

python benchmarks/eager_inference.py [--rounds 20] [--batch-size 8] [--name B/16]
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

import vitkit
from vitkit.doctor import cpu_name

RESULT = Path(__file__).parents[1] / "docs" / "results" / "eager_inference.json"
PEERS = ("vitkit", "timm")


def build(peer: str, name: str) -> torch.nn.Module:
    """Return the same network from either library, with timm's numerics, so both do the same arithmetic."""
    if peer == "timm":
        import timm

        from vitkit.models.names import other_name

        alias = other_name(name)
        assert alias is not None
        return timm.create_model(alias).eval()
    return vitkit.create_model(name, gelu="erf").eval()


def run_once(model: torch.nn.Module, images: torch.Tensor) -> float:
    """Return the seconds of one forward pass."""
    start = time.perf_counter()
    with torch.inference_mode():
        model(images)
    return time.perf_counter() - start


def peak_memory(peer: str, name: str, batch_size: int) -> None:
    """Print the peak resident memory of this process over three passes, in bytes, minus that after imports."""
    import timm  # noqa: F401 (both processes import the same)

    before = memory("VmRSS")
    model, images = build(peer, name), torch.rand(batch_size, 3, 224, 224)
    for _ in range(3):
        run_once(model, images)
    print(memory("VmHWM") - before)


def memory(field: str) -> int:
    """Return a field of this process's status on Linux; getrusage would include the parent's peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--name", default="B/16")
    parser.add_argument("--peak", choices=PEERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        peak_memory(arguments.peak, arguments.name, arguments.batch_size)
        return
    images = torch.rand(arguments.batch_size, 3, 224, 224)
    models = {peer: build(peer, arguments.name) for peer in PEERS}
    models["vitkit"].load_state_dict(models["timm"].state_dict())
    with torch.inference_mode():
        difference = (models["vitkit"](images) - models["timm"](images)).abs().max().item()
    seconds: dict[str, list[float]] = {peer: [] for peer in PEERS}
    for number in range(arguments.rounds):
        order = PEERS if number % 2 == 0 else PEERS[::-1]
        for peer in order:
            seconds[peer].append(run_once(models[peer], images))
        print(
            f"round {number + 1}: " + ", ".join(f"{p} {seconds[p][-1]:.3f} s" for p in PEERS), file=sys.stderr
        )
    ratios = [timm / ours for ours, timm in zip(seconds["vitkit"], seconds["timm"], strict=True)]
    command = [
        sys.executable,
        __file__,
        "--name",
        arguments.name,
        "--batch-size",
        str(arguments.batch_size),
        "--peak",
    ]
    peaks: dict[str, list[int]] = {peer: [] for peer in PEERS}
    for _ in range(7):  # single peaks vary by a tenth
        for peer in PEERS:
            peaks[peer].append(int(subprocess.check_output([*command, peer])))
    memory = {peer: statistics.median(values) for peer, values in peaks.items()}
    result = {
        "command": "python benchmarks/eager_inference.py " + " ".join(sys.argv[1:]),
        "date": datetime.date.today().isoformat(),
        "machine": f"{cpu_name()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "model": arguments.name,
        "batch_size": arguments.batch_size,
        "rounds": arguments.rounds,
        "largest_logit_difference": difference,
        "images_per_second": {
            peer: arguments.batch_size / statistics.median(times) for peer, times in seconds.items()
        },
        "speed_ratio_median": statistics.median(ratios),
        "peak_memory_bytes": memory,
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    for peer in PEERS:
        print(
            f"{peer:8} {result['images_per_second'][peer]:6.2f} images/s  peak {memory[peer] / 1e6:7.1f} MB"  # type: ignore[index]
        )
    print(f"speed relative to timm, median of {arguments.rounds} rounds: {result['speed_ratio_median']:.3f}")


if __name__ == "__main__":
    main()
