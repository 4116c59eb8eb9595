"""The short GELU equals the exact one to float32's precision, value and slope."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F

from vitkit.kernels import gelu as module
from vitkit.kernels.float8 import round_to_float8

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def test_equals_the_exact_one() -> None:
    x = torch.cat([torch.linspace(-12, 12, 100_001), torch.tensor([0.0, -0.0, 1e-30, 60.0, -60.0])])
    exact = x.double().requires_grad_()
    ours = x.clone().requires_grad_()
    expected, y = F.gelu(exact), module._Gelu.apply(ours)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(y.double(), expected, atol=5e-7, rtol=2e-7)
    d_y = torch.linspace(-2, 2, len(x))
    (d_expected,) = torch.autograd.grad(expected, exact, d_y.double())
    (d_ours,) = torch.autograd.grad(y, ours, d_y)
    torch.testing.assert_close(d_ours.double(), d_expected, atol=1e-6, rtol=5e-7)


def test_infinities_stay_what_they_are() -> None:
    x = torch.tensor([torch.inf, 1e30, -1e30])
    assert module._Gelu.apply(x).tolist() == [torch.inf, pytest.approx(1e30), 0.0]  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_a_gpu_it_is_pytorchs(dtype: torch.dtype) -> None:
    x = torch.linspace(-3, 3, 50, dtype=dtype)
    assert torch.equal(module.exact_gelu(x), F.gelu(x))


def test_compiles_whole() -> None:
    compiled = torch.compile(lambda x: module._Gelu.apply(x), backend="aot_eager", fullgraph=True)  # type: ignore[no-untyped-call]
    x = torch.randn(64, dtype=torch.bfloat16, requires_grad=True)
    y = compiled(x)
    (d_x,) = torch.autograd.grad(y.float().square().sum(), x)
    assert y.dtype == d_x.dtype == torch.bfloat16
    torch.testing.assert_close(y, F.gelu(x), atol=1e-2, rtol=1e-2)


@pytest.mark.gpu
def test_gpu_compiled() -> None:
    x = torch.randn(4096, 256, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    y = torch.compile(module.exact_gelu, fullgraph=True)(x)
    (d_x,) = torch.autograd.grad(y, x, torch.ones_like(y))
    exact = x.detach().double().requires_grad_()
    expected = F.gelu(exact)
    (d_expected,) = torch.autograd.grad(expected, exact, torch.ones_like(expected))
    torch.testing.assert_close(y.double(), expected, atol=4e-3, rtol=4e-3)
    torch.testing.assert_close(d_x.double(), d_expected, atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize(
    ("approximate", "form", "error"), [("tanh", module.TANH_FORM, 1e-6), ("none", module.ERF_FORM, 3e-5)]
)
def test_sigmoid_forms(approximate: str, form: tuple[float, float, float], error: float) -> None:
    x = torch.linspace(-30, 30, 200_001, dtype=torch.float64)
    square = (x * x).clamp(max=module.FAR)
    y = x * torch.sigmoid(x * (form[0] + form[1] * square + form[2] * square**2))
    assert (y - F.gelu(x, approximate=approximate)).abs().max() < error


@pytest.mark.parametrize("is_tanh", [True, False])
def test_in_8_bits(is_tanh: bool) -> None:
    x, scale = torch.randn(3, 50).bfloat16() * 4, torch.tensor(0.02)
    y = module.gelu_float8(x, scale, is_tanh=is_tanh)
    expected = F.gelu(x.float(), approximate="tanh" if is_tanh else "none")
    assert y.dtype == torch.float8_e4m3fn and torch.equal(y.float(), round_to_float8(expected, scale).float())


def test_a_product_that_ends_in_gelu_rounds_once() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 7, 32), torch.randn(16, 32) / 4, torch.randn(16)
    x, weight, bias = x.bfloat16(), weight.bfloat16(), bias.bfloat16()
    y = module.linear_gelu(x, weight, bias)
    exact = F.gelu(F.linear(x.double(), weight.double(), bias.double()), approximate="tanh")
    torch.testing.assert_close(y.double(), exact, atol=1e-5, rtol=2**-8)
    compiled = torch.compile(module.linear_gelu, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, weight, bias), y)


if INTERPRETED:

    @pytest.mark.parametrize("is_tanh", [True, False])
    @pytest.mark.parametrize("count", [64, 4096, 5000])
    def test_8_bits_interpreted(count: int, is_tanh: bool) -> None:
        x, scale = torch.randn(count).bfloat16() * 4, torch.tensor(0.02)
        y = module._run_gelu_float8(x, scale, is_tanh, torch.float32) * scale
        expected = F.gelu(x.float(), approximate="tanh" if is_tanh else "none")
        torch.testing.assert_close(y, expected.clamp(max=448 * 0.02), atol=3e-5, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("is_tanh", [True, False])
def test_gpu_in_8_bits(is_tanh: bool) -> None:
    x, scale = torch.randn(999, 3072, device="cuda").bfloat16() * 3, torch.tensor(0.02, device="cuda")
    y = module.gelu_float8(x, scale, is_tanh=is_tanh).float() * scale
    expected = F.gelu(x.float(), approximate="tanh" if is_tanh else "none")
    torch.testing.assert_close(y, expected.clamp(max=448 * 0.02), atol=2e-4, rtol=0.07)


@pytest.mark.gpu
def test_gpu_product_that_ends_in_gelu() -> None:
    x, weight, bias = torch.randn(300, 768), torch.randn(3072, 768) / 27, torch.randn(3072)
    x, weight, bias = (tensor.bfloat16().cuda() for tensor in (x, weight, bias))
    y = module.linear_gelu(x, weight, bias)
    exact = F.gelu(F.linear(x.double(), weight.double(), bias.double()), approximate="tanh")
    torch.testing.assert_close(y.double(), exact, atol=5e-3, rtol=5e-3)
