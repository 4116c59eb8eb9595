"""The short GELU equals the exact one to float32's precision, value and slope."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vitkit.kernels import gelu as module


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
