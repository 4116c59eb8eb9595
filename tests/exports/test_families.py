"""Every family and head gives the same logits and features in both runtimes, for batches of any size."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitkit
from tests.models.test_contract import MODELS, images_for, make
from vitkit.runtimes.model import RuntimeModel

FAST = {"vit", "bit", "cct"}
HEADS: dict[str, dict[str, Any]] = {
    "mean": dict(pool="mean"),
    "map": dict(pool="map"),
    "seqpool": dict(pool="seqpool"),
    "none": dict(pool="none"),
    "tanh": dict(pre_logits=12),
    "headless": dict(num_classes=0),
}


def check_both(model: Any, out: Path, to: Any) -> None:
    result = vitkit.export(model, out, to)
    loaded = vitkit.load(out)
    assert isinstance(loaded.model, RuntimeModel)
    assert result.check.relative_error < 1e-3
    for batch in (1, 5):
        images = images_for(model.config, batch=batch)
        expected = model(images)
        scale = expected.std().item()
        assert (loaded.logits(images) - expected).abs().max() < 1e-4 * max(scale, 1.0)
        torch.testing.assert_close(loaded.features(images), model.features(images), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("to", ["onnx", pytest.param("openvino", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in MODELS],
)
def test_every_architecture(name: str, to: Any, tmp_path: Path) -> None:
    check_both(make(MODELS[name]), tmp_path / "out", to)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "openvino"])
@pytest.mark.parametrize("head", HEADS)
def test_every_head(head: str, to: Any, tmp_path: Path) -> None:
    check_both(
        make(dataclasses.replace(MODELS["vit"], **{"class_token": None, **HEADS[head]})), tmp_path / "out", to
    )


def test_a_module_of_your_own(tmp_path: Path) -> None:
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 4, 4), torch.nn.Flatten(), torch.nn.Linear(64, 3)
    ).eval()
    result = vitkit.export(vitkit.wrap(module, 16, class_names=["a", "b", "c"]), tmp_path / "out")
    assert result.outputs == ("logits",)
    loaded = vitkit.load(tmp_path / "out")
    image = np.zeros((16, 16, 3), np.uint8)
    assert {row.name for row in loaded.predict(image)[0]} == {"a", "b", "c"}
    with pytest.raises(vitkit.InputError, match="gives only logits"):
        loaded.embed(image)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_reformer_with_chunks_that_are_not_full(to: Any, tmp_path: Path) -> None:
    config = dataclasses.replace(MODELS["vit-reformer"], image_size=(44, 52), attention_hashes=3)  # type: ignore[call-arg]
    check_both(make(config), tmp_path / "out", to)


INT8 = {
    "vit": "openvino",
    "hybrid": "openvino",
    "bit": "openvino",
    "cct": "openvino",
    "vit-mean-sincos": "onnx",
    "vit-axial": "onnx",
    "vit-local": "onnx",
    "vit-sparse": "openvino",
    "vit-linformer": "onnx",
    "vit-reformer": "onnx",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", INT8)
def test_int8_of_every_family(name: str, tmp_path: Path) -> None:
    to: Any = INT8[name]
    result = vitkit.export(make(MODELS[name]), tmp_path / "out", to, "int8", calibrate="shapes:train[:32]")
    assert 0 < result.check.relative_error < 0.2
