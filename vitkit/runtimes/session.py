"""One interface for the runtimes: a session takes prepared images and returns the outputs of a graph by name."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from vitkit.runtimes.folder import ExportedFolder


class Session(Protocol):
    """A graph, opened in its runtime."""

    def run(self, images: np.ndarray) -> dict[str, np.ndarray]:
        """Return each output for images, float32 (batch, channels, height, width)."""


def open_session(folder: ExportedFolder, threads: int) -> Session:
    """Open the graph of an exported folder in its runtime, on the CPU."""
    if folder.runtime == "onnx":
        from vitkit.runtimes.onnx_runtime import OnnxSession

        return OnnxSession(folder.graph, threads)
    from vitkit.runtimes.openvino import OpenVinoSession

    return OpenVinoSession(folder.graph, folder.precision, threads)
