"""ONNX Runtime on the CPU."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from vitkit.errors import InputError, first_line


class OnnxSession:
    """A graph in ONNX Runtime."""

    def __init__(self, graph: Path, threads: int) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise InputError(
                f'{graph.parent} runs in ONNX Runtime, which is not installed: pip install "vitkit[export]"'
            ) from None
        onnxruntime.disable_telemetry_events()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3  # errors
        try:
            self._session = onnxruntime.InferenceSession(
                os.fspath(graph), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the runtime has an exception of its own for each status
            cause = first_line(error)
            raise InputError(f"ONNX Runtime {onnxruntime.__version__} can't open {graph}: {cause}") from error
        self._input = self._session.get_inputs()[0].name
        self._outputs = [output.name for output in self._session.get_outputs()]

    def run(self, images: np.ndarray) -> dict[str, np.ndarray]:
        values = self._session.run(None, {self._input: np.ascontiguousarray(images)})
        return dict(zip(self._outputs, values, strict=True))
