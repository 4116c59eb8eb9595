"""Forward passes against plain float64 references, what each head reads, and what dropout and its kin do."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from tests import random_models
from vitkit.errors import InputError
from vitkit.models import build
from vitkit.models.attention.full import FullAttention
from vitkit.models.compact import CompactTransformer
from vitkit.models.configs import CompactConfig, HybridConfig, ResNetConfig, ViTConfig
from vitkit.models.layers import DropPath, StandardizedConv2d, drop_path_rates, pad_same
from vitkit.models.model import Model
from vitkit.models.record import Record
from vitkit.models.vit import VisionTransformer

Array = NDArray[np.float64]
Weights = Mapping[str, Array]

SHAPE: dict[str, Any] = dict(width=16, depth=2, heads=4, mlp_width=24, num_classes=5)
VIT: dict[str, Any] = dict(SHAPE, image_size=(10, 15), patch=4)
COMPACT: dict[str, Any] = dict(SHAPE, image_size=(13, 18))
make = partial(random_models.make, scale=0.2, dtype=torch.float64)
images_for = partial(random_models.images_for, dtype=torch.float64)


def weights_of(model: nn.Module) -> Weights:
    return {name: value.double().numpy() for name, value in model.state_dict().items()}


# The references: one image at a time, one head at a time, no fused anything.


def softmax(x: Array) -> Array:
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def layer_norm(x: Array, w: Weights, name: str, epsilon: float) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)
    return centred / scale * w[f"{name}.weight"] + w[f"{name}.bias"]


def gelu(x: Array, form: str) -> Array:
    if form == "erf":
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def dense(x: Array, w: Weights, name: str) -> Array:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", np.zeros(()))


def attend(q: Array, k: Array, v: Array, heads: int, relative: Array | None = None) -> Array:
    """Section 1.1: softmax(q k^T / sqrt(size)) v in each head, heads side by side."""
    size = q.shape[1] // heads
    results = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        logits = q[:, part] @ k[:, part].T
        if relative is not None:  # 1.12, table 8: the key of the offset p_q - p_k, against the content query
            for i in range(len(q)):
                for j in range(len(k)):
                    logits[i, j] += q[i, part] @ relative[i - j + len(q) - 1]
        results.append(softmax(logits / math.sqrt(size)) @ v[:, part])
    return np.concatenate(results, axis=1)


def self_attention(x: Array, w: Weights, name: str, heads: int) -> Array:
    q, k, v = np.split(dense(x, w, f"{name}.qkv"), 3, axis=1)
    return dense(attend(q, k, v, heads, w.get(f"{name}.relative")), w, f"{name}.proj")


def mlp(x: Array, w: Weights, first: str, second: str, form: str) -> Array:
    return dense(gelu(dense(x, w, first), form), w, second)


def cut_patches(image: Array, patch: int) -> Array:
    """Patches in raster order, flattened in the kernel's order; pixels that fill no patch are left out."""
    rows, columns = image.shape[1] // patch, image.shape[2] // patch
    return np.stack(
        [
            image[:, r * patch : (r + 1) * patch, c * patch : (c + 1) * patch].reshape(-1)
            for r in range(rows)
            for c in range(columns)
        ]
    )


def sincos(rows: int, columns: int, width: int) -> Array:
    """Section 11: sin x, cos x, sin y, cos y, a quarter of the width each."""
    quarter = width // 4
    omega = [10000.0 ** (-i / (quarter - 1)) for i in range(quarter)]
    return np.array(
        [
            [f(place * o) for place in (x, y) for f in (math.sin, math.cos) for o in omega]
            for y in range(rows)
            for x in range(columns)
        ]
    )


def vit_positions(w: Weights, config: ViTConfig, layer: int) -> Array | None:
    """The table of a layer, zero for tokens without a row."""
    rows, columns = config.grid
    match config.positions:
        case "learned":
            table = w["pos_embed"][layer % len(w["pos_embed"])]
        case "learned_2d":
            y, x = w["pos_embed_y"], w["pos_embed_x"]
            layer %= len(y)
            table = np.stack(
                [np.concatenate([x[layer, c], y[layer, r]]) for r in range(rows) for c in range(columns)]
            )
        case "sincos_2d":
            table = sincos(rows, columns, config.width)
        case _:
            return None
    return np.concatenate([np.zeros((config.num_tokens - len(table), config.width)), table])


def vit_reference(w: Weights, config: ViTConfig, image: Array) -> Array:
    kernel = w["patch_embed.proj.weight"].reshape(config.width, -1)
    patches = cut_patches(image, config.patch) @ kernel.T + w["patch_embed.proj.bias"]
    prefix = [w[name][0] for name in ("cls_token", "reg_token") if name in w]
    x = np.concatenate([*prefix, patches])
    for layer in range(config.depth):
        table = vit_positions(w, config, layer)
        if table is not None and (layer == 0 or config.positions_at != "stem"):
            x = x + table
        name = f"blocks.{layer}"
        branch = self_attention(
            layer_norm(x, w, f"{name}.norm1", config.norm_epsilon), w, f"{name}.attn", config.heads
        )
        x = x + branch * w.get(f"{name}.ls1.gamma", np.ones(()))
        branch = mlp(
            layer_norm(x, w, f"{name}.norm2", config.norm_epsilon),
            w,
            f"{name}.mlp.fc1",
            f"{name}.mlp.fc2",
            config.gelu,
        )
        x = x + branch * w.get(f"{name}.ls2.gamma", np.ones(()))
    if config.final_norm == "tokens":
        x = layer_norm(x, w, "norm", config.norm_epsilon)
    behind_prefix = x[sum(len(tokens) for tokens in prefix) :]
    match config.pool:
        case "token":
            x = x[0]
        case "mean":
            x = behind_prefix.mean(axis=0)
        case "map":  # section 5
            q = dense(w["attn_pool.latent"][0], w, "attn_pool.q")
            k, v = np.split(dense(behind_prefix, w, "attn_pool.kv"), 2, axis=1)
            y = dense(attend(q, k, v, config.heads), w, "attn_pool.proj")
            normed = layer_norm(y, w, "attn_pool.norm", config.norm_epsilon)
            x = (y + mlp(normed, w, "attn_pool.mlp.fc1", "attn_pool.mlp.fc2", config.gelu))[0]
        case "seqpool":  # section 4.1
            x = softmax(dense(behind_prefix, w, "seq_pool")[:, 0]) @ behind_prefix
    if config.final_norm == "pooled":
        x = layer_norm(x, w, "fc_norm", config.norm_epsilon)
    if config.pre_logits:
        x = np.tanh(dense(x, w, "pre_logits.fc"))
    return dense(x, w, "head")


def compact_reference(w: Weights, config: CompactConfig, image: Array) -> Array:
    """Section 4.1: the published block, whose second norm replaces the residual stream."""
    x = tokenizer_reference(w, config, image)
    if config.pool == "token":
        x = np.concatenate([w["classifier.class_emb"][0], x])
    if config.positions == "learned":
        x = x + w["classifier.positional_emb"][0]
    elif config.positions == "sine":
        for place in range(len(x)):
            for i in range(config.width):
                angle = place / 10000 ** (2 * (i // 2) / config.width)
                x[place, i] += math.cos(angle) if i % 2 else math.sin(angle)
    for layer in range(config.depth):
        name, epsilon = f"classifier.blocks.{layer}", config.norm_epsilon
        normed = layer_norm(x, w, f"{name}.pre_norm", epsilon)
        x = x + self_attention(normed, w, f"{name}.self_attn", config.heads)
        x = layer_norm(x, w, f"{name}.norm1", epsilon)
        x = x + mlp(x, w, f"{name}.linear1", f"{name}.linear2", config.gelu)
    x = layer_norm(x, w, "classifier.norm", config.norm_epsilon)
    x = x[0] if config.pool == "token" else softmax(dense(x, w, "classifier.attention_pool")[:, 0]) @ x
    return dense(x, w, "classifier.fc")


def tokenizer_reference(w: Weights, config: CompactConfig, image: Array) -> Array:
    x = torch.from_numpy(image)[None]
    for index in range(config.convolutions):
        kernel = torch.from_numpy(w[f"tokenizer.conv_layers.{index}.0.weight"])
        if config.tokenizer == "patches":
            bias = torch.from_numpy(w[f"tokenizer.conv_layers.{index}.0.bias"])
            x = F.conv2d(x, kernel, bias, stride=config.kernel)
        else:
            stride, padding = {3: (1, 1), 5: (1, 2), 7: (2, 3)}[config.kernel]
            x = F.max_pool2d(F.conv2d(x, kernel, None, stride, padding).relu(), 3, 2, 1)
    return x[0].flatten(1).T.numpy()


def group_norm(x: Tensor, w: Weights, name: str, epsilon: float) -> Tensor:
    groups = x.unflatten(1, (32, -1))
    centred = groups - groups.mean(dim=(2, 3, 4), keepdim=True)
    variance = centred.square().mean(dim=(2, 3, 4), keepdim=True)
    weight, bias = (torch.from_numpy(w[f"{name}.{part}"])[:, None, None] for part in ("weight", "bias"))
    return (centred / (variance + epsilon).sqrt()).flatten(1, 2) * weight + bias


def standardized(w: Weights, name: str, config: HybridConfig | ResNetConfig) -> Tensor:
    kernel = torch.from_numpy(w[f"{name}.weight"])
    rows = kernel.flatten(1)
    centred = rows - rows.mean(dim=1, keepdim=True)
    variance = centred.square().mean(dim=1, keepdim=True)
    epsilon = config.standardization_epsilon
    scale = variance.sqrt() + epsilon if config.standardization == "std" else (variance + epsilon).sqrt()
    return (centred / scale).view_as(kernel)


def same(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """Section 1.9: TensorFlow's SAME padding."""
    pads: list[int] = []
    for side in (x.shape[3], x.shape[2]):
        total = max(0, (math.ceil(side / stride) - 1) * stride + kernel - side)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads, value=value)


def hybrid_map_reference(w: Weights, config: HybridConfig, images: Tensor) -> Tensor:
    """Section 1.9: the root, then bottlenecks with their activations after the convolutions."""
    root = "patch_embed.backbone" + (".stem" if config.backbone_units else "")

    def conv(x: Tensor, name: str, stride: int = 1) -> Tensor:
        kernel = standardized(w, name, config)
        return F.conv2d(same(x, kernel.shape[-1], stride), kernel, None, stride)

    def norm(x: Tensor, name: str) -> Tensor:
        return group_norm(x, w, name, config.group_norm_epsilon)

    x = norm(conv(images, f"{root}.conv", 2), f"{root}.norm").relu()
    x = F.max_pool2d(same(x, 3, 2, -math.inf), 3, 2)
    for stage, units in enumerate(config.backbone_units):
        for unit in range(units):
            name = f"patch_embed.backbone.stages.{stage}.blocks.{unit}"
            stride = 2 if stage and not unit else 1
            y = norm(conv(x, f"{name}.conv1"), f"{name}.norm1").relu()
            y = norm(conv(y, f"{name}.conv2", stride), f"{name}.norm2").relu()
            y = norm(conv(y, f"{name}.conv3"), f"{name}.norm3")
            if not unit:
                x = norm(conv(x, f"{name}.downsample.conv", stride), f"{name}.downsample.norm")
            x = (x + y).relu()
    return x


def resnet_reference(w: Weights, config: ResNetConfig, images: Tensor) -> Tensor:
    """Section 1.10: pre-activation bottlenecks, symmetric padding."""

    def conv(x: Tensor, name: str, stride: int = 1) -> Tensor:
        kernel = standardized(w, name, config)
        return F.conv2d(x, kernel, None, stride, kernel.shape[-1] // 2)

    def activated(x: Tensor, name: str) -> Tensor:
        return group_norm(x, w, name, config.group_norm_epsilon).relu()

    x = F.max_pool2d(F.pad(conv(images, "stem.conv", 2), (1, 1, 1, 1)), 3, 2)
    for stage, units in enumerate(config.units):
        for unit in range(units):
            name = f"stages.{stage}.blocks.{unit}"
            stride = 2 if stage and not unit else 1
            y = activated(x, f"{name}.norm1")
            shortcut = x if unit else conv(y, f"{name}.downsample.conv", stride)
            y = conv(y, f"{name}.conv1")
            y = conv(activated(y, f"{name}.norm2"), f"{name}.conv2", stride)
            x = shortcut + conv(activated(y, f"{name}.norm3"), f"{name}.conv3")
    pooled = activated(x, "norm").mean(dim=(2, 3)).numpy()
    return torch.from_numpy(pooled @ w["head.fc.weight"][:, :, 0, 0].T + w["head.fc.bias"])


def assert_forward(model: Model, reference: Any, tolerance: float = 1e-11) -> None:
    images = images_for(model.config)
    expected = np.stack([reference(weights_of(model), model.config, image.numpy()) for image in images])
    np.testing.assert_allclose(model(images).detach().numpy(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gelu": "erf", "norm_epsilon": 1e-2},
        {"pool": "mean"},
        {"pool": "mean", "class_token": True, "final_norm": "pooled"},
        {"pool": "token", "final_norm": "pooled", "pre_logits": 7},
        {"pool": "map", "registers": 2},
        {"pool": "map", "gelu": "erf", "pre_logits": 16},
        {"pool": "seqpool", "class_token": True},
        {"pool": "none"},
        {"registers": 3, "prefix_positions": False},
        {"registers": 1, "layer_scale": 0.5},
        {"positions": "none"},
        {"positions": "learned", "positions_at": "every_layer"},
        {"positions": "learned", "positions_at": "every_layer_shared", "registers": 1},
        {"positions": "learned_2d"},
        {"positions": "learned_2d", "positions_at": "every_layer", "pool": "mean"},
        {"positions": "learned_2d", "positions_at": "every_layer_shared", "registers": 1},
        {"positions": "sincos_2d", "positions_at": "every_layer_shared"},
        {"positions": "relative", "registers": 1},
        {"positions": "relative", "pool": "map"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "paper",
)
def test_vit_against_the_reference(settings: dict[str, Any]) -> None:
    # The fixed table is kept in single precision.
    tolerance = 1e-6 if settings.get("positions") == "sincos_2d" else 1e-11
    assert_forward(make(ViTConfig(**VIT, **settings)), vit_reference, tolerance)


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer": "patches", "kernel": 4, "pool": "token"},
        {"tokenizer": "patches", "kernel": 4, "positions": "none", "gelu": "tanh"},
        {"tokenizer": "convolutions", "kernel": 3, "norm_epsilon": 1e-2},
        {"tokenizer": "convolutions", "kernel": 5, "positions": "none"},
        {"tokenizer": "convolutions", "kernel": 7, "convolutions": 2, "pool": "token"},
        {"tokenizer": "patches", "kernel": 4, "positions": "sine"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_compact_transformer_against_the_reference(settings: dict[str, Any]) -> None:
    tolerance = 1e-6 if settings.get("positions") == "sine" else 1e-11
    assert_forward(make(CompactConfig(**COMPACT, **settings)), compact_reference, tolerance)


def test_the_second_norm_of_a_compact_block_replaces_the_stream() -> None:
    model = make(CompactConfig(**COMPACT))
    assert isinstance(model, CompactTransformer)
    block: Any = model.classifier.blocks[0]
    nn.init.zeros_(block.linear2.weight)
    nn.init.zeros_(block.linear2.bias)
    nn.init.ones_(block.norm1.weight)
    nn.init.zeros_(block.norm1.bias)
    out = block(torch.randn(2, 5, 16, dtype=torch.float64) * 9)
    torch.testing.assert_close(out.mean(-1), torch.zeros(2, 5, dtype=torch.float64))
    torch.testing.assert_close(
        out.var(-1, correction=0), torch.ones(2, 5, dtype=torch.float64), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("formula", ["std", "variance"])
@pytest.mark.parametrize(
    ("units", "patch", "image_size"), [((), 4, (36, 50)), ((2,), 3, (27, 40)), ((1, 2), 1, (36, 49))]
)
def test_hybrid_against_the_reference(
    units: tuple[int, ...], patch: int, image_size: tuple[int, int], formula: Any
) -> None:
    config = HybridConfig(
        **{**VIT, "image_size": image_size, "patch": patch},
        backbone_units=units,
        backbone_width=32,
        standardization=formula,
        standardization_epsilon=1e-2,
    )
    model, images = make(config), images_for(config)
    weights = weights_of(model)
    feature_map = hybrid_map_reference(weights, config, images)
    assert feature_map.shape[2:] == config.cells
    torch.testing.assert_close(model.patch_embed.backbone(images), feature_map, rtol=0, atol=1e-10)
    # Behind the feature map a hybrid is a ViT of its cells.
    cells = ViTConfig(**{**VIT, "image_size": config.cells, "patch": patch})
    expected = np.stack([vit_reference(weights, cells, image.numpy()) for image in feature_map])
    np.testing.assert_allclose(model(images).detach().numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("formula", ["std", "variance"])
def test_bit_against_the_reference(formula: Any) -> None:
    config = ResNetConfig(
        image_size=(27, 36),
        num_classes=5,
        units=(2, 1),
        standardization=formula,
        standardization_epsilon=1e-2,
        group_norm_epsilon=1e-3,
    )
    model, images = make(config), images_for(config)
    torch.testing.assert_close(
        model(images), resnet_reference(weights_of(model), config, images), rtol=0, atol=1e-10
    )


# Sizes


@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    patch=st.integers(1, 12),
    registers=st.integers(0, 2),
    channels=st.integers(1, 4),
    num_classes=st.integers(1, 6),
)
def test_any_image_is_floored_to_whole_patches(
    size: tuple[int, int], patch: int, registers: int, channels: int, num_classes: int
) -> None:
    settings: dict[str, Any] = dict(
        width=4,
        depth=1,
        heads=2,
        mlp_width=4,
        image_size=size,
        patch=patch,
        registers=registers,
        channels=channels,
        num_classes=num_classes,
    )
    if min(size) < patch:
        with pytest.raises(InputError) as error:
            ViTConfig(**settings)
        expected = f"an image of {size[0]}x{size[1]} pixels is smaller than one patch of {patch}"
        assert str(error.value) == expected
        return
    config = ViTConfig(**settings)
    assert config.grid == (size[0] // patch, size[1] // patch)
    model, record = build(config).eval(), Record("tokens")
    assert model(torch.zeros(2, channels, *size), record).shape == (2, num_classes)
    tokens = 1 + registers + (size[0] // patch) * (size[1] // patch)
    assert config.num_tokens == tokens
    assert record.tokens[0].shape == (2, tokens, 4)


def test_pixels_that_fill_no_patch_are_not_read() -> None:
    model = make(ViTConfig(**VIT))  # 10x15 pixels, patches of 4
    images = images_for(model.config)
    changed = images.clone()
    changed[:, :, 8:] = 7.0
    changed[:, :, :, 12:] = 7.0
    assert torch.equal(model(changed), model(images))
    changed[0, 0, 7, 11] += 1.0
    assert not torch.equal(model(changed), model(images))


# Heads


@pytest.mark.parametrize("pool", ["token", "mean", "map", "seqpool"])
def test_no_head_reads_registers(pool: Any) -> None:
    model = make(ViTConfig(**VIT, pool=pool, class_token=True, registers=2))
    tokens = torch.randn(2, model.config.num_tokens, 16, dtype=torch.float64)
    changed = tokens.clone()
    changed[:, 1:3] += 1.0
    assert torch.equal(model.pool(changed), model.pool(tokens))
    changed[:, 0] += 1.0
    assert torch.equal(model.pool(changed), model.pool(tokens)) == (pool != "token")
    changed = tokens.clone()
    changed[:, 3:] += torch.randn_like(changed[:, 3:])
    assert torch.equal(model.pool(changed), model.pool(tokens)) == (pool == "token")


@pytest.mark.parametrize("settings", [{}, {"pool": "map"}, {"pool": "none"}, {"pre_logits": 9}])
def test_a_fresh_head_answers_its_bias(settings: dict[str, Any]) -> None:
    """Section 1.4: big_vision starts at -10 for sigmoid losses over many classes."""
    torch.manual_seed(0)
    config = ViTConfig(**VIT, head_bias=-10.0, **settings)
    logits = build(config)(images_for(config).float())
    assert torch.equal(logits, torch.full_like(logits, -10.0))


def test_pre_logits_is_a_tanh_layer_that_a_new_head_drops() -> None:
    model = make(ViTConfig(**VIT, pre_logits=7, head_bias=-2.0))
    images = images_for(model.config)
    features = model.features(images)
    assert features.shape == (2, 7)
    assert features.abs().max() < 1.0
    model.reset_head(3)
    assert model.config.pre_logits == 0
    assert model.features(images).shape == (2, 16)
    assert not model(images).any()  # a pre-training's bias is not the new head's
    model.reset_head(3, bias=-2.0)
    assert torch.equal(model(images), torch.full((2, 3), -2.0, dtype=torch.float64))


def test_class_token_is_open_unless_told() -> None:
    assert ViTConfig(**VIT).class_token is True
    assert ViTConfig(**VIT, pool="mean").class_token is False
    assert ViTConfig(**VIT, pool="mean", class_token=True).num_tokens == 7
    with pytest.raises(InputError) as error:
        ViTConfig(**VIT, class_token=False)
    expected = "pool 'token' needs a class token: remove class_token from the settings, or set it to true"
    assert str(error.value) == expected


# Regularisers


def test_stochastic_depth_grows_linearly() -> None:
    assert drop_path_rates(0.3, 4) == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert drop_path_rates(0.3, 1) == [0.0]
    settings: dict[str, Any] = dict(SHAPE, depth=3, stochastic_depth=0.2)
    for model in (build(ViTConfig(**settings)), build(CompactConfig(**settings))):
        rates = [module.rate for module in model.modules() if isinstance(module, DropPath)]
        assert rates == pytest.approx([0.0, 0.1, 0.2])


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_stochastic_depth_drops_whole_images_and_keeps_the_mean(rate: float) -> None:
    torch.manual_seed(0)
    drop = DropPath(rate)
    kept = drop(torch.ones(20_000, 2, 3))
    per_image = kept[:, 0, 0]
    assert torch.equal(kept, per_image[:, None, None].expand_as(kept))
    torch.testing.assert_close(per_image.unique(), torch.tensor([0.0, 1 / (1 - rate)]))
    error = math.sqrt(rate / (1 - rate) / 20_000)
    assert abs(per_image.mean() - 1.0) < 5 * error
    drop.eval()
    assert torch.equal(drop(kept), kept)


def test_a_dropped_block_passes_its_input_through() -> None:
    torch.manual_seed(0)
    model = make(ViTConfig(**VIT, stochastic_depth=0.9)).train()
    x = torch.randn(64, 7, 16, dtype=torch.float64)
    unchanged = (model.blocks[1](x) == x).flatten(1).all(dim=1)
    assert 0.6 < unchanged.double().mean() < 0.95  # both branches left out: 0.81
    assert not (model.blocks[0](x) == x).flatten(1).all(dim=1).any()


def test_dropout_sits_where_the_paper_has_it() -> None:
    """Section 1.4: after positions, after the attention's projection, after GELU, after the second MLP layer."""
    model = make(ViTConfig(**VIT, dropout=0.3)).train()
    calls: list[tuple[str, int]] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            assert module.p == 0.3
            module.register_forward_pre_hook(
                lambda _, args, name=name: calls.append((name, args[0].shape[-1]))
            )
    model(images_for(model.config))
    block = [("attn.proj_drop", 16), ("mlp.drop", 24), ("mlp.drop", 16)]
    expected = [(f"blocks.{layer}.{name}", width) for layer in (0, 1) for name, width in block]
    assert calls == [("pos_drop", 16), *expected]


def test_dropout_of_the_compact_family() -> None:
    model = make(CompactConfig(**COMPACT, dropout=0.3)).train()
    calls: list[tuple[str, int]] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_pre_hook(
                lambda _, args, name=name: calls.append((name.removeprefix("classifier."), args[0].shape[-1]))
            )
    model(images_for(model.config))
    block = [("self_attn.proj_drop", 16), ("drop", 24), ("drop", 16)]
    expected = [(f"blocks.{layer}.{name}", width) for layer in (0, 1) for name, width in block]
    assert calls == [("drop", 16), *expected]


@pytest.mark.parametrize("recorded", [False, True])
def test_attention_dropout_keeps_the_mean(recorded: bool) -> None:
    torch.manual_seed(0)
    attention = FullAttention(8, 2, attention_dropout=0.4)
    x = torch.randn(1, 5, 8)
    many = x.expand(4000, -1, -1)
    record = Record("attention")
    record.start(1)
    with torch.no_grad():
        outputs = attention(many, record if recorded else None)
        exact = attention.eval()(x)[0]
    error = outputs.std(dim=0) / math.sqrt(len(many))
    assert error.min() > 1e-4
    assert ((outputs.mean(dim=0) - exact).abs() < 5 * error).all()
    for weights in record.attention.values():  # what is kept is what the softmax gave
        torch.testing.assert_close(weights.sum(-1), torch.ones(4000, 2, 5))


@pytest.mark.parametrize(("rate", "kept"), [(0.5, 12), (0.25, 18), (0.9, 2), (0.99, 1)])
@pytest.mark.parametrize("registers", [0, 2])
def test_patch_dropout_keeps_prefix_tokens_and_the_right_count(
    rate: float, kept: int, registers: int
) -> None:
    config = ViTConfig(**{**VIT, "image_size": (16, 24)}, patch_dropout=rate, registers=registers)
    model, images = make(config), images_for(config, batch=3)
    whole = model.embed(images)  # evaluation keeps all 24 patches
    assert whole.shape[1] == config.num_tokens == 25 + registers
    torch.manual_seed(0)
    tokens = model.train().embed(images)
    prefix = 1 + registers
    assert tokens.shape[1] == prefix + kept
    assert torch.equal(tokens[:, :prefix], whole[:, :prefix])
    chosen = []
    for image, left in zip(whole[:, prefix:], tokens[:, prefix:], strict=True):
        places = [int((image == token).all(dim=1).nonzero()) for token in left]
        assert len(set(places)) == kept
        chosen.append(frozenset(places))
    assert len(set(chosen)) > 1  # each image leaves out its own
    assert model(images).shape == (3, 5)


def test_layer_scale_starts_small_on_both_branches() -> None:
    torch.manual_seed(0)
    model = build(ViTConfig(**VIT, layer_scale=1e-6))
    assert isinstance(model, VisionTransformer)
    x = torch.randn(2, 7, 16)
    torch.testing.assert_close(model.blocks[0](x), x, atol=1e-4, rtol=0)
    scales = {name for name, _ in model.named_parameters() if name.endswith("gamma")}
    assert scales == {f"blocks.{layer}.{branch}.gamma" for layer in (0, 1) for branch in ("ls1", "ls2")}


# Convolutions


@pytest.mark.parametrize(("side", "kernel", "stride", "pads"), [(224, 7, 2, (2, 3)), (112, 3, 2, (0, 1))])
def test_same_padding_puts_the_odd_pixel_last(
    side: int, kernel: int, stride: int, pads: tuple[int, int]
) -> None:
    """Section 1.9."""
    padded = pad_same(torch.ones(1, 1, side, side), kernel, stride, value=0.0)
    line = padded[0, 0, side // 2].tolist()
    assert line == [0.0] * pads[0] + [1.0] * side + [0.0] * pads[1]
    assert padded[0, 0, :, side // 2].tolist() == line


@given(
    side=st.tuples(st.integers(1, 30), st.integers(1, 30)), kernel=st.integers(1, 7), stride=st.integers(1, 3)
)
def test_same_padding_rounds_up(side: tuple[int, int], kernel: int, stride: int) -> None:
    padded = pad_same(torch.zeros(1, 1, *side), kernel, stride)
    cells = [(padded.shape[axis] - kernel) // stride + 1 for axis in (2, 3)]
    if kernel >= stride:
        assert cells == [math.ceil(pixels / stride) for pixels in side]


@pytest.mark.parametrize("formula", ["std", "variance"])
def test_standardisation_forgets_scale_and_offset(formula: Any) -> None:
    torch.manual_seed(0)
    config = HybridConfig(standardization=formula, standardization_epsilon=1e-10)
    conv = StandardizedConv2d(3, 4, 3, config=config).double()
    images = torch.randn(1, 3, 6, 6, dtype=torch.float64)
    before = conv(images)
    with torch.no_grad():
        conv.weight.mul_(7.0).add_(0.3)
    torch.testing.assert_close(conv(images), before, atol=1e-7, rtol=1e-7)
    assert conv.bias is None


def test_settings_that_do_not_go_together_are_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"heads": 3}, "width 16 is not a multiple of heads 3"),
        ({"depth": 0}, "depth must be at least 1 and at most 1000, not 0"),
        ({"patch": 0}, "patch must be at least 1 and at most 16384, not 0"),
        ({"registers": -1}, "registers must be at least 0 and at most 1000, not -1"),
        ({"pre_logits": -1}, "pre_logits must be at least 0 and at most 262144, not -1"),
        ({"num_classes": -1}, "num_classes must be at least 0, not -1"),
        ({"channels": 0}, "channels must be at least 1, not 0"),
        ({"image_size": (0, 8)}, "image_size must be at least 1 and at most 16384, not 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1"),
        ({"stochastic_depth": -0.1}, "stochastic_depth must be at least 0 and below 1, not -0.1"),
        ({"patch_dropout": 2.0}, "patch_dropout must be at least 0 and below 1, not 2"),
        (
            {"positions": "relative", "positions_at": "every_layer"},
            "positions_at 'every_layer' does not apply to positions 'relative'",
        ),
        (
            {"positions": "sincos_2d", "width": 10, "heads": 2},
            "positions 'sincos_2d' need a width divisible by 4, not 10",
        ),
        (
            {"positions": "learned_2d", "width": 9, "heads": 3},
            "positions 'learned_2d' need a width divisible by 2, not 9",
        ),
        (
            {"patch_dropout": 0.5, "positions": "relative"},
            "patch_dropout needs positions that are added at the stem",
        ),
        (
            {"patch_dropout": 0.5, "positions_at": "every_layer"},
            "patch_dropout needs positions that are added at the stem",
        ),
        (
            {"final_norm": "pooled", "pool": "map"},
            "final_norm 'pooled' needs pool 'token' or 'mean', not 'map'",
        ),
    ]
    for settings, message in cases:
        with pytest.raises(InputError) as error:
            ViTConfig(**{**VIT, **settings})
        assert str(error.value) == message


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (CompactConfig(), {"heads": 0}, "heads must be at least 1 and at most 1000, not 0"),
        (CompactConfig(), {"kernel": 0}, "kernel must be at least 1 and at most 16384, not 0"),
        (CompactConfig(), {"convolutions": 0}, "convolutions must be at least 1 and at most 16, not 0"),
        (CompactConfig(), {"heads": 3}, "width 256 is not a multiple of heads 3"),
        (
            CompactConfig(),
            {"tokenizer": "patches", "convolutions": 2},
            "a patch tokenizer has one convolution",
        ),
        (
            CompactConfig(tokenizer="patches", kernel=4),
            {"image_size": (3, 8)},
            "an image of 3x8 pixels is too small for this tokenizer",
        ),
        (HybridConfig(patch=1), {"backbone_units": (1,) * 5}, "a ResNet backbone has at most four stages"),
        (
            HybridConfig(patch=1),
            {"backbone_units": (1, 0)},
            "backbone_units must be at least 1 and at most 1000, not 0",
        ),
        (
            HybridConfig(patch=1),
            {"backbone_width": 48},
            "backbone_width must be a multiple of GroupNorm's 32 groups, not 48",
        ),
        (ResNetConfig(), {"units": ()}, "a ResNet has 1 to 8 stages, not 0"),
        (ResNetConfig(), {"units": (1, 0)}, "units must be at least 1 and at most 1000, not 0"),
        (ResNetConfig(), {"width_factor": 0}, "width_factor must be at least 1 and at most 1000, not 0"),
    ],
)
def test_impossible_shapes_are_refused(config: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        dataclasses.replace(config, **settings)
    assert str(error.value) == message
