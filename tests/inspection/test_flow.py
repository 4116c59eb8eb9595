"""Rollout by hand: the product of layers, fused heads, discarded entries, every pool, and gradients of a class."""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.inspection.tiny_models import FAMILIES, VIT, images_for, make, steered
from vitkit.errors import InputError
from vitkit.inspection import flow as flow_module
from vitkit.inspection import gradient_rollout, rollout
from vitkit.inspection.asking import Undefined
from vitkit.inspection.flow import Flow, discard_smallest, mix_residual
from vitkit.models.attention import full
from vitkit.models.attention.attention import attention_weights
from vitkit.models.configs import ViTConfig
from vitkit.models.record import Record

LAYERS = ([[0.8, 0.2], [0.4, 0.6]], [[0.5, 0.5], [0.1, 0.9]])
# Logits by offset that give these rows: the class token comes first, then the only patch.
LOGITS = ({-1: math.log(0.2 / 0.8), 1: math.log(0.4 / 0.6)}, {1: math.log(0.1 / 0.9)})
ONE_PATCH: dict[str, Any] = dict(image_size=4)


def test_the_papers_matrix() -> None:
    flow = Flow(residual=0.5, discard=0.0)
    for layer, matrix in enumerate(LAYERS):
        flow.add(torch.tensor([matrix], dtype=torch.float64), is_first=layer == 0)
    np.testing.assert_allclose(
        flow.product[0], [[0.725, 0.275], [0.235, 0.765]], atol=1e-12
    )  # computed by hand


def test_the_papers_matrix_in_a_model() -> None:
    model = steered(LOGITS, heads=1, **ONE_PATCH)
    images, record = images_for(model.config), Record("attention")
    model(images, record)
    for layer, matrix in enumerate(LAYERS):
        np.testing.assert_allclose(record.attention[layer][0, 0].detach(), matrix, atol=1e-6)
    np.testing.assert_allclose(rollout(model, images), np.full((2, 1, 1), 0.275), atol=1e-6)


@pytest.mark.parametrize(
    ("fuse", "residual", "expected"),
    [
        ("mean", 0.5, 0.175),  # heads (0.8, 0.2) and (0.5, 0.5): (0.65, 0.35), then (0.825, 0.175)
        ("mean", 0.2, 0.28),
        ("mean", 0.0, 0.35),
        ("max", 0.5, 0.25 / 1.15),  # (0.8, 0.5), then (0.9, 0.25)
        ("min", 0.5, 0.1 / 0.85),  # (0.5, 0.2), then (0.75, 0.1)
    ],
)
def test_heads_are_fused_and_the_residual_mixed_in(fuse: Any, residual: float, expected: float) -> None:
    model = steered(LOGITS[:1], heads=2, **ONE_PATCH)
    found = rollout(model, images_for(model.config), fuse, residual)
    np.testing.assert_allclose(found, np.full((2, 1, 1), expected), atol=1e-6)


def test_discard_by_hand() -> None:
    matrices = torch.tensor(
        [
            [[0.1, 0.6, 0.3], [0.2, 0.5, 0.3], [0.4, 0.15, 0.45]],
            [[0.0, 1.0, 0.0], [0.5, 0.25, 0.25], [0.3, 0.3, 0.4]],
        ]
    )
    # Half of six entries off the diagonal, the smallest of each matrix; of equal ones the first.
    expected = [
        [[0.1, 0.6, 0.0], [0.0, 0.5, 0.3], [0.4, 0.0, 0.45]],
        [[0.0, 1.0, 0.0], [0.5, 0.25, 0.0], [0.0, 0.3, 0.4]],
    ]
    np.testing.assert_allclose(discard_smallest(matrices, 0.5), expected)
    np.testing.assert_allclose(discard_smallest(matrices, 0.0), matrices)
    nearly_all = discard_smallest(matrices, 0.99)[0]
    assert nearly_all.count_nonzero() == 4 and nearly_all[0, 1] == 0.6
    mixed = mix_residual(torch.tensor(expected), 0.5)
    np.testing.assert_allclose(mixed[0, 0], np.array([0.55, 0.3, 0.0]) / 0.85, rtol=1e-6)
    np.testing.assert_allclose(mixed.sum(-1), np.ones((2, 3)), rtol=1e-6)


def explicit(config: Any, matrices: list[np.ndarray], pooling: np.ndarray | None) -> np.ndarray:
    """Return the map of fused matrices (batch, tokens, tokens), one a layer, as the definition reads."""
    maps = []
    for image in range(len(matrices[0])):
        product = np.eye(matrices[0].shape[1])
        for matrix in matrices:
            layer = 0.5 * matrix[image] + 0.5 * np.eye(len(product))
            product = layer / layer.sum(1)[:, None] @ product
        patches = product[config.num_prefix :, config.num_prefix :]
        if config.pool == "token":
            maps.append(product[0, config.num_prefix :])
        elif pooling is None:
            maps.append(patches.mean(0))
        else:
            maps.append(pooling[image] @ patches)
    return np.reshape(maps, (-1, *config.grid))


@pytest.mark.parametrize("family", ["token", "mean", "map", "seqpool", "hybrid", "vit-lite", "cvt", "cct"])
def test_every_pool_reads_its_rows(family: str) -> None:
    model = make(FAMILIES[family])
    images, record = images_for(model.config, 3), Record("attention", "pooling")
    model(images, record)
    matrices = [record.attention[layer].detach().double().mean(1).numpy() for layer in range(3)]
    pooling = None if record.pooling is None else record.pooling.detach().double().mean(1).numpy()
    expected = explicit(model.config, matrices, pooling)
    np.testing.assert_allclose(rollout(model, images), expected, atol=1e-6)


def test_a_gradient_rollout_by_hand() -> None:
    """Written out: the forward pass of a ViT with each attention matrix in sight, one image at a time."""
    model: Any = make(ViTConfig(**VIT, registers=1, gelu="erf"))
    images, classes = images_for(model.config, 3), [4, 0, 2]
    expected = []
    for image, number in zip(images, classes, strict=True):
        tokens, matrices = model.embed(image[None]), []
        for block in model.blocks:
            q, k, v = F.linear(_norm(block.norm1, tokens), block.attn.qkv.weight, block.attn.qkv.bias).split(
                16, -1
            )
            heads = []
            for part in (slice(0, 8), slice(8, 16)):
                attention = torch.softmax(q[..., part] @ k[..., part].mT / math.sqrt(8), -1)
                attention.retain_grad()
                matrices.append(attention)
                heads.append(attention @ v[..., part])
            tokens = tokens + F.linear(torch.cat(heads, -1), block.attn.proj.weight, block.attn.proj.bias)
            hidden = F.gelu(F.linear(_norm(block.norm2, tokens), block.mlp.fc1.weight, block.mlp.fc1.bias))
            tokens = tokens + F.linear(hidden, block.mlp.fc2.weight, block.mlp.fc2.bias)
        logits = F.linear(_norm(model.norm, tokens)[:, 0], model.head.weight, model.head.bias)
        torch.testing.assert_close(logits, model(image[None]), atol=1e-5, rtol=1e-5)
        logits[0, number].backward()
        weighted = [(matrix * matrix.grad).detach().double().numpy() for matrix in matrices]
        layers = [np.maximum((weighted[i] + weighted[i + 1]) / 2, 0) for i in (0, 2, 4)]
        expected.append(explicit(model.config, layers, None)[0])
    found = gradient_rollout(model, images, classes)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)
    assert found.max() > 1e-3


def _norm(norm: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, (16,), norm.weight, norm.bias, norm.eps)


def test_a_class_has_its_own_map_and_a_head_of_zeros_has_none() -> None:
    model = make(FAMILIES["cct"])
    images = images_for(model.config)
    one, other = (gradient_rollout(model, images, number) for number in (0, 3))
    assert np.abs(one - other).max() > 1e-4
    np.testing.assert_array_equal(gradient_rollout(model, images, torch.tensor([0, 3]))[0], one[0])
    with torch.no_grad():
        model.classifier.fc.weight.zero_()
    with pytest.raises(
        Undefined, match="its logits have no gradient: the head is all zeros, as before training"
    ):
        gradient_rollout(model, images, 0)


def test_a_frozen_model_and_a_caller_without_gradients() -> None:
    model = make(FAMILIES["token"])
    images = images_for(model.config)
    expected = gradient_rollout(model, images, 1)
    with torch.no_grad():
        np.testing.assert_array_equal(gradient_rollout(model.requires_grad_(False), images, 1), expected)
    with torch.inference_mode():
        prepared, classes = images * 1.0, torch.ones(len(images), dtype=torch.long)
        np.testing.assert_array_equal(gradient_rollout(model, prepared, classes), expected)
    np.testing.assert_array_equal(gradient_rollout(model, prepared, 1), expected)
    assert not images.requires_grad


def test_a_gradient_rollout_holds_one_layers_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the depth: when a gradient arrives, the matrices of all other layers are gone or yet to come."""
    made: list[weakref.ref[Tensor]] = []
    most = 0

    def remembering(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def remembered(*arguments: Any) -> Tensor:
            nonlocal most
            made.append(weakref.ref(result := function(*arguments)))
            most = max(most, sum(tensor() is not None for tensor in made))
            return result

        return remembered

    monkeypatch.setattr(full, "attention_weights", remembering(attention_weights))
    monkeypatch.setattr(flow_module, "mix_residual", remembering(mix_residual))
    model = make(dataclasses.replace(FAMILIES["token"], depth=6))
    gradient_rollout(model, images_for(model.config)[:1], 1)
    assert len(made) == 12 + 6 and most <= 3


def test_discard_reaches_both() -> None:
    model = make(FAMILIES["token"])
    images = images_for(model.config)
    assert np.abs(rollout(model, images, discard=0.8) - rollout(model, images)).max() > 1e-4
    whole = gradient_rollout(model, images, 1)
    assert np.abs(gradient_rollout(model, images, 1, discard=0.95) - whole).max() > 1e-5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(fuse="meen"), "fuse is 'meen'; did you mean 'mean'? expected one of mean, max, min"),
        (dict(residual=1.0), "residual must be at least 0 and below 1, not 1"),
        (dict(discard=-0.1), "discard must be at least 0 and below 1, not -0.1"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    model = make(FAMILIES["token"])
    with pytest.raises(InputError) as error:
        rollout(model, images_for(model.config), **settings)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (5, "no class 5: the model has 5 classes, counted from 0"),
        ([0, -1], "no class -1: the model has 5 classes, counted from 0"),
        (
            [0, 1, 2],
            "classes have shape (3,) and type torch.int64; expected one whole number, or one for each of the 2 images",
        ),
        (
            0.5,
            "classes have shape () and type torch.float32; expected one whole number, or one for each of the 2 images",
        ),
        ("kind 0", "classes are 'kind 0'; expected indices, such as class_names.index(name)"),
        (None, "classes are None; expected indices, such as class_names.index(name)"),
    ],
)
def test_classes_are_checked(classes: Any, message: str) -> None:
    model = make(FAMILIES["token"])
    with pytest.raises(InputError) as error:
        gradient_rollout(model, images_for(model.config), classes)
    assert str(error.value) == message


def test_a_model_without_a_head() -> None:
    model = make(ViTConfig(**dict(VIT, num_classes=0)))
    with pytest.raises(InputError, match="because it has no classification head"):
        gradient_rollout(model, images_for(model.config), 0)
