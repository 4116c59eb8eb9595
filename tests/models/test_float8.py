"""float8: products equal a plain reference, errors are those of 3 bits, outliers do no harm; a GPU computes the same."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitkit
from tests.exports.test_quantize import inject_outliers, relative_error
from vitkit.errors import InputError
from vitkit.kernels.float8 import LARGEST, round_to_float8
from vitkit.models.float8 import MARGIN, Float8Linear, float8_layers, large_layers
from vitkit.models.model import Model
from vitkit.models.precision import check_float8, check_precision

SMALL: dict[str, Any] = dict(image_size=32, num_classes=5, width=32, depth=2, heads=2, mlp_width=64)


def small(name: str = "mu/16", **settings: Any) -> Model:
    torch.manual_seed(0)
    model = vitkit.create_model(name, **SMALL | settings).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def largest_inputs(model: Model, images: Tensor) -> dict[str, float]:
    found: dict[str, float] = {}

    def hook(name: str) -> Any:
        def see(_: nn.Module, inputs: tuple[Tensor], __: Tensor) -> None:
            found[name] = max(found.get(name, 0.0), inputs[0].abs().max().item())

        return see

    handles = [model.get_submodule(name).register_forward_hook(hook(name)) for name in float8_layers(model)]
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()
    return found


def nearest(value: float) -> float:
    """Return the nearest e4m3 number: 3 bits after the point, exponents from -6 to 8, steps of 2^-9 below."""
    magnitude = min(abs(value), LARGEST)
    step = 2.0 ** (max(math.floor(math.log2(magnitude)), -6) - 3) if magnitude else 1.0
    return math.copysign(round(magnitude / step) * step, value)  # round takes the even one of two


@pytest.mark.parametrize("is_static", [True, False])
def test_a_layer_is_the_product_of_rounded_numbers(is_static: bool) -> None:
    torch.manual_seed(0)
    source, x = nn.Linear(32, 16), torch.randn(2, 5, 32)
    x[0, 0, 0], x[1, 4, 7] = 30.0, -90.0
    layer = Float8Linear(source, 20.0 if is_static else None)
    y = layer(x.bfloat16())
    assert y.shape == (2, 5, 16) and y.dtype == torch.bfloat16
    weight_scale = source.weight.abs().max().item() / LARGEST
    for row, found in zip(x.bfloat16().double().flatten(0, 1).tolist(), y.flatten(0, 1), strict=True):
        scale = MARGIN * 20.0 / LARGEST if is_static else max(map(abs, row)) / LARGEST
        for output, weights in enumerate(source.weight.double().tolist()):
            exact = sum(
                nearest(value / scale) * nearest(weight / weight_scale)
                for value, weight in zip(row, weights, strict=True)
            )
            expected = exact * scale * weight_scale + source.bias[output].item()
            assert found[output].item() == pytest.approx(expected, abs=0.05, rel=0.01)


def test_rounding_saturates() -> None:
    values = torch.tensor([0.0, 1.0, -3.3, 1e4, -1e9])
    assert round_to_float8(values, torch.tensor(2.0)).tolist() == [0.0, 0.5, -1.625, 448.0, -448.0]


@pytest.mark.parametrize("name", ["mu/16", "CCT-2/3x2"])
def test_a_model_stays_close(name: str) -> None:
    model = small(name)
    images = torch.randn(4, 3, 32, 32)
    expected = model(images)
    half = copy.deepcopy(model)
    half.set_precision("bfloat16")
    assert relative_error(half(images), expected) < 0.02
    for largest in (None, largest_inputs(model, images)):
        eighth = copy.deepcopy(model)
        eighth.set_precision("float8", largest)
        assert 0.001 < relative_error(eighth(images), expected) < 0.12
        assert eighth.precision == "float8"
        layers = [eighth.get_submodule(layer) for layer in large_layers(model)]
        assert all(
            isinstance(layer, Float8Linear) and layer.weight.dtype == torch.float8_e4m3fn for layer in layers
        )
        kinds = {tensor.dtype for layer in layers for tensor in layer.parameters()}
        assert kinds == {torch.bfloat16}


@pytest.mark.parametrize("is_static", [True, False])
def test_outliers_do_no_harm(is_static: bool) -> None:
    model = vitkit.create_model("Ti/16", image_size=64, num_classes=100).eval()
    torch.nn.init.normal_(model.head.weight, std=0.05)
    images = torch.randn(4, 3, 64, 64)
    expected = model(images)
    errors = []
    for has_outliers in (False, True):
        one = copy.deepcopy(model)
        if has_outliers:
            inject_outliers(one)
            assert relative_error(one(images), expected) < 1e-4
        one.set_precision("float8", largest_inputs(one, images) if is_static else None)
        errors.append(relative_error(one(images), expected))
    plain, with_outliers = errors
    assert plain < 0.1 and with_outliers < 1.3 * plain


def test_tokens_are_scaled_alone() -> None:
    model = small()
    model.set_precision("float8")
    images = torch.randn(3, 3, 32, 32)
    images[1] *= 50  # of other images, dynamic scales know nothing
    together = model(images)
    torch.testing.assert_close(model(images[:1]), together[:1], atol=1e-3, rtol=1e-3)


def test_what_has_no_float8_says_so() -> None:
    for name in ("cpu", "mps"):
        with pytest.raises(
            InputError, match=f"needs an NVIDIA GPU that has it .*, and device '{name}' does not: use"
        ):
            check_precision("float8", name)
    with pytest.raises(InputError, match="no layers of tokens whose sizes are multiples of 16"):
        vitkit.create_model("BiT-R50x1", image_size=32).set_precision("float8")
    with pytest.raises(InputError, match="no layers of tokens whose sizes are multiples of 16"):
        small(width=24, mlp_width=40).set_precision("float8")
    with pytest.raises(InputError, match="the scales of float8 belong to another model"):
        small().set_precision("float8", {"blocks.0.attn.qkv": 1.0})
    own = vitkit.wrap(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), image_size=8)
    with pytest.raises(
        InputError, match="float8 is for vitkit's own models, and Sequential is a module of your own"
    ):
        own.model.set_precision("float8")


def test_an_older_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "NVIDIA A100")
    with pytest.raises(InputError, match="and NVIDIA A100 does not: use bfloat16 or float32"):
        check_float8(torch.device("cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("is_static", [True, False])
def test_a_gpu_computes_the_same(is_static: bool) -> None:
    model = small()
    images = torch.randn(4, 3, 32, 32)
    model.set_precision("float8", largest_inputs(model, images) if is_static else None)
    expected = model(images)
    assert relative_error(model.cuda()(images.cuda()).cpu(), expected) < 0.03
