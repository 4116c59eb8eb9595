"""The name of this machine's processor."""

from __future__ import annotations

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
