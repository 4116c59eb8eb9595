"""Another precision: every family computes in it, its head doesn't, and nothing changes it silently."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vitkit
from tests.random_models import images_for
from tests.random_models import make as random_model
from vitkit.errors import InputError
from vitkit.models.configs import CompactConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig
from vitkit.models.model import HEAD
from vitkit.models.precision import check_precision
from vitkit.models.record import Record

VIT: dict[str, Any] = dict(
    width=16, depth=2, heads=2, mlp_width=24, num_classes=5, image_size=(16, 20), patch=4
)
MODELS: dict[str, ModelConfig] = {
    "vit": ViTConfig(**VIT, pre_logits=8),
    "sincos": ViTConfig(**VIT, positions="sincos_2d", pool="map"),
    "hybrid": HybridConfig(**dict(VIT, image_size=(32, 40), patch=2), backbone_units=(), backbone_width=32),
    "cct": CompactConfig(**{name: value for name, value in VIT.items() if name != "patch"}),
    "bit": ResNetConfig(units=(1, 1), image_size=(16, 20), num_classes=5),
}
every_model = pytest.mark.parametrize("name", MODELS)


make = partial(random_model, scale=0.2)


@every_model
def test_logits_are_close_and_close_ones_differ(name: str) -> None:
    model = make(MODELS[name])
    images, record = images_for(model.config), Record("features")
    expected = model(images)
    model.set_precision("bfloat16")
    logits = model(images, record)
    assert logits.dtype == record.features.dtype == torch.float32
    torch.testing.assert_close(logits, expected, atol=0.1 * expected.std().item(), rtol=0.1)
    assert not torch.equal(logits, expected)
    assert not torch.equal(logits, logits.bfloat16().float())  # the head's products aren't rounded
    for key, tensor in model.state_dict().items():
        assert tensor.dtype == (torch.float32 if key.startswith(HEAD) else torch.bfloat16), key
    torch.testing.assert_close(model.forward_head(model.forward_features(images)), logits)


def test_a_module_of_your_own_computes_under_autocast() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 5)).eval()
    model = vitkit.wrap(module, image_size=8).model
    images = torch.randn(2, 3, 8, 8)
    expected = model(images)
    model.set_precision("bfloat16")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    found = model(images)
    assert not torch.equal(found.float(), expected)
    torch.testing.assert_close(found.float(), expected, atol=0.05, rtol=0.05)


def test_float32_can_not_be_restored() -> None:
    model = make(MODELS["vit"])
    model.set_precision("float32")
    model.set_precision("bfloat16")
    model.set_precision("bfloat16")
    with pytest.raises(
        InputError, match="the model is already in bfloat16: load it again to compute in float32"
    ):
        model.set_precision("float32")
    with pytest.raises(InputError, match="precision is 'float16'"):
        model.set_precision("float16")  # type: ignore[arg-type]


def test_devices_have_their_precisions() -> None:
    assert check_precision("bfloat16", "cuda") == "bfloat16"
    with pytest.raises(InputError, match="^precision is 'bfloat16' on mps; expected there one of float32$"):
        check_precision("bfloat16", "mps")
    with pytest.raises(
        InputError, match="precision 'int8' is for exported folders, on the CPU: run vit export"
    ):
        check_precision("int8", "cuda")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"precision": "bfloat16"}, "in bfloat16"),
        ({"merge": 2}, "merging 2 patches in each layer"),
    ],
)
def test_what_is_for_inference_is_not_trained_saved_or_exported(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    vitkit.save(vitkit.load("mu/16", image_size=32, num_classes=3), tmp_path / "plain")
    loaded = vitkit.load(tmp_path / "plain", device="cpu", **settings)
    assert words in repr(loaded) and words in loaded._repr_html_()
    message = f"computes {words}, which is for inference: load it without precision and merge"
    with pytest.raises(InputError, match=message):
        loaded.as_loaded()
    with pytest.raises(InputError, match=message):
        vitkit.save(loaded, tmp_path / "copy")
    with pytest.raises(InputError, match=message):
        vitkit.export(loaded, tmp_path / "graph")
    with pytest.raises(InputError, match=r"is already loaded: give merge to vitkit.load$"):
        vitkit.load(loaded, merge=4)
    assert vitkit.load(loaded, **settings) is loaded
