"""Where Triton can't build what it needs, PyTorch's own kernels run, and a warning says why."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch

from vitkit import kernels


@pytest.fixture
def anew() -> Iterator[None]:
    kernels._probe.cache_clear()
    yield
    kernels._probe.cache_clear()


@pytest.mark.usefixtures("anew")
@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or torch.version.cuda is None, reason="needs Triton"
)
def test_triton_that_fails_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime import driver

    class Broken:
        @property
        def utils(self) -> None:
            raise RuntimeError("Failed to find C compiler.\nPlease install one")

    monkeypatch.setattr(type(driver), "active", Broken())
    with pytest.warns(UserWarning, match="Triton doesn't work here.*Failed to find C compiler"):
        assert not kernels.has_triton()
    assert not kernels.has_triton()  # asked once


@pytest.mark.usefixtures("anew")
def test_triton_that_is_not_there_is_no_news(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not kernels.has_triton() and not recwarn.list


@pytest.mark.parametrize("works", [False, True])
def test_it_is_a_constant_to_the_compiler(works: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()  # the other case has compiled the same lines
    monkeypatch.setattr(kernels, "_probe", lambda: works)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 3 if kernels.has_triton() else x * 2

    assert scaled(torch.ones(2)).tolist() == [2.0 + works] * 2
