"""What each kind of attention needs, and the message where it is missing; memory without a matrix of all pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import vitkit
from vitkit.errors import InputError
from vitkit.models import build
from vitkit.models.attention import build_attention
from vitkit.models.attention.attention import join_heads, unpack
from vitkit.models.attention.full import FullAttention
from vitkit.models.configs import Preprocessing, ViTConfig
from vitkit.models.pairs import Axis
from vitkit.models.record import Record
from vitkit.objectives.mae import MaskedAutoencoding

TINY: dict[str, Any] = dict(image_size=16, patch=4, width=8, depth=1, heads=2, mlp_width=8, num_classes=3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention_window": 7}, "attention_window applies to attention 'local', not 'full': remove it"),
        (
            {"attention": "axial", "attention_rank": 7},
            "attention_rank applies to attention 'linformer', not 'axial': remove it",
        ),
        ({"attention": "local", "attention_window": 4}, "attention_window must be odd, not 4"),
        (
            {"attention": "sparse", "heads": 1},
            "attention 'sparse' needs at least 2 heads: each half sees other patches",
        ),
        (
            {"attention": "sparse", "attention_stride": 17},
            "attention_stride 17 is larger than the number of patches, 16",
        ),
        (
            {"attention": "linformer", "attention_rank": 17},
            "attention_rank 17 is larger than the number of patches, 16",
        ),
        (
            {"attention": "local", "positions": "relative"},
            "positions 'relative' need attention 'full', not 'local'",
        ),
        (
            {"attention": "linformer", "patch_dropout": 0.5},
            "attention 'linformer' needs all patches, but patch_dropout drops some: set it to 0",
        ),
        ({"attention_hashes": 99, "attention": "reformer"}, "attention_hashes must be at least 1 and at most 16, not 99"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        ViTConfig(**{**TINY, **settings})
    assert str(error.value) == message


def test_linformer_has_no_more_mixtures_than_patches() -> None:
    model = build(ViTConfig(**TINY, attention="linformer"))
    assert model.get_parameter("blocks.0.attn.key_mixtures.weight").shape == (16, 16)
    large = build(ViTConfig(**{**TINY, "image_size": 64}, attention="linformer"))
    assert large.get_parameter("blocks.0.attn.key_mixtures.weight").shape == (64, 256)


@pytest.mark.parametrize("side", [2, 6])
def test_linformer_refuses_another_size_and_stays_as_it_is(side: int) -> None:
    model = build(ViTConfig(**TINY, attention="linformer", attention_rank=9))
    with pytest.raises(InputError) as error:
        model.set_image_size(4 * side)
    assert str(error.value) == (
        f"attention 'linformer' is tied to its grid of 4x4 patches; this image size has {side}x{side}"
    )
    assert model.config.size == (16, 16)
    model.set_image_size(19)  # the same patches
    assert model(torch.zeros(1, 3, 19, 19)).shape == (1, 3)


def test_linformer_says_why_it_records_no_attention() -> None:
    model = build(ViTConfig(**TINY, attention="linformer", attention_rank=2))
    with pytest.raises(InputError, match="has no weights between tokens to record: .* 2 mixtures"):
        model(torch.zeros(1, 3, 16, 16), Record("attention"))


def test_a_linformer_is_refused_at_another_size_in_one_line(tmp_path: Any) -> None:
    vitkit.save(build(ViTConfig(**TINY, attention="linformer")), tmp_path / "model")
    assert vitkit.load(tmp_path / "model").model.config.attention == "linformer"  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="tied to its grid of 4x4 patches"):
        vitkit.load(tmp_path / "model", image_size=24)


def test_masked_autoencoding_needs_full_attention() -> None:
    model = build(ViTConfig(**TINY, attention="local"))
    with pytest.raises(InputError) as error:
        MaskedAutoencoding(
            model, Preprocessing(), mask_share=0.5, decoder_width=32, decoder_depth=1, patch_norm=False
        )
    assert str(error.value) == (
        "objective mae needs attention 'full', not 'local', because its encoder reads only a few patches"
    )


@pytest.mark.parametrize("record", [None, Record("attention")], ids=["", "recorded"])
@pytest.mark.parametrize("kind", ["axial", "local", "sparse", "linformer"])
def test_missing_patches_are_refused(kind: Any, record: Record | None) -> None:
    model: Any = build(ViTConfig(**TINY, attention=kind))
    with pytest.raises(InputError, match=f"attention '{kind}' needs all patches, but some were dropped"):
        model.encode(torch.zeros(1, 3, 16, 16), record, keep=torch.zeros(1, 3, dtype=torch.int64))


@pytest.mark.parametrize("old", ["axial", "local", "sparse", "linformer", "reformer"])
@pytest.mark.parametrize("new", ["full", "axial", "local", "sparse", "linformer", "reformer"])
def test_a_config_changes_its_kind(old: Any, new: Any) -> None:
    """Defaults of one kind don't stand in the way of another."""
    config = ViTConfig(**TINY, attention=old)
    assert replace(config, attention=new) == ViTConfig(**TINY, attention=new)


def test_a_huge_reformer_allocates_nothing_before_its_weights_are_there() -> None:
    config = ViTConfig(
        image_size=1020, patch=1, width=2**18, depth=1, heads=1, attention="reformer", attention_hashes=16,
        attention_chunk=8,
    )  # fmt: skip
    with torch.device("meta"):
        attention = build_attention(config)
    assert attention.rotations.is_meta  # type: ignore[union-attr]


def test_a_reformer_drops_patches() -> None:
    model = build(ViTConfig(**TINY, attention="reformer", patch_dropout=0.5)).train()
    assert model(torch.randn(2, 3, 16, 16)).shape == (2, 3)


class Peak(TorchDispatchMode):
    """Adds up the storages that are alive after each operation, and keeps the largest sum."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.alive = {key: pair for key, pair in self.alive.items() if not pair[0].expired()}
        self.most = max(self.most, sum(size for _, size in self.alive.values()))
        return results


def peak(attention: Callable[[torch.Tensor], torch.Tensor], tokens: int, width: int) -> int:
    """Return the most bytes that a forward and backward pass over one image holds."""
    x = torch.randn(1, tokens, width, requires_grad=True)
    with Peak() as memory:
        attention(x).square().sum().backward()
    return memory.most


def unfused(attention: FullAttention, x: torch.Tensor) -> torch.Tensor:
    q, k, v = unpack(attention.project(x))
    return attention.proj(join_heads(attention.weights(q, k) @ v))


def config(rows: int, columns: int, kind: Any, **settings: Any) -> ViTConfig:
    return ViTConfig(image_size=(rows, columns), patch=1, width=64, heads=2, attention=kind, **settings)


def test_a_wide_window_compares_no_more_than_all_pairs() -> None:
    def flops(made: ViTConfig) -> int:
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            build_attention(made)(torch.empty(1, made.num_tokens, made.width))
        return counter.get_total_flops()

    full = flops(config(20, 12, "full"))
    for window in (*range(1, 60, 2), 101):
        assert flops(config(20, 12, "local", attention_window=window)) <= full


def test_a_wide_window_needs_little_memory() -> None:
    full = build_attention(config(32, 32, "full"))
    assert isinstance(full, FullAttention)
    dense = peak(partial(unfused, full), 1025, 64)
    for window in (21, 31, 61):
        assert peak(build_attention(config(32, 32, "local", attention_window=window)), 1025, 64) < dense / 2


def test_a_chunk_of_reformer_has_no_more_patches_than_the_image() -> None:
    found = [
        peak(build_attention(config(4, 4, "reformer", attention_chunk=chunk)), 17, 64) for chunk in (16, 2048)
    ]
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["axial", "local", "sparse", "linformer", "reformer"])
def test_memory_is_far_from_that_of_all_pairs(kind: Any) -> None:
    def build_all(made: ViTConfig) -> nn.Module:
        """Both attentions of an axial block."""
        axes: tuple[Axis | None, ...] = ("rows", "columns") if kind == "axial" else (None,)
        return nn.Sequential(*(build_attention(made, axis) for axis in axes))

    full = build_attention(config(64, 64, "full"))
    assert isinstance(full, FullAttention)
    dense = peak(partial(unfused, full), 4097, 64)
    assert dense > 3 * 4 * 2 * 4097**2
    at_4096 = peak(build_all(config(64, 64, kind)), 4097, 64)
    at_8192 = peak(build_all(config(64, 128, kind)), 8193, 64)
    assert at_4096 < dense / 4
    assert at_8192 < 3 * at_4096
    at_16384 = peak(build_all(config(128, 128, kind)), 16385, 64)
    assert at_16384 < 3 * at_8192
