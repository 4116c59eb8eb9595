"""Positions: what they add, where, that they tell patches apart, and how they follow a change of grid."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage
from torch import Tensor

from tests import random_models
from vitkit.models import build
from vitkit.models.configs import CompactConfig, Resample, ViTConfig
from vitkit.models.positions import (
    concat_axes,
    relative_logits,
    resample_line,
    resample_table,
    sincos_2d,
    sine_1d,
)
from vitkit.models.vit import VisionTransformer

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "pos_embed_resample.npz")

SHAPE: dict[str, Any] = dict(width=16, depth=2, heads=2, mlp_width=24, num_classes=5)
VIT: dict[str, Any] = dict(SHAPE, image_size=(8, 12), patch=4)
make = partial(random_models.make, scale=0.3, dtype=torch.float64)
images_for = partial(random_models.images_for, dtype=torch.float64)


def permute_patches(images: Tensor, patch: int) -> Tensor:
    """Move every patch to another place."""
    batch, channels, height, width = images.shape
    grid = images.unfold(2, patch, patch).unfold(3, patch, patch)  # (batch, channels, rows, columns, p, p)
    patches = grid.flatten(2, 3).roll(1, dims=2).flip(2)
    grid = patches.unflatten(2, (height // patch, width // patch))
    return grid.permute(0, 1, 2, 4, 3, 5).reshape(batch, channels, height, width)


# Telling patches apart


@pytest.mark.parametrize("pool", ["token", "mean", "map", "seqpool"])
def test_without_positions_the_order_of_patches_does_not_matter(pool: Any) -> None:
    model = make(ViTConfig(**VIT, positions="none", pool=pool))
    images = images_for(model.config)
    permuted = permute_patches(images, 4)
    assert not torch.equal(permuted, images)
    torch.testing.assert_close(model(permuted), model(images), atol=1e-12, rtol=0)


@pytest.mark.parametrize("positions", ["learned", "learned_2d", "sincos_2d", "relative"])
@pytest.mark.parametrize("pool", ["token", "mean", "map", "seqpool"])
def test_with_positions_the_order_of_patches_matters(positions: Any, pool: Any) -> None:
    model = make(ViTConfig(**VIT, positions=positions, pool=pool))
    images = images_for(model.config)
    assert (model(permute_patches(images, 4)) - model(images)).abs().max() > 1e-3


@pytest.mark.parametrize(("positions", "matters"), [("none", False), ("learned", True), ("sine", True)])
def test_order_in_the_compact_family(positions: Any, matters: bool) -> None:
    settings: dict[str, Any] = dict(SHAPE, image_size=(8, 12), tokenizer="patches", kernel=4)
    model = make(CompactConfig(**settings, positions=positions))
    images = images_for(model.config)
    difference = (model(permute_patches(images, 4)) - model(images)).abs().max()
    assert difference > 1e-3 if matters else difference < 1e-12


# Tables


def test_sines_of_two_axes() -> None:
    """Section 11: a grid of 2x3, width 8."""
    start, one, two = [0, 0, 1, 1], [0.841471, 0.0001, 0.540302, 1], [0.909297, 0.0002, -0.416147, 1]
    expected = [
        start + start,
        one + start,
        two + start,
        start + one,
        one + one,
        two + one,
    ]
    torch.testing.assert_close(sincos_2d((2, 3), 8), torch.tensor([expected]), atol=1e-6, rtol=0)


def test_sines_of_one_axis() -> None:
    """Section 4.1: p / 10000^(2 floor(i/2) / width), sine at even places."""
    table = sine_1d(7, 6)
    assert table.shape == (1, 7, 6)
    for place in range(7):
        for i in range(6):
            angle = place / 10000 ** (2 * (i // 2) / 6)
            expected = math.sin(angle) if i % 2 == 0 else math.cos(angle)
            assert table[0, place, i] == pytest.approx(expected, abs=1e-6)


def test_learned_halves_belong_to_column_and_row() -> None:
    """1.12, table 8: tables of X and of Y, half the width each, side by side."""
    torch.manual_seed(0)
    y, x = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    table = concat_axes(y, x)
    assert table.shape == (2, 15, 8)
    for row in range(3):
        for column in range(5):
            assert torch.equal(table[:, row * 5 + column], torch.cat([x[:, column], y[:, row]], dim=1))


@given(tokens=st.integers(1, 6), batch=st.integers(1, 2), heads=st.integers(1, 3), seed=st.integers(0, 2**16))
def test_relative_logits_against_a_loop(tokens: int, batch: int, heads: int, seed: int) -> None:
    """1.12, table 8: each offset p_q - p_k has an embedding, used as key against the content query."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, heads, tokens, 4, generator=generator, dtype=torch.float64)
    table = torch.randn(2 * tokens - 1, 4, generator=generator, dtype=torch.float64)
    by_offset = {offset: table[offset + tokens - 1] for offset in range(-tokens + 1, tokens)}
    expected = torch.zeros(batch, heads, tokens, tokens, dtype=torch.float64)
    for query in range(tokens):
        for key in range(tokens):
            expected[:, :, query, key] = q[:, :, query] @ by_offset[query - key] / math.sqrt(4)
    torch.testing.assert_close(relative_logits(q, table), expected)


def test_relative_attention_depends_on_distance_alone() -> None:
    model = make(ViTConfig(**VIT, positions="relative", pool="mean"))
    assert model.blocks[0].attn.relative.shape == (2 * 6 - 1, 8)  # shared by the heads, one per layer
    assert not torch.equal(model.blocks[0].attn.relative, model.blocks[1].attn.relative)
    attention = model.blocks[0].attn
    with torch.no_grad():
        q = torch.ones(1, 2, 6, 8, dtype=torch.float64)
        logits = relative_logits(q, attention.relative)[0, 0]
    for offset in range(-5, 6):
        assert logits.diagonal(offset).unique().numel() == 1


# Where positions are added


@pytest.mark.parametrize("positions", ["learned", "learned_2d", "sincos_2d"])
@pytest.mark.parametrize("positions_at", ["stem", "every_layer", "every_layer_shared"])
def test_positions_are_added_where_the_setting_says(positions: Any, positions_at: Any) -> None:
    """1.12, table 8."""
    model = make(ViTConfig(**VIT, positions=positions, positions_at=positions_at, registers=1))
    images = images_for(model.config)
    table = model.position_table()
    each_layer_its_own = positions_at == "every_layer" and positions != "sincos_2d"
    assert len(table) == (2 if each_layer_its_own else 1)
    tokens = model.patch_embed(images)
    prefix = torch.cat([model.cls_token, model.reg_token], dim=1).expand(2, -1, -1)
    tokens = torch.cat([prefix, tokens], dim=1)
    rows = 8 if positions == "learned" else 6  # a learned 1-D table has rows for the prefix tokens too
    for layer, block in enumerate(model.blocks):
        if layer == 0 or positions_at != "stem":
            tokens = tokens.clone()
            tokens[:, -rows:] += table[layer if each_layer_its_own else 0]
        tokens = block(tokens)
    torch.testing.assert_close(model.encode(images), model.norm(tokens))


def test_prefix_tokens_own_rows_or_do_not() -> None:
    with_rows = build(ViTConfig(**VIT, registers=2))
    without = build(ViTConfig(**VIT, registers=2, prefix_positions=False))
    assert with_rows.get_parameter("pos_embed").shape == (1, 9, 16)
    assert without.get_parameter("pos_embed").shape == (1, 6, 16)
    assert isinstance(without, VisionTransformer)
    tokens = without.embed(torch.randn(1, 3, 8, 12))
    assert torch.equal(tokens[:, 0], without.cls_token[:, 0])
    assert torch.equal(tokens[:, 1:3], without.reg_token)


# Resampling


@pytest.mark.parametrize(
    ("source", "method", "tolerance"),
    [
        ("vit_jax", "bilinear_corners", 5e-7),
        ("big_vision", "bilinear_corners", 5e-7),
        ("timm", "bicubic", 2e-6),
        ("timm_bicubic_noantialias", "bicubic_plain", 2e-6),
        ("cct", "bilinear", 2e-6),
    ],
)
def test_resampling_equals_its_source(source: str, method: Any, tolerance: float) -> None:
    cases = [name for name in GOLDEN.files if name.startswith(f"{source}/")]
    assert cases
    for name in cases:
        table, _, grid = name.removeprefix(f"{source}/").rpartition("_")
        rows, columns = map(int, grid.split("x"))
        num_prefix = int(table == "with_class")
        before = torch.from_numpy(GOLDEN[table])
        after = resample_table(before, (4, 4), (rows, columns), num_prefix, method)
        np.testing.assert_allclose(after.numpy(), GOLDEN[name], rtol=0, atol=tolerance)
        assert torch.equal(after[:, :num_prefix], before[:, :num_prefix])


def test_the_four_methods_differ() -> None:
    table = torch.from_numpy(GOLDEN["without_class"])
    results = [resample_table(table, (4, 4), (6, 6), 0, method) for method in get_args(Resample)]
    for i, one in enumerate(results):
        for other in results[:i]:
            assert (one - other).abs().max() > 0.01


grids = st.tuples(st.integers(1, 6), st.integers(1, 6))


@given(
    old=grids,
    new=grids,
    num_prefix=st.integers(0, 3),
    layers=st.integers(1, 2),
    method=st.sampled_from(get_args(Resample)),
)
def test_resampling_keeps_prefix_rows_and_constants(
    old: Any, new: Any, num_prefix: int, layers: int, method: Any
) -> None:
    torch.manual_seed(0)
    table = torch.full((layers, num_prefix + old[0] * old[1], 3), 2.5)
    table[:, :num_prefix] = torch.randn(layers, num_prefix, 3)
    after = resample_table(table, old, new, num_prefix, method)
    assert after.shape == (layers, num_prefix + new[0] * new[1], 3)
    assert torch.equal(after[:, :num_prefix], table[:, :num_prefix])
    torch.testing.assert_close(after[:, num_prefix:], torch.full_like(after[:, num_prefix:], 2.5))


@given(old=grids, new=grids, seed=st.integers(0, 2**16))
def test_aligned_corners_by_definition(old: Any, new: Any, seed: int) -> None:
    """Section 1.8: output cell i of n lies at i (m - 1) / (n - 1) of m; four neighbours, linear on each axis."""
    grid = torch.randn(*old, 2, generator=torch.Generator().manual_seed(seed))

    def neighbours(i: int, length: int, new_length: int) -> list[tuple[int, float]]:
        place = i * (length - 1) / (new_length - 1) if new_length > 1 else 0.0
        low = min(int(place), length - 1)
        return [(low, 1 - (place - low)), (min(low + 1, length - 1), place - low)]

    expected = torch.zeros(*new, 2)
    for row in range(new[0]):
        for column in range(new[1]):
            for y, y_share in neighbours(row, old[0], new[0]):
                for x, x_share in neighbours(column, old[1], new[1]):
                    expected[row, column] += y_share * x_share * grid[y, x]
    after = resample_table(grid.reshape(1, -1, 2), old, new, 0, "bilinear_corners")
    torch.testing.assert_close(after.reshape(*new, 2), expected, atol=1e-5, rtol=0)


def test_aligned_corners_equal_scipy() -> None:
    """Section 1.8: vit_jax calls scipy.ndimage.zoom of order 1."""
    for old, new in [((14, 14), (24, 24)), ((7, 7), (12, 12)), ((4, 6), (9, 5))]:
        grid = torch.randn(*old, 3, generator=torch.Generator().manual_seed(0))
        after = resample_table(grid.reshape(1, -1, 3), old, new, 0, "bilinear_corners").reshape(*new, 3)
        expected = ndimage.zoom(grid.double().numpy(), (new[0] / old[0], new[1] / old[1], 1), order=1)
        np.testing.assert_allclose(after.numpy(), expected, rtol=0, atol=5e-6)


def test_aligned_corners_there_and_back() -> None:
    model = make(ViTConfig(**VIT, registers=1)).float()
    table, images = model.pos_embed.detach().clone(), images_for(model.config).float()
    before = model(images)
    model.set_image_size((12, 20))  # 2x3 -> 3x5: every old cell is one of the new
    assert model.config.grid == (3, 5)
    new = model.pos_embed.detach()
    assert torch.equal(new[:, :2], table[:, :2])
    old_cells = new[:, 2:].unflatten(1, (3, 5))[:, ::2, ::2]
    torch.testing.assert_close(old_cells.flatten(1, 2), table[:, 2:])
    model.set_image_size((8, 12))
    torch.testing.assert_close(model.pos_embed.detach(), table)
    torch.testing.assert_close(model(images), before, atol=1e-5, rtol=1e-5)


def test_rows_are_not_mistaken_for_columns() -> None:
    """A table that knows its row and column still does on another, non-square grid."""
    model = build(ViTConfig(**dict(VIT, image_size=(12, 28)), pool="mean"))
    table: Any = model.get_parameter("pos_embed")
    rows, columns = torch.linspace(0, 1, 3), torch.linspace(0, 1, 7)
    with torch.no_grad():
        table.zero_()
        table[0, :, 0] = rows.repeat_interleave(7)
        table[0, :, 1] = columns.repeat(3)
    model.set_image_size((20, 8))
    after = model.get_parameter("pos_embed").detach()
    torch.testing.assert_close(after[0, :, 0], torch.linspace(0, 1, 5).repeat_interleave(2))
    torch.testing.assert_close(after[0, :, 1], torch.linspace(0, 1, 2).repeat(5))


@pytest.mark.parametrize("positions_at", ["stem", "every_layer"])
def test_learned_axes_follow_their_own_side(positions_at: Any) -> None:
    model = build(ViTConfig(**VIT, positions="learned_2d", positions_at=positions_at))
    y, x = (model.get_parameter(f"pos_embed_{axis}").detach().clone() for axis in "yx")
    model.set_image_size((12, 12))
    assert torch.equal(model.get_parameter("pos_embed_x"), x)
    expected = torch.stack([y[:, 0], (y[:, 0] + y[:, 1]) / 2, y[:, 1]], dim=1)
    torch.testing.assert_close(model.get_parameter("pos_embed_y").detach(), expected)


def test_relative_tables_keep_offset_zero_in_the_middle() -> None:
    model = build(ViTConfig(**VIT, positions="relative"))
    name = "blocks.1.attn.relative"
    before = model.get_parameter(name).detach().clone()  # 7 tokens, 13 offsets
    model.set_image_size((12, 16))
    after = model.get_parameter(name).detach()  # 13 tokens, 25 offsets
    assert after.shape == (25, 8)
    torch.testing.assert_close(after[12], before[6])
    torch.testing.assert_close(after[[0, -1]], before[[0, -1]])


def test_fixed_tables_are_computed_anew() -> None:
    model = build(ViTConfig(**VIT, positions="sincos_2d"))
    assert isinstance(model, VisionTransformer)
    assert "positions" not in model.state_dict()
    model.set_image_size((16, 20))
    assert model.positions is not None
    assert torch.equal(model.positions, sincos_2d((4, 5), 16))
    compact = build(CompactConfig(**dict(SHAPE, image_size=16), positions="sine"))
    compact.set_image_size((8, 24))
    assert torch.equal(compact.get_parameter("classifier.positional_emb"), sine_1d(4 * 12, 16))


def test_compact_tables_are_resampled_behind_the_class_row() -> None:
    config = CompactConfig(**dict(SHAPE, image_size=(8, 16)), tokenizer="patches", kernel=4, pool="token")
    model = build(config)
    before = model.get_parameter("classifier.positional_emb").detach().clone()
    model.set_image_size((16, 12))
    after = model.get_parameter("classifier.positional_emb").detach()
    assert torch.equal(after[:, 0], before[:, 0])
    assert torch.equal(after, resample_table(before, (2, 4), (4, 3), 1, "bilinear"))


@given(length=st.integers(1, 9), new=st.integers(1, 9), width=st.integers(1, 3))
def test_lines_keep_their_ends(length: int, new: int, width: int) -> None:
    torch.manual_seed(0)
    table = torch.randn(2, length, width)
    after = resample_line(table, new)
    assert after.shape == (2, new, width)
    torch.testing.assert_close(after[:, 0], table[:, 0])
    if new > 1:
        torch.testing.assert_close(after[:, -1], table[:, -1])
    assert torch.equal(resample_line(table[0], new), after[0])


def test_the_old_grid_returns_the_same_tensor() -> None:
    torch.manual_seed(0)
    table = torch.randn(1, 7, 4, dtype=torch.bfloat16)
    assert resample_table(table, (2, 3), (2, 3), 1, "bicubic") is table
    assert resample_table(table, (2, 3), (3, 3), 1, "bicubic").dtype == torch.bfloat16
