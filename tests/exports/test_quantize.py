"""int8: smoothing changes no function, ranges and splits are right, and outliers that ruin plain MinMax do no harm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitkit
from tests.models.test_contract import MODELS, images_for, make
from tests.weights.photos import PHOTOS, SHARED, WEIGHTS, label, photos
from vitkit.calibration import for_calibration, measure_extents
from vitkit.data.images import prepare
from vitkit.exports.int8 import Int8Conv2d, Int8Linear
from vitkit.exports.quantize import (
    SplitMlp,
    find_layers,
    quantize,
    split_units,
    to_int8,
)
from vitkit.exports.smoothing import smooth
from vitkit.models.layers import Mlp
from vitkit.models.model import Model
from vitkit.models.vit import Block
from vitkit.runtimes.graph import plain_copy, write_onnx

FACTOR = 100.0
CIFAR = SHARED / "data" / "cifar100" / "cifar100-train-0.parquet"


def inject_outliers(model: Model, channels: int = 4) -> None:
    """Make a few channels of each block large, after both norms and among the values, in place; the function stays."""
    draw = np.random.default_rng(0)
    for block in model.modules():
        if not isinstance(block, Block):
            continue
        width = block.attn.proj.in_features
        chosen = [torch.from_numpy(draw.choice(width, channels, replace=False)) for _ in range(3)]
        for norm, reader, some in (
            (block.norm1, block.attn.qkv, chosen[0]),
            (block.norm2, block.mlp.fc1, chosen[1]),
        ):
            norm.weight.data[some] *= FACTOR
            norm.bias.data[some] *= FACTOR
            reader.weight.data[:, some] /= FACTOR
        values = 2 * width + chosen[2]
        block.attn.qkv.weight.data[values] *= FACTOR
        block.attn.qkv.bias.data[values] *= FACTOR
        block.attn.proj.weight.data[:, chosen[2]] /= FACTOR


def plain_int8(model: Model, images: Tensor) -> Model:
    """Return a model with int8 layers whose ranges are from least to largest, and nothing else."""
    model = plain_copy(model)
    layers = find_layers(model, convolutions=False)
    lows, highs = measure_extents(model, layers, images)
    for name in layers:
        model.set_submodule(name, to_int8(model.get_submodule(name), lows[name], highs[name]))
    return model


def our_int8(model: Model, images: Tensor) -> Model:
    model = plain_copy(model)
    quantize(model, images, convolutions=False)
    return model


def relative_error(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).square().mean().sqrt() / expected.std()).item()


@pytest.mark.parametrize("name", ["vit", "vit-linformer", "vit-reformer", "vit-local", "vit-axial", "cct"])
def test_smoothing_changes_no_function(name: str) -> None:
    model = make(MODELS[name]).double()
    images = images_for(model.config).double()
    before = model(images)
    layers = find_layers(model, convolutions=False)
    lows, highs = measure_extents(model, layers, images)
    largest = {layer: torch.maximum(lows[layer].abs(), highs[layer].abs()) for layer in layers}
    scales = smooth(model, largest)
    assert len(scales) >= model.config.num_layers and all(
        (scale - 1).abs().max() > 0.01 for scale in scales.values()
    )
    torch.testing.assert_close(model(images), before)
    lows, highs = measure_extents(model, layers, images)
    for layer, scale in scales.items():
        torch.testing.assert_close(
            torch.maximum(lows[layer].abs(), highs[layer].abs()), largest[layer] / scale
        )


@torch.no_grad()
def test_int8_layers_are_as_exact_as_8_bits() -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(64, 32), torch.randn(50, 64)
    for low, high, signed in [(-4.0, 4.0, True), (-0.17, 4.0, False)]:
        layer = Int8Linear(linear, low, high)
        assert layer.is_signed == signed and layer.zero.dtype == (torch.int8 if signed else torch.uint8)
        inside = x.clamp(low, high)
        assert relative_error(layer(inside), linear(inside)) < 0.015
        assert torch.equal(layer.rounded(torch.zeros(1)), torch.zeros(1))  # padding stays exact
        assert (layer.rounded(x) - inside).abs().max() <= layer.scale
    convolution, x = nn.Conv2d(3, 8, 3, 2, 1), torch.rand(2, 3, 9, 9)
    assert relative_error(Int8Conv2d(convolution, 0.0, 1.0)(x), convolution(x)) < 0.015


@pytest.mark.slow
@torch.no_grad()
def test_values_are_rounded_before_they_are_moved(tmp_path: Path) -> None:
    """Attention's output is rounded as the product gives it; the graph computes what the int8 model does."""
    import onnx
    import onnxruntime

    torch.manual_seed(0)
    model = plain_copy(vitkit.create_model("Ti/16", image_size=32, num_classes=5).eval())
    nn.init.normal_(model.get_submodule("head").weight)
    images = torch.randn(20, 3, 32, 32)
    quantize(model, images, convolutions=False)
    write_onnx(model, tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx").graph
    onnx.checker.check_model(str(tmp_path / "model.onnx"))
    makers = {output: node.op_type for node in graph.node for output in node.output}
    before = [makers[node.input[0]] for node in graph.node if node.op_type == "QuantizeLinear"]
    assert len(before) == 4 * 12 and set(before) == {"LayerNormalization", "MatMul", "Gelu"}
    (found, _) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"images": images.numpy()})
    assert (
        relative_error(torch.from_numpy(found), model(images)) < 0.02
    )  # sums in another order change roundings


@torch.no_grad()
def test_hidden_units_that_are_outliers_are_split_off() -> None:
    torch.manual_seed(0)
    model = vitkit.create_model("Ti/16", image_size=32).eval()
    mlp = model.get_submodule("blocks.3.mlp")
    assert isinstance(mlp, Mlp)
    mlp.fc1.bias[[5, 70]] = 300.0
    images = images_for(model.config)
    before = model.features(images)
    lows, highs = measure_extents(model, find_layers(model, convolutions=False), images)
    assert split_units(model, lows, highs)["blocks.3.mlp"] == 2
    assert isinstance(model.get_submodule("blocks.3.mlp"), SplitMlp)
    assert highs["blocks.3.mlp.fc2"].max() < 30
    torch.testing.assert_close(model.features(images), before, atol=1e-4, rtol=1e-4)


def test_a_layer_that_loses_much_stays_in_float() -> None:
    model = make(MODELS["cct"])
    block = model.get_submodule("classifier.blocks.0")
    block.norm1.weight.data[0] *= 1e4  # it is also the residual stream, so it can't be smoothed
    block.linear1.weight.data[:, 0] = 0.0
    images = images_for(model.config, batch=16)
    expected = model(images)
    assert quantize(model, images, convolutions=False).kept_float == ("classifier.blocks.0.linear1",)
    assert isinstance(block.linear1, nn.Linear) and isinstance(block.linear2, Int8Linear)
    assert relative_error(model(images), expected) < 0.05


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("name", ["B/16", "L/16"])
def test_injected_outliers_in_larger_models(name: str) -> None:
    torch.manual_seed(0)
    model = vitkit.create_model(name, image_size=96).eval()
    nn.init.normal_(model.get_submodule("head").weight, std=0.02)
    images, others = images_for(model.config, batch=16), images_for(model.config, batch=8, seed=2)
    expected = model(others)
    clean = relative_error(our_int8(model, images)(others), expected)
    inject_outliers(model)
    assert relative_error(model(others), expected) < 1e-4
    plain = relative_error(plain_int8(model, images)(others), expected)
    ours = relative_error(our_int8(model, images)(others), expected)
    print(
        f"\n{name}: relative error of logits: plain {plain:.1%}, ours {ours:.1%}, without outliers {clean:.1%}"
    )
    assert plain > 0.3
    assert ours < 0.05 and ours < 1.2 * clean


@pytest.mark.slow
@pytest.mark.skipif(
    not (WEIGHTS.exists() and PHOTOS.exists() and CIFAR.exists()), reason="needs the shared weights and data"
)
def test_injected_outliers_in_the_public_model(tmp_path: Path) -> None:
    predictor = vitkit.load(WEIGHTS, device="cpu")
    images = torch.stack([prepare(photo, predictor.preprocessing) for photo in photos()])
    labels = torch.tensor([label(photo) for photo in photos()])
    learned = for_calibration(vitkit.open_data(f"{CIFAR}:all"), predictor.preprocessing)
    was_right = predictor.logits(images).argmax(1) == labels
    assert was_right.sum() == 86

    def turned_wrong(logits: Tensor) -> int:
        return int((was_right & (logits.argmax(1) != labels)).sum())

    with torch.no_grad():
        inject_outliers(predictor.model)
        assert turned_wrong(predictor.logits(images)) == 0
        plain = turned_wrong(plain_int8(predictor.model, learned)(images))
    counts = {}
    for to in ("onnx", "openvino"):
        vitkit.export(predictor, tmp_path / to, to, "int8", calibrate=f"{CIFAR}:all")
        counts[to] = turned_wrong(vitkit.load(tmp_path / to).logits(images))
    print(f"\nphotos that turn from right to wrong: plain {plain}, ours {counts}")
    assert plain > 40
    assert max(counts.values()) <= 2
