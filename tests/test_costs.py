"""Cost: the published numbers to their digits, and the arithmetic against what built models really do."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import vitkit
from tests.models.attention.definition import mask
from vitkit.costs import cost, cost_of, merged_macs, training_exaflops
from vitkit.errors import InputError
from vitkit.models import build
from vitkit.models.configs import CompactConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig
from vitkit.models.model import Model
from vitkit.models.names import list_models, model_config
from vitkit.models.pairs import attention_cost
from vitkit.published import table

# 9.2: matmul MACs by hand; attention is QK^T and AV.
MACS_BY_PART = {
    "B/16": {
        "patch_embedding": 115_605_504,
        "qkv": 4_183_031_808,
        "attention": 357_663_744 + 357_663_744,
        "projection": 1_394_343_936,
        "mlp": 11_154_751_488,
        "head": 768_000,
    },
    "L/16": {
        "patch_embedding": 154_140_672,
        "qkv": 14_873_001_984,
        "attention": 953_769_984 + 953_769_984,
        "projection": 4_957_667_328,
        "mlp": 39_661_338_624,
        "head": 1_024_000,
    },
    "H/14": {
        "patch_embedding": 192_675_840,
        "qkv": 40_422_604_800,
        "attention": 2_705_367_040 + 2_705_367_040,
        "projection": 13_474_201_600,
        "mlp": 107_793_612_800,
        "head": 1_280_000,
    },
}


@pytest.mark.parametrize(
    ("name", "total"), [("B/16", 17_563_828_224), ("L/16", 61_554_712_576), ("H/14", 167_295_109_120)]
)
def test_macs_by_part(name: str, total: int) -> None:
    report = cost(name)
    assert report.macs == total
    assert {part: row.macs for part, row in report.parts.items() if row.macs} == MACS_BY_PART[name]


# 9.2: GELU, LayerNorm, softmax, bias and residual elements; 9.3: GFLOPs under both conventions.
@pytest.mark.parametrize(
    ("name", "gelu", "norm", "softmax", "bias", "residual", "gflops", "gflops_with_elementwise"),
    [
        ("B/16", 7_262_208, 3_782_400, 5_588_496, 16_491_496, 3_631_104, "35.1277", "35.1644"),
        ("L/16", 19_365_888, 9_884_672, 14_902_656, 43_774_952, 9_682_944, "123.1094", "123.2070"),
        ("H/14", 42_106_880, 21_382_400, 33_817_088, 95_069_160, 21_053_440, "334.5902", "334.8036"),
    ],
)
def test_flops_under_both_conventions(
    name: str,
    gelu: int,
    norm: int,
    softmax: int,
    bias: int,
    residual: int,
    gflops: str,
    gflops_with_elementwise: str,
) -> None:
    found = cost_of(model_config(name))
    parts = {part: row.elementwise for part, row in found.parts.items()}
    assert (parts["norm"], parts["attention"], parts["residual"]) == (norm, softmax, residual)
    assert found.elementwise == gelu + norm + softmax + bias + residual
    report = cost(name)
    assert f"{report.flops / 1e9:.4f}" == gflops
    assert f"{report.flops_with_elementwise / 1e9:.4f}" == gflops_with_elementwise


# 9.4: GMACs as printed there; those of the ResNets are without head.
@pytest.mark.parametrize(
    ("name", "settings", "gmacs"),
    [
        ("Ti/16", {}, "1.2537"),
        ("Ti/16", {"image_size": 384}, "4.6822"),
        ("S/32", {}, "1.1429"),
        ("S/32", {"image_size": 384}, "3.4429"),
        ("S/16", {}, "4.5989"),
        ("S/16", {"image_size": 384}, "15.4904"),
        ("B/32", {}, "4.4092"),
        ("B/32", {"image_size": 384}, "13.0436"),
        ("B/16", {}, "17.5638"),
        ("B/16", {"image_size": 384}, "55.4844"),
        ("B/8", {}, "78.1483"),
        ("L/32", {}, "15.3775"),
        ("L/32", {"image_size": 384}, "45.2760"),
        ("L/16", {}, "61.5547"),
        ("L/16", {"image_size": 384}, "191.0663"),
        ("H/14", {}, "167.2951"),
        ("H/14", {"image_size": 518}, "1016.7168"),
        ("R50+B/16", {}, "21.535"),
        ("R50+B/32", {}, "8.458"),
        ("R50+L/32", {}, "19.413"),
        ("R50+L/16", {}, "65.539"),
        ("R26+S/32", {}, "3.464"),
        ("R+Ti/16", {}, "0.434"),
        ("BiT-R50x1", {"num_classes": 0}, "4.09"),
        ("BiT-R50x2", {"num_classes": 0}, "16.11"),
        ("BiT-R101x1", {"num_classes": 0}, "7.80"),
        ("BiT-R152x1", {"num_classes": 0}, "11.51"),
        ("BiT-R152x2", {"num_classes": 0}, "45.81"),
        ("BiT-R200x3", {"num_classes": 0}, "134.34"),
    ],
)
def test_gmacs(name: str, settings: dict[str, Any], gmacs: str) -> None:
    decimals = len(gmacs.partition(".")[2])
    assert f"{cost_of(model_config(name, **settings)).macs / 1e9:.{decimals}f}" == gmacs


# 5: GFLOPs without class token, as 2 x MACs and as the paper's table 2, which adds some element-wise work.
@pytest.mark.parametrize(
    ("name", "gflops", "published"),
    [("B/16", 34.94, 35.1), ("L/16", 122.46, 122.9), ("g/14", 531.9, 533.1), ("G/14", 963.7, 965.3)],
)
def test_scaling_vit_gflops(name: str, gflops: float, published: float) -> None:
    found = cost_of(model_config(name, pool="mean", num_classes=0))
    assert 2 * found.macs / 1e9 == pytest.approx(gflops, rel=1e-4)
    assert (2 * found.macs + found.elementwise) / 1e9 == pytest.approx(published, rel=0.005)


# 4.2: tokens, GMACs of convolutions and linear layers, and with attention's matmuls.
@pytest.mark.parametrize(
    ("name", "settings", "tokens", "linear", "total"),
    [
        ("CCT-2/3x2", {}, 64, "0.0332", "0.0353"),
        ("CCT-4/3x2", {}, 64, "0.0458", "0.0500"),
        ("CCT-6/3x1", {}, 256, "0.8125", "1.0138"),
        ("CCT-6/3x2", {}, 64, "0.2409", "0.2535"),
        ("CCT-7/3x1", {}, 256, "0.9467", "1.1816"),
        ("CCT-7/3x2", {}, 64, "0.2744", "0.2891"),
        ("CCT-7/7x2", {}, 196, "1.4669", "1.6046"),
        ("CCT-14/7x2", {}, 196, "5.1089", "5.5219"),
        ("CCT-14/7x2", {"image_size": 384}, 576, "15.013", "18.580"),
        ("ViT-Lite-6/4", {}, 65, "0.2053", "0.2182"),
        ("ViT-Lite-7/4", {}, 65, "0.2393", "0.2545"),
        ("ViT-Lite-7/8", {}, 17, "0.0632", "0.0642"),
        ("ViT-Lite-7/16", {}, 5, "0.0191", "0.0192"),
        ("ViT-Lite-2/4", {}, 65, "0.0132", "0.0153"),
        ("ViT-Lite-4/4", {}, 65, "0.0260", "0.0303"),
        ("CVT-2/4", {}, 64, "0.0130", "0.0151"),
        ("CVT-4/4", {}, 64, "0.0256", "0.0298"),
        ("CVT-6/4", {}, 64, "0.2021", "0.2147"),
        ("CVT-7/4", {}, 64, "0.2357", "0.2504"),
    ],
)
def test_compact_macs(name: str, settings: dict[str, Any], tokens: int, linear: str, total: str) -> None:
    found = cost_of(model_config(name, **settings))
    decimals = len(linear.partition(".")[2])
    assert found.tokens == tokens
    assert f"{(found.macs - found.parts['attention'].macs) / 1e9:.{decimals}f}" == linear
    assert f"{found.macs / 1e9:.{decimals}f}" == total


# 1.12, table 6.
def test_scaling_table() -> None:
    rows = table("scaling").rows
    assert len(rows) == 18
    for row in rows:
        tolerance = 0.045 if row.model.startswith("BiT") else 0.03 if "+" in row.model else 0.021
        assert abs(row.exaflops / row.published_exaflops - 1) < tolerance, row
        assert row.difference == pytest.approx(row.exaflops / row.published_exaflops - 1)
    predicted = {(row.model, row.epochs): round(row.exaflops, 1) for row in rows}
    assert predicted["B/32", 7] == 56.1
    assert predicted["B/16", 7] == 223.5
    assert predicted["L/16", 14] == 1566.7
    assert predicted["R50+B/16", 7] == 274.1


# 9.1, 9.3 and 1.3.
@pytest.mark.slow
def test_sizes_table() -> None:
    rows = {row.model: row for row in table("sizes").rows}
    for name, published in {"B/16": 35.2, "L/16": 123.2, "H/14": 334.8}.items():
        assert rows[name].published_gflops == published
        assert round(rows[name].flops_with_elementwise / 1e9, 1) == published
    assert rows["B/16"].note == "86M is B/16 without its head: 85,798,656"
    assert rows["L/16"].note == "307M is L/32 with 1000 classes: 306,535,400"
    assert rows["H/14"].note == "632M is H/14 with 1000 classes: 632,045,800"
    small, large = rows["EfficientNet-B0"], rows["EfficientNet-B7"]
    assert (round(small.macs / 1e9, 2), round(large.macs / 1e9, 1)) == (0.39, 37.7)
    assert (small.published_gflops, large.published_gflops) == (0.4, 37.0)
    assert (round(small.parameters / 1e6, 1), round(large.parameters / 1e6)) == (5.3, 66)


def sides(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(low, high))


VIT_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "channels": st.integers(1, 4),
    "num_classes": st.sampled_from([0, 1, 7]),
    "depth": st.integers(1, 3),
    "heads": st.sampled_from([1, 2]),
    "width": st.sampled_from([8, 16]),
    "mlp_width": st.integers(1, 20),
    "positions": st.sampled_from(["none", "learned", "learned_2d", "sincos_2d", "relative"]),
    "positions_at": st.sampled_from(["stem", "every_layer", "every_layer_shared"]),
    "prefix_positions": st.booleans(),
    "pool": st.sampled_from(["token", "mean", "map", "seqpool", "none"]),
    "class_token": st.sampled_from([None, True]),
    "registers": st.integers(0, 2),
    "final_norm": st.sampled_from(["tokens", "pooled"]),
    "pre_logits": st.sampled_from([0, 5]),
    "layer_scale": st.sampled_from([None, 0.1]),
}


def allowed(fields: dict[str, Any]) -> dict[str, Any]:
    """Replace the few combinations that a ViT refuses."""
    if fields["positions"] in ("none", "relative"):
        fields["positions_at"] = "stem"
    if fields["pool"] not in ("token", "mean"):
        fields["final_norm"] = "tokens"
    return fields


def vits(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[ViTConfig]:
    some = {"image_size": sides(4, 20), "patch": st.integers(1, 4)}
    return (
        st.fixed_dictionaries(VIT_FIELDS | some | fields).map(allowed).map(lambda chosen: ViTConfig(**chosen))
    )


def hybrids() -> st.SearchStrategy[HybridConfig]:
    fields = {
        "image_size": sides(32, 70),
        "patch": st.just(1),
        "backbone_width": st.sampled_from([32, 64]),
        "stem": st.sampled_from(["7x7", "3x3"]),
        "backbone_units": st.sampled_from([(), (2,), (1, 2), (1, 1, 1), (2, 1, 1, 2)]),
    }
    return st.fixed_dictionaries(VIT_FIELDS | fields).map(allowed).map(lambda chosen: HybridConfig(**chosen))


def resnets() -> st.SearchStrategy[ResNetConfig]:
    return st.builds(
        ResNetConfig,
        image_size=sides(8, 70),
        channels=st.integers(1, 4),
        num_classes=st.sampled_from([0, 7]),
        units=st.sampled_from([(1,), (2, 1), (1, 2, 1), (1, 1, 1, 2)]),
        width_factor=st.integers(1, 2),
        stem=st.sampled_from(["7x7", "3x3"]),
    )


def compacts() -> st.SearchStrategy[CompactConfig]:
    fields: dict[str, st.SearchStrategy[Any]] = {
        "image_size": sides(12, 40),
        "channels": st.integers(1, 4),
        "num_classes": st.sampled_from([0, 7]),
        "width": st.sampled_from([8, 16]),
        "depth": st.integers(1, 3),
        "heads": st.sampled_from([1, 2]),
        "mlp_width": st.integers(1, 20),
        "pool": st.sampled_from(["token", "seqpool"]),
        "positions": st.sampled_from(["none", "learned", "sine"]),
        "attention_dropout": st.just(0.0),
        "stochastic_depth": st.just(0.0),
    }
    patches = {"tokenizer": st.just("patches"), "kernel": st.integers(1, 9)}
    convolutions = {"kernel": st.sampled_from([1, 3, 4, 5, 7]), "convolutions": st.integers(1, 3)}
    either = st.fixed_dictionaries(fields | patches) | st.fixed_dictionaries(fields | convolutions)
    return either.map(lambda chosen: CompactConfig(**chosen))


def parameters_and_macs(config: ModelConfig) -> tuple[int, int]:
    """Count them on the built model: its tensors, and what PyTorch's own counter sees of one forward pass."""
    with torch.device("meta"):
        model = build(config).eval()
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, config.channels, *config.size))
    assert counter.get_total_flops() % 2 == 0
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return trainable, counter.get_total_flops() // 2


@pytest.mark.parametrize("name", ["mu/16", "Ti/16", "R50+B/16", "CCT-7/3x1"])
@pytest.mark.parametrize("merge", [0, 3, 40])
def test_merging_saves_multiply_adds(name: str, merge: int) -> None:
    with torch.device("meta"):
        model = build(model_config(name)).eval()
        model.set_merge(merge)
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, *model.config.size))
    assert merged_macs(model.config, merge) == counter.get_total_flops() // 2


@pytest.mark.slow
@pytest.mark.parametrize("family", [vits, hybrids, resnets, compacts])
@settings(max_examples=25)
@given(data=st.data())
def test_arithmetic_equals_the_built_model(family: Any, data: st.DataObject) -> None:
    config = data.draw(family())
    found = cost_of(config)
    assert (found.parameters, found.macs) == parameters_and_macs(config)


@pytest.mark.parametrize(
    "name",
    [
        *("B/16", "BiT-R152x4", "CCT-14/7x2"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("H/14", "G/14", "R50+L/16")),
    ],
)
def test_arithmetic_equals_the_built_published_model(name: str) -> None:
    config = model_config(name)
    found = cost_of(config)
    assert (found.parameters, found.macs) == parameters_and_macs(config)


def saved_bytes(model: Model, batch: int) -> int:
    """Bytes of all storages that autograd keeps for the backward pass, parameters and input aside."""
    images = torch.zeros(batch, model.config.channels, *model.config.size)
    known = {tensor.untyped_storage().data_ptr() for tensor in (images, *model.parameters())}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(images)
    return sum(storage.nbytes() for storage in kept.values())


def saved_bytes_per_image(config: ModelConfig) -> int:
    """What one more image adds; from two images on, since a batch of one shares some storages by chance."""
    model = build(config).train()
    return saved_bytes(model, 3) - saved_bytes(model, 2)


@settings(max_examples=25)
@given(
    config=vits(
        image_size=sides(4, 12), positions=st.sampled_from(["none", "learned", "learned_2d", "sincos_2d"])
    )
)
def test_activation_memory_of_a_vit_is_exact(config: ViTConfig) -> None:
    assume(config.num_patches > 1)  # a single patch behind registers is kept as a view of all tokens
    assume(
        config.patch > 1 and config.channels > 1
    )  # patches of one pixel or channel may be a view of the image
    assert cost_of(config).activation_bytes(4) == saved_bytes_per_image(config)


@pytest.mark.parametrize(
    "config",
    [
        model_config("Ti/16"),
        model_config("CCT-2/3x2", attention_dropout=0.0, stochastic_depth=0.0),
        model_config("ViT-Lite-2/4", attention_dropout=0.0, stochastic_depth=0.0),
        ResNetConfig(image_size=(45, 50), units=(2, 1, 1), num_classes=3),
        HybridConfig(
            image_size=(45, 50), width=8, depth=1, heads=2, mlp_width=8, patch=1, backbone_units=(2, 1)
        ),
        HybridConfig(image_size=(64, 40), width=8, depth=1, heads=2, mlp_width=8, patch=8, backbone_units=()),
        ResNetConfig(image_size=(15, 20), units=(1, 1), num_classes=3, stem="3x3"),
        HybridConfig(
            image_size=(15, 20), width=8, depth=1, heads=2, mlp_width=8, backbone_units=(1,), stem="3x3"
        ),
    ],
    ids=lambda config: type(config).__name__,
)
def test_activation_memory_of_other_models_is_exact(config: ModelConfig) -> None:
    assert cost_of(config).activation_bytes(4) == saved_bytes_per_image(config)


KINDS: dict[str, dict[str, Any]] = {
    "axial": {},
    "local": {"attention_window": 5},
    "sparse": {"attention_stride": 7},
    "linformer": {"attention_rank": 6},
    "reformer": {"attention_chunk": 16},
}


@pytest.mark.parametrize("pool", ["token", "mean"])
@pytest.mark.parametrize("kind", KINDS)
def test_activation_memory_of_other_attentions(kind: str, pool: Any) -> None:
    config = ViTConfig(
        image_size=(36, 48), width=16, depth=2, heads=4, mlp_width=24, patch=3, pool=pool, num_classes=5,
        attention=kind, **KINDS[kind],  # type: ignore[arg-type]
    )  # fmt: skip
    found, expected = cost_of(config).activation_bytes(4), saved_bytes_per_image(config)
    assert found == (pytest.approx(expected, rel=0.05) if kind == "reformer" else expected)


@pytest.mark.parametrize("pool", ["token", "mean"])
@pytest.mark.parametrize("kind", ["local", "sparse"])
@pytest.mark.parametrize("image_size", [(9, 9), (9, 33), (3, 36), (60, 9)])
def test_activation_memory_of_windows_as_wide_as_the_grid(image_size: Any, kind: Any, pool: Any) -> None:
    wide = {"attention_window": 9} if kind == "local" else {"attention_stride": 8}
    for chosen in ({}, wide):
        config = ViTConfig(
            image_size=image_size, width=16, depth=1, heads=4, mlp_width=24, patch=3, pool=pool, num_classes=5,
            attention=kind, **chosen,
        )  # fmt: skip
        assert cost_of(config).activation_bytes(4) == saved_bytes_per_image(config)


@pytest.mark.parametrize("kind", KINDS)
def test_macs_of_attention_are_those_of_the_pairs_that_it_sees(kind: str) -> None:
    config = ViTConfig(
        image_size=(36, 48), width=16, heads=4, patch=3, registers=1, attention=kind, **KINDS[kind]
    )  # type: ignore[arg-type]
    tokens, patches, rank, rounds, chunk = 194, 192, 6, 2, 16
    for axis in ("rows", "columns") if kind == "axial" else (None,):
        found = attention_cost(config, axis)
        if kind == "linformer":
            assert found.pairs == 4 * tokens * (2 + rank) and found.more_macs == 2 * patches * rank * 16
        elif kind == "reformer":
            assert found.pairs == 4 * (rounds * patches * 2 * chunk + 2 * patches + 2 * tokens)
            assert found.more_macs == rounds * patches * 16 * 6  # 12 buckets are 6 directions
        else:
            assert found.pairs == int(mask(config, axis).sum())


@pytest.mark.parametrize("kind", ["axial", "linformer", "reformer"])
@pytest.mark.parametrize("image_size", [36, (33, 48)])
def test_macs_of_other_attentions_are_those_of_the_built_model(kind: Any, image_size: Any) -> None:
    """Windows, which local and sparse attention have, also compute pairs that they don't see."""
    config = ViTConfig(
        image_size=image_size,
        width=16,
        depth=2,
        heads=4,
        mlp_width=24,
        patch=3,
        attention=kind,
        **KINDS[kind],
    )
    found = cost_of(config)
    assert (found.parameters, found.macs) == parameters_and_macs(config)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_of_other_attentions_are_those_of_the_built_model(kind: str) -> None:
    config = ViTConfig(image_size=64, width=16, depth=2, heads=4, mlp_width=24, attention=kind, **KINDS[kind])  # type: ignore[arg-type]
    assert cost_of(config).parameters == sum(parameter.numel() for parameter in build(config).parameters())


def test_activation_memory_of_relative_attention_is_within_two_percent() -> None:
    """On a CPU no fused kernel takes a bias with a gradient, so that what is kept differs a little."""
    config = ViTConfig(image_size=32, width=32, depth=2, heads=2, mlp_width=64, patch=8, positions="relative")
    assert cost_of(config).activation_bytes(4) == pytest.approx(saved_bytes_per_image(config), rel=0.02)


class LiveStorages(TorchDispatchMode):
    """Keeps track of every storage that is made, without keeping it alive."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.seen[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return results

    def nbytes(self) -> int:
        return sum(size for reference, size in self.seen.values() if not reference.expired())


@pytest.mark.parametrize(
    "config",
    [
        ViTConfig(image_size=32, width=32, depth=3, heads=2, mlp_width=64, patch=8, num_classes=5),
        ResNetConfig(image_size=(45, 50), units=(2, 1, 1), num_classes=5),
        CompactConfig(width=16, depth=3, heads=2, mlp_width=32, attention_dropout=0.0, stochastic_depth=0.0),
        HybridConfig(
            image_size=48,
            width=8,
            depth=3,
            heads=2,
            mlp_width=8,
            patch=1,
            backbone_units=(2, 1),
            num_classes=5,
        ),
    ],
    ids=lambda config: type(config).__name__,
)
def test_checkpointing_keeps_block_inputs_and_one_block(config: ModelConfig) -> None:
    model = build(config).train()

    def live_bytes(batch: int) -> int:
        images = torch.zeros(batch, config.channels, *config.size)
        with LiveStorages() as storages:
            logits = model(images)
        storages.seen.pop(images.untyped_storage()._cdata, None)  # views of the image itself
        return storages.nbytes() - logits.nbytes

    found = cost_of(config)
    assert live_bytes(3) - live_bytes(2) == found.activation_bytes(4)
    model.activation_checkpointing = True
    blocks = [section for section in found.sections if section.block_input is not None]
    largest = max(block.saved_bytes(4) - 4 * block.block_input for block in blocks)
    assert live_bytes(3) - live_bytes(2) == found.activation_bytes(4, checkpointed=True) - largest


def test_half_precision_halves_all_but_statistics() -> None:
    """The patches; per block 8 tokens x width and 2 tokens x MLP width; the input and output of the last norm."""
    tokens, width, mlp_width, heads, depth = 197, 768, 3072, 12, 12
    elements = 3 * 224**2 + depth * (8 * tokens * width + 2 * tokens * mlp_width) + 2 * tokens * width
    statistics = 4 * (depth * (4 * tokens + heads * tokens) + 2 * tokens)
    assert cost("B/16").activation_bytes == {
        "float32": 4 * elements + statistics,
        "bfloat16": 2 * elements + statistics,
    }


def test_dropout_and_initial_values_change_nothing() -> None:
    config = model_config("Ti/16")
    other = replace(config, dropout=0.1, stochastic_depth=0.1, head_bias=-10.0, gelu="erf", norm_epsilon=1e-5)
    assert cost_of(config) == cost_of(other)


def test_training_compute() -> None:
    """1.12: three times the forward pass, two FLOPs per MAC."""
    report = cost("B/16", images=7 * 303_000_000)
    assert report.exaflops == training_exaflops(17_563_828_224, 7 * 303_000_000)
    assert report.exaflops == pytest.approx(223.5, abs=0.05)
    assert "exaflops" not in cost("B/16").to_json()


def test_parts_add_up() -> None:
    for name in list_models():
        report = cost(name)
        for total, key in (("parameters", "parameters"), ("macs", "macs")):
            assert getattr(report, total) == sum(getattr(part, key) for part in report.parts.values())
        assert report.flops == 2 * report.macs
        assert report.activation_bytes_checkpointed["float32"] <= report.activation_bytes["float32"]


def test_no_torch_is_needed() -> None:
    code = (
        "import sys, vitkit.costs; vitkit.costs.cost('G/14', images=10**9); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("B/17x", {}, "unknown model 'B/17x'"),
        ("B/16@augreg", {}, "takes the name of a model"),
        (".", {}, "takes the name of a model"),
        ("B/16", {"image_size": 8}, "smaller than one patch"),
        ("B/16", {"num_classes": -1}, "num_classes must be at least 0"),
        ("B/16", {"images": 0}, "images must be at least 1, not 0"),
    ],
)
def test_bad_input(model: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cost(model, **options)


def test_a_model_costs_what_its_name_does() -> None:
    model = vitkit.create_model("Ti/16")
    for known in (model, vitkit.wrap(model)):
        assert cost(known) == cost("Ti/16") and cost(known, image_size=384) == cost("Ti/16", image_size=384)
    with pytest.raises(InputError, match=r"^cost takes the name .* not Linear: pass vitkit.wrap\("):
        cost(torch.nn.Linear(2, 2))


def test_unknown_table() -> None:
    with pytest.raises(InputError, match="expected 'sizes' or 'scaling'"):
        table("prices")  # type: ignore[arg-type]


def test_json_is_what_python_returns(vit: Any) -> None:
    answer = vit("cost", "B/16", "--image-size", "384", "--json")
    assert (answer.status, answer.err) == (0, "")
    assert json.loads(answer.out) == cost("B/16", image_size=384).to_json()
    assert json.loads(answer.out)["tokens"] == 577


def test_the_cost_of_another_attention(vit: Any) -> None:
    full, local = (json.loads(vit("cost", "B/16", "--image-size", "512", *kind, "--json").out)
                   for kind in ((), ("--attention", "local")))  # fmt: skip
    near = (32 * 7 - 3 * 4) ** 2  # pairs on a line of 32 patches with a window of 7, squared
    pairs = near + 2 * 1024 + 1
    assert local["parts"]["attention"]["macs"] == 12 * 2 * 768 * pairs
    assert full["macs"] - local["macs"] == 12 * 2 * 768 * (1025**2 - pairs)


def test_only_vits_have_another_attention(vit: Any) -> None:
    answer = vit("cost", "CCT-7/3x1", "--attention", "local")
    assert answer.status == 2
    assert answer.err == (
        "error: CCT-7/3x1 has one kind of attention or none: --attention is for ViTs and hybrids\n"
    )


def test_json_of_several_models_is_a_list(vit: Any) -> None:
    flags = ("--image-size", "224x160", "--num-classes", "0", "--images", "1000", "--json")
    answer = vit("cost", "B/16", "BiT-R50x1", *flags)
    options: dict[str, Any] = dict(image_size=(224, 160), num_classes=0, images=1000)
    assert json.loads(answer.out) == [cost(name, **options).to_json() for name in ("B/16", "BiT-R50x1")]


def test_json_of_a_table(vit: Any) -> None:
    assert json.loads(vit("cost", "--table", "scaling", "--json").out) == table("scaling").to_json()


def test_the_page_states_numbers_and_conventions(vit: Any) -> None:
    answer = vit("cost", "B/16", "R50+B/16", "--images", "1000000")
    assert answer.status == 0
    for text in (
        "86,567,656",
        "17,563,828,224",
        "35.128",
        "35.164",
        "2 per MAC",
        "backbone",
        "1,000,000 images",
    ):
        assert text in answer.out


@pytest.mark.slow
def test_the_sizes_page_shows_published_figures(vit: Any) -> None:
    answer = vit("cost", "--table", "sizes")
    assert answer.status == 0
    for text in ("35.2", "123.2", "334.8", "86M", "632M", "307M is L/32", "0.39", "37.7", "multiply-add"):
        assert text in answer.out


def test_the_scaling_page_shows_differences(vit: Any) -> None:
    answer = vit("cost", "--table", "scaling")
    assert answer.status == 0
    for text in ("R50+L/16", "859", "834.1", "-2.9%"):
        assert text in answer.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "error: no model named; try: vit cost B/16, or: vit cost --table sizes\n"),
        (
            ("B/16", "--image-size", "384x"),
            "error: --image-size is '384x'; expected a whole number or HEIGHTxWIDTH such as 224x160\n",
        ),
        (
            ("B/16", "--table", "sizes"),
            "error: --table sizes can't be combined with models or other flags\n",
        ),
        (("b16",), "error: unknown model 'b16'; did you mean 'B/16'? `vit models` lists them all\n"),
    ],
)
def test_command_errors(vit: Any, arguments: tuple[str, ...], message: str) -> None:
    assert vit("cost", *arguments) == (2, "", message)
