"""Attention distance, maps and pooling weights, where attention is known; colours of tokens on a scale that odd ones don't set."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA

import vitkit
from tests.inspection import tiny_models
from vitkit.data.images import prepare
from vitkit.errors import InputError
from vitkit.inspection import attention_distance, attention_maps, pooling_map, token_colors, uniform_distance
from vitkit.models.configs import ViTConfig
from vitkit.models.names import model_config
from vitkit.models.record import Record

FAMILIES, make, images_for, steered = (
    tiny_models.FAMILIES,
    tiny_models.make,
    tiny_models.images_for,
    tiny_models.steered,
)
SHARED = Path(__file__).parents[2].parent / "shared"
WEIGHTS = SHARED / "weights" / "vit_tiny_patch16_224.safetensors"
PHOTOS = SHARED / "data" / "imagenet" / "samples"

MUCH = 30.0
"A logit that takes all attention but exp(-30)."


@pytest.mark.parametrize(
    ("grid", "patch", "pixels"),
    [((14, 14), 16, 116.4922), ((7, 7), 32, 115.5029), ((16, 16), 14, 116.5651), ((24, 24), 16, 200.0480)],
)
def test_uniform_attention_of_the_paper(grid: tuple[int, int], patch: int, pixels: float) -> None:
    assert uniform_distance(grid, patch) == pytest.approx(pixels, abs=5e-5)  # computed by hand


def test_uniform_attention_by_hand() -> None:
    assert uniform_distance((1, 1), 16) == 0
    assert uniform_distance((1, 2), 10) == 5  # half of it stays, half goes 10 pixels
    assert uniform_distance((1, 3), (99, 3)) == pytest.approx((2 * 3 * 2 + 6 * 2) / 9)
    assert uniform_distance((2, 2), (3, 4)) == pytest.approx((0 + 3 + 4 + 5) / 4)


@given(st.integers(1, 6), st.integers(1, 6), st.floats(0.5, 64))
def test_uniform_attention_scales_with_patches(rows: int, columns: int, patch: float) -> None:
    found = uniform_distance((rows, columns), patch)
    assert found == pytest.approx(patch * uniform_distance((columns, rows), 1))
    assert found <= patch * math.hypot(rows, columns)


@pytest.mark.parametrize("pool", ["token", "mean"])
def test_attention_to_a_known_neighbour(pool: str) -> None:
    # Head 0: to the token before, then to itself, then to the token after; head 1: uniform. Patches are 4 pixels,
    # 2 rows of 3. To the one before: 4 pixels in a row, from the second row's start to the first row's end 4 * sqrt(5);
    # the first patch has none but the class token, which is dropped, so that it attends evenly.
    model = steered([{1: MUCH}, {0: MUCH}, {-1: MUCH}], pool=pool)
    corner = (0 + 4 + 8 + 4 + 4 * math.sqrt(2) + 4 * math.sqrt(5)) / 6
    before = (corner + 4 + 4 + 4 * math.sqrt(5) + 4 + 4) / 6
    uniform = uniform_distance((2, 3), 4)
    distances = attention_distance(model, images_for(model.config, 3))
    np.testing.assert_allclose(distances, [[before, uniform], [0, uniform], [before, uniform]], atol=1e-5)


@pytest.mark.parametrize(
    ("family", "grid", "cell"),
    [("token", (2, 3), 4), ("hybrid", (2, 3), 8), ("vit-lite", (2, 3), 4), ("cct", (4, 6), 2)],
)
def test_the_pixels_of_a_token(family: str, grid: tuple[int, int], cell: int) -> None:
    model = make(FAMILIES[family])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".qkv." in name:
                parameter.zero_()
    distances = attention_distance(model, images_for(model.config))
    np.testing.assert_allclose(distances, uniform_distance(grid, cell), rtol=1e-5)


def test_distance_is_the_mean_over_images_and_queries() -> None:
    model = make(FAMILIES["token"])
    images, record = images_for(model.config, 3), Record("attention")
    model(images, record)
    expected = np.zeros((3, 2))
    for layer in range(3):
        attention = record.attention[layer].detach().double().numpy()[:, :, 2:, 2:]
        for head in range(2):
            means = []
            for image in range(3):
                for query in range(6):
                    row = attention[image, head, query] / attention[image, head, query].sum()
                    means.append(
                        sum(
                            row[key] * 4 * math.hypot(query // 3 - key // 3, query % 3 - key % 3)
                            for key in range(6)
                        )
                    )
            expected[layer, head] = np.mean(means)
    np.testing.assert_allclose(attention_distance(model, images), expected, rtol=1e-5)


def test_a_model_in_half_precision() -> None:
    model = make(FAMILIES["token"])
    images = images_for(model.config)
    expected = attention_distance(model, images)
    np.testing.assert_allclose(attention_distance(model.bfloat16(), images), expected, rtol=0.05)


@pytest.mark.parametrize("family", ["token", "mean", "map", "unpooled", "cct", "vit-lite"])
def test_maps_are_rows_of_attention(family: str) -> None:
    model: Any = make(FAMILIES[family])
    config = model.config
    images, record = images_for(config), Record("attention")
    model(images, record)
    maps = attention_maps(model, images)
    for layer in range(3):
        attention = record.attention[layer].detach().numpy()[..., config.num_prefix :]
        if family in ("token", "vit-lite"):
            row = attention[:, :, 0]
        else:
            row = attention[:, :, config.num_prefix :].mean(2)
        np.testing.assert_allclose(maps[:, layer], row.reshape(2, 2, *config.grid), atol=1e-6)
    rows, columns = config.grid
    for patch, place in (((0, 0), 0), ((1, -1), 2 * columns - 1), ((-1, 1), (rows - 1) * columns + 1)):
        found = attention_maps(model, images, [-1], patch=patch)[:, 0]
        attention = record.attention[2].detach().numpy()[..., config.num_prefix + place, config.num_prefix :]
        np.testing.assert_allclose(found, attention.reshape(2, 2, *config.grid), atol=1e-6)
    for wrong in ((rows, 0), (0, -columns - 1), (), (0,), 5, (1.5, 0)):
        with pytest.raises(InputError, match=f"the model has {rows} rows and {columns} columns of patches"):
            attention_maps(model, images, patch=wrong)


def test_maps_of_chosen_layers_come_in_their_order() -> None:
    model = make(FAMILIES["token"])
    images = images_for(model.config)
    whole = attention_maps(model, images)
    np.testing.assert_allclose(attention_maps(model, images, [-1, 0]), whole[:, [2, 0]], atol=1e-6)
    with pytest.raises(InputError, match="cannot record layer 3: the model has 3 layers"):
        attention_maps(model, images, [3])


@pytest.mark.parametrize("family", ["map", "seqpool", "cvt"])
def test_pooling_maps_are_the_weights(family: str) -> None:
    model = make(FAMILIES[family])
    images, record = images_for(model.config), Record("pooling")
    model(images, record)
    expected = record.pooling.detach().mean(1).reshape(2, 2, 3).numpy()
    np.testing.assert_allclose(pooling_map(model, images), expected, atol=1e-6)
    np.testing.assert_allclose(expected.sum((1, 2)), 1, rtol=1e-5)


@pytest.mark.skipif(not (WEIGHTS.exists() and PHOTOS.exists()), reason="needs the shared weights and photos")
def test_trained_layers_look_further_the_deeper_they_are() -> None:
    predictor = vitkit.load(f"Ti/16@{WEIGHTS}", device="cpu")
    images = torch.stack(
        [prepare(photo, predictor.preprocessing) for photo in sorted(PHOTOS.glob("*.JPEG"))[::16]]
    )
    distances = attention_distance(predictor, images).mean(1)
    assert distances[8:].mean() > 1.5 * distances[:4].mean()


@pytest.mark.parametrize(
    ("name", "size", "stride"),
    [
        ("ViT-Lite-2/4", 34, 4),
        ("R+Ti/16", 232, 32),
        ("CCT-14/7x2", 232, 16),
        ("R26+S/32", 240, 32),
        ("CCT-7/3x1", 32, 2),
    ],
)
def test_tokens_are_a_stride_apart_whatever_the_size(name: str, size: int, stride: int) -> None:
    assert model_config(name, image_size=size).stride == stride


@pytest.mark.parametrize("layer", [-1, 0])
@pytest.mark.parametrize("family", ["token", "cct"])
def test_colours_are_components_of_all_tokens(family: str, layer: int) -> None:
    model = make(FAMILIES[family])
    images, record = images_for(model.config, 4), Record("tokens")
    model(images, record)
    tokens = record.tokens[layer % 3].detach().double().numpy()[:, model.config.num_prefix :].reshape(-1, 16)
    fitted = PCA(3).fit(tokens)
    values = fitted.transform(tokens)
    signs = [np.sign(row[np.abs(row).argmax()]) for row in fitted.components_]
    values = values * signs
    low, high = np.percentile(values, (2, 98), axis=0)
    expected = ((values - low) / (high - low)).clip(0, 1).reshape(4, *model.config.grid, 3)
    colors = token_colors(model, images, layer)
    np.testing.assert_allclose(colors, expected, atol=1e-3)
    assert colors.min() == 0 and colors.max() == 1


def test_alike_patches_have_one_colour() -> None:
    model: Any = make(ViTConfig(**tiny_models.VIT, pool="mean", positions="none"))
    images = torch.zeros(2, 3, 8, 12)
    images[0, :, :, 4:8], images[1, 0, 4:, :4] = (
        1.0,
        -1.0,
    )  # positions are none: a patch's token is its content's
    colors = token_colors(model, images)
    np.testing.assert_allclose(colors[0, 0, 1], colors[0, 1, 1], atol=1e-5)
    np.testing.assert_allclose(colors[0, 0, 0], colors[0, 1, 2], atol=1e-5)
    assert np.abs(colors[0, 0, 0] - colors[0, 0, 1]).max() > 0.2


def test_what_does_not_vary_is_grey() -> None:
    model = make(ViTConfig(**dict(tiny_models.VIT, width=2, heads=1), pool="mean", positions="none"))
    assert (token_colors(model, images_for(model.config))[..., 2] == 0.5).all()


def test_tokens_of_unknown_layers_are_refused() -> None:
    model = make(FAMILIES["token"])
    with pytest.raises(InputError, match="cannot record layer 3: the model has 3 layers"):
        token_colors(model, images_for(model.config), 3)
