"""Mixup and cutmix give big_vision's and timm's numbers, the same however a batch is shared out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.data import mixup as timm_mixup
from torch import Tensor

from vitkit.data import mixing
from vitkit.data.draws import Draw
from vitkit.errors import InputError

GOLDEN = Path(__file__).parents[1] / "golden" / "mixup.npz"


def a_batch(count: int = 16, classes: int = 5) -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(0)
    images = torch.from_numpy(random.integers(0, 256, (count, 3, 8, 10), dtype=np.uint8))
    return images, torch.eye(classes)[torch.arange(count) % classes]


def a_draw(count: int, first: int = 0, step: int = 0, seed: int = 0) -> Draw:
    return Draw(seed, step, np.arange(first, first + count, dtype=np.int64))


def test_blend_is_big_visions() -> None:
    golden = np.load(GOLDEN)
    images, labels = torch.from_numpy(golden["images"]), torch.from_numpy(golden["labels"])
    mixed, targets = mixing.blend(images, labels, float(golden["a"]), group=4)
    assert torch.allclose(mixed, torch.from_numpy(golden["mixed_images"]), atol=1e-6)
    assert torch.allclose(targets, torch.from_numpy(golden["mixed_labels"]), atol=1e-6)


@pytest.mark.parametrize("name", ["mixup", "cutmix", "mix"])
def test_shares_of_a_batch_agree(name: str) -> None:
    images, targets = a_batch()
    function = getattr(mixing, name)
    arguments = {} if name == "mix" else {"alpha": 0.8}
    before = images.clone()
    for step in range(8):
        whole = function(images, targets, a_draw(16, 32, step), group=4, **arguments)
        parts = [
            function(images[a:b], targets[a:b], a_draw(b - a, 32 + a, step), group=4, **arguments)
            for a, b in ((0, 4), (4, 12), (12, 16))
        ]
        assert torch.equal(whole[0], torch.cat([part[0] for part in parts]))
        assert torch.equal(whole[1], torch.cat([part[1] for part in parts]))
        assert whole[0].dtype == torch.uint8 and torch.equal(images, before)
    assert not torch.equal(whole[0], function(images, targets, a_draw(16, 32, 99), group=4, **arguments)[0])


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_mixup_weight(alpha: float) -> None:
    images, targets = a_batch(4, 4)
    weights = []
    for step in range(400):
        mixed, soft = mixing.mixup(images, targets, a_draw(4, 0, step), alpha, group=2)
        weight = float(soft[0, 0])
        weights.append(weight)
        assert torch.allclose(soft.diagonal(), torch.full((4,), weight)) and torch.allclose(
            soft.sum(1), torch.ones(4)
        )
        expected = images.double() * weight + images[[1, 0, 3, 2]].double() * (1 - weight)
        assert (mixed.double() - expected).abs().max() <= 0.501  # rounded
    expected_weights = np.random.default_rng(0).beta(alpha, alpha, 4000)
    expected_weights = np.maximum(expected_weights, 1 - expected_weights)
    assert min(weights) >= 0.5
    assert np.mean(weights) == pytest.approx(expected_weights.mean(), abs=0.03)


def test_blend_keeps_float_images() -> None:
    images, targets = a_batch()
    floats = images.double() / 255
    mixed, _ = mixing.blend(floats, targets, 0.7, group=8)
    neighbours = torch.arange(16).view(2, 8).roll(1, dims=1).flatten()
    assert torch.equal(mixed, floats * 0.7 + floats[neighbours] * (1 - 0.7))
    assert mixing.blend(images.half(), targets, 0.7, group=8)[0].dtype == torch.float16


def test_mixup_twice_gives_the_same_bytes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    images, targets = a_batch()
    whole, _ = mixing.blend(images, targets, 0.6, group=4)
    monkeypatch.setattr(mixing, "CHUNK", 1)
    assert torch.equal(mixing.blend(images, targets, 0.6, group=4)[0], whole)


@settings(max_examples=60)
@given(
    weight=st.floats(0, 1),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    seed=st.integers(0, 2**31 - 1),
)
def test_box_is_timms(weight: float, height: int, width: int, seed: int) -> None:
    top, left, bottom, right = mixing.cut_box(weight, height, width, np.random.default_rng(seed))
    generator = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "randint", lambda low, high, size=None: generator.integers(high))
        box, area_weight = timm_mixup.cutmix_bbox_and_lam((height, width), weight)
    assert (top, bottom, left, right) == tuple(map(int, box))
    images = torch.arange(2 * height * width, dtype=torch.float64).view(2, 1, height, width)
    mixed, targets = mixing.paste(images, torch.eye(2), (top, left, bottom, right), 2)
    expected = images.clone()
    expected[:, :, top:bottom, left:right] = images.flip(0)[:, :, top:bottom, left:right]
    assert torch.equal(mixed, expected)
    assert float(targets[0, 0]) == pytest.approx(area_weight, abs=1e-6)
    assert float((mixed[0] == images[0]).double().mean()) == pytest.approx(area_weight, abs=1e-9)


def test_cutmix_targets_follow_the_pixels() -> None:
    images = torch.arange(8, dtype=torch.uint8).view(8, 1, 1, 1).expand(8, 3, 16, 16)
    for step in range(50):
        mixed, soft = mixing.cutmix(images, torch.eye(8), a_draw(8, 8, step), 1.0, group=8)
        shares = torch.stack([(mixed == number).flatten(1).float().mean(1) for number in range(8)], dim=1)
        assert torch.allclose(soft, shares, atol=1e-6)


def test_mix_switches_per_step() -> None:
    images, targets = a_batch()
    cuts = 0
    for step in range(300):
        draw = a_draw(16, 0, step)
        mixed, soft = mixing.mix(images, targets, draw, 0.8, 1.0, 0.3, group=8)
        cut = mixing.cutmix(images, targets, draw, 1.0, 8)
        blended = mixing.mixup(images, targets, draw, 0.8, 8)
        is_cut = torch.equal(mixed, cut[0]) and torch.equal(soft, cut[1])
        assert is_cut or (torch.equal(mixed, blended[0]) and torch.equal(soft, blended[1]))
        cuts += is_cut
    assert 60 < cuts < 120
    draw = a_draw(16)
    only_cut = mixing.mix(images, targets, draw, 0.0, 1.0, 0.0, group=8)[0]
    assert torch.equal(only_cut, mixing.cutmix(images, targets, draw, 1.0, 8)[0])
    only_mixup = mixing.mix(images, targets, draw, 0.8, 0.0, 1.0, group=8)[0]
    assert torch.equal(only_mixup, mixing.mixup(images, targets, draw, 0.8, 8)[0])
    with pytest.raises(InputError, match="both alphas are 0"):
        mixing.mix(images, targets, draw, 0.0, 0.0, group=8)


def test_bad_groups() -> None:
    images, targets = a_batch()
    whole = "a batch must hold whole groups, of 2 images or more"
    with pytest.raises(InputError, match=f"can't mix 16 images from position 0 in groups of 5: {whole}"):
        mixing.mixup(images, targets, a_draw(16), 0.2, 5)
    with pytest.raises(InputError, match="from position 4 in groups of 8"):
        mixing.cutmix(images, targets, a_draw(16, 4), 0.2, 8)
    with pytest.raises(InputError, match="groups of 1"):
        mixing.mixup(images, targets, a_draw(16), 0.2, 1)
    with pytest.raises(
        InputError, match=r"mixing takes float targets \(batch, classes\), not torch.int64 \(16,\)"
    ):
        mixing.mixup(images, targets.argmax(1), a_draw(16), 0.2, 4)
