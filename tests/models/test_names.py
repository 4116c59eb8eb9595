"""Names: both dialects mean the same models, image sizes and classes are read, unknown names meet near ones."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vitkit
from vitkit.errors import InputError, did_you_mean
from vitkit.models import create_model
from vitkit.models.configs import CompactConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig
from vitkit.models.names import (
    canonical_name,
    changed_shape,
    default_preprocessing,
    find_name,
    list_models,
    model_config,
    other_name,
)
from vitkit.models.words import OTHER_WORDS

# Section 1.2: width, depth, MLP width, heads; b has 6 heads.
SIZES: dict[str, tuple[int, int, int, int]] = {
    "mu": (32, 1, 128, 2),
    "s": (256, 6, 1024, 8),
    "Ti": (192, 12, 768, 3),
    "S": (384, 12, 1536, 6),
    "M": (512, 12, 2048, 8),
    "b": (384, 12, 1536, 6),
    "B": (768, 12, 3072, 12),
    "L": (1024, 24, 4096, 16),
    "So400m": (1152, 27, 4304, 16),
    "H": (1280, 32, 5120, 16),
    "g": (1408, 40, 6144, 16),
    "g-opt": (1536, 40, 6144, 16),
    "G": (1664, 48, 8192, 16),
    "G-opt": (1536, 48, 8192, 16),
    "e": (1792, 56, 15360, 16),
}
# The papers' name, timm's (Compact-Transformers' for its family).
DIALECTS = [
    ("Ti/16", "vit_tiny_patch16_224"),
    ("S/32", "vit_small_patch32_224"),
    ("M/16", "vit_medium_patch16_224"),
    ("B/8", "vit_base_patch8_224"),
    ("B/16", "vit_base_patch16_224"),
    ("L/32", "vit_large_patch32_224"),
    ("So400m/14", "vit_so400m_patch14_224"),
    ("H/14", "vit_huge_patch14_224"),
    ("g/14", "vit_giant_patch14_224"),
    ("g-opt/16", "vit_giantopt_patch16_224"),
    ("G/14", "vit_gigantic_patch14_224"),
    ("R+Ti/16", "vit_tiny_r_s16_p8_224"),
    ("R26+S/32", "vit_small_r26_s32_224"),
    ("R26+B/32", "vit_base_r26_s32_224"),
    ("R50+B/32", "vit_base_r50_s32_224"),
    ("R50+B/16", "vit_base_r50_s16_224"),
    ("R50+L/32", "vit_large_r50_s32_224"),
    ("R50+L/16", "vit_large_r50_s16_224"),
    ("BiT-R26x1", "resnetv2_26x1_bit"),
    ("BiT-R50x1", "resnetv2_50x1_bit"),
    ("BiT-R101x3", "resnetv2_101x3_bit"),
    ("BiT-R152x4", "resnetv2_152x4_bit"),
    ("BiT-R200x3", "resnetv2_200x3_bit"),
    ("ViT-Lite-7/4", "vit_7_4_32"),
    ("CVT-7/4", "cvt_7_4_32"),
    ("CCT-7/3x1", "cct_7_3x1_32"),
    ("CCT-7/7x2", "cct_7_7x2_224"),
    ("CCT-14/7x2", "cct_14_7x2_224"),
]


def refused(name: str, **settings: Any) -> str:
    with pytest.raises(InputError) as error:
        model_config(name, **settings)
    return str(error.value)


# Shapes


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("patch", [16, 14, 7])
def test_every_size_at_any_patch(size: str, patch: int) -> None:
    config = model_config(f"{size}/{patch}")
    assert type(config) is ViTConfig
    assert (config.width, config.depth, config.mlp_width, config.heads) == SIZES[size]
    assert (config.patch, config.size, config.num_classes) == (patch, (224, 224), 1000)


@settings(max_examples=30)
@given(size=st.sampled_from([*SIZES]), patch=st.integers(1, 224), side=st.integers(224, 600))
def test_generic_patches_and_images(size: str, patch: int, side: int) -> None:
    config = model_config(f"{size}/{patch}", image_size=side)
    assert isinstance(config, ViTConfig)
    assert config.grid == (side // patch, side // patch)
    name = find_name(config)
    assert name == canonical_name(f"{size}/{patch}") or (size, name) == ("b", f"S/{patch}")


def test_a_size_that_the_patch_does_not_divide_is_floored() -> None:
    """Section 1.3: H/14 at 384 uses 378 pixels, 27x27 patches and 730 tokens."""
    config = model_config("H/14", image_size=384)
    assert isinstance(config, ViTConfig)
    assert (config.grid, config.num_tokens) == ((27, 27), 730)


@pytest.mark.parametrize(
    ("name", "units", "patch", "tokens_224", "tokens_384"),
    [
        ("R+Ti/16", (), 8, 50, 145),
        ("R50+B/16", (3, 4, 9), 1, 197, 577),
        ("R26+S/32", (2, 2, 2, 2), 1, 50, 145),
        ("R26+B/32", (2, 2, 2, 2), 1, 50, 145),
        ("R50+L/32", (3, 4, 6, 3), 1, 50, 145),
        ("R50+B/32", (3, 4, 6, 3), 1, 50, 145),
        ("R50+L/16", (3, 4, 9), 1, 197, 577),
    ],
)
def test_hybrids(name: str, units: tuple[int, ...], patch: int, tokens_224: int, tokens_384: int) -> None:
    """Section 1.9."""
    config = model_config(name)
    assert isinstance(config, HybridConfig)
    assert (config.backbone_units, config.patch, config.num_tokens) == (units, patch, tokens_224)
    assert dataclasses.replace(config, image_size=384).num_tokens == tokens_384
    size = name.partition("+")[2].partition("/")[0]
    assert (config.width, config.depth, config.mlp_width, config.heads) == SIZES[size]


@pytest.mark.parametrize(
    ("depth", "units"),
    [
        (26, (2, 2, 2, 2)),
        (50, (3, 4, 6, 3)),
        (101, (3, 4, 23, 3)),
        (152, (3, 8, 36, 3)),
        (200, (3, 24, 36, 3)),
    ],
)
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_bit(depth: int, units: tuple[int, ...], width: int) -> None:
    """Section 1.10."""
    config = model_config(f"BiT-R{depth}x{width}")
    assert isinstance(config, ResNetConfig)
    assert (config.units, config.width_factor) == (units, width)
    assert config.num_features == 2048 * width


@pytest.mark.parametrize(
    ("name", "shape", "image_size", "num_classes", "tokens"),
    [
        # section 4.1: width, heads, MLP width, depth
        ("ViT-Lite-7/4", (256, 4, 512, 7), 32, 10, 65),
        ("ViT-Lite-7/16", (256, 4, 512, 7), 32, 10, 5),
        ("CVT-2/4", (128, 2, 128, 2), 32, 10, 64),
        ("CVT-8/4", (256, 4, 512, 8), 32, 10, 64),
        ("CCT-2/3x2", (128, 2, 128, 2), 32, 10, 64),
        ("CCT-4/3x2", (128, 2, 128, 4), 32, 10, 64),
        ("CCT-6/3x1", (256, 4, 512, 6), 32, 10, 256),
        ("CCT-7/3x1", (256, 4, 512, 7), 32, 10, 256),
        ("CCT-7/7x2", (256, 4, 512, 7), 224, 102, 196),
        ("CCT-14/7x2", (384, 6, 1152, 14), 224, 1000, 196),
    ],
)
def test_compact_shapes(
    name: str, shape: tuple[int, int, int, int], image_size: int, num_classes: int, tokens: int
) -> None:
    config = model_config(name)
    assert isinstance(config, CompactConfig)
    assert (config.width, config.heads, config.mlp_width, config.depth) == shape
    assert config.size == (image_size, image_size)
    assert (config.num_classes, config.num_tokens) == (num_classes, tokens)
    assert config.pool == ("token" if name.startswith("ViT-Lite") else "seqpool")
    assert config.tokenizer == ("convolutions" if name.startswith("CCT") else "patches")
    # the published block's defaults
    assert (config.attention_dropout, config.stochastic_depth, config.dropout) == (0.1, 0.1, 0.0)
    assert (config.gelu, config.norm_epsilon) == ("erf", 1e-5)


def test_convolutions_at_384_pixels() -> None:
    """Section 4.1."""
    assert model_config("cct_14_7x2_384").num_tokens == 576  # type: ignore[attr-defined]


# Dialects


@pytest.mark.parametrize(("paper", "timm"), DIALECTS)
def test_both_dialects_mean_the_same(paper: str, timm: str) -> None:
    assert model_config(paper) == model_config(timm)
    assert canonical_name(timm) == canonical_name(paper) == paper
    assert other_name(paper) == timm


@pytest.mark.parametrize(
    ("spelling", "paper"),
    [
        ("ViT-B/16", "B/16"),
        ("ViT-B_16", "B/16"),
        ("B_16", "B/16"),
        ("vit_base_patch16", "B/16"),
        ("ViT-g-opt/16", "g-opt/16"),
        ("R50+ViT-B_16", "R50+B/16"),
        ("R50x1+ViT-B/16", "R50+B/16"),
        ("R+ViT-Ti_16", "R+Ti/16"),
        ("vit_base_r50_s16", "R50+B/16"),
        ("BiT-M-R50x1", "BiT-R50x1"),
        ("BiT-L-R152x4", "BiT-R152x4"),
        ("resnetv2_50x1_bitm", "BiT-R50x1"),
    ],
)
def test_other_spellings(spelling: str, paper: str) -> None:
    assert model_config(spelling) == model_config(paper)
    assert canonical_name(spelling) == paper


@pytest.mark.parametrize(
    ("name", "paper", "settings"),
    [
        ("vit_base_patch16_384", "B/16", {"image_size": 384}),
        ("vit_huge_patch14_378", "H/14", {"image_size": 378}),
        ("vit_base_patch20_100", "B/20", {"image_size": 100}),
        ("vit_base_r50_s16_384", "R50+B/16", {"image_size": 384}),
        ("vit_tiny_r_s16_p8_384", "R+Ti/16", {"image_size": 384}),
        ("cct_14_7x2_384", "CCT-14/7x2", {"image_size": 384}),
        ("cct_14_7x2_384_fl", "CCT-14/7x2", {"image_size": 384, "num_classes": 102}),
        ("cct_7_3x1_32_c100", "CCT-7/3x1", {"num_classes": 100}),
        ("cct_7_3x1_32_sine", "CCT-7/3x1", {"positions": "sine"}),
        ("cct_7_3x1_32_sine_c100", "CCT-7/3x1", {"positions": "sine", "num_classes": 100}),
        ("cct_7_7x2_224_sine", "CCT-7/7x2", {"positions": "sine"}),
        ("vit_7_4_64", "ViT-Lite-7/4", {"image_size": 64}),
        ("cvt_7_4_32_sine", "CVT-7/4", {"positions": "sine"}),
    ],
)
def test_size_classes_and_positions_in_the_name(name: str, paper: str, settings: dict[str, Any]) -> None:
    assert model_config(name) == model_config(paper, **settings)
    assert model_config(name) != model_config(paper)
    assert canonical_name(name) == paper
    assert model_config(name, image_size=48).size == (48, 48)  # a setting wins over the name


@pytest.mark.parametrize("name", list_models())
def test_round_trips(name: str) -> None:
    config = model_config(name)
    assert canonical_name(name) == name
    # b has the shape of S, since B's hidden sizes halved are S's.
    assert find_name(config) == {"b/32": "S/32"}.get(name, name)
    other = other_name(name)
    if other is not None:
        assert canonical_name(other) == name
        assert model_config(other) == config
    else:
        assert name.partition("/")[0] in ("mu", "s", "b", "G-opt", "e")


@settings(max_examples=30)
@given(
    st.sampled_from(["B/16", "R50+B/16", "BiT-R50x1", "CCT-7/3x1"]),
    st.integers(64, 300),
    st.integers(1, 5),
    st.integers(0, 9),
)
def test_a_shape_keeps_its_name_whatever_its_input_and_head(
    name: str, image_size: int, channels: int, num_classes: int
) -> None:
    config = model_config(name, image_size=image_size, channels=channels, num_classes=num_classes)
    assert find_name(config) == name


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (model_config("B/16", depth=11), None),
        (model_config("B/16", mlp_width=3000), None),
        (model_config("B/16", patch=20), "B/20"),
        (model_config("B/16", patch=300, image_size=600), "B/300"),
        (model_config("B/16", positions="sincos_2d", pool="map", registers=4), "B/16"),
        (model_config("R50+B/16", backbone_width=32), None),
        (model_config("R50+B/16", backbone_units=(1,)), None),
        (model_config("BiT-R50x1", units=(1, 1)), None),
        (model_config("BiT-R50x1", stem="3x3"), None),
        (model_config("CCT-7/3x1", kernel=5), None),
        (model_config("CVT-7/4", pool="token"), "ViT-Lite-7/4"),
    ],
)
def test_names_of_changed_shapes(config: ModelConfig, name: str | None) -> None:
    assert find_name(config) == name


# Lists


def test_the_list_holds_every_family() -> None:
    names = list_models()
    assert len(names) == len(set(names)) == 72
    assert vitkit.list_models() == names
    assert {name.partition("/")[0] for name in names} >= set(SIZES)
    assert sum("+" in name for name in names) == 7
    assert sum(name.startswith("BiT-R") for name in names) == 20
    assert sum(name.startswith(("CCT", "CVT", "ViT-Lite")) for name in names) == 23


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("B/*", ["b/32", "B/32", "B/28", "B/16", "B/8"]),
        ("vit_base_patch*", ["B/32", "B/28", "B/16", "B/8"]),
        ("R*+*", ["R+Ti/16", "R26+S/32", "R26+B/32", "R50+B/32", "R50+B/16", "R50+L/32", "R50+L/16"]),
        ("*_r50_*", ["R50+B/32", "R50+B/16", "R50+L/32", "R50+L/16"]),
        ("bit-r50x?", ["BiT-R50x1", "BiT-R50x2", "BiT-R50x3", "BiT-R50x4"]),
        ("resnetv2_101x[12]*", ["BiT-R101x1", "BiT-R101x2"]),
        ("cct_7*", ["CCT-7/3x1", "CCT-7/3x2", "CCT-7/7x2"]),
        ("H/14", ["H/14"]),
        ("swin*", []),
    ],
)
def test_globs_in_both_dialects(pattern: str, names: list[str]) -> None:
    assert list_models(pattern) == names


# Errors


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("B-16", "; did you mean 'B/16'?"),
        ("b16", "; did you mean 'B/16'?"),
        (
            "vit_bse_patch16_224",
            "; did you mean 'vit_base_patch16_224' or 'vit_base_patch8_224' or 'vit_base_patch32_224'?",
        ),
        ("R50+S/16", "; did you mean 'R50+L/16' or 'R50+B/16' or 's/16'?"),
        ("BiT-R50x5", "; did you mean 'BiT-R50x4' or 'BiT-R50x3' or 'BiT-R50x2'?"),
        ("BiT-R18x1", "; did you mean 'BiT-R152x1' or 'BiT-R101x1' or 'BiT-R50x1'?"),
        ("CCT-7/3", "; did you mean 'CCT-7/3x2' or 'CCT-7/3x1' or 'CCT-7/7x2'?"),
        ("zzzzz", ";"),
        ("", ";"),
    ],
)
def test_unknown_names_meet_near_ones(name: str, hint: str) -> None:
    message = f"unknown model {name!r}{hint} `vit models` lists them all"
    assert refused(name) == message
    with pytest.raises(InputError) as error:
        canonical_name(name)
    assert str(error.value) == message


@pytest.mark.parametrize(
    "name",
    [
        "B/0",
        "B/016",
        "B/12345",
        "X/16",
        "CVT-7/3x1",
        "CCT-9/3x1",
        "R18+B/16",
        "vit_b_patch16_224",
        "B/16\n",
        " B/16",
    ],
)
def test_what_is_no_name(name: str) -> None:
    assert refused(name).startswith(f"unknown model {name!r}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"droput": 0.1},
            "unknown setting 'droput' in model 'B/16'; did you mean 'dropout' or 'patch_dropout'?",
        ),
        ({"zzz": 1}, "unknown setting 'zzz' in model 'B/16'; expected one of image_size, "),
        (
            {"backbone_units": (1,)},
            "unknown setting 'backbone_units' in model 'B/16'; expected one of image_size, ",
        ),
        ({"gelu": "relu"}, "gelu in model 'B/16' is 'relu'; expected one of 'tanh', 'erf'"),
        ({"width": "768"}, "width in model 'B/16' is '768'; expected a whole number"),
        ({"dropout": 1.5}, "dropout must be at least 0 and below 1, not 1.5"),
        ({"patch": 300}, "an image of 224x224 pixels is smaller than one patch of 300"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    assert refused("B/16", **settings).startswith(message)


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ({"drop_path_rate": 0.1}, "it is called stochastic_depth here"),
        ({"img_size": 384}, "it is called image_size here"),
        ({"in_chans": 1}, "it is called channels here"),
        (
            {"pretrained": True},
            "create_model returns untrained models; vitkit.load('B/16@TAG') loads trained weights",
        ),
        ({"checkpoint_path": "a.pth"}, "vitkit.load('B/16@FILE') reads a weight file"),
        ({"hidden_size": 8}, "it is called width here"),
    ],
)
def test_words_of_timm_and_transformers_are_understood(setting: dict[str, Any], hint: str) -> None:
    [name] = setting
    with pytest.raises(InputError) as error:
        create_model("vit_base_patch16_224", **setting)
    assert str(error.value) == f"unknown setting {name!r} in model 'vit_base_patch16_224': {hint}"


def test_a_hint_names_only_what_the_model_has() -> None:
    with pytest.raises(
        InputError, match="unknown setting 'drop_path_rate' in model 'BiT-R50x1'; expected one of"
    ):
        create_model("BiT-R50x1", drop_path_rate=0.1)


def test_every_hint_names_a_setting_or_is_a_sentence() -> None:
    families = (ViTConfig, HybridConfig, ResNetConfig, CompactConfig)
    names = {field.name for family in families for field in dataclasses.fields(family)}
    for word, ours in OTHER_WORDS.items():
        assert word not in names
        assert " " in ours or ours in names, word


def test_create_model_makes_untrained_models_only() -> None:
    with pytest.raises(InputError) as error:
        create_model("B/16@augreg")
    assert (
        str(error.value)
        == "create_model returns untrained models; to load weights, use vitkit.load('B/16@augreg')"
    )
    with pytest.raises(InputError) as raised:
        create_model("vit_tiny_patch16_224.augreg_in21k")
    assert str(raised.value).endswith(
        "; to load weights, use vitkit.load('vit_tiny_patch16_224@augreg_in21k')"
    )
    model = vitkit.create_model("mu/16", num_classes=3, image_size=32, channels=1)
    assert model.config == model_config("mu/16", num_classes=3, image_size=32, channels=1)


def test_suggestions_ignore_case_and_are_at_most_three() -> None:
    assert did_you_mean("DROPOUT", ["dropout"]) == "; did you mean 'dropout'?"
    assert did_you_mean("abc", ["abcd", "abce", "abcf", "abcg"]).count("'") == 6
    assert did_you_mean("abc", ["xyz"]) == did_you_mean("abc", []) == ""


# Preprocessing


@pytest.mark.parametrize(
    ("name", "settings", "size", "crop", "interpolation", "mean"),
    [
        ("B/16", {"image_size": (384, 256)}, (384, 256), 0.9, "bicubic", (0.5, 0.5, 0.5)),
        ("R50+B/16", {}, (224, 224), 0.9, "bicubic", (0.5, 0.5, 0.5)),
        ("BiT-R50x1", {}, (224, 224), 0.875, "bilinear", (0.5, 0.5, 0.5)),
        ("CCT-7/3x1", {}, (32, 32), 1.0, "bicubic", (0.4914, 0.4822, 0.4465)),
        ("CCT-7/3x1", {"num_classes": 100}, (32, 32), 1.0, "bicubic", (0.5071, 0.4867, 0.4408)),
        ("CCT-14/7x2", {}, (224, 224), 0.9, "bicubic", (0.485, 0.456, 0.406)),
        ("B/16", {"channels": 1}, (224, 224), 0.9, "bicubic", (0.5,)),
        ("CCT-7/3x1", {"channels": 2}, (32, 32), 1.0, "bicubic", (0.5, 0.5)),
    ],
)
def test_preprocessing_of_a_family(
    name: str,
    settings: dict[str, Any],
    size: tuple[int, int],
    crop: float,
    interpolation: str,
    mean: tuple[float, ...],
) -> None:
    found = default_preprocessing(model_config(name, **settings))
    assert (found.size, found.crop_fraction, found.interpolation, found.mean) == (
        size,
        crop,
        interpolation,
        mean,
    )
    assert len(found.std) == len(mean)


def test_names_need_no_torch() -> None:
    code = "import sys, vitkit.models.names as n; n.model_config('B/16'); n.list_models(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("Ti/16", {"name": "Ti/16", "width": 192, "pool": "mean"}, []),
        ("Ti/16", {"heads": 4, "patch": 4}, ["patch 4", "heads 4"]),
        ("B/16@in21k", {"patch": 16, "depth": 6}, ["depth 6"]),
        ("CCT-7/3x1", {"convolutions": 1, "kernel": 5}, ["kernel 5"]),
        ("BiT-R50x1", {"units": [3, 4, 6, 3]}, []),
        ("BiT-R50x1", {"units": [1]}, ["units [1]"]),
        ("runs/start", {"patch": 8}, ["patch 8"]),
    ],
)
def test_a_changed_shape_is_told_from_the_names(
    name: str, settings: dict[str, Any], expected: list[str]
) -> None:
    assert changed_shape(name, settings) == expected
