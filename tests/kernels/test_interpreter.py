"""Without a GPU the kernels run in Triton's interpreter, in a process of its own, where the `interpreted` tests exist.

The interpreter must be switched on before Triton is imported.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="this is that process")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_kernels_in_the_interpreter() -> None:
    options = ("-q", "-p", "no:cacheprovider", "-k", "interpreted")
    command = [sys.executable, "-m", "pytest", *options, str(Path(__file__).parent)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and "skipped" not in done.stdout
