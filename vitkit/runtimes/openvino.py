"""OpenVINO on the CPU."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from vitkit.errors import InputError
from vitkit.runtimes import Precision


def import_openvino() -> Any:
    """Return the package, imported without its telemetry, which else reports each import and conversion unless refused."""
    name = "openvino_telemetry"
    if "openvino" in sys.modules or name in sys.modules:
        return importlib.import_module("openvino")
    sys.modules[name] = None  # type: ignore[assignment]  # so that OpenVINO takes its own stub
    try:
        return importlib.import_module("openvino")
    finally:
        del sys.modules[name]


def has_bfloat16() -> bool:
    """Return whether OpenVINO computes in bfloat16 on this processor."""
    return "BF16" in import_openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


class OpenVinoSession:
    """A graph in OpenVINO."""

    def __init__(self, graph: Path, precision: Precision, threads: int) -> None:
        try:
            openvino = import_openvino()
        except ImportError:
            raise InputError(
                f'{graph.parent} runs in OpenVINO, which is not installed: pip install "vitkit[export]"'
            ) from None
        core = openvino.Core()
        if precision == "bfloat16" and not has_bfloat16():
            raise InputError(
                f"{graph.parent} computes in bfloat16, which this processor doesn't have: export it with --precision "
                "float32 or int8"
            )
        options = {
            # Also of what is not int8 in an int8 graph, for which OpenVINO's own choice is bfloat16 wherever there is one.
            "INFERENCE_PRECISION_HINT": "f32" if precision == "float32" or not has_bfloat16() else "bf16",
            "PERFORMANCE_HINT": "LATENCY",  # the throughput hint halves the speed of single requests
            "INFERENCE_NUM_THREADS": threads,
        }
        try:
            self._request = core.compile_model(
                core.read_model(os.fspath(graph)), "CPU", options
            ).create_infer_request()
        except RuntimeError as error:
            cause = str(error).strip().splitlines()[-1]
            raise InputError(f"OpenVINO {openvino.get_version()} can't open {graph}: {cause}") from error
        self._outputs = [output.any_name for output in self._request.model_outputs]

    def run(self, images: np.ndarray) -> dict[str, np.ndarray]:
        # Outputs are views of memory that the next call overwrites.
        values = self._request.infer([np.ascontiguousarray(images)], share_inputs=True)
        return {name: np.array(values[place]) for place, name in enumerate(self._outputs)}
