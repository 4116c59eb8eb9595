"""torchrun passes a signal on and kills what has not ended in time: a slow run has saved its last step by then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training import tiny_runs
from vitkit import train
from vitkit.runs import read_record
from vitkit.training import checkpoints

HERE = Path(__file__).parent
SETTINGS = ["duration=400", "log_every=2", "evaluate_every=400", "checkpoint_every=400"]
STEP_SECONDS, PATIENCE_SECONDS = 1.5, 8


class Slow:
    """Makes the steps of a run last, and those of the other process with them."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: time.sleep(STEP_SECONDS) if name == "stepped" else None


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_slow_run_is_saved_before_torchrun_kills_it(sent: signal.Signals, tmp_path: Path) -> None:
    recipe, run = tiny_runs.write_recipe(tmp_path), tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", __file__, str(recipe), str(run)]
    environment = {**os.environ, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(PATIENCE_SECONDS)}
    process = subprocess.Popen(
        command,
        cwd=HERE.parents[1],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        patience = time.monotonic() + 100
        while not (run / "metrics.jsonl").exists():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < patience
            time.sleep(0.05)
        process.send_signal(sent)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode != 0
    record, found = read_record(run), checkpoints.latest(run / "checkpoints", pytest.fail)
    assert found is not None and record["status"] == "stopped", output
    assert record["step"] == found.step in range(2, 5)
    # What docs/train.md asks before a job goes back to the queue.
    assert '"status": "stopped"' in (run / "run.json").read_text()
    again = tiny_runs.Listener({found.step + 1: lambda: signal.raise_signal(signal.SIGTERM)})
    assert train(run, device="cpu", listener=again).step == found.step + 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(sys.argv[1], SETTINGS, run=sys.argv[2], device="cpu", listener=Slow())
