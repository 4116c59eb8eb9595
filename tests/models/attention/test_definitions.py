"""Each kind of attention equals a dense computation of its definition, forward and backward."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.models.attention.definition import mask
from vitkit.models.attention import build_attention
from vitkit.models.attention.attention import Attention, unpack
from vitkit.models.attention.linformer import LinformerAttention
from vitkit.models.attention.reformer import ReformerAttention
from vitkit.models.configs import ViTConfig
from vitkit.models.record import Record


def dense(attention: Attention, x: Tensor, seen: Tensor, itself: float = 0.0) -> Tensor:
    """Attention with a mask over all pairs; `itself` is added to the logit of a token for itself."""
    q, k, v = unpack(attention.project(x))
    logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    logits = logits + itself * torch.eye(logits.shape[-1], dtype=logits.dtype)
    logits = logits.masked_fill(~seen, -torch.inf)
    y = logits.softmax(-1) @ v
    return attention.proj(y.transpose(1, 2).flatten(2))


def make(config: ViTConfig, axis: Any = None) -> tuple[Attention, Tensor]:
    torch.manual_seed(0)
    attention = build_attention(config, axis).double().eval()
    x = torch.randn(2, config.num_tokens, config.width, dtype=torch.float64, requires_grad=True)
    return attention, x


def outputs(attention: Attention, y: Tensor, x: Tensor) -> list[Tensor]:
    """The output, and the gradients of the input and of all parameters."""
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    names, parameters = zip(*attention.named_parameters(), strict=True)
    gradients = torch.autograd.grad((y * weight.cos()).sum(), [x, *parameters], allow_unused=True)
    unused = [name for name, gradient in zip(names, gradients[1:], strict=True) if gradient is None]
    assert not unused
    return [y.detach(), *gradients]


def assert_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


GRIDS = st.tuples(st.integers(1, 11), st.integers(1, 11))
PATTERNS = st.one_of(
    st.just({"attention": "axial"}),
    st.builds(lambda reach: {"attention": "local", "attention_window": 2 * reach + 1}, st.integers(0, 6)),
    st.builds(lambda stride: {"attention": "sparse", "attention_stride": stride}, st.integers(1, 20)),
    st.just({"attention": "sparse"}),
)


@settings(max_examples=60, deadline=None)
@given(grid=GRIDS, pattern=PATTERNS, prefix=st.integers(0, 3), heads=st.sampled_from([2, 3]))
def test_patterns_equal_their_definition(
    grid: tuple[int, int], pattern: dict[str, Any], prefix: int, heads: int
) -> None:
    if (pattern.get("attention_stride") or 0) > math.prod(grid):
        pattern = {**pattern, "attention_stride": math.prod(grid)}
    config = ViTConfig(
        image_size=(2 * grid[0], 2 * grid[1]),
        patch=2,
        width=4 * heads,
        heads=heads,
        pool="token" if prefix else "mean",
        registers=max(0, prefix - 1),
        **pattern,
    )
    for axis in ("rows", "columns") if config.attention == "axial" else (None,):
        attention, x = make(config, axis)
        seen = mask(config, axis)
        assert_equal(outputs(attention, attention(x), x), outputs(attention, dense(attention, x, seen), x))


@pytest.mark.parametrize("prefix", [0, 1, 3])
@pytest.mark.parametrize("rank", [1, 5])
def test_linformer_equals_its_definition(prefix: int, rank: int) -> None:
    config = ViTConfig(
        image_size=(12, 8), patch=2, width=8, heads=2, attention="linformer", attention_rank=rank,
        pool="token" if prefix else "mean", registers=max(0, prefix - 1),
    )  # fmt: skip
    attention, x = make(config)
    assert isinstance(attention, LinformerAttention)
    q, k, v = unpack(attention.project(x))
    rows = []
    for query in range(config.num_tokens):
        keys, values = (  # E^T K and F^T V, after the class and register tokens themselves
            torch.cat([of[:, :, :prefix], torch.einsum("rn,bhnd->bhrd", mix.weight, of[:, :, prefix:])], 2)
            for of, mix in ((k, attention.key_mixtures), (v, attention.value_mixtures))
        )
        logits = torch.einsum("bhd,bhkd->bhk", q[:, :, query], keys) / 2.0
        rows.append(torch.einsum("bhk,bhkd->bhd", logits.softmax(-1), values))
    expected = attention.proj(torch.stack(rows, 2).transpose(1, 2).flatten(2))
    assert_equal(outputs(attention, attention(x), x), outputs(attention, expected, x))


def hashed_together(buckets: list[int], chunk: int, query: int, key: int) -> bool:
    """Whether two patches share a bucket, and the key's chunk is the query's or the one before."""
    order = sorted(range(len(buckets)), key=lambda patch: (buckets[patch], patch))
    back = order.index(query) // chunk - order.index(key) // chunk
    return buckets[query] == buckets[key] and back in (0, 1)


@settings(max_examples=25, deadline=None)
@given(
    grid=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    rounds=st.integers(1, 3),
    chunk=st.sampled_from([8, 9, 16]),
    prefix=st.integers(0, 2),
)
def test_reformer_equals_its_definition_for_the_same_hashes(
    grid: tuple[int, int], rounds: int, chunk: int, prefix: int
) -> None:
    config = ViTConfig(
        image_size=(2 * grid[0], 2 * grid[1]), patch=2, width=8, heads=2, attention="reformer",
        attention_hashes=rounds, attention_chunk=chunk,
        pool="token" if prefix else "mean", registers=max(0, prefix - 1),
    )  # fmt: skip
    attention, x = make(config)
    assert isinstance(attention, ReformerAttention)
    q, k, _ = unpack(attention.project(x))
    torch.testing.assert_close(k.norm(dim=-1), torch.ones(2, 2, config.num_tokens, dtype=q.dtype))
    torch.testing.assert_close(k * q.norm(dim=-1, keepdim=True), q)
    buckets = attention.hash(q[:, :, prefix:]).tolist()
    seen = torch.ones(2, config.heads, config.num_tokens, config.num_tokens, dtype=torch.bool)
    for image, head in itertools.product(range(2), range(config.heads)):
        for query, key in itertools.product(range(config.num_patches), repeat=2):
            seen[image, head, prefix + query, prefix + key] = any(
                hashed_together(of, chunk, query, key) for of in buckets[image][head]
            )
    expected = dense(attention, x, seen, itself=-1e5)
    assert_equal(outputs(attention, attention(x), x), outputs(attention, expected, x))


def test_like_queries_share_a_bucket_and_opposite_ones_do_not() -> None:
    config = ViTConfig(image_size=64, patch=2, width=32, heads=2, attention="reformer")
    attention, _ = make(config)
    assert isinstance(attention, ReformerAttention)
    q = torch.randn(1, 2, 100, 16, dtype=torch.float64)
    buckets = attention.hash(q)
    assert torch.equal(buckets, attention.hash(3 * q))
    assert not (buckets == attention.hash(-q)).any()
    assert int(buckets.max()) < 32  # 1,024 patches in chunks of 32
    near = (buckets == attention.hash(q + 0.05 * torch.randn_like(q))).double().mean()
    assert near > 0.7


def test_many_buckets_are_pairs_of_hashes() -> None:
    config = ViTConfig(image_size=256, patch=2, width=32, heads=2, attention="reformer")
    attention, _ = make(config)
    assert isinstance(attention, ReformerAttention)
    assert attention.factors == (22, 24)  # 16,384 patches in chunks of 32
    assert attention.rotations.shape == (2, 16, 23)
    q = torch.randn(1, 2, 16_384, 16, dtype=torch.float64)
    buckets = attention.hash(q)
    assert torch.equal(buckets, attention.hash(3 * q)) and not (buckets == attention.hash(-q)).any()
    assert int(buckets.max()) < 22 * 24 and len(buckets.unique()) > 500


KINDS: dict[str, dict[str, Any]] = {
    "axial": {},
    "local": {"attention_window": 3},
    "sparse": {"attention_stride": 3},
    "reformer": {"attention_chunk": 8},
}


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_weights_are_those_that_the_output_comes_from(kind: str) -> None:
    config = ViTConfig(
        image_size=(10, 8), patch=2, width=12, heads=3, registers=1, attention=kind, **KINDS[kind]
    )  # type: ignore[arg-type]
    attention, x = make(config, "rows" if kind == "axial" else None)
    record = Record("attention")
    record.start(1)
    recorded = attention(x, record)
    torch.testing.assert_close(recorded, attention(x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(record.attention[0].sum(-1), torch.ones(2, 3, config.num_tokens).double())


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_keeps_the_mean_of_the_output(kind: str) -> None:
    config = ViTConfig(
        image_size=(10, 8), patch=2, width=12, heads=3, attention_dropout=0.3, attention=kind, **KINDS[kind]
    )  # type: ignore[arg-type]
    attention, x = make(config, "columns" if kind == "axial" else None)
    expected = attention(x)
    attention.train()
    torch.manual_seed(1)
    drawn = torch.stack([attention(x) for _ in range(1000)])
    assert not torch.equal(drawn[0], drawn[1])
    error = (drawn.mean(0) - expected).abs()
    assert (error <= 5 * drawn.std(0) / math.sqrt(1000) + 1e-6).all()
