"""The loop on a GPU: it learns what it learns on a processor, compiled, as a graph, in parts, and resumed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.training import tiny_runs
from vitkit.runs import read_record

HERE = Path(__file__).parent
# Heads of 32, which the GPU has kernels for; the updates of plain SGD are as alike as the gradients.
WIDER = ("model.width=64", "model.patch=2", "optimizer={name: sgd, learning_rate: 0.1, momentum: 0.9}")
RANDOM = ("model.dropout=0.1", "model.attention_dropout=0.1", "model.stochastic_depth=0.2")
UNLABELLED = "data.pipeline=pad_crop(1)|flip"
PATCHES = ("objective=masked_patches", UNLABELLED)
MAE = ("objective={name: mae, decoder_width: 32, decoder_depth: 1}", UNLABELLED)
CHANGES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "from the device": ("data.cache=device",),
    "compiled": ("compile=true",),
    "as a graph": ("compile=graphs", "optimizer.clip_norm=0.1"),
    "as a graph, some frozen": ("compile=graphs", "optimizer.freeze=[blocks.0.*]"),
    "as a graph, recomputed": ("compile=graphs", "activation_checkpointing=true"),
    "as a graph, masked patches": ("compile=graphs", *PATCHES),
    "as a graph, mae": ("compile=graphs", *MAE),
    "in parts that fit": ("micro_batch=auto",),
    "recomputed": ("activation_checkpointing=true",),
}
pytestmark = pytest.mark.gpu


def weights(path: Path, *changes: str, device: str) -> Tensor:
    """Return what a run ends with: all weights in a row."""
    tiny_runs.run_tiny(path, *changes, device=device)
    found = sorted(tiny_runs.tensors(path).items())
    return torch.cat([tensor.double().flatten() for name, tensor in found if name.startswith("objective.")])


@pytest.mark.parametrize("name", CHANGES)
def test_a_gpu_learns_what_a_processor_does(name: str, tmp_path: Path) -> None:
    changes = (*WIDER, *CHANGES[name])
    here = [change for change in changes if not change.startswith(("compile", "micro_batch", "data.cache"))]
    start = weights(tmp_path / "start", *here, "optimizer.learning_rate=1e-12", device="cpu")
    expected = weights(tmp_path / "cpu", *here, device="cpu") - start
    found = weights(tmp_path / "gpu", *changes, device="cuda") - start
    assert (found - expected).norm() < 0.3 * expected.norm()  # in bfloat16


@pytest.mark.parametrize("compiled", ["false", "graphs"])
def test_stopped_and_resumed_on_a_gpu(compiled: str, tmp_path: Path) -> None:
    changes = (*WIDER, *RANDOM, f"compile={compiled}")
    tiny_runs.run_tiny(tmp_path / "straight", *changes, device="cuda")
    stop = {5: lambda: signal.raise_signal(signal.SIGTERM)}
    answer = tiny_runs.run_tiny(tmp_path / "stopped", *changes, device="cuda", at=stop)
    assert (answer.status, answer.step) == ("stopped", 5)
    tiny_runs.run_tiny(tmp_path / "stopped", *changes, device="cuda")
    assert tiny_runs.differences(tmp_path / "stopped", tmp_path / "straight") == []


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_under_torchrun(parallel: str, tmp_path: Path) -> None:
    recipe = tiny_runs.write_recipe(tmp_path)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=1",
        "-m",
        "--",
    ]
    command += [
        "vitkit",
        "train",
        str(recipe),
        *WIDER,
        f"parallel={parallel}",
        "--run",
        str(tmp_path / "run"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_record(tmp_path / "run")["status"] == "done"
