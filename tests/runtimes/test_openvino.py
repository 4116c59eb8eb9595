"""OpenVINO is used without its telemetry."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CODE = """
import sys
from vitkit.runtimes.openvino import import_openvino
assert import_openvino().Core().available_devices
print([name for name in sys.modules if name.startswith("openvino_telemetry")])
"""


def test_telemetry_is_never_imported(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path)}
    answer = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, env=environment
    )
    assert answer.stdout == "[]\n"
    assert not list(tmp_path.iterdir())  # it keeps an identity there
