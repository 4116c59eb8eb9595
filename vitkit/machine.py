"""This machine's processor: its name, the cores that a process may use, and whether others use them."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def cpu_name(path: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's model name, from a file on Linux and from Python elsewhere."""
    if path.exists():
        names = re.findall(r"^model name\s*:\s*(.+)$", path.read_text(), flags=re.MULTILINE)
        if names:
            return str(names[0])
    return platform.processor() or platform.machine()


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def busy_note() -> str | None:
    """Return a warning if other work keeps at least half of the cores busy; None where that isn't known."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, num_cores()
    if load < cores / 2:
        return None
    return (
        f"this machine is busy (load {load:.1f} on {cores} cores): then PyTorch's threads wait for each other, up to a second "
        "per pass, and ratios to other runtimes don't hold"
    )
