"""What every model family keeps: shapes, gradients, save and load, another head or size, compile and export."""

from __future__ import annotations

import copy
import dataclasses
import functools
import time
import typing
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.random_models import images_for
from tests.random_models import make as random_model
from vitkit.errors import InputError
from vitkit.models import build
from vitkit.models.configs import CompactConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig
from vitkit.models.model import run_in
from vitkit.models.names import model_config
from vitkit.models.record import Record

SHAPE: dict[str, Any] = dict(width=16, depth=2, heads=2, mlp_width=24, num_classes=5)
VIT: dict[str, Any] = dict(SHAPE, image_size=(16, 24), patch=4)
HYBRID: dict[str, Any] = dict(SHAPE, image_size=(32, 48), backbone_width=32)
COMPACT: dict[str, Any] = dict(SHAPE, image_size=(16, 24))

ONE_BLOCK: dict[str, Any] = dict(VIT, depth=1)

MODELS: dict[str, ModelConfig] = {
    "vit": ViTConfig(**VIT),
    "vit-registers": ViTConfig(**VIT, registers=2, prefix_positions=False, layer_scale=0.1),
    "vit-mean-sincos": ViTConfig(**VIT, pool="mean", positions="sincos_2d", final_norm="pooled"),
    "vit-map-axes": ViTConfig(
        **VIT, pool="map", registers=1, positions="learned_2d", positions_at="every_layer"
    ),
    "vit-seqpool-relative": ViTConfig(**VIT, pool="seqpool", class_token=True, positions="relative"),
    "vit-shared": ViTConfig(**VIT, pre_logits=12, positions_at="every_layer_shared", gelu="erf"),
    "vit-unpooled": ViTConfig(**VIT, pool="none", positions="none"),
    "vit-axial": ViTConfig(**VIT, attention="axial", registers=1),
    "vit-local": ViTConfig(**VIT, attention="local", attention_window=3, pool="mean"),
    "vit-sparse": ViTConfig(**VIT, attention="sparse"),
    "vit-linformer": ViTConfig(**VIT, attention="linformer", attention_rank=4),
    "vit-reformer": ViTConfig(**VIT, attention="reformer", attention_chunk=8),
    "hybrid": HybridConfig(**HYBRID, patch=1, backbone_units=(1, 2)),
    "hybrid-stem": HybridConfig(**HYBRID, patch=4, backbone_units=(), standardization="std"),
    "hybrid-small-stem": HybridConfig(**HYBRID, patch=4, backbone_units=(1,), stem="3x3"),
    "bit": ResNetConfig(image_size=(32, 24), num_classes=5, units=(1, 2)),
    "bit-small-stem": ResNetConfig(image_size=(32, 24), num_classes=5, units=(1, 1), stem="3x3"),
    "vit-lite": CompactConfig(**COMPACT, tokenizer="patches", kernel=4, pool="token"),
    "cvt": CompactConfig(**COMPACT, tokenizer="patches", kernel=4, positions="sine"),
    "cct": CompactConfig(**COMPACT, convolutions=2),
}
# One of each kind of forward pass, as small as can be: compiling and exporting take their time.
COMPILED: dict[str, ModelConfig] = {
    "vit-registers": ViTConfig(**ONE_BLOCK, registers=1, layer_scale=0.1, pre_logits=8),
    "vit-map-axes": ViTConfig(
        **ONE_BLOCK, pool="map", positions="learned_2d", positions_at="every_layer_shared"
    ),
    "vit-seqpool-relative": ViTConfig(**ONE_BLOCK, pool="seqpool", positions="relative"),
    "vit-axial": ViTConfig(**ONE_BLOCK, attention="axial"),
    "vit-local": ViTConfig(**ONE_BLOCK, attention="local", attention_window=3),
    "vit-sparse": ViTConfig(**ONE_BLOCK, attention="sparse", attention_stride=5),
    "vit-linformer": ViTConfig(**ONE_BLOCK, attention="linformer", attention_rank=4),
    "vit-reformer": ViTConfig(**ONE_BLOCK, attention="reformer", attention_chunk=8),
    "hybrid": HybridConfig(**dict(HYBRID, depth=1), patch=2, backbone_units=(1,)),
    "bit": ResNetConfig(image_size=(16, 24), num_classes=5, units=(1,)),
    "vit-lite": CompactConfig(**dict(COMPACT, depth=1), tokenizer="patches", kernel=4, pool="token"),
    "cct": CompactConfig(**dict(COMPACT, depth=1)),
}

every_model = pytest.mark.parametrize("name", MODELS)
# Linformer's weights are for one grid; tests/models/attention has its own tests.
every_resizable = pytest.mark.parametrize("name", [name for name in MODELS if name != "vit-linformer"])
one_fast = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "cct" else pytest.mark.slow) for name in COMPILED]
)
make = partial(random_model, scale=0.2)


def loss_and_gradients(model: nn.Module, forward: Any, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    torch.manual_seed(3)
    loss = forward(images).square().mean()
    loss.backward()
    return loss.detach(), {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


@every_model
@pytest.mark.parametrize(
    ("image_size", "channels", "num_classes"), [((17, 23), 1, 1), ((32, 33), 5, 7), (21, 2, 3)]
)
def test_any_size_channels_and_classes(name: str, image_size: Any, channels: int, num_classes: int) -> None:
    config = dataclasses.replace(
        MODELS[name], image_size=image_size, channels=channels, num_classes=num_classes
    )
    logits = make(config)(images_for(config, batch=3))
    middle = (config.num_tokens,) if name == "vit-unpooled" else ()  # type: ignore[attr-defined]
    assert logits.shape == (3, *middle, num_classes)
    assert logits.isfinite().all()


@every_model
def test_features_and_head_make_up_the_forward_pass(name: str) -> None:
    config = MODELS[name]
    model, images = make(config), images_for(config)
    x = model.forward_features(images)
    assert torch.equal(model.forward_head(x), model(images))
    assert torch.equal(model.forward_head(x, pre_logits=True), model.features(images))


@every_model
def test_images_of_a_batch_do_not_mix(name: str) -> None:
    config = MODELS[name]
    model, images = make(config), images_for(config, batch=3)
    alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(model(images), alone, atol=1e-5, rtol=1e-5)
    assert model(images[:0]).shape == (0, *alone.shape[1:])


@every_model
def test_gradients_reach_every_trained_parameter(name: str) -> None:
    model = make(MODELS[name])
    _, gradients = loss_and_gradients(model, model, images_for(model.config))
    trained = {key for key, parameter in model.named_parameters() if parameter.requires_grad}
    assert set(gradients) == trained
    # One number added to every score leaves a softmax as it is.
    unseen = {"seq_pool.bias", "classifier.attention_pool.bias"}
    assert {key for key in trained - unseen if not gradients[key].abs().max() > 1e-7} == set()


def test_only_fixed_tables_are_not_trained() -> None:
    frozen = {
        (name, key)
        for name, config in MODELS.items()
        for key, parameter in build(config).named_parameters()
        if not parameter.requires_grad
    }
    assert frozen == {("cvt", "classifier.positional_emb")}


@every_model
def test_saved_and_loaded_weights_give_equal_logits(name: str, tmp_path: Path) -> None:
    model = make(MODELS[name])
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    torch.manual_seed(9)
    other = build(model.config).eval()
    images = images_for(model.config)
    assert not torch.equal(other(images), model(images))
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(other(images), model(images))


@every_model
def test_logits_are_the_head_on_the_features(name: str) -> None:
    model = make(MODELS[name])
    images = images_for(model.config)
    features = model.features(images)
    assert features.shape[-1] == model.config.num_features  # type: ignore[attr-defined]
    assert torch.equal(model.classify(features), model(images))


@every_model
def test_record_gives_the_logits_of_the_fused_path(name: str) -> None:
    model = make(MODELS[name])
    images = images_for(model.config)
    layers = getattr(model.config, "num_layers", 0)
    record = Record("attention", "tokens", "pooling", "features") if layers else Record("features")
    if name == "vit-linformer":
        record = Record("tokens", "features")
    torch.testing.assert_close(model(images, record=record), model(images), atol=1e-5, rtol=0)
    torch.testing.assert_close(record.features, model.features(images), atol=1e-5, rtol=0)
    for attention in record.attention.values():
        torch.testing.assert_close(attention.sum(-1), torch.ones(attention.shape[:-1]))
    assert len(record.tokens) == layers
    assert len(record.attention) == (0 if name == "vit-linformer" else layers)


@every_model
def test_no_classes_means_no_head(name: str) -> None:
    config = dataclasses.replace(MODELS[name], num_classes=0)
    model, whole = build(config).eval(), make(MODELS[name])
    keys = set(whole.state_dict()) - set(model.state_dict())
    assert keys in ({"head.weight", "head.bias"}, {"head.fc.weight", "head.fc.bias"}) or keys == {
        "classifier.fc.weight",
        "classifier.fc.bias",
    }
    model.load_state_dict({key: whole.state_dict()[key] for key in model.state_dict()})
    images = images_for(config)
    assert torch.equal(model(images), whole.features(images))


@every_model
def test_a_new_head_leaves_the_body_alone(name: str) -> None:
    model = make(MODELS[name]).double()
    before = copy.deepcopy(model)
    model.reset_head(9)
    assert model.config.num_classes == 9
    assert model(images_for(model.config).double()).shape[-1] == 9
    kept = model.state_dict()
    assert all(value.dtype == torch.float64 for value in kept.values())
    changed = {
        key for key, value in before.state_dict().items() if not torch.equal(value, kept.get(key, value[:0]))
    }
    assert {key.split(".")[-2] for key in changed} <= {"head", "fc"}
    assert not changed & {key for key in kept if key.startswith(("blocks", "stages", "classifier.blocks"))}
    rebuilt = build(model.config).double()
    rebuilt.load_state_dict(kept)


@every_model
def test_a_new_head_is_zero(name: str) -> None:
    config = MODELS[name]
    model = make(dataclasses.replace(config, head_bias=-10.0) if hasattr(config, "head_bias") else config)
    model.reset_head(4)
    assert not model(images_for(model.config)).any()
    model.reset_head(0)
    images = images_for(model.config)
    assert torch.equal(model(images), model.features(images))


@every_resizable
def test_another_image_size_and_back(name: str) -> None:
    config = MODELS[name]
    model, images = make(config), images_for(config)
    before = model(images)
    model.set_image_size(config.size)
    assert torch.equal(model(images), before)
    model.set_image_size(40)
    assert model.config == dataclasses.replace(config, image_size=(40, 40))
    assert model(images_for(model.config)).isfinite().all()
    build(model.config).load_state_dict(model.state_dict())
    model.set_image_size(config.size)
    assert model.config == config
    after = model(images)
    assert after.shape == before.shape
    learned = {"learned", "learned_2d", "relative"}
    if getattr(config, "positions", "none") not in learned:
        assert torch.equal(after, before)


@every_resizable
def test_positions_stay_frozen_when_resampled(name: str) -> None:
    model = make(MODELS[name])
    model.requires_grad_(False)
    model.set_image_size((28, 36))
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("name", ["vit", "hybrid", "cct"])
def test_an_impossible_size_changes_nothing(name: str) -> None:
    model = make(MODELS[name])
    with pytest.raises(InputError):
        model.set_image_size((0, 40))
    assert model.config == MODELS[name]
    model(images_for(model.config))


@every_model
def test_wrong_images_are_refused(name: str) -> None:
    model = make(MODELS[name])
    height, width = model.config.size
    advice = "resize them, or call model.set_image_size((height, width))"
    for shape in [(2, 3, height, width + 4), (2, 1, height, width), (3, height, width)]:
        with pytest.raises(InputError) as error:
            model(torch.zeros(shape))
        assert (
            str(error.value)
            == f"images have shape {shape}, but the model takes (batch, 3, {height}, {width}): {advice}"
        )


@every_model
def test_evaluation_is_deterministic_and_training_is_not(name: str) -> None:
    config = MODELS[name]
    rates: dict[str, Any] = dict(dropout=0.3, attention_dropout=0.3, stochastic_depth=0.3)
    if isinstance(MODELS[name], ResNetConfig):
        rates = {}
    model, images = make(dataclasses.replace(config, **rates)), images_for(config)
    assert torch.equal(model(images), model(images))
    model.train()
    assert torch.equal(model(images), model(images)) == isinstance(MODELS[name], ResNetConfig)


@every_model
def test_bfloat16_and_copies(name: str) -> None:
    model = make(MODELS[name])
    images = images_for(model.config)
    logits = model(images)
    half = copy.deepcopy(model).bfloat16()
    half_logits = half(images.bfloat16())
    assert half_logits.dtype == torch.bfloat16
    torch.testing.assert_close(half_logits.float(), logits, atol=0.1 * logits.std().item(), rtol=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(model(images).float(), logits, atol=0.1 * logits.std().item(), rtol=0.1)
    if name != "vit-linformer":
        half.set_image_size((28, 36))
    assert half(images_for(half.config).bfloat16()).dtype == torch.bfloat16
    assert torch.equal(model(images), logits)


@every_model
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_activation_checkpointing_changes_no_number(name: str, dtype: torch.dtype) -> None:
    rates: dict[str, Any] = dict(dropout=0.2, attention_dropout=0.2, stochastic_depth=0.4)
    config = (
        MODELS[name] if isinstance(MODELS[name], ResNetConfig) else dataclasses.replace(MODELS[name], **rates)
    )
    model, images = make(config).train(), images_for(config)
    forward = functools.partial(run_in, dtype, model)
    calls: Counter[str] = Counter()
    for key, module in model.named_modules():
        if type(module).__name__ in ("Block", "Bottleneck") and "patch_embed" not in key:
            module.register_forward_pre_hook(lambda *_, key=key: calls.update([key]))
    expected = loss_and_gradients(model, forward, images)
    assert set(calls.values()) == {1}
    calls.clear()
    model.activation_checkpointing = True
    torch.testing.assert_close(loss_and_gradients(model, forward, images), expected, rtol=0, atol=0)
    assert set(calls.values()) == {2}
    calls.clear()
    with torch.no_grad():
        forward(images)
    assert set(calls.values()) == {1}


@one_fast
def test_compiles_without_graph_breaks(name: str) -> None:
    model = make(COMPILED[name])
    model.activation_checkpointing = name in ("vit-registers", "bit")
    dtype = torch.bfloat16 if model.activation_checkpointing else torch.float32
    forward = functools.partial(run_in, dtype, model)
    images = images_for(model.config)
    torch._dynamo.reset()
    compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")
    expected = loss_and_gradients(model, forward, images)
    found = loss_and_gradients(model, compiled, images)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_compiles_to_machine_code(name: str) -> None:
    model = make(COMPILED[name])
    images = images_for(model.config)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True)
    expected = loss_and_gradients(model, model, images)
    torch.testing.assert_close(loss_and_gradients(model, compiled, images), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "strict", [pytest.param(True, marks=pytest.mark.slow), False], ids=["strict", "traced"]
)
@one_fast
def test_exports_with_any_batch(name: str, strict: bool) -> None:
    model = make(COMPILED[name])
    exported = torch.export.export(
        model,
        (images_for(model.config),),
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        strict=strict,
    )
    images = images_for(model.config, batch=5)
    torch.testing.assert_close(exported.module()(images), model(images), atol=1e-5, rtol=1e-5)
    fused = sum("scaled_dot_product_attention" in str(node.target) for node in exported.graph.nodes)
    calls = {"bit": 0, "vit-map-axes": 2, "vit-axial": 4, "vit-local": 2, "vit-sparse": 3}
    assert fused == calls.get(name, 1)


def test_the_largest_models_build_on_the_meta_device_at_once() -> None:
    start = time.perf_counter()
    with torch.device("meta"):
        model = build(model_config("G/14", pool="map", positions="sincos_2d"))
    assert time.perf_counter() - start < 10.0
    assert all(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
    assert model(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)


@every_model
def test_a_model_on_the_meta_device_takes_weights(name: str) -> None:
    with torch.device("meta"):
        model = build(MODELS[name]).eval()
    whole = make(MODELS[name])
    model.load_state_dict(whole.state_dict(), assign=True)
    model.reset_tables()
    images = images_for(model.config)
    assert torch.equal(model(images), whole(images))


def test_a_bare_config_is_no_model() -> None:
    with pytest.raises(TypeError, match="no model for config type ModelConfig"):
        build(ModelConfig())


Effect = Literal["input", "parameters", "initial", "logits", "training", "resized"]


class Change(typing.NamedTuple):
    """Other values of one setting, what they change first, and the settings that this needs beside it."""

    effect: Effect
    values: tuple[Any, ...]
    base: dict[str, Any] = {}  # noqa: RUF012


ANY = {
    "image_size": Change("input", (40, (16, 32))),
    "channels": Change("input", (1,)),
    "num_classes": Change("parameters", (0, 7)),
}
TRANSFORMER = {
    "width": Change("parameters", (24,)),
    "depth": Change("parameters", (3,)),
    "heads": Change("logits", (4,)),
    "mlp_width": Change("parameters", (32,)),
    "dropout": Change("training", (0.5,)),
    "attention_dropout": Change("training", (0.5,)),
    "stochastic_depth": Change("training", (0.5,)),
    "norm_epsilon": Change("logits", (0.1,)),
}
NORMALIZATION = {
    "group_norm_epsilon": Change("logits", (0.1,)),
    "standardization": Change("logits", ("std",), {"standardization_epsilon": 0.1}),
    "standardization_epsilon": Change("logits", (0.1,)),
}
VIT_CHANGES = {
    **ANY,
    **TRANSFORMER,
    "patch": Change("parameters", (8,)),
    "attention": Change("parameters", ("axial", "linformer", "reformer")),
    "attention_window": Change("logits", (3,), {"attention": "local"}),
    "attention_stride": Change("logits", (3,), {"attention": "sparse"}),
    "attention_rank": Change("parameters", (3,), {"attention": "linformer"}),
    "attention_hashes": Change("logits", (3,), {"attention": "reformer", "attention_chunk": 8}),
    "attention_chunk": Change("logits", (8,), {"attention": "reformer"}),
    "positions": Change("parameters", ("none", "learned_2d", "sincos_2d", "relative")),
    "positions_at": Change("parameters", ("every_layer",)),
    "position_std": Change("initial", (None, 0.5)),
    "prefix_positions": Change("parameters", (False,)),
    "pool": Change("parameters", ("mean", "map", "seqpool", "none")),
    "class_token": Change("parameters", (True,), {"pool": "mean"}),
    "registers": Change("parameters", (1,)),
    "final_norm": Change("logits", ("pooled",), {"pool": "mean"}),
    "pre_logits": Change("parameters", (12,)),
    "head_bias": Change("initial", (-10.0,)),
    "patch_dropout": Change("training", (0.5,)),
    "layer_scale": Change("parameters", (0.1,)),
    "gelu": Change("logits", ("erf",)),
    "resample": Change("resized", ("bicubic", "bicubic_plain", "bilinear")),
}
CHANGES: dict[type[ModelConfig], tuple[dict[str, Any], dict[str, Change]]] = {
    ViTConfig: (VIT, VIT_CHANGES),
    HybridConfig: (
        dict(HYBRID, patch=2, backbone_units=(1,)),
        {
            **VIT_CHANGES,
            **NORMALIZATION,
            "patch": Change("parameters", (4,)),
            "backbone_units": Change("parameters", ((1, 1), ())),
            "backbone_width": Change("parameters", (64,)),
            "stem": Change("parameters", ("3x3",)),
        },
    ),
    ResNetConfig: (
        dict(image_size=(16, 24), num_classes=5, units=(1,)),
        {
            **ANY,
            **NORMALIZATION,
            "units": Change("parameters", ((2,), (1, 1))),
            "width_factor": Change("parameters", (2,)),
            "stem": Change("parameters", ("3x3",)),
            "head_bias": Change("initial", (-10.0,)),
        },
    ),
    CompactConfig: (
        COMPACT,
        {
            **ANY,
            **TRANSFORMER,
            "tokenizer": Change("parameters", ("patches",)),
            "kernel": Change("parameters", (5,)),
            "convolutions": Change("parameters", (2,)),
            "pool": Change("parameters", ("token",)),
            "positions": Change("parameters", ("none", "sine")),
            "gelu": Change("logits", ("tanh",)),
            "resample": Change("resized", ("bilinear_corners", "bicubic", "bicubic_plain")),
        },
    ),
}
# Further values, which change something else than the first.
OTHERS = {
    "attention": Change("logits", ("local", "sparse")),
    "positions_at": Change("logits", ("every_layer_shared",)),
}


@functools.cache
def behaviour(config: ModelConfig) -> dict[str, list[Any]]:
    """Return what can be seen of a model, one entry per effect, the coarsest first."""
    torch.manual_seed(0)
    fresh = [parameter.detach().clone() for parameter in build(config).parameters()]
    model, images = make(config).double(), images_for(config, batch=4).double()
    seen: dict[str, list[Any]] = {
        "input": [config.channels, config.size],
        "parameters": sorted((tuple(p.shape), p.requires_grad) for p in model.parameters()),
        "initial": fresh,
        "logits": [model(images)],
    }
    torch.manual_seed(2)
    seen["training"] = [model.train()(images)]
    if getattr(config, "attention", "full") == "linformer":  # its weights are for one grid
        return {**seen, "resized": []}
    model.eval().set_image_size((48, 72))
    seen["resized"] = [model(images_for(model.config).double())]
    return seen


def first_difference(one: ModelConfig, other: ModelConfig) -> str | None:
    before, after = behaviour(one), behaviour(other)
    for effect in typing.get_args(Effect):
        if len(before[effect]) != len(after[effect]):
            return effect
        if any(map(differ, before[effect], after[effect])):
            return effect
    return None


def differ(one: Any, other: Any) -> bool:
    """Whether two values differ by more than rounding."""
    if isinstance(one, Tensor):
        return one.shape != other.shape or not torch.allclose(one, other, rtol=0, atol=1e-6)
    return one != other


@pytest.mark.parametrize("family", CHANGES, ids=lambda family: family.__name__)
def test_the_table_of_changes_knows_every_setting(family: type[ModelConfig]) -> None:
    _, changes = CHANGES[family]
    hints = typing.get_type_hints(family)
    assert set(changes) == {field.name for field in dataclasses.fields(family)}
    for field in dataclasses.fields(family):
        if typing.get_origin(hints[field.name]) is Literal:
            more = OTHERS[field.name].values if field.name in OTHERS else ()
            others = set(typing.get_args(hints[field.name])) - {field.default}
            assert {*changes[field.name].values, *more} == others, field.name


@pytest.mark.parametrize(
    ("family", "field", "change"),
    [
        pytest.param(family, field, change, id=f"{family.__name__}-{field}-{change.effect}")
        for family, (_, changes) in CHANGES.items()
        for field, change in [
            *changes.items(),
            *((field, change) for field, change in OTHERS.items() if field in changes),
        ]
    ],
)
def test_every_setting_changes_something(family: type[ModelConfig], field: str, change: Change) -> None:
    base = {**CHANGES[family][0], **change.base}
    for value in change.values:
        assert first_difference(family(**base), family(**{**base, field: value})) == change.effect
