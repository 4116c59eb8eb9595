"""`vit doctor --measure` measures the ways there are and names the fastest."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from tests.conftest import Answer
from vitkit.timing import advice, peers
from vitkit.timing.advice import measure_ways


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitkit.timing.rounds.TURN_SECONDS", 0.0)
    monkeypatch.setattr("vitkit.timing.measure.MATRIX_SECONDS", 0.0)
    monkeypatch.setattr(advice, "num_cores", lambda: 2)
    monkeypatch.setattr(
        advice, "check", lambda library, way, train: (_ for _ in ()).throw(peers.InputError("left out"))
    )


def test_the_fastest_is_one_of_the_rows() -> None:
    before = torch.get_num_threads()
    ways = measure_ways("mu/16", (1, 2), device="cpu", compile=False, rounds=1, progress=False)
    assert [(row.precision, row.threads) for row in ways.rows[:3]] == [
        ("float32", 2), ("float32", 1), ("bfloat16", 2),
    ]  # fmt: skip
    for found in ways.fastest:
        rates = [row.images_per_second for row in ways.rows if row.batch_size == found.batch_size]
        assert found.images_per_second == max(rates)
        assert found.words.startswith(f"batches of {found.batch_size}: vitkit, eager, ")
    assert "ONNX Runtime in float32: left out" in ways.notes
    assert torch.get_num_threads() == before


def test_the_command(vit: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    quickly = measure_ways("mu/16", (1,), device="cpu", compile=False, rounds=1, progress=False)
    monkeypatch.setattr(advice, "measure_ways", lambda: quickly)
    answer = vit("doctor", "--measure")
    assert "Fastest here:\n  batches of 1: vitkit, eager" in answer.out
    document = json.loads(vit("doctor", "--measure", "--json").out)
    assert document["vitkit"] and document["measured"]["fastest"][0]["batch_size"] == 1
