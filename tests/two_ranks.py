"""Programs that a test starts, and two that meet as torchrun's do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.distributed import TCPStore

ROOT = Path(__file__).parents[1]


@contextmanager
def started(*commands: list[str], seconds: float = 120) -> Iterator[list[subprocess.Popen[str]]]:
    """Start programs, which must succeed; none outlives the test."""
    processes = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    try:
        yield processes
        for process in processes:
            output, _ = process.communicate(timeout=seconds)
            assert process.returncode == 0, output
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@contextmanager
def two_ranks(*arguments: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Start Python twice, as two processes that `join_world` brings together in a store of this one."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meeting = ["MASTER_ADDR=127.0.0.1", f"MASTER_PORT={store.port}", "TORCHELASTIC_USE_AGENT_STORE=True"]
    shared = ["WORLD_SIZE=2", *meeting, "OMP_NUM_THREADS=1", sys.executable, *arguments]
    with started(*(["env", f"RANK={rank}", f"LOCAL_RANK={rank}", *shared] for rank in range(2))) as ranks:
        yield ranks
