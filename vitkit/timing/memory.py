"""Peak memory of a candidate: in a process of its own on the CPU, where libraries share one; the allocator's on a GPU."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from vitkit.errors import InputError
from vitkit.timing.candidates import Candidate, CandidatePlan, open_plan
from vitkit.timing.peers import PEERS
from vitkit.timing.steps import Step, make_step
from vitkit.timing.ways import Way
from vitkit.training.estimate import matrix_rate

STATUS = Path("/proc/self/status")
PASSES = 3


def resident_growth(candidate: Candidate, batch_sizes: Sequence[int], train: bool) -> dict[int, int]:
    """Return by batch size how far a process's resident memory grows above that after its imports: weights included.

    Loading isn't counted, since it needs more memory for a moment. Without Linux, or for a model that no other process
    can open, there are no figures.
    """
    if candidate.plan is None or not STATUS.exists():
        return {}
    task = {
        "plan": asdict(candidate.plan),
        "batch_sizes": sorted(batch_sizes),
        "num_classes": candidate.network.config.num_classes,
        "train": train,
    }
    answer = subprocess.run(
        [sys.executable, "-m", "vitkit.timing.memory"], input=json.dumps(task), capture_output=True, text=True
    )
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise InputError(f"memory of {candidate.name} can't be measured: {last}")
    return {int(size): peak for size, peak in json.loads(answer.stdout.splitlines()[-1]).items()}


def allocated_peak(candidate: Candidate, step: Step) -> int:
    """Return a candidate's weights plus what a step allocates at most; a GPU holds the other candidates too."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    tensors = (*candidate.network.parameters(), *candidate.network.buffers())
    held = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return torch.cuda.max_memory_allocated() - before + held


def status(field: str) -> int:
    """Return a field of this process's status in bytes; getrusage would include the peak of the process's parent."""
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def forget_peak() -> None:
    """Let the highest resident memory start over; where that isn't allowed, the peak includes loading."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def main() -> None:
    """Read a task and print its peaks as JSON."""
    task = json.load(sys.stdin)
    way = Way(**task["plan"].pop("way"))
    plan = CandidatePlan(
        way, task["plan"]["path"], task["plan"]["is_written"], tuple(task["plan"]["image_size"])
    )
    torch.set_num_threads(way.threads)
    if way.library in PEERS:
        importlib.import_module(PEERS[way.library].module)
    matrix_rate(torch.device("cpu"), torch.float32, seconds=0.0)  # threads and their buffers
    before = status("VmRSS")
    network, peaks = open_plan(plan, task["train"]), dict[int, int]()
    for batch_size in task["batch_sizes"]:
        step = make_step(network, batch_size, task["num_classes"], task["train"])
        step()
        forget_peak()
        for _ in range(PASSES):
            step()
        peaks[batch_size] = max(0, status("VmHWM") - before)
    print(json.dumps(peaks))


if __name__ == "__main__":
    main()
