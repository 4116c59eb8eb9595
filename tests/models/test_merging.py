"""Token merging: the same tokens as a slow reference, nothing lost where patches are equal, maps of all patches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.random_models import images_for, make
from vitkit.errors import InputError
from vitkit.inspection.flow import gradient_rollout, rollout
from vitkit.models import build
from vitkit.models.configs import CompactConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig
from vitkit.models.merging import count_after, match
from vitkit.models.record import KINDS, Record
from vitkit.models.vit import VisionTransformer

SHAPE: dict[str, Any] = dict(width=16, depth=3, heads=2, mlp_width=24, num_classes=5)
VIT: dict[str, Any] = dict(SHAPE, image_size=(16, 20), patch=4)
TRANSFORMERS: dict[str, ModelConfig] = {
    "token": ViTConfig(**VIT, registers=1),
    "mean": ViTConfig(**VIT, pool="mean", class_token=False),
    "map": ViTConfig(**VIT, pool="map", registers=2),
    "seqpool": ViTConfig(**VIT, pool="seqpool", layer_scale=0.5),
    "hybrid": HybridConfig(**dict(VIT, image_size=(32, 40), patch=2), backbone_units=(), backbone_width=32),
    "vit-lite": CompactConfig(
        **dict(SHAPE, image_size=(16, 20)), tokenizer="patches", kernel=4, pool="token"
    ),
    "cct": CompactConfig(**dict(SHAPE, image_size=(16, 20))),
}
every_transformer = pytest.mark.parametrize("name", TRANSFORMERS)


def slow_match(keys: np.ndarray, merge: int, num_prefix: int) -> list[list[int]]:
    """Return the tokens in each place: the paper's bipartite matching of one image, in loops."""
    unit = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    first, second = range(num_prefix + 1, len(keys), 2), range(num_prefix, len(keys), 2)
    edges = []
    for token in first:
        similarities = [float(unit[token] @ unit[other]) for other in second]
        best = max(range(len(similarities)), key=similarities.__getitem__)
        edges.append((-similarities[best], token, second[best]))
    chosen = {token: other for _, token, other in sorted(edges)[:merge]}
    kept = [[token] for token in first if token not in chosen]
    means = [[other, *(token for token, target in chosen.items() if target == other)] for other in second]
    return [[token] for token in range(num_prefix)] + kept + means


def slow_logits(model: VisionTransformer, image: Tensor) -> Tensor:
    """Return the logits of one image: ToMe as in the paper's section 3, with lists of patches instead of tensors."""
    config, merge = model.config, model.merge
    x = model.embed(image[None])[0]  # (tokens, width)
    sizes = [1] * len(x)
    for block in model.blocks:
        q, k, v = block.attn.qkv(block.norm1(x)).reshape(len(x), 3, config.heads, -1).permute(1, 2, 0, 3)
        heads = []
        for head in range(config.heads):
            weights = torch.exp(q[head] @ k[head].T / math.sqrt(q.shape[-1])) * torch.tensor(sizes)
            heads.append(weights / weights.sum(1, keepdim=True) @ v[head])
        x = x + block.ls1(block.attn.proj(torch.cat(heads, 1)))
        count = min(merge, (len(x) - config.num_prefix) // 2)
        groups = slow_match(k.mean(0).double().numpy(), count, config.num_prefix)
        rows = [
            torch.stack([x[token] * sizes[token] for token in group]).sum(0)
            / sum(sizes[token] for token in group)
            for group in groups
        ]
        x, sizes = torch.stack(rows), [sum(sizes[token] for token in group) for group in groups]
        x = x + block.ls2(block.mlp(block.norm2(x)))
    x = model.norm(x)
    if config.pool == "token":
        pooled = x[0]
    else:
        pooled = sum(row * size for row, size in zip(x, sizes, strict=True)) / sum(sizes)  # type: ignore[assignment]
    return model.head(pooled)


@pytest.mark.parametrize(("tokens", "num_prefix"), [(21, 1), (20, 0), (22, 2), (9, 1), (2, 1), (3, 1)])
def test_the_closest_pairs_are_merged(tokens: int, num_prefix: int) -> None:
    keys = torch.randn(3, tokens, 8, generator=torch.Generator().manual_seed(tokens))
    for merge in (0, 1, 3, 100):
        places = match(keys, merge, num_prefix)
        count = min(merge, (tokens - num_prefix) // 2)
        assert places.max() + 1 == count_after(tokens, merge, num_prefix) == tokens - count
        for row, key in zip(places.tolist(), keys.double().numpy(), strict=True):
            found: list[list[int]] = [[] for _ in range(tokens - count)]
            for token, place in enumerate(row):
                found[place].append(token)
            assert found == [sorted(group) for group in slow_match(key, count, num_prefix)]


def test_among_equal_pairs_the_first_are_merged() -> None:
    places = match(torch.ones(1, 9, 4), 2, 1)
    # First half: patches 1, 3, 5, 7 of 0 to 7; the nearest of the other half is always its first, patch 0.
    assert places.tolist() == [[0, 3, 3, 4, 3, 5, 1, 6, 2]]


@pytest.mark.parametrize("pool", ["token", "mean"])
@pytest.mark.parametrize("merge", [1, 3, 50])
def test_logits_are_those_of_the_slow_reference(pool: Any, merge: int) -> None:
    model = make(ViTConfig(**VIT, pool=pool, class_token=pool == "token", layer_scale=0.7))
    assert isinstance(model, VisionTransformer)
    model.set_merge(merge)
    images = images_for(model.config)
    with torch.no_grad():
        expected = torch.stack([slow_logits(model, image) for image in images])
        torch.testing.assert_close(model(images), expected, atol=1e-5, rtol=0)


@every_transformer
def test_merging_equal_patches_changes_nothing(name: str) -> None:
    model = make(TRANSFORMERS[name])
    for parameter_name, parameter in model.named_parameters():
        if "pos" in parameter_name:
            torch.nn.init.zeros_(parameter)
    images = torch.full((2, 3, *model.config.size), 0.3)
    if name in ("cct", "hybrid"):
        images = images * 0  # padding makes the edges of other images differ
    expected = model(images)
    model.set_merge(6)
    torch.testing.assert_close(model(images), expected, atol=2e-5, rtol=0)


@every_transformer
def test_merging_changes_logits_and_zero_restores_them(name: str) -> None:
    model = make(TRANSFORMERS[name])
    images = images_for(model.config)
    plain = model(images)
    model.set_merge(4)
    assert not torch.allclose(model(images), plain, atol=1e-3)
    model.set_merge(0)
    assert torch.equal(model(images), plain)


@every_transformer
def test_a_record_has_a_row_for_each_patch(name: str) -> None:
    model = make(TRANSFORMERS[name])
    model.set_merge(3)
    config: Any = model.config
    images, record = images_for(config), Record(*KINDS)  # type: ignore[arg-type]
    logits = model(images, record=record)
    torch.testing.assert_close(logits, model(images), atol=1e-5, rtol=0)
    for layer in range(3):
        attention, tokens = record.attention[layer], record.tokens[layer]
        assert attention.shape == (2, 2, config.num_tokens, config.num_tokens)
        torch.testing.assert_close(attention.sum(-1), torch.ones(2, 2, config.num_tokens))
        assert tokens.shape == (2, config.num_tokens, 16)
        for image in tokens:
            assert len(image.unique(dim=0)) == config.num_tokens - 3 * (layer + 1)
    assert model.forward_features(images).shape == (2, config.num_tokens, 16)


def test_maps_follow_merged_patches() -> None:
    model = make(TRANSFORMERS["token"])
    images = images_for(model.config)
    plain, plain_gradient = rollout(model, images), gradient_rollout(model, images, 1)
    model.set_merge(2)
    for found, before in (
        (rollout(model, images), plain),
        (gradient_rollout(model, images, 1), plain_gradient),
    ):
        assert found.shape == before.shape == (2, 4, 5)
        assert np.isfinite(found).all()
        assert 0 < np.abs(found - before).max() < 0.1


def test_gradients_of_recorded_attention_are_those_of_equal_patches() -> None:
    model = make(ViTConfig(**VIT, positions="none"))
    images = torch.full((1, 3, 16, 20), 0.3)

    def gradients() -> Tensor:
        record = Record("attention")
        logits = model(images, record=record)
        return torch.autograd.grad(logits[0, 1], record.attention[2])[0]

    expected = gradients()
    model.set_merge(5)
    torch.testing.assert_close(gradients(), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (ViTConfig(**VIT, attention="reformer"), "merging needs attention 'full', not 'reformer'"),
        (ViTConfig(**VIT, positions="relative"), "relative positions are those of single patches"),
        (ViTConfig(**VIT, positions_at="every_layer"), "every layer adds the positions of single patches"),
        (ResNetConfig(units=(1,), image_size=32), "it has no tokens"),
    ],
)
def test_models_that_cannot_merge_say_why(config: ModelConfig, why: str) -> None:
    model = build(config)
    model.set_merge(0)
    with pytest.raises(InputError, match=f"^patches can't be merged in this model: {why}$"):
        model.set_merge(8)


def test_bad_numbers_and_training_are_refused() -> None:
    model = make(TRANSFORMERS["token"])
    with pytest.raises(InputError, match="merge must be at least 0, not -1"):
        model.set_merge(-1)
    model.set_merge(2)
    with pytest.raises(InputError, match="patches are merged only in inference: call"):
        model.train()(images_for(model.config))
