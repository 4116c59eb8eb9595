"""Exported folders: what is in them, the runtimes that run their graphs, and a graph as a Model."""

from __future__ import annotations

from typing import Literal

Runtime = Literal["onnx", "openvino"]
Precision = Literal["float32", "bfloat16", "int8"]
