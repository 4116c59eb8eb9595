"""Filters and position similarity, on weights whose answer is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.inspection import tiny_models
from vitkit.errors import InputError
from vitkit.inspection import embedding_filters, position_similarity
from vitkit.inspection.weights import captioned_filters, principal_components
from vitkit.models.configs import HybridConfig, ResNetConfig, ViTConfig

FAMILIES, VIT, make = tiny_models.FAMILIES, tiny_models.VIT, tiny_models.make


@pytest.mark.parametrize("family", ["token", "vit-lite"])
def test_components_of_a_constructed_embedding(family: str) -> None:
    model = make(FAMILIES[family])
    convolution = model.patch_embed.proj if family == "token" else model.tokenizer.conv_layers[0][0]
    # Filters spread along three known directions, most along the first, around a mean that is none of them.
    directions = torch.zeros(3, 3, 4, 4)
    directions[0, 2, 0, 1] = -1.0  # blue at one place; its sign is turned
    directions[1, 0, :2] = 1 / math.sqrt(8)  # the red upper half
    directions[2, 1, :, 0], directions[2, 1, :, 3] = (
        0.2,
        -math.sqrt(0.21),
    )  # green edges: 4 * (0.04 + 0.21) = 1
    places = torch.linspace(0, 2 * math.pi, 17)[:-1]
    along = torch.stack(
        [9 * places.cos(), 4 * places.sin(), (2 * places).cos()], dim=1
    )  # centred, uncorrelated
    mean = torch.randn(3, 4, 4)
    with torch.no_grad():
        convolution.weight.copy_(torch.einsum("fd,dchw->fchw", along, directions) + mean)
    filters = embedding_filters(model, count=3)
    assert filters.shape == (3, 4, 4, 3)
    expected = directions.permute(0, 2, 3, 1).numpy() * np.array([-1, 1, -1])[:, None, None, None]
    np.testing.assert_allclose(filters, expected, atol=1e-5)


def test_the_caption_tells_the_share_of_variance() -> None:
    model = make(FAMILIES["token"])
    with torch.no_grad():
        weight = model.patch_embed.proj.weight.zero_()
        weight[0, 0, 0, 0], weight[1, 0, 0, 0] = 3.0, -3.0  # variance 18
        weight[2, 0, 0, 1], weight[3, 0, 0, 1] = 1.0, -1.0  # variance 2
    assert captioned_filters(model, 1)[1] == (
        "the first 1 of 2 principal components of the 16 filters of the patch embedding, 4×4 pixels each; "
        "they explain 90% of the variance"
    )
    assert embedding_filters(model).shape == (2, 4, 4, 3)
    with torch.no_grad():
        weight.fill_(0.5)
    with pytest.raises(InputError, match="because all filters of the patch embedding are the same"):
        embedding_filters(model)


@given(st.integers(2, 9), st.integers(1, 9), st.integers(0, 2**31))
def test_components_rebuild_the_samples(samples: int, dimensions: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(samples, dimensions))
    components, shares = principal_components(values)
    assert len(components) <= min(samples - 1, dimensions)
    np.testing.assert_allclose(components @ components.T, np.eye(len(components)), atol=1e-9)
    centered = values - values.mean(0)
    np.testing.assert_allclose(centered @ components.T @ components, centered, atol=1e-6)
    assert (np.diff(shares) <= 1e-12).all() and shares.sum() == pytest.approx(1)
    assert (components[range(len(components)), np.abs(components).argmax(1)] > 0).all()


@pytest.mark.parametrize("formula", ["std", "variance"])
@pytest.mark.parametrize("family", ["bit", "hybrid", "hybrid-stages"])
def test_kernels_of_a_resnet_are_what_pixels_are_multiplied_with(family: str, formula: Any) -> None:
    if family == "bit":
        config: Any = ResNetConfig(image_size=16, num_classes=5, units=(1,), standardization=formula)
    else:
        units = (1, 1) if family == "hybrid-stages" else ()
        settings = dict(VIT, image_size=(16, 24), patch=1, backbone_width=32, standardization=formula)
        config = HybridConfig(**settings, backbone_units=units, standardization_epsilon=0.1)
    model = make(config)
    stem: Any = {
        "bit": lambda: model.stem,
        "hybrid": lambda: model.patch_embed.backbone,
        "hybrid-stages": lambda: model.patch_embed.backbone.stem,
    }[family]()
    # The answer to one pixel of one channel, where the whole kernel lies within the image.
    found = embedding_filters(model, 1000)
    assert len(found) == len(stem.conv.weight)
    for channel, y, x in [(0, 0, 0), (1, 3, 5), (2, 6, 6)]:
        pixel = torch.zeros(1, 3, 15, 15)
        pixel[0, channel, 1 + y, 1 + x] = 1.0
        answer = stem.conv(pixel)[0, :, 2, 2].detach().numpy()  # stride 2, padding 3: its window begins at 1
        np.testing.assert_allclose(found[:, y, x, channel], answer, atol=1e-5)


def test_kernels_of_cct_are_its_tokenizers() -> None:
    model = make(FAMILIES["cct"])
    found, caption = captioned_filters(model, 5)
    weight = model.tokenizer.conv_layers[0][0].weight.detach()
    np.testing.assert_array_equal(found, weight[:5].permute(0, 2, 3, 1).numpy())
    assert caption == "the first 5 of 16 filters of the tokenizer's first convolution, 3×3 pixels each"
    assert captioned_filters(model)[1].startswith("the 16 filters of")
    with pytest.raises(InputError, match="count must be at least 1, not 0"):
        embedding_filters(model, 0)


@pytest.mark.parametrize("family", ["token", "vit-lite"])
def test_similarity_of_a_constructed_table(family: str) -> None:
    model = make(FAMILIES[family])
    table = model.pos_embed if family == "token" else model.classifier.positional_emb
    prefix = model.config.num_prefix
    angles = torch.tensor([0, 30, 60, 90, 180, 270]) * math.pi / 180  # one embedding a patch, 2 rows of 3
    lengths = torch.tensor([1, 2, 3, 4, 5, 6])
    with torch.no_grad():
        table.fill_(7.0)  # what stays in the rows of class and register tokens must not matter
        table[0, prefix:] = 0.0
        table[0, prefix:, 3] = lengths * angles.cos()
        table[0, prefix:, 5] = lengths * angles.sin()
    similarity = position_similarity(model)
    expected = (angles[:, None] - angles[None, :]).cos().reshape(2, 3, 2, 3)
    np.testing.assert_allclose(similarity, expected.numpy(), atol=1e-6)
    assert similarity[0, 1, 0, 2] == pytest.approx(math.sqrt(0.75), abs=1e-6)
    assert similarity[0, 0, 1, 1] == pytest.approx(-1, abs=1e-6)


def test_similarity_of_fixed_sines() -> None:
    # computed by hand: rows of the table of width 8 on a grid of 2 by 3; every row has length 2.
    model = make(ViTConfig(**dict(VIT, width=8, pool="mean", positions="sincos_2d")))
    similarity = position_similarity(model)
    assert similarity[0, 0, 0, 0] == pytest.approx(1, abs=1e-6)
    assert similarity[0, 0, 0, 1] == pytest.approx((0.540302 + 3) / 4, abs=1e-6)
    assert similarity[0, 0, 1, 2] == pytest.approx((-0.416147 + 1 + 0.540302 + 1) / 4, abs=1e-6)


def test_a_table_without_rows_for_the_class_token() -> None:
    model = make(ViTConfig(**VIT, prefix_positions=False))
    with torch.no_grad():
        model.pos_embed.zero_()
        model.pos_embed[0, :3, 0], model.pos_embed[0, 3:, 1] = 1.0, 1.0
    expected = np.eye(2)[:, None, :, None] * np.ones((2, 3, 2, 3))
    np.testing.assert_allclose(position_similarity(model), expected, atol=1e-6)


def test_each_layers_own_table() -> None:
    model = make(ViTConfig(**VIT, positions_at="every_layer"))
    with torch.no_grad():
        model.pos_embed[1] = 1.0
    assert position_similarity(model, 1) == pytest.approx(1, abs=1e-6)
    np.testing.assert_array_equal(position_similarity(model, -2), position_similarity(model, 1))
    assert position_similarity(model).min() < 0.9
    with pytest.raises(InputError, match="no position table for layer 3: the model has 3"):
        position_similarity(model, 3)
