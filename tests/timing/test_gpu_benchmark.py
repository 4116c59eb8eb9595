"""benchmarks/gpu.py runs on a CPU with small models: the same code, every part, and a second run resumes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(out: Path, *words: str) -> str:
    command = [
        sys.executable,
        "benchmarks/gpu.py",
        "--tiny",
        "--out",
        str(out),
        "--results",
        str(out / "gpu.json"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, *words], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_part_runs_and_resumes(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    assert "no time left for bars B/16" in run(tmp_path, "bars", "--minutes", "0")
    run(tmp_path, "bars", "latency", "merge", "kernels", "profile", "peaks")
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert len(found) == 3 + 3 + 4 + 3 + 2 + 48
    assert not [name for name, cell in found.items() if "error" in cell or cell.get("failed")]
    bars = found["bars B/16"]
    assert set(bars["rates"]) == {
        "timm",
        "timm, max-autotune",
        "bfloat16",
        "float8",
        "float8, dynamic scales",
    }
    assert bars["errors"]["bfloat16"] < 1.1 * bars["errors"]["timm"]
    assert bars["errors"]["float8, outliers injected"] < 1.3 * bars["errors"]["float8"]
    assert run(tmp_path) == ""
    assert "| B/16 | 224 | inference |" in run(tmp_path, "show")
    assert (tmp_path / "gpu.png").exists()
