"""Parameters: every listed model has a row in the table of counts, and arithmetic and built model equal it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.parameter_counts import PARAMETERS
from vitkit.costs import cost_of
from vitkit.models import build
from vitkit.models.configs import HybridConfig, ModelConfig, ViTConfig
from vitkit.models.names import list_models, model_config


@pytest.fixture(autouse=True)
def no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no initial values: of models that have none, on the meta device, this takes half of the time."""
    for name in ("normal_", "uniform_"):
        monkeypatch.setattr(torch.Tensor, name, lambda tensor, *_, **__: tensor)


def built_parameters(config: ModelConfig) -> int:
    with torch.device("meta"):
        model = build(config)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def assert_parameters(config: ModelConfig, expected: int) -> None:
    assert cost_of(config).parameters == expected
    assert built_parameters(config) == expected


def test_every_listed_model_has_a_row() -> None:
    assert set(list_models()) == set(PARAMETERS)


@pytest.mark.parametrize("name", list_models())
def test_listed_model(name: str) -> None:
    assert_parameters(model_config(name), PARAMETERS[name])


# 1.3: image size; without head, 1000 classes, 21843 classes, 21843 classes behind a tanh layer of the width.
VIT_COUNTS: list[tuple[str, int, tuple[int, int, int, int | None]]] = [
    ("Ti/16", 224, (5_524_416, 5_717_416, 9_740_115, 9_777_171)),
    ("Ti/16", 384, (5_597_376, 5_790_376, 9_813_075, 9_850_131)),
    ("S/32", 224, (22_493_952, 22_878_952, 30_903_507, 31_051_347)),
    ("S/32", 384, (22_530_432, 22_915_432, 30_939_987, 31_087_827)),
    ("S/16", 224, (21_665_664, 22_050_664, 30_075_219, 30_223_059)),
    ("S/16", 384, (21_811_584, 22_196_584, 30_221_139, 30_368_979)),
    ("B/32", 224, (87_455_232, 88_224_232, 104_252_499, 104_843_091)),
    ("B/32", 384, (87_528_192, 88_297_192, 104_325_459, 104_916_051)),
    ("B/16", 224, (85_798_656, 86_567_656, 102_595_923, 103_186_515)),
    ("B/16", 384, (86_090_496, 86_859_496, 102_887_763, 103_478_355)),
    ("B/8", 224, (85_807_872, 86_576_872, 102_605_139, 103_195_731)),
    ("L/32", 224, (305_510_400, 306_535_400, 327_899_475, 328_949_075)),
    ("L/32", 384, (305_607_680, 306_632_680, 327_996_755, 329_046_355)),
    ("L/16", 224, (303_301_632, 304_326_632, 325_690_707, 326_740_307)),
    ("L/16", 384, (303_690_752, 304_715_752, 326_079_827, 327_129_427)),
    ("L/16", 512, (304_149_504, 305_174_504, 326_538_579, None)),
    ("H/14", 224, (630_764_800, 632_045_800, 658_745_683, 660_385_363)),
    ("H/14", 384, (631_370_240, 632_651_240, 659_351_123, None)),
    ("H/14", 518, (632_189_440, 633_470_440, 660_170_323, 661_810_003)),
]


@pytest.mark.parametrize(("name", "image_size", "counts"), VIT_COUNTS)
def test_vit_at_every_head_and_resolution(
    name: str, image_size: int, counts: tuple[int, int, int, int | None]
) -> None:
    width = model_config(name).width  # type: ignore[attr-defined]
    heads: list[dict[str, Any]] = [
        {"num_classes": 0},
        {"num_classes": 1000},
        {"num_classes": 21_843},
        {"num_classes": 21_843, "pre_logits": width},
    ]
    for settings, expected in zip(heads, counts, strict=True):
        if expected is not None:
            assert_parameters(model_config(name, image_size=image_size, **settings), expected)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        # 1.3: the counts that vit_jax asserts for mean pooling without a class token
        ("B/16", {"pool": "mean"}, 86_566_120),
        ("B/32", {"pool": "mean"}, 88_222_696),
        ("S/16", {"pool": "mean"}, 22_049_896),
        ("S/32", {"pool": "mean"}, 22_878_184),
        # 1.3: big_vision's layout, where the class token owns no position
        ("B/16", {"prefix_positions": False, "pre_logits": 768}, 87_157_480),
        # 5: with MAP, no classifier
        ("B/16", {"pool": "map", "num_classes": 0}, 92_884_224),
        ("g/14", {"pool": "map", "num_classes": 0}, 1_036_448_384),
        ("G/14", {"pool": "map", "num_classes": 0}, 1_881_132_416),
        # 6.2: mean pooling over fixed positions, with and without the tanh layer
        ("S/16", {"pool": "mean", "positions": "sincos_2d", "pre_logits": 384}, 22_122_472),
        ("S/16", {"pool": "mean", "positions": "sincos_2d"}, 21_974_632),
    ],
)
def test_vit_layouts(name: str, settings: dict[str, Any], expected: int) -> None:
    assert_parameters(model_config(name, **settings), expected)


@pytest.mark.parametrize(("pool", "expected"), [("token", 21_390), ("none", 21_370)])
def test_official_testing_model(pool: Any, expected: int) -> None:
    """1.3: width 10, MLP 10, 2 heads, 1 layer, patch 16."""
    assert_parameters(ViTConfig(width=10, depth=1, heads=2, mlp_width=10, pool=pool), expected)


# 5: parameters in millions of the body without head, mean pooling, as Scaling ViT's table 2 prints them.
@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("s/28", "5.4"),
        ("s/16", "5.0"),
        ("S/32", "22"),
        ("Ti/16", "5.5"),
        ("B/32", "87"),
        ("S/16", "22"),
        ("B/28", "87"),
        ("B/16", "86"),
        ("L/16", "303"),
        ("g/14", "1011"),
        ("G/14", "1843"),
    ],
)
def test_scaling_vit_body(name: str, millions: str) -> None:
    config = model_config(name, pool="mean", num_classes=0)
    decimals = len(millions.partition(".")[2])
    assert f"{cost_of(config).parameters / 1e6:.{decimals}f}" == millions


# 1.9: 1000 classes at 224 and 384.
@pytest.mark.parametrize(
    ("name", "at_224", "at_384"),
    [
        ("R+Ti/16", 6_337_704, 6_355_944),
        ("R50+B/16", 98_659_112, 98_950_952),
        ("R26+S/32", 36_431_912, 36_468_392),
        ("R26+B/32", 101_383_976, 101_456_936),
        ("R50+L/32", 328_994_856, 329_092_136),
        ("R50+B/32", 110_945_832, 111_018_792),
        ("R50+L/16", 316_483_624, 316_872_744),
    ],
)
def test_hybrid_at_both_resolutions(name: str, at_224: int, at_384: int) -> None:
    assert_parameters(model_config(name), at_224)
    assert_parameters(model_config(name, image_size=384), at_384)


@pytest.mark.parametrize(
    ("units", "expected"),
    [((3, 4, 9), 11_894_848), ((3, 4, 6, 3), 23_508_032), ((2, 2, 2, 2), 13_946_176), ((), 9_536)],
)
def test_hybrid_backbone_alone(units: tuple[int, ...], expected: int) -> None:
    config = HybridConfig(width=8, depth=1, heads=2, mlp_width=8, patch=1, backbone_units=units)
    assert cost_of(config).parts["backbone"].parameters == expected
    with torch.device("meta"):
        model = build(config)
    backbone = model.get_submodule("patch_embed.backbone")
    assert sum(parameter.numel() for parameter in backbone.parameters()) == expected


# 1.10: 21843 classes.
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("BiT-R50x1", 68_256_659),
        ("BiT-R50x2", 183_382_483),
        ("BiT-R50x3", 345_399_315),
        ("BiT-R101x1", 87_248_787),
        ("BiT-R101x3", 516_015_123),
        ("BiT-R152x2", 321_728_979),
        ("BiT-R152x4", 1_107_299_923),
    ],
)
def test_bit_with_the_large_head(name: str, expected: int) -> None:
    assert_parameters(model_config(name, num_classes=21_843), expected)


def test_bit_body_is_the_quoted_928_million() -> None:
    assert round(cost_of(model_config("BiT-R152x4", num_classes=0)).parameters / 1e6) == 928


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("CCT-6/3x1", {"positions": "none"}, 3_168_267),
        ("CCT-7/3x1", {"num_classes": 100}, 3_783_269),
        ("CCT-14/7x2", {"image_size": 384}, 22_513_193),
    ],
)
def test_compact_layouts(name: str, settings: dict[str, Any], expected: int) -> None:
    """4.2: what differs from the listed shapes."""
    assert_parameters(model_config(name, **settings), expected)


def test_fixed_tables_are_no_parameters() -> None:
    assert_parameters(model_config("CCT-7/3x1", positions="sine"), 3_760_139 - 256 * 256)
