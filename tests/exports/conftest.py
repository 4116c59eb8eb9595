"""A small classifier of digits as a model folder, and its exports."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import vitkit
from vitkit.models import build
from vitkit.models.configs import Preprocessing, ViTConfig

CONFIG = ViTConfig(image_size=16, num_classes=10, patch=4, width=32, depth=2, heads=2, mlp_width=64)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = build(CONFIG)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    path = tmp_path_factory.mktemp("models") / "model"
    vitkit.save(
        model,
        path,
        class_names=list("0123456789"),
        preprocessing=Preprocessing(image_size=16),
        multi_label=False,
    )
    return path


@pytest.fixture(scope="session")
def exported(folder: Path) -> Path:
    """The model for ONNX Runtime, in float32."""
    vitkit.export(folder, folder.parent / "onnx")
    return folder.parent / "onnx"


@pytest.fixture(scope="session")
def int8(folder: Path) -> Path:
    """The model for OpenVINO, in int8."""
    out = folder.parent / "int8"
    vitkit.export(folder, out, "openvino", "int8", calibrate="digits:train[:32]", data="digits:test[:100]")
    return out
