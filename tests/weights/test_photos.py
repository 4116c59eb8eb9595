"""Real weights on real photos: the known number of them is right, whatever layout the weights passed through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file

import vitkit
from tests.weights.photos import WEIGHTS, label, needs_photos, photos
from vitkit.data.images import prepare
from vitkit.weights.convert import convert

pytestmark = needs_photos
TARGETS = {"npz": "out.npz", "hf": "out", "torchvision": "out.pth"}


def count_right(spec: str | Path) -> int:
    predictor = vitkit.load(spec, device="cpu")
    answers = predictor.predict(photos(), top=1)
    return sum(answer[0].index == label(photo) for answer, photo in zip(answers, photos(), strict=True))


def test_logits_of_photos_are_timms() -> None:
    theirs = timm.create_model("vit_tiny_patch16_224").eval()
    theirs.load_state_dict(load_file(WEIGHTS))
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(theirs))
    predictor = vitkit.load(f"Ti/16@{WEIGHTS}", device="cpu")
    chosen = photos()[::9]
    with torch.inference_mode():
        expected = theirs(torch.stack([transform(Image.open(photo).convert("RGB")) for photo in chosen]))
    found = predictor.logits(torch.stack([prepare(photo, predictor.preprocessing) for photo in chosen]))
    assert (found - expected).abs().max() < 1e-4  # logits up to 15
    right = sum(row.argmax().item() == label(photo) for row, photo in zip(found, chosen, strict=True))
    assert right >= len(chosen) - 3


@pytest.mark.parametrize("to", TARGETS)
def test_a_round_trip_changes_no_bit(to: Any, tmp_path: Path) -> None:
    convert(WEIGHTS, tmp_path / TARGETS[to], to)
    direct, again = (vitkit.load(spec, device="cpu") for spec in (WEIGHTS, tmp_path / TARGETS[to]))
    assert again.model.config == direct.model.config or to == "hf"  # whose own resampling is taken
    state = again.model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in direct.model.state_dict().items())
    photo = photos()[0]
    assert torch.equal(prepare(photo, again.preprocessing), prepare(photo, direct.preprocessing))


@pytest.mark.slow
@pytest.mark.parametrize("to", [None, "npz", "hf", "torchvision"])
def test_86_of_99_photos_are_right(to: Any, tmp_path: Path) -> None:
    assert len(photos()) == 99
    spec = WEIGHTS
    if to is not None:
        spec = tmp_path / TARGETS[to]
        convert(WEIGHTS, spec, to)
    assert count_right(spec) == 86
