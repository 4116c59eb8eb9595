"""Training tests measure nothing of the machine: its rate is a constant, and tiny models are quickest on one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def matrix_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitkit.training.estimate.matrix_rate", lambda *_: 1e11)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
