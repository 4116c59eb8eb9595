"""Optimisers: the right parameters in the right groups, known updates, and state that survives being saved."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.optim import Optimizer

from vitkit.config import from_dict, to_dict
from vitkit.errors import InputError
from vitkit.models import build, create_model
from vitkit.models.configs import CompactConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig
from vitkit.training.adafactor import Adafactor
from vitkit.training.optimizers import (
    SGD,
    AdamW,
    OptimizerConfig,
    build_optimizer,
    clip_gradients,
    freeze_parameters,
    parameter_groups,
    set_learning_rate,
)

SHAPE: dict[str, Any] = dict(width=16, depth=2, heads=2, mlp_width=24, num_classes=5)
VIT: dict[str, Any] = dict(SHAPE, image_size=8, patch=4)

MODELS: dict[str, ModelConfig] = {
    "vit": ViTConfig(**VIT, registers=1, layer_scale=0.1, pre_logits=8),
    "vit-map": ViTConfig(**VIT, pool="map", positions="learned_2d", positions_at="every_layer"),
    "vit-seqpool": ViTConfig(**VIT, pool="seqpool", positions="relative"),
    "hybrid": HybridConfig(**SHAPE, image_size=32, backbone_width=32, backbone_units=(1, 1)),
    "hybrid-stem": HybridConfig(**SHAPE, image_size=32, backbone_width=32, patch=4, backbone_units=()),
    "bit": ResNetConfig(image_size=32, num_classes=5, units=(1, 2)),
    "vit-lite": CompactConfig(**SHAPE, image_size=8, tokenizer="patches", kernel=4, pool="token"),
    "cct": CompactConfig(**SHAPE, image_size=8),
    "cvt-sine": CompactConfig(**SHAPE, image_size=8, tokenizer="patches", kernel=4, positions="sine"),
}


def bare(config: ModelConfig) -> nn.Module:
    """Return a model without memory for its weights, which is quick: groups need names and shapes alone."""
    with torch.device("meta"):
        return build(config)


every_model = pytest.mark.parametrize("model_name", MODELS)


def settings_by_name(model: nn.Module, config: OptimizerConfig) -> dict[str, tuple[float, float]]:
    """Return each learning parameter's `lr_scale` and `weight_decay`."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {
        names[parameter]: (group["lr_scale"], group["weight_decay"])
        for group in parameter_groups(model, config)
        for parameter in group["params"]
    }


@every_model
def test_every_parameter_is_in_one_group(model_name: str) -> None:
    model = bare(MODELS[model_name])
    config = OptimizerConfig(weight_decay=0.1, head_weight_decay=3.0, layer_decay=0.5)
    groups = parameter_groups(model, config)
    members = [parameter for group in groups for parameter in group["params"]]
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(members) == len({id(member) for member in members}) == len(learning)
    assert {id(member) for member in members} == {id(parameter) for parameter in learning}
    assert len(groups) == len({(group["lr_scale"], group["weight_decay"]) for group in groups})


@every_model
def test_only_kernels_decay(model_name: str) -> None:
    model = bare(MODELS[model_name])
    decayed = {
        name
        for name, (_, decay) in settings_by_name(model, OptimizerConfig(weight_decay=0.1)).items()
        if decay
    }
    kernels = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, nn.Conv2d))
    }
    assert decayed == kernels


def test_what_decays_by_rule() -> None:
    model = bare(MODELS["vit-lite"])

    def decayed(rule: Any) -> set[str]:
        config = OptimizerConfig(weight_decay=0.1, decay=rule)
        return {name for name, (_, decay) in settings_by_name(model, config).items() if decay}

    assert decayed("matrices") - decayed("kernels") == {"classifier.class_emb", "classifier.positional_emb"}
    assert decayed("all") == {name for name, _ in model.named_parameters()}


@every_model
def test_the_head_decays_on_its_own(model_name: str) -> None:  # Scaling ViT: head 3.0, body 0.03
    model = bare(MODELS[model_name])
    config = OptimizerConfig(weight_decay=0.03, head_weight_decay=3.0)
    by_name = settings_by_name(model, config)
    head = {
        "bit": "head.fc",
        "vit-lite": "classifier.fc",
        "cct": "classifier.fc",
        "cvt-sine": "classifier.fc",
    }
    kernel = head.get(model_name, "head") + ".weight"
    assert {name for name, (_, decay) in by_name.items() if decay == 3.0} == {kernel}
    assert {decay for _, decay in by_name.values()} == {3.0, 0.03, 0.0}


def test_layers_of_a_vit() -> None:
    model = bare(MODELS["vit"])
    scales = {
        name: scale for name, (scale, _) in settings_by_name(model, OptimizerConfig(layer_decay=0.5)).items()
    }
    for name, scale in scales.items():
        match name.split("."):
            case ["patch_embed" | "cls_token" | "reg_token" | "pos_embed", *_]:
                assert scale == 0.125
            case ["blocks", number, *_]:
                assert scale == 0.25 * 2 ** int(number)
            case _:
                assert name.startswith(("norm.", "pre_logits.", "head."))
                assert scale == 1.0


@pytest.mark.parametrize(
    ("model_name", "scales"),
    [
        (
            "vit-map",
            {"pos_embed_y": 0.125, "blocks.0.norm1.bias": 0.25, "attn_pool.latent": 1.0, "head.bias": 1.0},
        ),
        ("vit-seqpool", {"blocks.1.attn.relative": 0.5, "seq_pool.weight": 1.0}),
        (
            "hybrid",
            {
                "patch_embed.backbone.stages.1.blocks.0.conv1.weight": 0.125,
                "patch_embed.proj.weight": 0.125,
                "blocks.1.mlp.fc1.weight": 0.5,
            },
        ),
        ("hybrid-stem", {"patch_embed.backbone.conv.weight": 0.125}),
        (  # a layer of a ResNet is a residual unit
            "bit",
            {
                "stem.conv.weight": 0.0625,
                "stages.0.blocks.0.conv1.weight": 0.125,
                "stages.1.blocks.0.downsample.conv.weight": 0.25,
                "stages.1.blocks.1.norm3.weight": 0.5,
                "norm.weight": 1.0,
                "head.fc.weight": 1.0,
            },
        ),
        (
            "vit-lite",
            {
                "tokenizer.conv_layers.0.0.weight": 0.125,
                "classifier.class_emb": 0.125,
                "classifier.positional_emb": 0.125,
                "classifier.blocks.0.linear1.weight": 0.25,
                "classifier.blocks.1.self_attn.qkv.weight": 0.5,
                "classifier.norm.weight": 1.0,
                "classifier.fc.weight": 1.0,
            },
        ),
        ("cct", {"classifier.attention_pool.weight": 1.0}),
    ],
)
def test_layers_of_the_other_families(model_name: str, scales: dict[str, float]) -> None:
    by_name = settings_by_name(bare(MODELS[model_name]), OptimizerConfig(layer_decay=0.5))
    assert {name: by_name[name][0] for name in scales} == scales
    assert {scale for scale, _ in settings_by_name(bare(MODELS[model_name]), OptimizerConfig()).values()} == {
        1.0
    }


def test_layers_are_counted_past_ten() -> None:
    with torch.device("meta"):
        model = create_model("Ti/16")
    by_name = settings_by_name(model, OptimizerConfig(layer_decay=0.75))
    assert by_name["blocks.10.attn.qkv.weight"][0] == 0.75**2
    assert by_name["patch_embed.proj.weight"][0] == 0.75**13


def test_learning_rates_are_scaled() -> None:
    optimizer = build_optimizer(bare(MODELS["vit"]), OptimizerConfig(learning_rate=0.2, layer_decay=0.5))
    assert {group["lr"] for group in optimizer.param_groups} == {0.2, 0.1, 0.05, 0.025}
    set_learning_rate(optimizer, 0.4)
    assert {group["lr"] for group in optimizer.param_groups} == {0.4, 0.2, 0.1, 0.05}


def test_freezing() -> None:
    model = bare(MODELS["vit"])
    freeze_parameters(model, ("blocks.*", "patch_embed.proj.?ias"))
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    blocks = {name for name, _ in model.named_parameters() if name.startswith("blocks.")}
    assert frozen == blocks | {"patch_embed.proj.bias"}
    assert not frozen & settings_by_name(model, OptimizerConfig()).keys()


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("blok.*", "freeze: no parameter of the model matches 'blok.*'; did you mean 'blocks.*'"),
        (
            "head.wieght",
            "freeze: no parameter of the model matches 'head.wieght'; did you mean 'head.weight'",
        ),
        ("blocks", "freeze: no parameter of the model matches 'blocks'; did you mean 'blocks.*'"),
        ("q", "freeze: no parameter of the model matches 'q'"),
    ],
)
def test_freezing_what_is_not_there(pattern: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        freeze_parameters(bare(MODELS["vit"]), [pattern])
    assert str(error.value).startswith(message)
    assert ("did you mean" in str(error.value)) == ("did you mean" in message)


def test_freezing_everything() -> None:
    model = bare(MODELS["vit"])
    freeze_parameters(model, ("*",))
    with pytest.raises(InputError, match="^all parameters are frozen: freeze fewer of them$"):
        build_optimizer(model, OptimizerConfig())


def test_head_decay_needs_a_head() -> None:
    model = bare(ViTConfig(**dict(VIT, num_classes=0)))
    expected = "^optimizer.head_weight_decay needs a head, and this run trains none: set it to null$"
    with pytest.raises(InputError, match=expected):
        parameter_groups(model, OptimizerConfig(head_weight_decay=1.0))


def test_parameters_of_an_objective() -> None:
    model, decoder = build(MODELS["vit"]), nn.Linear(4, 4)
    config = OptimizerConfig(weight_decay=0.1, head_weight_decay=3.0, layer_decay=0.5)
    optimizer = build_optimizer(model, config, decoder.named_parameters())
    found = {
        id(parameter): (group["lr_scale"], group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    assert found[id(decoder.weight)] == (1.0, 0.1)
    assert found[id(decoder.bias)] == (1.0, 0.0)


CONFIGS: dict[str, tuple[OptimizerConfig, type[Optimizer]]] = {
    "adam": (OptimizerConfig("adam", weight_decay=0.1), torch.optim.Adam),
    "adamw": (OptimizerConfig("adamw", weight_decay=0.1), torch.optim.AdamW),
    "adamw-bf16": (OptimizerConfig("adamw", weight_decay=0.1, momentum_dtype="bfloat16"), AdamW),
    "sgd": (OptimizerConfig("sgd"), torch.optim.SGD),
    "sgd-decay": (OptimizerConfig("sgd", weight_decay=0.1), SGD),
    "sgd-bf16": (OptimizerConfig("sgd", momentum_dtype="bfloat16"), SGD),
    "adafactor": (OptimizerConfig("adafactor", weight_decay=0.1), Adafactor),
    "adafactor-bf16": (OptimizerConfig("adafactor", momentum_dtype="bfloat16"), Adafactor),
}
every_optimizer = pytest.mark.parametrize("config_name", CONFIGS)


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(40, 33)
        self.head = nn.Linear(33, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(x)))


def gradients(model: nn.Module, step: int) -> None:
    model.zero_grad()
    x = torch.randn(8, 40, generator=torch.Generator().manual_seed(step))
    nn.functional.cross_entropy(model(x), torch.arange(8) % 3).backward()


def train(model: nn.Module, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        gradients(model, step)
        optimizer.step()


@every_optimizer
def test_the_class_that_is_built(config_name: str) -> None:
    config, kind = CONFIGS[config_name]
    optimizer = build_optimizer(Toy(), config)
    assert type(optimizer) is kind
    if kind.__module__.startswith("torch."):
        assert optimizer.defaults["foreach"]


@every_optimizer
def test_save_and_load_go_on_bit_for_bit(config_name: str) -> None:
    config, _ = CONFIGS[config_name]
    model = Toy()
    optimizer = build_optimizer(model, config)
    train(model, optimizer, range(3))
    other = copy.deepcopy(model)
    saved = copy.deepcopy(optimizer.state_dict())
    json.dumps(saved["param_groups"])  # checkpoints keep what isn't a tensor as text
    resumed = build_optimizer(other, config)
    resumed.load_state_dict(saved)
    assert_same_state(optimizer, resumed)
    train(model, optimizer, range(3, 6))
    train(other, resumed, range(3, 6))
    assert_same_state(optimizer, resumed)
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        assert mine.equal(its)


@every_optimizer
def test_distributed_checkpoints_keep_the_state(config_name: str) -> None:
    config, _ = CONFIGS[config_name]
    model = Toy()
    optimizer = build_optimizer(model, config)
    train(model, optimizer, range(3))
    saved = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
    other = copy.deepcopy(model)
    resumed = build_optimizer(other, config)
    set_optimizer_state_dict(other, resumed, saved)
    assert_same_state(optimizer, resumed)
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        assert mine.equal(its)


def assert_same_state(first: Optimizer, second: Optimizer) -> None:
    assert len(first.state) == len(second.state) > 0
    for mine, its in zip(first.state.values(), second.state.values(), strict=True):
        assert mine.keys() == its.keys()
        for name, value in mine.items():
            if isinstance(value, Tensor):
                assert its[name].dtype == value.dtype
                assert its[name].equal(value)


@pytest.mark.parametrize("name", ["sgd", "adamw", "adafactor"])
def test_momentum_is_stored_in_bfloat16(name: Any) -> None:
    model = Toy()
    optimizer = build_optimizer(model, OptimizerConfig(name, momentum_dtype="bfloat16"))
    train(model, optimizer, range(1))
    assert {state["momentum_buffer"].dtype for state in optimizer.state.values()} == {torch.bfloat16}


def result(optimizer: str, **settings: Any) -> tuple[float, ...]:
    model = Toy()
    train(model, build_optimizer(model, OptimizerConfig(optimizer, **settings)), range(4))  # type: ignore[arg-type]
    return tuple(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist())


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("adam", {"weight_decay": 0.1}),
    ("adam", {"betas": (0.7, 0.999)}),
    ("adamw", {"learning_rate": 0.01}),
    ("adamw", {"weight_decay": 0.1}),
    ("adamw", {"head_weight_decay": 0.1}),
    ("adamw", {"weight_decay": 0.1, "decay": "all"}),
    ("adamw", {"betas": (0.8, 0.999)}),
    ("adamw", {"betas": (0.9, 0.95)}),
    ("adamw", {"momentum_dtype": "bfloat16"}),
    ("sgd", {}),
    ("sgd", {"weight_decay": 0.1}),
    ("sgd", {"momentum": 0.5}),
    ("sgd", {"momentum_dtype": "bfloat16"}),
    ("adafactor", {}),
    ("adafactor", {"weight_decay": 0.1}),
    ("adafactor", {"momentum": 0.5}),
    ("adafactor", {"momentum_dtype": "bfloat16"}),
]


def test_every_setting_changes_something() -> None:
    results = {result("adamw"), *(result(name, **settings) for name, settings in SETTINGS)}
    assert len(results) == 1 + len(SETTINGS)


def test_adam_without_decay_is_adamw() -> None:
    assert result("adam") == result("adamw")


def test_decay_of_sgd_is_decoupled() -> None:
    parameter = nn.Parameter(torch.tensor([[2.0]]))
    optimizer = SGD([parameter], lr=0.1, momentum=0.9, momentum_dtype="float32", weight_decay=0.5)
    for gradient, expected in ((1.0, 2.0 * 0.95 - 0.1), (1.0, 1.8 * 0.95 - 0.19)):
        parameter.grad = torch.tensor([[gradient]])
        optimizer.step()
        assert parameter.item() == pytest.approx(expected)


def test_sgd_without_decay_is_torchs() -> None:
    ours, theirs = Toy(), Toy()
    train(ours, SGD(ours.parameters(), 0.1, 0.9, "float32"), range(10))
    train(theirs, torch.optim.SGD(theirs.parameters(), 0.1, 0.9), range(10))
    for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 2e-3)])
def test_adamw_is_torchs(dtype: Any, tolerance: float) -> None:
    ours, theirs = Toy(), Toy()
    train(ours, AdamW(ours.parameters(), 0.01, momentum_dtype=dtype, weight_decay=0.1), range(20))
    train(theirs, torch.optim.AdamW(theirs.parameters(), 0.01, weight_decay=0.1), range(20))
    for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=tolerance)


def test_sgd_without_momentum_keeps_no_state() -> None:
    model = Toy()
    optimizer = build_optimizer(model, OptimizerConfig("sgd", momentum=0.0, weight_decay=0.1))
    train(model, optimizer, range(1))
    assert not optimizer.state


def test_parameters_without_a_gradient_stay() -> None:
    for config, _ in CONFIGS.values():
        model = Toy()
        optimizer = build_optimizer(model, config)
        gradients(model, 0)
        model.head.weight.grad = None
        before = model.head.weight.detach().clone()
        optimizer.step()
        assert model.head.weight.equal(before)
        gradients(model, 1)
        optimizer.step()
        assert not model.head.weight.equal(before)


def test_clipping() -> None:
    model = Toy()
    optimizer = build_optimizer(model, OptimizerConfig())
    gradients(model, 0)
    before = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    expected = torch.cat([gradient.flatten() for gradient in before]).norm()

    def now() -> list[Tensor]:
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    for limit in (None, 2.0 * expected.item()):
        assert clip_gradients(optimizer, limit).item() == pytest.approx(expected.item())
        assert all(mine.equal(its) for mine, its in zip(now(), before, strict=True))
    assert clip_gradients(optimizer, 0.25).item() == pytest.approx(expected.item())
    for mine, its in zip(now(), before, strict=True):
        torch.testing.assert_close(mine, its * (0.25 / expected))
    for gradient in now():
        gradient.zero_()
    assert clip_gradients(optimizer, 0.25).item() == 0.0
    assert all(gradient.eq(0.0).all() for gradient in now())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "lion"}, "optimizer is 'lion'; expected one of adam, adamw, sgd, adafactor"),
        ({"momentum": 0.5}, "momentum does not apply to optimizer 'adamw': remove it"),
        ({"name": "sgd", "betas": (0.9, 0.95)}, "betas does not apply to optimizer 'sgd': remove it"),
        (
            {"name": "adam", "momentum_dtype": "bfloat16"},
            "momentum_dtype does not apply to optimizer 'adam': remove it",
        ),
        ({"learning_rate": 0.0}, "learning_rate must be above 0, not 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be above 0, not nan"),
        ({"clip_norm": 0.0}, "clip_norm must be above 0, not 0"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0, not -0.1"),
        ({"head_weight_decay": -1.0}, "head_weight_decay must be at least 0, not -1"),
        ({"betas": (0.9, 1.0)}, "betas must be at least 0 and below 1, not 1"),
        ({"name": "sgd", "momentum": 1.0}, "momentum must be at least 0 and below 1, not 1"),
        ({"layer_decay": 0.0}, "layer_decay must be above 0 and at most 1, not 0"),
        ({"layer_decay": 1.5}, "layer_decay must be above 0 and at most 1, not 1.5"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        OptimizerConfig(**settings)
    assert str(error.value) == message


def test_configs_go_through_text() -> None:
    config = OptimizerConfig(betas=(0.9, 0.95), freeze=("blocks.*",), clip_norm=1.0, head_weight_decay=3.0)
    assert from_dict(OptimizerConfig, json.loads(json.dumps(to_dict(config))), "optimizer") == config


@pytest.mark.gpu
@every_optimizer
def test_a_gpu_does_as_the_cpu(config_name: str) -> None:
    config, kind = CONFIGS[config_name]
    on_cpu, on_gpu = Toy(), Toy().cuda()
    first, second = build_optimizer(on_cpu, config), build_optimizer(on_gpu, config)
    assert type(second) is kind
    if kind.__module__.startswith("torch."):
        assert second.defaults["fused"]
    for step in range(5):
        gradients(on_cpu, step)
        for mine, its in zip(on_cpu.parameters(), on_gpu.parameters(), strict=True):
            assert mine.grad is not None
            its.grad = mine.grad.cuda()
        norms = [clip_gradients(optimizer, 1.0).item() for optimizer in (first, second)]
        assert norms[0] == pytest.approx(norms[1])
        for optimizer in (first, second):
            optimizer.step()
    saved = copy.deepcopy(second.state_dict())
    resumed = build_optimizer(on_gpu, config)
    resumed.load_state_dict(saved)
    assert_same_state(second, resumed)
    for mine, its in zip(on_cpu.parameters(), on_gpu.parameters(), strict=True):
        torch.testing.assert_close(mine, its.cpu(), rtol=0, atol=2e-5)
