"""Masked autoencoding: what is masked, what the encoder sees, and that it learns."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from vitkit.data.draws import Draw
from vitkit.errors import InputError
from vitkit.models import create_model
from vitkit.models.configs import Preprocessing
from vitkit.models.vit import cut_patches
from vitkit.objectives import ObjectiveConfig, build_objective
from vitkit.objectives.mae import MaskedAutoencoding


def objective(**settings: Any) -> MaskedAutoencoding:
    torch.manual_seed(0)
    model = create_model(
        "Ti/16", image_size=16, patch=4, width=32, depth=2, heads=2, mlp_width=64, num_classes=0
    )
    config = ObjectiveConfig("mae", **{"decoder_width": 32, "decoder_depth": 1, **settings})
    built = build_objective(config, model, Preprocessing(image_size=16), False)
    assert isinstance(built, MaskedAutoencoding)
    return built


def batch(built: MaskedAutoencoding, images: torch.Tensor, step: int = 0) -> dict[str, torch.Tensor]:
    positions = step * len(images) + np.arange(len(images))
    return built.prepare({"image": images}, Draw(0, step, positions))


def pixels(count: int = 4) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=torch.manual_seed(1))


def test_the_loss_is_the_error_of_masked_patches() -> None:
    built = objective(patch_norm=False).eval()
    given = batch(built, pixels())
    masked, seen = given["order"][:, :12], given["order"][:, 12:]
    images = built.normalize(given["image"])
    painted = built.decoder(built.model.encode(images, None, seen), seen)
    errors = (painted - cut_patches(images, 4)) ** 2
    expected = torch.stack([errors[row, masked[row]].mean() for row in range(4)]).mean()
    loss, metrics = built(given)
    torch.testing.assert_close(loss, expected)
    assert metrics == {}


def test_the_encoder_never_sees_masked_patches() -> None:
    built = objective().eval()
    given = batch(built, pixels(1))
    changed = given["image"].clone()
    for number in given["order"][0, :12].tolist():
        row, column = divmod(number, 4)
        changed[0, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] ^= 255
    seen = given["order"][:, 12:]
    tokens = [built.model.encode(built.normalize(images), None, seen) for images in (given["image"], changed)]
    assert torch.equal(*tokens)


def test_what_the_class_token_gathers_is_trained() -> None:
    built = objective()
    given = batch(built, pixels())
    seen = given["order"][:, 12:]
    tokens = built.model.encode(built.normalize(given["image"]), None, seen).detach().requires_grad_()
    built.decoder(tokens, seen).square().sum().backward()
    assert tokens.grad is not None and tokens.grad[:, 0].abs().min() > 0


def test_a_decoder_that_is_computed_again_keeps_little_and_changes_nothing() -> None:
    def kept_and_gradients(again: bool) -> tuple[int, list[torch.Tensor]]:
        built = objective(decoder_depth=4)
        built.model.activation_checkpointing = again
        kept = 0

        def count(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal kept
            kept += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            loss, _ = built(batch(built, pixels()))
        loss.backward()
        return kept, [
            parameter.grad for parameter in built.decoder.parameters() if parameter.grad is not None
        ]

    kept, gradients = kept_and_gradients(False)
    kept_again, same = kept_and_gradients(True)
    assert kept_again < 0.3 * kept
    for one, other in zip(gradients, same, strict=True):
        torch.testing.assert_close(one, other)


def test_masks_are_a_function_of_the_step() -> None:
    built = objective()
    first, again, other = (batch(built, pixels(), step)["order"] for step in (3, 3, 4))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(first.sort(dim=1).values, torch.arange(16).expand(4, 16))


@pytest.mark.parametrize("patch_norm", [False, True])
def test_it_learns(patch_norm: bool) -> None:
    built = objective(mask_share=0.5, patch_norm=patch_norm)
    ramp = torch.arange(16, dtype=torch.uint8) * 15
    images = torch.stack([ramp.expand(3, 16, 16), ramp.flip(0).expand(3, 16, 16)]).repeat(4, 1, 1, 1)
    optimizer = torch.optim.AdamW(built.parameters(), 3e-3)
    losses = []
    for step in range(60):
        loss, _ = built(batch(built, images, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert np.mean(losses[-5:]) < 0.4 * losses[0]


def test_its_own_parameters_are_no_part_of_the_model() -> None:
    built = objective()
    own = {name.split(".")[0] for name, _ in built.named_parameters()}
    assert own == {"model", "decoder"}
    assert not any(key.startswith("_encoder") for key in built.state_dict())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "CCT-2/3x2",
            "objective mae needs a plain ViT: this model's tokens come from a convolutional stem",
        ),
        ("ViT-Lite-2/4", "objective mae needs a plain ViT: this model's encoder can't skip patches"),
        ("R+Ti/16", "objective mae needs a plain ViT: this model's tokens come from a convolutional stem"),
    ],
)
def test_other_models_are_refused(name: str, message: str) -> None:
    model = create_model(name, num_classes=0)
    with pytest.raises(InputError, match=message):
        build_objective(ObjectiveConfig("mae"), model, Preprocessing(), False)


def test_patch_dropout_is_refused() -> None:
    model = create_model("Ti/16", num_classes=0, patch_dropout=0.5)
    with pytest.raises(InputError, match="objective mae selects patches itself: set model.patch_dropout=0"):
        build_objective(ObjectiveConfig("mae"), model, Preprocessing(), False)


def test_settings_are_checked() -> None:
    with pytest.raises(InputError, match="mask_share does not apply to objective 'supervised': remove it"):
        ObjectiveConfig(mask_share=0.5)
    with pytest.raises(InputError, match="loss does not apply to objective 'mae': remove it"):
        ObjectiveConfig("mae", loss="sigmoid")
    with pytest.raises(InputError, match="mask_share 0.01 hides 0 of 16 patches"):
        objective(mask_share=0.01)


@pytest.mark.parametrize("patch_norm", [False, True])
def test_pictures(patch_norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The input, grey where masked, and what is painted there: the input again, where the decoder is never wrong."""
    built = objective(patch_norm=patch_norm).eval()
    images, draw = pixels(), Draw(3, 0, np.arange(4))
    order = built.prepare({"image": images}, draw)["order"]
    with torch.no_grad():
        found = built.pictures({"image": images}, draw)
        assert not torch.equal(found[:, 2], images)
        monkeypatch.setattr(built, "paint", lambda given, order: built.targets(given)[0])
        assert torch.equal(built.pictures({"image": images}, draw)[:, 2], images)
    assert found.dtype == torch.uint8 and torch.equal(found[:, 0], images)
    left, after, before = (cut_patches(found[:, column], 4) for column in (1, 2, 0))
    for row in range(4):
        masked, seen = order[row, :12], order[row, 12:]
        assert (left[row, masked] == 128).all()
        assert torch.equal(left[row, seen], before[row, seen])
        assert torch.equal(after[row, seen], before[row, seen])


def test_positions_beyond_the_stem_are_refused() -> None:
    model = create_model("Ti/16", num_classes=0, positions="relative")
    with pytest.raises(InputError, match="objective mae needs positions that are added at the stem"):
        build_objective(ObjectiveConfig("mae"), model, Preprocessing(), False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decoder_width": 30}, "decoder_width must be a multiple of 4, not 30"),
        ({"decoder_width": 48}, "decoder_width above 32 must be a multiple of 32, not 48"),
        ({"decoder_depth": 0}, "decoder_depth must be at least 1, not 0"),
    ],
)
def test_the_decoders_shape_is_checked(settings: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ObjectiveConfig("mae", **settings)  # type: ignore[arg-type]


def test_one_value_has_no_deviation() -> None:
    shape = dict(image_size=4, patch=1, width=32, depth=1, heads=2, mlp_width=32, channels=1, num_classes=0)
    model, preprocessing = create_model("Ti/16", **shape), Preprocessing(4, mean=(0.5,), std=(0.5,))
    config = ObjectiveConfig("mae", decoder_width=32, decoder_depth=1)
    with pytest.raises(InputError, match="can't normalise patches of one value"):
        build_objective(config, model, preprocessing, False)
    build_objective(dataclasses.replace(config, patch_norm=False), model, preprocessing, False)
