"""The loop on a GPU: it learns what it learns on a processor, compiled, as a graph, in parts, and resumed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest
import torch

from vitkit.train.runs import read_record

HERE = Path(__file__).parent
TINY = run_path(str(HERE / "tiny_runs.py"))
WIDER = ("model.width=64", "model.patch=2")  # heads of 32, which the GPU has kernels for
RANDOM = ("model.dropout=0.1", "model.attention_dropout=0.1", "model.stochastic_depth=0.2")
PATCHES = ("objective=masked_patches", "data.pipeline=pad_crop(1)|flip")
CHANGES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "from the device": ("data.cache=device",),
    "compiled": ("compile=true",),
    "as a graph": ("compile=graphs",),
    "as a graph, clipped, without labels": ("compile=graphs", *PATCHES),
    "in parts that fit": ("micro_batch=auto",),
    "recomputed": ("activation_checkpointing=true",),
}
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", CHANGES)
def test_a_gpu_learns_what_a_processor_does(name: str, tmp_path: Path) -> None:
    changes = (*WIDER, *CHANGES[name])
    here = [change for change in changes if not change.startswith(("compile", "micro_batch", "data.cache"))]
    TINY["run_tiny"](tmp_path / "cpu", *here)
    TINY["run_tiny"](tmp_path / "gpu", *changes, device="cuda")
    for ours, theirs in zip(TINY["lines"](tmp_path / "gpu"), TINY["lines"](tmp_path / "cpu"), strict=True):
        for key in ("loss", "test/loss"):
            if key in theirs:
                assert ours[key] == pytest.approx(theirs[key], rel=0.03)


@pytest.mark.parametrize("compiled", ["false", "graphs"])
def test_stopped_and_resumed_on_a_gpu(compiled: str, tmp_path: Path) -> None:
    changes = (*WIDER, *RANDOM, f"compile={compiled}")
    TINY["run_tiny"](tmp_path / "straight", *changes, device="cuda")
    stop = {5: lambda: signal.raise_signal(signal.SIGTERM)}
    answer = TINY["run_tiny"](tmp_path / "stopped", *changes, device="cuda", at=stop)
    assert (answer["status"], answer["step"]) == ("stopped", 5)
    TINY["run_tiny"](tmp_path / "stopped", *changes, device="cuda")
    for ours, theirs in zip(
        *(TINY["lines"](tmp_path / name) for name in ("stopped", "straight")), strict=True
    ):
        assert ours == pytest.approx(theirs, rel=2e-3, abs=2e-3)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_under_torchrun(parallel: str, tmp_path: Path) -> None:
    recipe = TINY["write_recipe"](tmp_path)
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
