"""Looking inside: attention, tokens, pooling weights and features, by layer, reduced as they pass."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.random_models import images_for, make
from vitkit.errors import InputError
from vitkit.models.configs import CompactConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig
from vitkit.models.record import KINDS, Record

SHAPE: dict[str, Any] = dict(width=16, depth=3, heads=2, mlp_width=24, num_classes=5)
VIT: dict[str, Any] = dict(SHAPE, image_size=(8, 12), patch=4)
TRANSFORMERS: dict[str, ModelConfig] = {
    "token": ViTConfig(**VIT, registers=1),
    "map": ViTConfig(**VIT, pool="map", registers=2),
    "seqpool": ViTConfig(**VIT, pool="seqpool"),
    "relative": ViTConfig(**VIT, positions="relative", pool="mean"),
    "hybrid": HybridConfig(**dict(VIT, image_size=(16, 24), patch=2), backbone_units=(), backbone_width=32),
    "vit-lite": CompactConfig(**dict(SHAPE, image_size=(8, 12)), tokenizer="patches", kernel=4, pool="token"),
    "cct": CompactConfig(**dict(SHAPE, image_size=(8, 12))),
}
every_transformer = pytest.mark.parametrize("name", TRANSFORMERS)


@every_transformer
def test_everything_at_once(name: str) -> None:
    model = make(TRANSFORMERS[name])
    config: Any = model.config
    images, record = images_for(config), Record(*KINDS)  # type: ignore[arg-type]
    logits = model(images, record=record)
    torch.testing.assert_close(logits, model(images), atol=1e-5, rtol=0)
    assert list(record.attention) == list(record.tokens) == [0, 1, 2]
    for layer in range(3):
        assert record.attention[layer].shape == (2, 2, config.num_tokens, config.num_tokens)
        assert (record.attention[layer] >= 0).all()
        torch.testing.assert_close(record.attention[layer].sum(-1), torch.ones(2, 2, config.num_tokens))
        assert record.tokens[layer].shape == (2, config.num_tokens, 16)
    torch.testing.assert_close(model.classify(record.features), logits)


@every_transformer
def test_what_is_kept_does_not_depend_on_what_else_is(name: str) -> None:
    model = make(TRANSFORMERS[name])
    images = images_for(model.config)
    whole = Record(*KINDS)  # type: ignore[arg-type]
    model(images, whole)
    tokens, attention = Record("tokens"), Record("attention", layers=[1])
    model(images, tokens)
    model(images, attention)
    assert not tokens.attention and tokens.pooling is None and tokens.features is None
    torch.testing.assert_close(tokens.tokens, whole.tokens, atol=1e-5, rtol=1e-5)
    assert list(attention.attention) == [1] and not attention.tokens
    torch.testing.assert_close(attention.attention[1], whole.attention[1], atol=1e-5, rtol=1e-5)


def test_attention_is_the_softmax_that_the_block_uses() -> None:
    model: Any = make(TRANSFORMERS["token"])
    images, record = images_for(model.config), Record("attention", "tokens")
    model(images, record)
    for layer in (1, 2):
        block = model.blocks[layer]
        q, k, _ = block.attn.qkv(block.norm1(record.tokens[layer - 1])).chunk(3, dim=-1)
        for head in range(2):
            part = slice(8 * head, 8 * head + 8)
            logits = q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(8)
            torch.testing.assert_close(record.attention[layer][:, head], logits.softmax(-1))


def test_tokens_are_those_after_the_block() -> None:
    model: Any = make(TRANSFORMERS["token"])
    images, record = images_for(model.config), Record("tokens", "features")
    model(images, record)
    tokens = model.embed(images)
    for layer, block in enumerate(model.blocks):
        tokens = block(tokens)
        torch.testing.assert_close(record.tokens[layer], tokens)
    torch.testing.assert_close(record.features, model.norm(tokens)[:, 0])


@pytest.mark.parametrize(("name", "heads"), [("map", 2), ("seqpool", 1), ("cct", 1)])
def test_pooling_weights_pool(name: str, heads: int) -> None:
    model: Any = make(TRANSFORMERS[name])
    images, record = images_for(model.config), Record("pooling")
    model(images, record)
    patches = math.prod(model.config.grid)
    assert record.pooling.shape == (2, heads, patches)
    torch.testing.assert_close(record.pooling.sum(-1), torch.ones(2, heads))
    tokens = model.encode(images)[:, -patches:]
    if name == "map":
        pool = model.attn_pool
        _, values = pool.kv(tokens).chunk(2, dim=-1)
        mixed = [record.pooling[:, [h]] @ values[..., 8 * h : 8 * h + 8] for h in range(2)]
        y = pool.proj(torch.cat(mixed, dim=-1)[:, 0])
        pooled = y + pool.mlp(pool.norm(y))
    else:
        pooled = (record.pooling @ tokens)[:, 0]
    torch.testing.assert_close(model.features(images), pooled, atol=1e-5, rtol=1e-5)


def test_pools_without_weights_keep_none() -> None:
    model, record = make(TRANSFORMERS["token"]), Record("pooling")
    model(images_for(model.config), record)
    assert record.pooling is None


@pytest.mark.parametrize(("layers", "kept"), [([0], [0]), ([-1], [2]), ([2, 0, -1], [0, 2]), ([], [])])
def test_chosen_layers(layers: list[int], kept: list[int]) -> None:
    model = make(TRANSFORMERS["cct"])
    images, record = images_for(model.config), Record("attention", "tokens", layers=iter(layers))
    torch.testing.assert_close(model(images, record), model(images), atol=1e-5, rtol=0)
    assert list(record.attention) == list(record.tokens) == kept


def test_a_record_can_be_used_again() -> None:
    model = make(TRANSFORMERS["token"])
    record = Record("attention", "pooling", "features", layers=[-1])
    images = images_for(model.config)
    model(images, record)
    first, features = record.attention[2], record.features
    model(images.flip(0), record)
    assert list(record.attention) == [2]
    torch.testing.assert_close(record.attention[2], first.flip(0))
    torch.testing.assert_close(record.features, features.flip(0))


def test_a_record_forgets_the_last_model() -> None:
    deep, shallow = make(TRANSFORMERS["map"]), make(ViTConfig(**dict(VIT, depth=1)))
    record = Record(*KINDS)  # type: ignore[arg-type]
    deep(images_for(deep.config), record)
    shallow(images_for(shallow.config), record)
    assert list(record.attention) == list(record.tokens) == [0]
    assert record.pooling is None


def test_each_layer_is_reduced_as_it_passes() -> None:
    model = make(TRANSFORMERS["map"])
    images, whole = images_for(model.config), Record(*KINDS)  # type: ignore[arg-type]
    model(images, whole)
    seen: list[tuple[str, int | None]] = []

    def reduce(kind: str, layer: int | None, tensor: Tensor) -> Tensor:
        seen.append((kind, layer))
        return tensor.mean(dim=1)

    record = Record(*KINDS, reduce=reduce)  # type: ignore[arg-type]
    torch.testing.assert_close(model(images, record), model(images), atol=1e-5, rtol=0)
    steps = [(kind, layer) for layer in range(3) for kind in ("attention", "tokens")]
    assert seen == [*steps, ("pooling", None), ("features", None)]
    for layer in range(3):
        torch.testing.assert_close(record.attention[layer], whole.attention[layer].mean(dim=1))
        torch.testing.assert_close(record.tokens[layer], whole.tokens[layer].mean(dim=1))
    torch.testing.assert_close(record.pooling, whole.pooling.mean(dim=1))
    assert record.features.shape == (2,)


@every_transformer
def test_without_maps_the_fused_kernel_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(TRANSFORMERS[name])
    images = images_for(model.config)
    calls: list[int] = []
    fused = F.scaled_dot_product_attention

    def counted(*args: Any, **settings: Any) -> Tensor:
        calls.append(args[0].shape[2])
        return fused(*args, **settings)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    for record, blocks in [(None, 3), (Record("tokens"), 3), (Record("attention", layers=[1]), 2)]:
        calls.clear()
        model(images, record)
        assert len([queries for queries in calls if queries > 1]) == blocks


def test_gradients_flow_through_what_is_kept() -> None:
    model = make(TRANSFORMERS["token"])
    record = Record("attention")
    images = images_for(model.config).requires_grad_()
    model(images, record)
    record.attention[2][:, :, 0, 1].sum().backward()
    assert images.grad is not None and images.grad.abs().max() > 0


def test_recording_wins_over_activation_checkpointing() -> None:
    model = make(TRANSFORMERS["token"])
    model.activation_checkpointing = True
    record = Record("attention", "tokens")
    model(images_for(model.config), record).sum().backward()
    assert len(record.attention) == len(record.tokens) == 3


def test_unknown_kinds_and_layers_are_refused() -> None:
    with pytest.raises(InputError) as error:
        Record("atention")  # type: ignore[arg-type]
    assert str(error.value) == "unknown record kind 'atention'; did you mean 'attention'?"
    model = make(TRANSFORMERS["token"])
    for layer in (3, -4):
        with pytest.raises(InputError) as error:
            model(images_for(model.config), Record("tokens", layers=[layer]))
        assert str(error.value) == f"cannot record layer {layer}: the model has 3 layers"


def test_a_resnet_has_features_alone() -> None:
    model = make(ResNetConfig(image_size=16, num_classes=5, units=(1,)))
    images, record = images_for(model.config), Record("features")
    logits = model(images, record)
    assert torch.equal(model.classify(record.features), logits)
    with pytest.raises(InputError) as error:
        model(images, Record("tokens", "attention", "features"))
    assert str(error.value) == "a ResNet has no attention or tokens to record"
    with pytest.raises(InputError) as error:
        model(images, Record("attention", layers=[-1]))
    assert str(error.value) == "a ResNet has no attention to record"
