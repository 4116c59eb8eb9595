"""Exporting a model: its graph in ONNX or OpenVINO, in float32, bfloat16 or int8, checked against the source."""
