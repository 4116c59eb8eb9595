"""ONNX Runtime on the CPU."""

from __future__ import annotations

import os

import numpy as np

from vitkit.errors import InputError
from vitkit.runtimes.folder import ExportedFolder


class OnnxSession:
    """A graph in ONNX Runtime."""

    def __init__(self, folder: ExportedFolder, threads: int) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise InputError(
                f'{folder.path} runs in ONNX Runtime, which is not installed: pip install "vitkit[export]"'
            ) from None
        onnxruntime.disable_telemetry_events()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3  # errors
        try:
            self._session = onnxruntime.InferenceSession(
                os.fspath(folder.graph), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the runtime has an exception of its own for each status
            cause = str(error).strip().splitlines()[0]
            raise InputError(
                f"ONNX Runtime {onnxruntime.__version__} can't open {folder.graph}: {cause}"
            ) from error
        self._input = self._session.get_inputs()[0].name
        self._outputs = [output.name for output in self._session.get_outputs()]

    def run(self, images: np.ndarray) -> dict[str, np.ndarray]:
        values = self._session.run(None, {self._input: np.ascontiguousarray(images)})
        return dict(zip(self._outputs, values, strict=True))
