"""Initial weights: the distributions of the official code (vit_jax and big_vision; Compact-Transformers for the compact)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitkit.models import build
from vitkit.models.configs import CompactConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig
from vitkit.models.layers import StandardizedConv2d, lecun_normal_
from vitkit.models.model import Model

VIT = ViTConfig(
    image_size=48,
    width=96,
    depth=2,
    heads=4,
    mlp_width=160,
    num_classes=7,
    patch=8,
    registers=40,
    pre_logits=64,
    layer_scale=0.25,
    head_bias=-6.9,
)
MAP = ViTConfig(image_size=48, width=96, depth=1, heads=4, mlp_width=160, num_classes=7, patch=8, pool="map")
SEQPOOL = ViTConfig(
    image_size=48,
    width=1024,
    depth=1,
    heads=4,
    mlp_width=8,
    num_classes=7,
    patch=16,
    pool="seqpool",
    positions="relative",
)
HYBRID = HybridConfig(
    image_size=32,
    width=96,
    depth=1,
    heads=4,
    mlp_width=160,
    num_classes=7,
    patch=1,
    backbone_units=(2, 1),
    backbone_width=32,
)
BIT = ResNetConfig(image_size=32, num_classes=7, units=(2,), head_bias=-10.0)
CCT = CompactConfig(image_size=(32, 64), width=96, depth=2, heads=4, mlp_width=160, convolutions=2)
LITE = CompactConfig(
    image_size=32, width=96, depth=2, heads=4, mlp_width=160, tokenizer="patches", kernel=4, pool="token"
)


def make(config: ModelConfig) -> Model:
    torch.manual_seed(0)
    return build(config)


def constant(tensor: Tensor, value: float) -> bool:
    return bool((tensor == value).all())


def assert_std(tensor: Tensor, std: float) -> None:
    """Mean zero and the deviation, within five standard errors of a normal sample of this size."""
    count = tensor.numel()
    assert tensor.mean().abs() < 5 * std / math.sqrt(count)
    assert tensor.square().mean().sqrt().item() == pytest.approx(std, rel=5 / math.sqrt(2 * count))


def assert_truncated(tensor: Tensor, variance: float) -> None:
    """Flax's lecun_normal: the variance after a cut at two deviations."""
    assert_std(tensor, math.sqrt(variance))
    cut = 2.0 * math.sqrt(variance) / 0.87962566
    assert 0.95 * cut < tensor.abs().max() <= cut * (1 + 1e-5)


def assert_uniform(tensor: Tensor, bound: float) -> None:
    assert 0.95 * bound < tensor.abs().max() <= bound
    assert_std(tensor, bound / math.sqrt(3))


def test_patch_embedding() -> None:
    model = make(VIT)
    assert_truncated(model.get_parameter("patch_embed.proj.weight"), 1 / (8 * 8 * 3))
    assert constant(model.get_parameter("patch_embed.proj.bias"), 0.0)


def test_tokens_and_positions() -> None:
    model = make(VIT)
    assert constant(model.get_parameter("cls_token"), 0.0)
    assert_std(model.get_parameter("reg_token"), 1e-6)
    assert_std(model.get_parameter("pos_embed"), 0.02)
    settings: dict[str, Any] = dict(image_size=64, width=96, depth=2, heads=4, mlp_width=8, patch=2)
    axes = make(ViTConfig(**settings, positions="learned_2d", positions_at="every_layer"))
    assert_std(axes.get_parameter("pos_embed_y"), 0.02)
    assert_std(axes.get_parameter("pos_embed_x"), 0.02)
    assert_std(make(SEQPOOL).get_parameter("blocks.0.attn.relative"), 0.02)


def test_positions_of_big_vision() -> None:
    """big_vision's get_posemb: normal with a deviation of 1 / sqrt(width), which the recipe of its scaling study takes."""
    settings: dict[str, Any] = dict(image_size=64, width=64, depth=1, heads=4, mlp_width=8, patch=2)
    model = make(ViTConfig(**settings, pool="map", position_std=None))
    assert_std(model.get_parameter("pos_embed"), 1 / 8)


@pytest.mark.parametrize("layer", [0, 1])
def test_encoder_blocks(layer: int) -> None:
    block: Any = make(VIT).get_submodule(f"blocks.{layer}")
    # q, k and v are matrices of their own: the bound is that of a square, not of (width, 3 width).
    for part in block.attn.qkv.weight.chunk(3):
        assert_uniform(part, math.sqrt(6 / (96 + 96)))
    assert_uniform(block.attn.proj.weight, math.sqrt(6 / (96 + 96)))
    assert constant(block.attn.qkv.bias, 0.0) and constant(block.attn.proj.bias, 0.0)
    for linear in (block.mlp.fc1, block.mlp.fc2):
        assert_uniform(linear.weight, math.sqrt(6 / (96 + 160)))
        assert_std(linear.bias, 1e-6)
    for norm in (block.norm1, block.norm2):
        assert constant(norm.weight, 1.0) and constant(norm.bias, 0.0)
        assert norm.eps == 1e-6
    assert constant(block.ls1.gamma, 0.25) and constant(block.ls2.gamma, 0.25)


def test_head() -> None:
    model = make(VIT)
    assert_truncated(model.get_parameter("pre_logits.fc.weight"), 1 / 96)
    assert constant(model.get_parameter("pre_logits.fc.bias"), 0.0)
    assert constant(model.get_parameter("head.weight"), 0.0)
    assert constant(model.get_parameter("head.bias"), torch.tensor(-6.9).item())
    assert constant(model.get_parameter("norm.weight"), 1.0)


def test_map_head() -> None:
    """Section 5: the probe is xavier-uniform as a (1, width) matrix."""
    pool: Any = make(MAP).get_submodule("attn_pool")
    assert_uniform(pool.latent, math.sqrt(6 / (1 + 96)))
    for part in (pool.q.weight, *pool.kv.weight.chunk(2), pool.proj.weight):
        assert_uniform(part, math.sqrt(6 / (96 + 96)))
    assert all(constant(linear.bias, 0.0) for linear in (pool.q, pool.kv, pool.proj))
    assert_uniform(pool.mlp.fc1.weight, math.sqrt(6 / (96 + 160)))
    assert_std(pool.mlp.fc1.bias, 1e-6)


def test_sequence_pool() -> None:
    model = make(SEQPOOL)
    assert_truncated(model.get_parameter("seq_pool.weight"), 1 / 1024)
    assert constant(model.get_parameter("seq_pool.bias"), 0.0)


def test_lecun_normal_counts_all_inputs_of_a_kernel() -> None:
    torch.manual_seed(0)
    assert_truncated(lecun_normal_(torch.empty(400, 5, 3, 2)), 1 / 30)


def test_hybrid_units_start_as_their_shortcut() -> None:
    """Section 1.9: the scale of the third GroupNorm is zero, all other norms are the identity."""
    model: Any = make(HYBRID)
    zero = {name for name, norm in norms(model) if constant(norm.weight, 0.0)}
    units = [(0, 0), (0, 1), (1, 0)]
    assert zero == {f"patch_embed.backbone.stages.{stage}.blocks.{unit}.norm3" for stage, unit in units}
    assert all(constant(norm.bias, 0.0) for _, norm in norms(model))
    assert all(constant(norm.weight, 1.0) for name, norm in norms(model) if name not in zero)
    unit = model.patch_embed.backbone.stages[0].blocks[1]
    x = torch.randn(1, 128, 4, 4).relu()
    assert torch.equal(unit(x), x)


def norms(model: nn.Module) -> list[tuple[str, nn.GroupNorm]]:
    return [(name, norm) for name, norm in model.named_modules() if isinstance(norm, nn.GroupNorm)]


@pytest.mark.parametrize("config", [HYBRID, BIT], ids=["hybrid", "bit"])
def test_standardised_convolutions(config: ModelConfig) -> None:
    convolutions = [module for module in make(config).modules() if isinstance(module, StandardizedConv2d)]
    assert len(convolutions) >= 7
    for convolution in convolutions:
        assert_truncated(convolution.weight, 1 / convolution.weight[0].numel())


def test_bit_head_and_norms() -> None:
    model = make(BIT)
    assert constant(model.get_parameter("head.fc.weight"), 0.0)
    assert constant(model.get_parameter("head.fc.bias"), -10.0)
    for _, norm in norms(model):
        assert constant(norm.weight, 1.0) and constant(norm.bias, 0.0)
        assert (norm.num_groups, norm.eps) == (32, 1e-5)
    logits = model(torch.randn(2, 3, 32, 32))
    assert torch.equal(logits, torch.full((2, 7), -10.0))


@pytest.mark.parametrize("config", [CCT, LITE], ids=["cct", "vit-lite"])
def test_compact_transformers(config: CompactConfig) -> None:
    """Section 4.1: linear layers 0.02, positions 0.2, convolutions Kaiming normal, biases zero."""
    model = make(config)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            assert_std(module.weight, 0.02)
            assert module.bias is None or constant(module.bias, 0.0)
            assert (module.bias is None) == name.endswith("qkv")
        elif isinstance(module, nn.LayerNorm):
            assert constant(module.weight, 1.0) and constant(module.bias, 0.0)
            assert module.eps == 1e-5
        elif isinstance(module, nn.Conv2d):
            assert_std(module.weight, math.sqrt(2 / module.weight[0].numel()))
            assert (module.bias is None) == (config.tokenizer == "convolutions")
    assert_std(model.get_parameter("classifier.positional_emb"), 0.2)
    if config.pool == "token":
        assert constant(model.get_parameter("classifier.class_emb"), 0.0)


@pytest.mark.parametrize(
    "config",
    [VIT, MAP, HYBRID, BIT, CCT, LITE],
    ids=["vit", "map", "hybrid", "bit", "cct", "vit-lite"],
)
def test_resetting_leaves_nothing_of_the_old_weights(config: ModelConfig) -> None:
    fresh, worn = make(config), make(config)
    with torch.no_grad():
        for parameter in worn.parameters():
            parameter.fill_(7.0)
    for model in (fresh, worn):
        torch.manual_seed(1)
        model.reset_parameters()  # type: ignore[operator]
    torch.testing.assert_close(worn.state_dict(), fresh.state_dict(), rtol=0, atol=0)


def test_the_seed_decides() -> None:
    one, two = make(MAP).state_dict(), make(MAP).state_dict()
    torch.testing.assert_close(one, two, rtol=0, atol=0)
    torch.manual_seed(1)
    other = build(MAP).state_dict()
    assert not torch.equal(one["blocks.0.attn.qkv.weight"], other["blocks.0.attn.qkv.weight"])
