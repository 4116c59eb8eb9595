"""The same weights give the same logits here and in timm, transformers and torchvision, in both directions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.layers import GELUTanh, GroupNormAct, StdConv2d
from timm.models.resnetv2 import ResNetV2
from timm.models.vision_transformer import Block
from timm.models.vision_transformer import VisionTransformer as TimmViT
from torch import Tensor, nn
from torchvision.models.vision_transformer import VisionTransformer as TorchvisionViT

import vitkit
from tests.random_models import images_for
from vitkit.data.images import prepare
from vitkit.errors import InputError
from vitkit.models import build
from vitkit.models.configs import HybridConfig, ModelConfig, Preprocessing, ResNetConfig, ViTConfig
from vitkit.models.model import Model
from vitkit.models.names import list_models, model_config
from vitkit.weights import timm as timm_layout
from vitkit.weights.convert import convert, save
from vitkit.weights.files import read_tensors
from vitkit.weights.infer import infer_config
from vitkit.weights.load import LoadedModel, account, load_model

TOLERANCE = 1e-5
TIMM_MODELS = frozenset(timm.list_models())
TINY = dict(embed_dim=32, depth=2, num_heads=2, img_size=32, patch_size=8, num_classes=7)
# timm's arguments beside TINY, and what our config must say.
TIMM_VITS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "token": ({}, {"pool": "token", "final_norm": "tokens", "gelu": "erf"}),
    "token with fc_norm": ({"fc_norm": True}, {"pool": "token", "final_norm": "pooled"}),
    "mean": ({"global_pool": "avg"}, {"pool": "mean", "class_token": True, "final_norm": "pooled"}),
    "mean, no fc_norm": ({"global_pool": "avg", "fc_norm": False}, {"pool": "mean", "final_norm": "tokens"}),
    "mean, no class token": (
        {"global_pool": "avg", "class_token": False},
        {"pool": "mean", "class_token": False},
    ),
    "map": ({"global_pool": "map", "class_token": False}, {"pool": "map", "class_token": False}),
    "no_embed_class": ({"no_embed_class": True}, {"prefix_positions": False}),
    "registers": ({"reg_tokens": 3}, {"registers": 3, "prefix_positions": True}),
    "registers, no_embed_class": (
        {"reg_tokens": 3, "no_embed_class": True, "global_pool": "avg"},
        {"registers": 3, "prefix_positions": False},
    ),
    "layer scale": ({"init_values": 1e-5}, {"layer_scale": 1e-5}),
    "wide": ({"img_size": (16, 40)}, {"image_size": (16, 40)}),
    "gray": ({"in_chans": 1}, {"channels": 1}),
    "tanh": ({"act_layer": "gelu_tanh"}, {"gelu": "tanh"}),
    "no positions": ({"pos_embed": "none"}, {"positions": "none"}),
    "odd MLP": ({"mlp_ratio": 2.72}, {"mlp_width": 87}),
    "no head": ({"num_classes": 0}, {"num_classes": 0}),
}


def randomize(module: nn.Module, seed: int = 0) -> Any:
    """Fill every weight at random, norms, class token and head included, so that each one matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if "norm" in name.lower() or "ln_" in name or "encoder.ln" in name or ".gamma" in name:
                values = values * 0.1 + (1.0 if name.endswith(("weight", "gamma")) else 0.0)
            elif parameter.ndim > 1 and name.endswith("weight"):
                gain = 0.3 if "head" in name or "classifier" in name else 1.5
                values = values * (gain / parameter[0].numel() ** 0.5)
            else:
                values = values * 0.2
            parameter.copy_(values)
    return module.eval()


@torch.inference_mode()
def largest_difference(ours: Callable[..., Any], theirs: Callable[..., Any], images: Tensor) -> float:
    found, expected = (getattr(answer, "logits", answer) for answer in (ours(images), theirs(images)))
    assert found.shape == expected.shape
    assert expected.std() > 0.05  # logits that all agree would prove nothing
    return float((found - expected).abs().max())


def assert_same(ours: Callable[..., Any], theirs: Callable[..., Any], images: Tensor) -> None:
    assert largest_difference(ours, theirs, images) < TOLERANCE


def assert_same_in_double(ours: nn.Module, theirs: nn.Module, images: Tensor) -> None:
    """Tell epsilons apart that float32 rounding hides."""
    assert largest_difference(ours.double(), theirs.double(), images.double()) < 1e-10


def assert_settings(model: Model, expected: dict[str, Any]) -> None:
    assert {name: getattr(model.config, name) for name in expected} == expected


def with_random_weights(name: str, **settings: Any) -> LoadedModel:
    """One of our models with random weights, as `load_model` would return it."""
    model = randomize(vitkit.create_model(name, **settings))
    config = model.config
    means = tuple([0.4, 0.5, 0.6, 0.7][: config.channels])
    preprocessing = Preprocessing(config.size, 0.9, "bicubic", means, (0.25,) * config.channels)
    names = tuple(f"thing {index}" for index in range(config.num_classes)) or None
    return LoadedModel(model, preprocessing, names, name)


def timm_tiny(**settings: Any) -> nn.Module:
    return randomize(timm.create_model("vit_base_patch16_224", **{**TINY, **settings}))


def timm_folder(folder: Path) -> nn.Module:
    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()


def transformers_folder(folder: Path) -> nn.Module:
    return transformers.AutoModelForImageClassification.from_pretrained(folder).eval()


@pytest.mark.parametrize("variant", TIMM_VITS)
def test_timm_vit_folder(variant: str, tmp_path: Path) -> None:
    settings, expected = TIMM_VITS[variant]
    theirs = timm_tiny(**settings)
    arguments = {**TINY, **settings}
    timm.models.save_for_hf(theirs, tmp_path / "timm", model_args=arguments, safe_serialization=True)
    ours = load_model(tmp_path / "timm").model
    images = images_for(ours.config)
    assert_settings(ours, expected)
    assert_same(ours, theirs, images)

    convert(tmp_path / "timm", tmp_path / "ours", "timm")
    assert_same(timm_folder(tmp_path / "ours"), theirs, images)
    if ours.config.num_classes:
        assert_same(transformers_folder(tmp_path / "ours"), theirs, images)
    assert load_model(tmp_path / "ours").model.config == ours.config


@pytest.mark.parametrize("variant", TIMM_VITS)
def test_tokens_and_heads_are_timms(variant: str, tmp_path: Path) -> None:
    theirs = timm_tiny(**TIMM_VITS[variant][0])
    arguments = {**TINY, **TIMM_VITS[variant][0]}
    timm.models.save_for_hf(theirs, tmp_path / "timm", model_args=arguments, safe_serialization=True)
    ours, theirs = load_model(tmp_path / "timm").model.double(), theirs.double()
    images = images_for(ours.config).double()
    tokens = ours.forward_features(images)
    assert tokens.ndim == 3
    torch.testing.assert_close(tokens, theirs.forward_features(images), atol=1e-10, rtol=0)
    for pre_logits in (False, True):
        found, expected = (model.forward_head(tokens, pre_logits=pre_logits) for model in (ours, theirs))
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


def test_a_bare_timm_file(tmp_path: Path) -> None:
    settings = dict(embed_dim=32, depth=1, num_heads=2, img_size=32, num_classes=7)  # mu/16
    theirs = randomize(timm.create_model("vit_base_patch16_224", **settings))
    save_file(theirs.state_dict(), tmp_path / "timm.safetensors")
    torch.save(theirs.state_dict(), tmp_path / "timm.pth")
    for file in ("timm.safetensors", "timm.pth"):
        loaded = load_model(f"mu/16@{tmp_path / file}")
        assert loaded.name == "mu/16"
        assert_same(loaded.model, theirs, images_for(loaded.model.config))


def test_a_bare_timm_file_with_fc_norm_and_no_class_token(tmp_path: Path) -> None:
    settings = dict(embed_dim=32, depth=1, num_heads=2, img_size=32, global_pool="avg", class_token=False)
    theirs = randomize(timm.create_model("vit_base_patch16_224", **settings))
    save_file(theirs.state_dict(), tmp_path / "timm.safetensors")
    loaded = load_model(tmp_path / "timm.safetensors")
    assert_same(loaded.model, theirs, images_for(loaded.model.config))


TIMM_HYBRIDS = {
    "vit_tiny_r_s16_p8_224": dict(img_size=64, num_classes=7),
    "vit_small_r26_s32_224": dict(img_size=64, num_classes=7, embed_dim=32, depth=2, num_heads=2),
}


@pytest.mark.parametrize("architecture", TIMM_HYBRIDS)
def test_timm_hybrids(architecture: str, tmp_path: Path) -> None:
    settings = TIMM_HYBRIDS[architecture]
    theirs = randomize(timm.create_model(architecture, **settings))
    timm.models.save_for_hf(theirs, tmp_path / "timm", model_args=settings, safe_serialization=True)
    ours = load_model(tmp_path / "timm").model
    assert_same(ours, theirs, images_for(ours.config))
    assert_same_in_double(ours, theirs, images_for(ours.config))


def test_timm_hybrid_with_an_odd_size(tmp_path: Path) -> None:
    """The feature map's sides are rounded up, so that 72 pixels give 3 tokens a side."""
    settings = dict(TIMM_HYBRIDS["vit_small_r26_s32_224"], img_size=72)
    theirs = randomize(timm.create_model("vit_small_r26_s32_224", **settings))
    timm.models.save_for_hf(theirs, tmp_path / "timm", model_args=settings, safe_serialization=True)
    ours = load_model(tmp_path / "timm").model
    assert ours.config.size == (72, 72)
    assert_same(ours, theirs, images_for(ours.config))


@pytest.mark.slow
def test_timm_bit(tmp_path: Path) -> None:
    theirs = randomize(timm.create_model("resnetv2_50x1_bit", num_classes=7))
    timm.models.save_for_hf(theirs, tmp_path, safe_serialization=True)
    images = torch.randn(2, 3, 64, 64)
    for spec in (tmp_path, tmp_path / "model.safetensors"):
        loaded = load_model(spec, image_size=64)
        assert loaded.name == "BiT-R50x1"
        assert_same(loaded.model, theirs, images)
    assert_same_in_double(loaded.model, theirs, images)


FOLDERS: dict[str, dict[str, Any]] = {
    "mu/16": dict(image_size=32, num_classes=7),
    "mu/8": dict(image_size=(24, 40), num_classes=3, channels=1, pool="mean", registers=2, gelu="erf"),
    "Ti/16": dict(image_size=32, num_classes=2, pool="map"),
    "R+Ti/16": dict(image_size=64, num_classes=7),
    "R26+S/32": dict(image_size=64, num_classes=7),
    "BiT-R50x1": dict(image_size=64, num_classes=7),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_our_folder_opens_with_timm_and_transformers(name: str, tmp_path: Path) -> None:
    ours = with_random_weights(name, **FOLDERS[name])
    save(ours, tmp_path / "folder")
    images = images_for(ours.model.config)
    theirs = timm_folder(tmp_path / "folder")
    assert_same(theirs, ours.model, images)
    opened = transformers_folder(tmp_path / "folder")
    assert_same(opened, ours.model, images)
    assert opened.config.id2label == dict(enumerate(ours.class_names or ()))
    data = timm.data.resolve_model_data_config(theirs)
    assert tuple(data["input_size"]) == (ours.model.config.channels, *ours.model.config.size)
    assert tuple(data["mean"]) == ours.preprocessing.mean
    assert tuple(data["std"]) == ours.preprocessing.std
    assert (data["crop_pct"], data["interpolation"], data["crop_mode"]) == (0.9, "bicubic", "center")
    again = load_model(tmp_path / "folder")
    assert again.model.config == ours.model.config
    assert (again.preprocessing, again.class_names) == (ours.preprocessing, ours.class_names)


def test_a_folder_without_class_names(tmp_path: Path) -> None:
    ours = with_random_weights("mu/16", image_size=32, num_classes=5)
    ours.class_names = None
    save(ours, tmp_path / "folder")
    assert transformers_folder(tmp_path / "folder").config.num_labels == 5
    assert load_model(tmp_path / "folder").class_names is None


@pytest.mark.parametrize("name", list_models())
def test_every_architecture_that_timm_has(name: str) -> None:
    """timm, given our config.json's architecture and arguments, has exactly our tensors."""
    config = model_config(name)
    if reason := timm_layout.unsupported(config):
        assert timm_layout.other_name(name) not in TIMM_MODELS, f"{name}: {reason}"
        return
    document = timm_layout.config_json(config, Preprocessing(config.size))
    arguments = {"num_classes": document["num_classes"], **document["model_args"]}
    if isinstance(config, ViTConfig):
        arguments["weight_init"] = "skip"
    with torch.device("meta"):
        theirs = timm.create_model(document["architecture"], **arguments).state_dict()
        ours = build(config).state_dict()
    assert {name: tensor.shape for name, tensor in theirs.items()} == {
        name: tensor.shape for name, tensor in ours.items()
    }


@pytest.mark.slow
def test_every_timm_architecture_that_we_read_is_computed_alike() -> None:
    """Arguments that timm keeps in its code, not in config.json, leave nothing that we'd get wrong."""
    read = 0
    for name in timm.list_models(["vit_*", "deit*"]):
        theirs = None
        with torch.device("meta"), suppress(TypeError):  # of other families, which have no weight_init
            theirs = timm.create_model(name, weight_init="skip")
        if not isinstance(theirs, TimmViT):
            continue
        states = theirs.pretrained_cfg
        document = {"architecture": name, "global_pool": theirs.global_pool, "pretrained_cfg": states}
        try:
            reading = timm_layout.read(theirs.state_dict(), document)
            config = infer_config(reading.tensors, reading.settings, None, None)
            account(config, reading, ())
        except InputError:
            continue
        read += 1
        block = theirs.blocks[0]
        assert isinstance(config, ViTConfig)
        assert type(block) is Block, name
        assert (config.heads, config.size) == (block.attn.num_heads, tuple(theirs.patch_embed.img_size)), name
        assert timm_layout.POOLS[config.pool] == theirs.global_pool, name
        assert (config.gelu == "tanh") == isinstance(block.mlp.act, GELUTanh), name
        epsilons = {module.eps for module in theirs.modules() if isinstance(module, nn.LayerNorm)}
        assert epsilons == {config.norm_epsilon}, name
        assert not theirs.pool_include_prefix, name
        assert config.prefix_positions is not theirs.no_embed_class or not config.num_prefix, name
    assert read > 80


@pytest.mark.parametrize(
    "settings",
    [
        {"pool": "map", "registers": 2},
        {"pool": "map", "class_token": True},
        {"pool": "none"},
        {"final_norm": "pooled"},
        {"pool": "mean", "final_norm": "pooled"},
        {"positions": "none", "pool": "mean"},
        {"layer_scale": 0.1, "gelu": "erf"},
        {"prefix_positions": False, "registers": 1},
    ],
    ids=str,
)
def test_settings_survive_in_timm(settings: dict[str, Any], tmp_path: Path) -> None:
    ours = with_random_weights("mu/16", image_size=32, num_classes=5, **settings)
    save(ours, tmp_path / "folder")
    assert_same(timm_folder(tmp_path / "folder"), ours.model, images_for(ours.model.config))
    document = json.loads((tmp_path / "folder" / "config.json").read_text())
    del document["vitkit"]  # what timm knows must be enough for us, too
    (tmp_path / "folder" / "config.json").write_text(json.dumps(document))
    again = load_model(tmp_path / "folder")
    assert_same(again.model, ours.model, images_for(ours.model.config))
    assert (again.preprocessing, again.class_names) == (ours.preprocessing, ours.class_names)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"norm_epsilon": 1e-5}, None),
        ({"positions": "sincos_2d"}, "its ViT has no positions 'sincos_2d' at 'stem'"),
        ({"positions": "learned_2d"}, "its ViT has no positions 'learned_2d' at 'stem'"),
        ({"positions": "relative"}, "its ViT has no positions 'relative' at 'stem'"),
        ({"positions_at": "every_layer"}, "its ViT has no positions 'learned' at 'every_layer'"),
        ({"pool": "seqpool"}, "its ViT has no pool 'seqpool'"),
        ({"attention": "local"}, "its ViT has no attention 'local'"),
        ({"pre_logits": 16}, "its ViT has no tanh layer before the head"),
    ],
    ids=str,
)
def test_what_timm_has_no_place_for(settings: dict[str, Any], reason: str | None, tmp_path: Path) -> None:
    ours = with_random_weights("mu/16", image_size=32, num_classes=5, **settings)
    save(ours, tmp_path / "folder")
    document = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert document.keys() == {"vitkit"}
    assert "only vitkit opens this folder" in (tmp_path / "folder" / "README.md").read_text()
    assert_same(load_model(tmp_path / "folder").model, ours.model, images_for(ours.model.config))
    expected = (
        f"timm has no such model: {reason}"
        if reason
        else "timm uses norm_epsilon 1e-06 instead of 1e-05, so its logits would differ; "
        "to write it anyway, use --accept numerics"
    )
    with pytest.raises(InputError) as error:
        save(ours, tmp_path / "timm", "timm")
    assert str(error.value) == expected
    assert not (tmp_path / "timm").exists()


def test_accepted_numerics_open_with_timm(tmp_path: Path) -> None:
    ours = with_random_weights("mu/16", image_size=32, num_classes=5, norm_epsilon=1e-3)
    save(ours, tmp_path / "timm", "timm", accept=["numerics"])
    images = images_for(ours.model.config)
    assert 1e-4 < largest_difference(timm_folder(tmp_path / "timm"), ours.model, images) < 1e-1
    assert load_model(tmp_path / "timm").model.config == ours.model.config


TINY_VIT = dict(image_size=32, num_classes=7, width=32, depth=2, heads=2, mlp_width=128, patch=8, gelu="erf")
TINY_HYBRID = dict(TINY_VIT, image_size=64, patch=1, backbone_units=(2, 2, 2, 2))


def timm_bit() -> nn.Module:
    """timm's BiT, with two units."""
    return ResNetV2(
        layers=[1, 1],
        channels=(256, 512),
        num_classes=7,
        stem_type="fixed",
        conv_layer=partial(StdConv2d, eps=1e-8),
        norm_layer=partial(GroupNormAct, num_groups=32),
    )


NPZ: dict[str, tuple[ModelConfig, Callable[[], nn.Module]]] = {
    "token": (ViTConfig(**TINY_VIT), timm_tiny),
    "tanh": (ViTConfig(**{**TINY_VIT, "gelu": "tanh"}), lambda: timm_tiny(act_layer="gelu_tanh")),
    "mean": (
        ViTConfig(**TINY_VIT, pool="mean"),
        lambda: timm_tiny(global_pool="avg", class_token=False, fc_norm=False),
    ),
    "map": (ViTConfig(**TINY_VIT, pool="map"), lambda: timm_tiny(global_pool="map", class_token=False)),
    "no position for the class token": (
        ViTConfig(**TINY_VIT, prefix_positions=False),
        lambda: timm_tiny(no_embed_class=True),
    ),
    "hybrid": (
        HybridConfig(**TINY_HYBRID),
        lambda: timm.create_model("vit_small_r26_s32_224", **TIMM_HYBRIDS["vit_small_r26_s32_224"]),
    ),
    "hybrid stem": (
        HybridConfig(**{**TINY_HYBRID, "patch": 8, "backbone_units": ()}),
        lambda: timm.create_model(
            "vit_tiny_r_s16_p8_224", img_size=64, num_classes=7, embed_dim=32, depth=2, num_heads=2
        ),
    ),
    "BiT": (ResNetConfig(image_size=64, num_classes=7, units=(1, 1)), timm_bit),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", NPZ)
def test_timms_reader_of_npz_reads_ours(case: str, tmp_path: Path) -> None:
    config, create = NPZ[case]
    ours = LoadedModel(randomize(build(config), seed=1), Preprocessing(config.size), None, case)
    save(ours, tmp_path / "ours.npz", "npz")
    theirs = create()
    theirs.load_pretrained(str(tmp_path / "ours.npz"))
    images = images_for(config)
    assert_same(theirs.eval(), ours.model, images)
    again = load_model(tmp_path / "ours.npz")
    assert again.model.config == config
    assert torch.equal(again.model(images), ours.model(images))


HF_VIT = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=48,
    image_size=32,
    patch_size=8,
    num_labels=7,
)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"gelu": "erf", "norm_epsilon": 1e-12, "heads": 2, "resample": "bicubic_plain"}),
        ({"layer_norm_eps": 1e-3}, {"norm_epsilon": 1e-3}),
        ({"hidden_act": "gelu_pytorch_tanh"}, {"gelu": "tanh"}),
        ({"hidden_act": "gelu_new"}, {"gelu": "tanh"}),
        ({"image_size": [16, 40]}, {"image_size": (16, 40)}),
        ({"num_channels": 1}, {"channels": 1}),
        ({"qkv_bias": False}, {}),
    ],
    ids=str,
)
def test_transformers_vit(settings: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.ViTConfig(**{**HF_VIT, **settings})
    theirs = randomize(transformers.ViTForImageClassification(config))
    theirs.save_pretrained(tmp_path / "hf")
    accept = ["blocks.*.attn.qkv.bias"] if settings.get("qkv_bias") is False else []
    ours = load_model(tmp_path / "hf", accept=accept)
    assert_settings(ours.model, expected)
    assert_same(ours.model, theirs, images_for(ours.model.config))

    save(ours, tmp_path / "again", "hf")
    opened = transformers_folder(tmp_path / "again")
    assert type(opened) is transformers.ViTForImageClassification
    assert_same(opened, theirs, images_for(ours.model.config))
    if not accept:
        disk, again = (load_file(tmp_path / folder / "model.safetensors") for folder in ("hf", "again"))
        assert disk.keys() == again.keys()
        assert all(torch.equal(disk[name], tensor) for name, tensor in again.items())


def test_transformers_names_in_memory(tmp_path: Path) -> None:
    settings = {**HF_VIT, "num_hidden_layers": 1, "intermediate_size": 128, "patch_size": 16}  # mu/16
    theirs = randomize(transformers.ViTForImageClassification(transformers.ViTConfig(**settings)))
    memory = theirs.state_dict()
    assert "vit.layers.0.attention.q_proj.weight" in memory
    save_file(memory, tmp_path / "memory.safetensors")
    theirs.save_pretrained(tmp_path / "disk")
    assert "vit.encoder.layer.0.attention.attention.query.weight" in load_file(
        tmp_path / "disk" / "model.safetensors"
    )
    for file in ("memory.safetensors", "disk/model.safetensors"):
        loaded = load_model(f"mu/16@{tmp_path / file}")
        assert_same(loaded.model, theirs, images_for(loaded.model.config))


@pytest.mark.parametrize("names", ["disk", "memory"])
def test_transformers_vit_model_with_pooler(names: str, tmp_path: Path) -> None:
    settings = {**HF_VIT, "num_hidden_layers": 1, "intermediate_size": 128, "pooler_output_size": 24}
    config = transformers.ViTConfig(**settings)
    theirs = randomize(transformers.ViTModel(config))
    theirs.save_pretrained(tmp_path / "hf")
    if names == "memory":
        save_file(theirs.state_dict(), tmp_path / "hf" / "model.safetensors")
    ours = load_model(tmp_path / "hf")
    assert_settings(ours.model, {"pre_logits": 24, "num_classes": 0})
    assert_same(ours.model, lambda images: theirs(images).pooler_output, images_for(ours.model.config))

    save(ours, tmp_path / "again", "hf")
    again = transformers.AutoModel.from_pretrained(tmp_path / "again").eval()
    assert type(again) is transformers.ViTModel
    assert_same(ours.model, lambda images: again(images).pooler_output, images_for(ours.model.config))


def test_transformers_vit_model_without_pooler(tmp_path: Path) -> None:
    theirs = randomize(transformers.ViTModel(transformers.ViTConfig(**HF_VIT), add_pooling_layer=False))
    theirs.save_pretrained(tmp_path / "hf")
    ours = load_model(tmp_path / "hf").model
    assert_settings(ours, {"pre_logits": 0, "num_classes": 0})
    assert_same(ours, lambda images: theirs(images).last_hidden_state[:, 0], images_for(ours.config))


def test_class_names_of_transformers(tmp_path: Path) -> None:
    names = [f"thing {index}" for index in range(7)]
    config = transformers.ViTConfig(
        **HF_VIT, id2label=dict(enumerate(names)), label2id={name: index for index, name in enumerate(names)}
    )
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "named")
    transformers.ViTForImageClassification(transformers.ViTConfig(**HF_VIT)).save_pretrained(
        tmp_path / "bare"
    )
    assert load_model(tmp_path / "named").class_names == tuple(names)
    assert load_model(tmp_path / "bare").class_names is None
    for folder in ("named", "bare"):
        convert(tmp_path / folder, tmp_path / f"{folder} again", "hf")
        found = transformers_folder(tmp_path / f"{folder} again").config
        expected = transformers_folder(tmp_path / folder).config
        assert (found.id2label, found.label2id) == (expected.id2label, expected.label2id)


HF_BIT = dict(embedding_size=64, hidden_sizes=[256, 512], depths=[2, 1], num_labels=7)


@pytest.mark.parametrize("names", ["disk", "memory"])
def test_transformers_bit(names: str, tmp_path: Path) -> None:
    theirs = randomize(transformers.BitForImageClassification(transformers.BitConfig(**HF_BIT)))
    theirs.save_pretrained(tmp_path / "hf")
    file = tmp_path / "hf"
    if names == "memory":
        file = tmp_path / "memory.safetensors"
        save_file(theirs.state_dict(), file)
    ours = load_model(file, image_size=64)
    assert_settings(ours.model, {"units": (2, 1), "width_factor": 1, "num_classes": 7})
    assert_same(ours.model, theirs, images_for(ours.model.config))

    save(ours, tmp_path / "again", "hf")
    opened = transformers_folder(tmp_path / "again")
    assert type(opened) is transformers.BitForImageClassification
    assert_same(opened, theirs, images_for(ours.model.config))
    assert_same_in_double(ours.model, theirs, images_for(ours.model.config))


def test_a_wide_bit_in_transformers(tmp_path: Path) -> None:
    """transformers' width_factor leaves stem and last norm narrow; a wide BiT is one with wide hidden_sizes."""
    config = ResNetConfig(image_size=(64, 64), num_classes=7, units=(1, 1), width_factor=2)
    ours = LoadedModel(randomize(build(config)), Preprocessing((64, 64)), None, "wide")
    save(ours, tmp_path / "hf", "hf")
    opened = transformers_folder(tmp_path / "hf")
    assert_same(opened, ours.model, images_for(config))
    opened.save_pretrained(tmp_path / "again")
    assert_same(load_model(tmp_path / "again", image_size=64).model, opened, images_for(config))


@pytest.mark.parametrize(
    "settings",
    [
        {"num_groups": 16},
        {"hidden_act": "gelu"},
        {"layer_type": "bottleneck"},
        {"global_padding": "SAME"},
        {"embedding_dynamic_padding": True},
        {"output_stride": 8},
    ],
    ids=str,
)
def test_other_kinds_of_bit_are_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    """Their tensors look the same, but they compute something else."""
    config = transformers.BitConfig(**HF_BIT, **settings)
    transformers.BitForImageClassification(config).save_pretrained(tmp_path / "hf")
    with pytest.raises(InputError):
        load_model(tmp_path / "hf")


@pytest.mark.parametrize(
    "settings", [{"hidden_act": "relu"}, {"hidden_act": "quick_gelu"}, {"pooler_act": "relu"}], ids=str
)
def test_other_kinds_of_vit_are_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.ViTConfig(**HF_VIT, **settings)
    transformers.ViTModel(config).save_pretrained(tmp_path / "hf")
    with pytest.raises(InputError):
        load_model(tmp_path / "hf")


def torchvision_tiny(**settings: Any) -> nn.Module:
    tiny = dict(
        image_size=32, patch_size=16, num_layers=1, num_heads=2, hidden_dim=32, mlp_dim=128, num_classes=7
    )
    return randomize(TorchvisionViT(**{**tiny, **settings}))


@pytest.mark.parametrize("settings", [{}, {"representation_size": 24}, {"image_size": 48}], ids=str)
@pytest.mark.parametrize("ending", [".pth", ".safetensors"])
def test_torchvision(settings: dict[str, Any], ending: str, tmp_path: Path) -> None:
    theirs = torchvision_tiny(**settings)
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    ours = load_model(tmp_path / "theirs.pth")
    assert_settings(ours.model, {"gelu": "erf", "norm_epsilon": 1e-6, "heads": 2})
    assert_same(ours.model, theirs, images_for(ours.model.config))
    assert ours.preprocessing.mean == (0.485, 0.456, 0.406)
    assert ours.preprocessing.crop_fraction == 0.875

    target = tmp_path / f"ours{ending}"
    save(ours, target, "torchvision")
    state = torch.load(target, weights_only=True) if ending == ".pth" else load_file(target)
    again = torchvision_tiny(**settings)
    again.load_state_dict(state)
    assert_same(again.eval(), theirs, images_for(ours.model.config))


def test_torchvisions_older_names(tmp_path: Path) -> None:
    theirs = torchvision_tiny()
    state = theirs.state_dict()
    old = {
        name.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2."): t
        for name, t in state.items()
    }
    assert old.keys() != state.keys()
    torch.save(old, tmp_path / "old.pth")
    ours = load_model(tmp_path / "old.pth").model
    assert_same(ours, theirs, images_for(ours.config))


PEERS_LACK = {
    "hf": [
        ("mu/16", {"pool": "mean"}, "its ViT reads the normalised class token and has no registers"),
        ("mu/16", {"registers": 1}, "its ViT reads the normalised class token and has no registers"),
        ("mu/16", {"positions": "none"}, "its ViT has learned positions with a row for the class token"),
        ("mu/16", {"prefix_positions": False}, "its ViT has learned positions with a row for the class token"),
        ("mu/16", {"layer_scale": 0.1}, "its ViT has no LayerScale"),
        ("mu/16", {"attention": "sparse"}, "its ViT has no attention 'sparse'"),
        ("mu/16", {"pre_logits": 8}, "its ViT classifier has no tanh layer before the head"),
        ("R+Ti/16", {}, "it has native ViTs and BiT ResNets only"),
    ],
    "torchvision": [
        ("mu/16", {"pool": "map"}, "its ViT reads the normalised class token and has no registers"),
        ("mu/16", {"channels": 1}, "its images have three channels"),
        ("mu/16", {"image_size": (32, 48)}, "its images are square, with a whole number of patches"),
        ("mu/16", {"image_size": 40}, "its images are square, with a whole number of patches"),
        ("mu/16", {"num_classes": 0}, "its ViT always has a head"),
        ("R+Ti/16", {}, "it has plain ViTs only"),
        ("BiT-R50x1", {"units": (1,)}, "it has plain ViTs only"),
    ],
    "npz": [
        ("mu/16", {"attention": "reformer"}, "its ViT has no attention 'reformer'"),
        ("mu/16", {"registers": 1}, "its ViT has no registers and no LayerScale, and its last norm comes before the pool"),
        ("mu/16", {"final_norm": "pooled"}, "its ViT has no registers and no LayerScale, and its last norm comes before the pool"),
        ("mu/16", {"positions": "relative"}, "its ViT has no positions 'relative' at 'stem'"),
        ("mu/16", {"pool": "mean", "class_token": True}, "its ViT has a class token only for pool 'token', and no pool 'mean' like this one"),
        ("R+Ti/16", {"pool": "map"}, "its hybrids have learned positions with a row for the class token, and no MAP head"),
    ],
}  # fmt: skip
PEERS = {"hf": "transformers", "torchvision": "torchvision", "npz": "Google's code"}


@pytest.mark.parametrize(
    ("to", "name", "settings", "reason"),
    [(to, *row) for to, rows in PEERS_LACK.items() for row in rows],
    ids=str,
)
def test_what_a_peer_has_no_place_for(
    to: Any, name: str, settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    settings = {"image_size": 64 if name == "R+Ti/16" else 32, "num_classes": 5, **settings}
    model = vitkit.create_model(name, **settings)
    loaded = LoadedModel(model, Preprocessing(model.config.size), None, name)
    target = tmp_path / {"hf": "out", "torchvision": "out.pth", "npz": "out.npz"}[to]
    with pytest.raises(InputError) as error:
        save(loaded, target, to, accept=["numerics"])
    assert str(error.value) == f"{PEERS[to]} has no such model: {reason}"
    assert list(tmp_path.iterdir()) == []


def test_numerics_that_a_peer_can_not_represent(tmp_path: Path) -> None:
    ours = with_random_weights("mu/16", image_size=32, num_classes=5, norm_epsilon=1e-12)
    with pytest.raises(InputError) as error:
        save(ours, tmp_path / "out.pth", "torchvision")
    assert str(error.value) == (
        "torchvision uses gelu erf instead of tanh, norm_epsilon 1e-06 instead of 1e-12, so its logits would differ; "
        "to write it anyway, use --accept numerics"
    )
    assert list(tmp_path.iterdir()) == []
    save(ours, tmp_path / "out.pth", "torchvision", accept=["numerics"])
    theirs = torchvision_tiny(num_classes=5)
    theirs.load_state_dict(torch.load(tmp_path / "out.pth", weights_only=True))
    images = images_for(ours.model.config)
    assert 1e-6 < largest_difference(ours.model, theirs.eval(), images) < 1e-2
    assert load_model(tmp_path / "out.pth").model.config == ours.model.config  # the sidecar keeps them


def googles_bit(folder: Path) -> Path:
    """A BiT with the epsilon of Google's code, as an .npz without a sidecar."""
    config = ResNetConfig(image_size=(64, 64), num_classes=7, units=(1, 1))
    loaded = LoadedModel(randomize(build(config)), Preprocessing((64, 64)), None, "BiT")
    save(loaded, folder / "bit.npz", "npz")
    (folder / "bit.npz.json").unlink()
    return folder / "bit.npz"


def test_googles_bit_has_its_own_epsilon(tmp_path: Path) -> None:
    file = googles_bit(tmp_path)
    config = load_model(file).model.config
    assert_settings(load_model(file).model, {"standardization_epsilon": 1e-10, "group_norm_epsilon": 1e-5})
    assert isinstance(config, ResNetConfig)
    for to, peer in (("timm", "timm has no such model"), ("hf", "transformers uses")):
        with pytest.raises(InputError, match=peer):
            convert(file, tmp_path / "out", to)
    suffixed = tmp_path / "suffixed.npz"
    tensors = read_tensors(file)
    from vitkit.weights.files import write_npz

    write_npz(
        suffixed,
        {name.replace("conv2d/", "conv2d_7/").replace("norm/", "norm_3/"): t for name, t in tensors.items()},
    )
    plain, found = load_model(file).model.state_dict(), load_model(suffixed).model.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in plain.items())


PREPROCESSINGS = [
    Preprocessing(112, 0.9, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    Preprocessing(112, 0.875, "bilinear", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    Preprocessing(112, 1.0, "bicubic", (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)),
    Preprocessing(112, None, "bilinear", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
]


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(1, 3, 9, 14, generator=generator)
    pixels = nn.functional.interpolate(pixels, (160, 320), mode="bicubic").clamp(0, 1)
    return Image.fromarray((pixels[0].permute(1, 2, 0) * 255).byte().numpy())


@pytest.mark.parametrize(
    "preprocessing", PREPROCESSINGS, ids=lambda p: f"{p.crop_fraction} {p.interpolation}"
)
@pytest.mark.parametrize("to", ["vitkit", "hf"])
def test_image_processors_give_our_pixels(
    to: Any, preprocessing: Preprocessing, photo: Image.Image, tmp_path: Path
) -> None:
    ours = with_random_weights("mu/16", image_size=112, num_classes=5)
    ours.preprocessing = preprocessing
    save(ours, tmp_path / "folder", to)
    expected = prepare(photo, preprocessing)
    again = load_model(tmp_path / "folder").preprocessing
    assert torch.equal(prepare(photo, again), expected)
    level = 1 / 255 / min(preprocessing.std)
    # transformers' own processors resize tensors unless asked for Pillow, and round some pixels otherwise.
    for backend, tolerance in (("pil", 1e-6), ("torchvision", 2 * level + 1e-6)):
        backend = None if to == "vitkit" else backend
        processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "folder", backend=backend)
        found = processor(photo, return_tensors="pt")["pixel_values"][0]
        assert found.shape == expected.shape
        assert (found - expected).abs().max() < tolerance


def test_an_image_processor_of_transformers_is_read(tmp_path: Path) -> None:
    theirs = transformers.ViTForImageClassification(transformers.ViTConfig(**HF_VIT))
    theirs.save_pretrained(tmp_path)
    assert load_model(tmp_path).preprocessing == Preprocessing((32, 32))
    transformers.ViTImageProcessor(
        size={"height": 32, "width": 32}, resample=3, image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6]
    ).save_pretrained(tmp_path)
    expected = Preprocessing((32, 32), None, "bicubic", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert load_model(tmp_path).preprocessing == expected
    transformers.ViTImageProcessor(do_normalize=False).save_pretrained(tmp_path)
    assert dataclasses.replace(load_model(tmp_path).preprocessing).std == (1.0, 1.0, 1.0)
