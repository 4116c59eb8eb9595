"""Recipes: published values, costs that can't rot, and two tiny steps of every one."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training import tiny_runs
from vitkit.costs import cost_of, training_exaflops
from vitkit.data.operations import IMAGENET_MEAN
from vitkit.data.pipeline import parse_pipeline
from vitkit.data.spec import parse_spec
from vitkit.errors import InputError
from vitkit.models import build
from vitkit.models.configs import CompactConfig, HybridConfig, Preprocessing, ResNetConfig, ViTConfig
from vitkit.models.names import model_config
from vitkit.objectives import build_objective
from vitkit.results import as_json
from vitkit.training.build import build_model
from vitkit.training.config import TrainConfig
from vitkit.training.recipes import FOLDER, Explanation, explain, list_recipes, resolve
from vitkit.training.run import train_config
from vitkit.training.schedules import Duration, parse_duration

ROOT = Path(__file__).parents[2]
NAMES = [recipe["name"] for recipe in list_recipes()]

# Images and classes of the data that recipes name: ViT, section 4.1; VTAB's code; Scaling ViT; ImageNet's 1.3M to the image.
DATA = {
    "./jft": (303_000_000, 18_291),
    "./jft3b": (3_000_000_000, 29_593),
    "./imagenet21k": (14_000_000, 21_843),
    "./imagenet": (1_281_167, 1_000),
    "cifar10": (50_000, 10),
    "cifar100": (50_000, 100),
    "flowers102": (1_020, 102),
}
# Recipes that start from another's run, and the shape that it has.
STARTS = {"imagenet384_cct14": "CCT-14/7x2", "flowers102_cct14": "CCT-14/7x2"}
# One of each family of models, one without labels, and the one of the quick start: these train in the fast tests.
FAST = ("digits", "i1k_vit_b16", "augreg_i21k_r_ti16", "jft_r50x1", "cifar10_cct7", "masked_patches_b16")

# recipe: model, optimiser, learning rate, weight decay, duration, batch, schedule, warm-up.
Row = tuple[str, str, float, float, Duration, int, str, Duration]
VIT: dict[str, Row] = {  # ViT, table 3
    "jft_vit_b16": ("B/16", "adamw", 8e-4, 0.1, "7 epochs", 4096, "linear", 10_000),
    "jft_vit_l32": ("L/32", "adamw", 6e-4, 0.1, "7 epochs", 4096, "linear", 10_000),
    "jft_vit_l16": ("L/16", "adamw", 4e-4, 0.1, "14 epochs", 4096, "linear", 10_000),
    "jft_vit_h14": ("H/14", "adamw", 3e-4, 0.1, "14 epochs", 4096, "linear", 10_000),
    "jft_r50x1": ("BiT-R50x1", "adamw", 1e-3, 0.1, "7 epochs", 4096, "linear", 10_000),
    "jft_r101x1": ("BiT-R101x1", "adamw", 8e-4, 0.1, "7 epochs", 4096, "linear", 10_000),
    "jft_r152x1": ("BiT-R152x1", "adamw", 6e-4, 0.1, "7 epochs", 4096, "linear", 10_000),
    "jft_r50_b16": ("R50+B/16", "adamw", 8e-4, 0.1, "7 epochs", 4096, "linear", 10_000),
    "jft_r50_l32": ("R50+L/32", "adamw", 2e-4, 0.1, "7 epochs", 4096, "linear", 10_000),
    "jft_r50_l16": ("R50+L/16", "adamw", 4e-4, 0.1, "14 epochs", 4096, "linear", 10_000),
    "i21k_vit_b16": ("B/16", "adamw", 1e-3, 0.03, "90 epochs", 4096, "linear", 10_000),
    "i21k_vit_l16": ("L/16", "adamw", 1e-3, 0.03, "90 epochs", 4096, "linear", 10_000),
    "i1k_vit_b16": ("B/16", "adamw", 3e-3, 0.3, "300 epochs", 4096, "cosine", 10_000),
}
AUGREG_I1K: dict[str, Row] = {  # AugReg
    f"augreg_i1k_{setting}": ("B/16", "adamw", 1e-3, 0.1, "300 epochs", 4096, "cosine", 10_000)
    for setting in ("none", "light1", "light2", "medium1", "medium2", "strong1", "strong2")
}
AUGREG_I21K: dict[str, Row] = {  # AugReg, the recommended checkpoints
    f"augreg_i21k_{name}": (model, "adamw", 1e-3, decay, "300 epochs", 4096, "cosine", 10_000)
    for name, model, decay in (
        ("ti16", "Ti/16", 0.03),
        ("s32", "S/32", 0.1),
        ("s16", "S/16", 0.03),
        ("b32", "B/32", 0.1),
        ("b16", "B/16", 0.1),
        ("b8", "B/8", 0.1),
        ("l16", "L/16", 0.1),
        ("r_ti16", "R+Ti/16", 0.03),
        ("r26_s32", "R26+S/32", 0.1),
        ("r50_l32", "R50+L/32", 0.1),
    )
}
OTHERS: dict[str, Row] = {
    # ViT, section 4.6 and appendix B.1.2
    "masked_patches_b16": ("B/16", "adamw", 2e-4, 0.0, 1_000_000, 4096, "cosine", 10_000),
    # facebookresearch/mae, PRETRAIN.md: 1.5e-4 per 256 images, 40 epochs of warm-up
    "mae_b16": ("B/16", "adamw", 1.5e-4 * 4096 / 256, 0.05, "1600 epochs", 4096, "cosine", "2.5%"),
    # Better plain ViT baselines
    "plain_s16_90ep": ("S/16", "adamw", 1e-3, 0.1, "90 epochs", 1024, "cosine", 10_000),
    "plain_s16_150ep": ("S/16", "adamw", 1e-3, 0.1, "150 epochs", 1024, "cosine", 10_000),
    "plain_s16_300ep": ("S/16", "adamw", 1e-3, 0.1, "300 epochs", 1024, "cosine", 10_000),
    # BiT, section 3 and appendix A: 0.03 per 256 images; a decay of 1e-4 inside a momentum of 0.9 is 1e-3 outside it.
    "bit_i1k": ("BiT-R50x1", "sgd", 0.03 * 4096 / 256, 1e-4 / (1 - 0.9), "90 epochs", 4096, "step", 5_000),
    "bit_i21k": ("BiT-R50x1", "sgd", 0.03 * 4096 / 256, 1e-4 / (1 - 0.9), "90 epochs", 4096, "step", 5_000),
    # Scaling ViT
    "scaling_g14": ("g/14", "adafactor", 8e-4, 0.03, 1_000_000, 16_384, "rsqrt", 10_000),
}
COMPACT: dict[str, Row] = {  # Compact-Transformers' configs; durations with 10 epochs of cool-down
    "cifar10_cct7": ("CCT-7/3x1", "adamw", 5.5e-4, 0.06, "310 epochs", 128, "cosine", "10 epochs"),
    "cifar100_cct7": ("CCT-7/3x1", "adamw", 6e-4, 0.06, "310 epochs", 128, "cosine", "10 epochs"),
    "flowers102_cct7": ("CCT-7/7x2", "adamw", 5e-4, 0.06, "310 epochs", 96, "cosine", "10 epochs"),
    "imagenet_cct14": ("CCT-14/7x2", "adamw", 5e-4, 0.05, "310 epochs", 8 * 128, "cosine", "10 epochs"),
    "imagenet384_cct14": ("./runs/imagenet_cct14", "adamw", 1e-5, 0.0, "30 epochs", 8 * 96, "cosine", 0),
    "flowers102_cct14": (
        *("./runs/imagenet384_cct14", "adamw", 5e-5, 0.05, "310 epochs", 20),
        *("cosine", "10 epochs"),
    ),
}
PUBLISHED = VIT | AUGREG_I1K | AUGREG_I21K | OTHERS | COMPACT

# AugReg: layers and magnitude of RandAugment, alpha of mixup.
AUGMENTATIONS = {
    "none": (0, 0, 0.0),
    "light1": (2, 0, 0.0),
    "light2": (2, 10, 0.2),
    "medium1": (2, 15, 0.2),
    "medium2": (2, 15, 0.5),
    "strong1": (2, 20, 0.5),
    "strong2": (2, 20, 0.8),
}
# The setting of each recommended checkpoint.
CHOSEN = dict(
    ti16="none",
    s32="none",
    s16="light1",
    b32="light1",
    b16="medium1",
    b8="medium2",
    l16="strong1",
    r_ti16="none",
    r26_s32="light1",
    r50_l32="medium1",
)


def test_the_published_recipes_are_there() -> None:
    assert PUBLISHED.keys() <= set(NAMES)
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in NAMES)


@pytest.mark.parametrize("name", PUBLISHED)
def test_values_are_the_published_ones(name: str) -> None:
    config = resolve(name)
    found = (
        *(config.model["name"], config.optimizer.name),
        *(config.optimizer.learning_rate, config.optimizer.weight_decay),
        *(config.duration, config.batch_size, config.schedule.name, config.schedule.warmup),
    )
    assert found == pytest.approx(PUBLISHED[name])
    if config.optimizer.name == "adamw":
        assert config.optimizer.betas == ((0.9, 0.95) if name == "mae_b16" else (0.9, 0.999))
    assert config.select == "last"  # nothing is chosen by the data that results are measured on


@pytest.mark.parametrize("name", VIT)
def test_vit_recipes_follow_table_3(name: str) -> None:
    config = resolve(name)
    on_jft = name.startswith("jft")
    assert config.model.get("dropout", 0.0) == (0.0 if on_jft else 0.1)
    assert config.optimizer.clip_norm == (1.0 if name.startswith("i1k") else None)
    assert config.objective.loss == ("softmax" if name.startswith("i1k") else "sigmoid")
    shape = model_config(config.model["name"])
    if isinstance(
        shape, ViTConfig
    ):  # ViT, section 3 and appendix D.3: a hidden layer of the model's width in the head
        assert config.model["pre_logits"] == shape.width


@pytest.mark.parametrize("name", AUGREG_I1K | AUGREG_I21K)
def test_augmentation_is_the_one_named(name: str) -> None:
    config, last = resolve(name), name.split("_", 2)[2]
    layers, magnitude, alpha = AUGMENTATIONS[CHOSEN.get(last, last)]
    expected = "inception_crop(224)|flip"
    expected += f"|randaugment({layers},{magnitude})" if layers else ""
    expected += f"|mixup({alpha})" if alpha else ""
    assert parse_pipeline(config.data.pipeline) == parse_pipeline(expected)
    assert config.optimizer.clip_norm == 1.0
    regularised = name == "augreg_i21k_r50_l32"
    for rate in ("dropout", "stochastic_depth"):
        assert config.model.get(rate, 0.0) == (0.1 if regularised else 0.0)


@pytest.mark.parametrize("name", COMPACT)
def test_compact_recipes_follow_timm(name: str) -> None:
    """Compact-Transformers' configs: crop, erasing, mixing, warm-up, end and cool-down of the learning rate."""
    config = resolve(name)
    area, size, end, warmup_from, crop = {
        "cifar10_cct7": (0.8, 32, 1e-5, 1e-5, 1.0),
        "cifar100_cct7": (0.8, 32, 1e-5, 1e-6, 1.0),
        "flowers102_cct7": (0.8, 224, 1e-5, 1e-6, 1.0),
        "imagenet_cct14": (0.08, 224, 1e-5, 1e-6, 0.9),
        "imagenet384_cct14": (0.08, 384, 0.0, 0.0, 0.9),
        "flowers102_cct14": (0.8, 384, 1e-8, 1e-6, 1.0),
    }[name]
    mean, std = config.preprocessing.mean, config.preprocessing.std
    noise = (
        f",mean={'/'.join(map(str, mean))},std={'/'.join(map(str, std))}"  # timm's, once normalised: 0 and 1
    )
    noise = noise if mean != IMAGENET_MEAN else ""
    erase = "" if name == "cifar10_cct7" else f"erase(0.25{noise})|"
    fill = "/".join(str(round(255 * value)) for value in mean)  # timm's loader: the data's mean colour
    expected = (
        f"inception_crop({size},{area},1.0,interpolation=random)|flip|"
        f"timm_randaugment(rand-m9-mstd0.5-inc1,fill={fill})|{erase}mix(0.8,1.0,0.5)"
    )
    assert parse_pipeline(config.data.pipeline) == parse_pipeline(expected)
    assert config.data.mix_until is None  # the published code mixes to the end: docs/results/cifar10.md
    assert (config.schedule.end, config.schedule.warmup_from) == (end, warmup_from)
    assert config.schedule.warmup_inside == (warmup_from > 0)
    # At an end of 0 a cool-down changes nothing.
    assert config.schedule.cooldown == ("10 epochs" if end else 0)
    assert config.objective.label_smoothing == 0.1
    assert config.optimizer.decay == ("matrices" if config.optimizer.weight_decay else "kernels")
    assert config.optimizer.clip_norm is None
    assert config.preprocessing.crop_fraction == crop and config.preprocessing.interpolation == "bicubic"
    means = {"cifar10": 0.4914, "cifar100": 0.5071, "flowers102": 0.4353, "./imagenet": 0.485}
    mean = config.preprocessing.mean
    assert mean is not None and mean[0] == means[parse_spec(config.data.train).source]


def test_plain_vit_is_the_full_recipe() -> None:
    """Better plain ViT baselines."""
    for name in ("plain_s16_90ep", "plain_s16_150ep", "plain_s16_300ep"):
        config = resolve(name)
        assert config.model == {"name": "S/16", "pool": "mean", "positions": "sincos_2d", "pre_logits": 384}
        assert parse_pipeline(config.data.pipeline) == parse_pipeline(
            "inception_crop(224)|flip|randaugment(2,10)|mixup(0.2)"
        )
        assert config.optimizer.momentum_dtype == "bfloat16" and config.optimizer.clip_norm == 1.0
        assert config.objective.loss == "softmax" and config.objective.label_smoothing == 0.0
        shape = model_config("S/16", **{key: value for key, value in config.model.items() if key != "name"})
        assert cost_of(shape).parameters == 22_122_472


def test_scaling_vit_decays_its_head_apart() -> None:
    """Scaling ViT."""
    config = resolve("scaling_g14")
    assert config.optimizer.head_weight_decay == 3.0 and config.optimizer.momentum_dtype == "bfloat16"
    assert (config.schedule.timescale, config.schedule.cooldown) == (10_000, 50_000)
    assert config.model == {"name": "g/14", "pool": "map", "position_std": None, "head_bias": -10}


def test_masked_patches_are_the_papers() -> None:
    """ViT, section 4.6 and appendix B.1.2: half of the patches, their mean colours; about 14 epochs of JFT."""
    config = resolve("masked_patches_b16")
    assert (config.objective.corrupt_share, config.objective.target) == (0.5, "mean_color")
    assert round(parse_duration(config.duration, 1) * config.batch_size / DATA["./jft"][0]) == 14


def test_mae_is_the_published_one() -> None:
    """facebookresearch/mae: PRETRAIN.md, main_pretrain.py, models_mae.py."""
    config = resolve("mae_b16")
    found = config.objective
    assert (found.mask_share, found.decoder_width, found.decoder_depth, found.patch_norm) == (
        0.75,
        512,
        8,
        True,
    )
    assert config.optimizer.decay == "matrices" and config.model["positions"] == "sincos_2d"
    assert parse_duration(config.schedule.warmup, 1, 1600) == 40
    assert config.data.pipeline == "inception_crop(224,0.2,1.0)|flip"


def test_bit_drops_its_learning_rate() -> None:
    """BiT, section 3 and appendix A."""
    for name in ("bit_i1k", "bit_i21k"):
        config = resolve(name)
        assert config.schedule.drops == ("30 epochs", "60 epochs", "80 epochs")
        assert config.optimizer.momentum == 0.9 and not config.data.pipeline.count("mix")


@pytest.mark.parametrize("recipe", list_recipes(), ids=lambda recipe: recipe["name"])
def test_every_head_is_whole(recipe: dict[str, str]) -> None:
    assert recipe["about"] and not recipe["about"].startswith(("Command", "Cost"))
    assert re.match(r"(vit|torchrun .* -m -- vitkit) train ", recipe["command"])
    assert f" train {recipe['name']}" in recipe["command"]
    if recipe["name"] in PUBLISHED:
        for key in ("result", "source", "ours", "data", "cost"):
            assert recipe[key], key
        assert re.search(r"\d\d\.\d", recipe["result"])


@pytest.mark.parametrize("name", PUBLISHED)
def test_cost_is_what_the_head_says(name: str) -> None:
    said = next(recipe["cost"] for recipe in list_recipes() if recipe["name"] == name)
    match = re.match(r"([\d.,]+) exaFLOPs, about ([\d.,]+) H200 hours at 350 TFLOP/s", said)
    assert match, said
    exaflops, hours = (float(number.replace(",", "")) for number in match.groups())
    expected = exaflops_of(resolve(name), name)
    assert exaflops == pytest.approx(expected, rel=5e-3)
    assert hours == pytest.approx(expected * 1e18 / 350e12 / 3600, rel=5e-3)


@pytest.mark.parametrize(
    ("name", "changes", "exaflops"),
    [
        ("jft_vit_b16", [], 224),
        ("jft_vit_b16", ["model.name=B/32"], 55),
        ("jft_vit_l32", [], 196),
        ("jft_vit_l16", [], 1567),
        ("jft_vit_l16", ["duration=7 epochs"], 783),
        ("jft_vit_h14", [], 4262),
        ("jft_r50x1", [], 50),
        ("jft_r50x1", ["model.name=BiT-R50x2"], 199),
        ("jft_r101x1", [], 96),
        ("jft_r152x1", [], 141),
        ("jft_r152x1", ["model.name=BiT-R152x2"], 563),
        ("jft_r50_b16", [], 274),
        ("jft_r50_b16", ["model.name=R50+B/32"], 106),
        ("jft_r50_l32", [], 246),
        ("jft_r50_l16", [], 1668),
    ],
)
def test_cost_is_the_papers(name: str, changes: list[str], exaflops: float) -> None:
    """ViT, table 6; ResNets come out 2.5 to 4% above it by the rule that fits the ViTs."""
    found = exaflops_of(resolve(name, changes), name)
    assert found == pytest.approx(exaflops, rel=0.05 if "BiT" in resolve(name).model["name"] else 0.025)


def exaflops_of(config: TrainConfig, name: str) -> float:
    """Return what a recipe costs on the data that it names."""
    images, classes = DATA[parse_spec(config.data.train).source]
    steps = parse_duration(config.duration, images / config.batch_size)
    settings = {key: value for key, value in config.model.items() if key != "name"}
    size = parse_pipeline(config.data.pipeline).size
    is_labelled = config.objective.name == "supervised"
    shape = model_config(
        STARTS.get(name, config.model["name"]),
        **settings,
        image_size=size,
        num_classes=classes if is_labelled else 0,
    )
    cost = cost_of(shape)
    macs = cost.macs
    if not is_labelled:
        with torch.device("meta"):
            objective = build_objective(config.objective, build(shape), Preprocessing(), False)
        macs, _ = objective.cost(cost.macs, cost.parameters)
    return training_exaflops(macs, steps * config.batch_size)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("i1k_vit_b16", ["model.name=L/16", "model.pre_logits=1024"]),
        ("i21k_vit_l16", ["duration=30 epochs", "model.name=L/32"]),
        ("augreg_i1k_light1", ["model.name=S/16", "model.pre_logits=384", "optimizer.weight_decay=0.03"]),
        ("augreg_i1k_none", ["model.dropout=0.1", "model.stochastic_depth=0.1"]),
        ("augreg_i21k_b16", ["model.pool=mean", "data.pipeline=inception_crop(224)|flip|randaugment(2,0)"]),
        ("masked_patches_b16", ["objective.target=colors_4x4", "duration=100000"]),
        ("masked_patches_b16", ["objective.target=pixels", "objective.corrupt_share=0.15"]),
        ("mae_b16", ["model.name=L/16", "duration=800ep", "schedule.warmup=5%"]),
        ("scaling_g14", ["model.name=G/14", "batch_size=32768", "activation_checkpointing=true"]),
        (
            "cifar10_cct7",
            [
                *("duration=1510 epochs", "optimizer.learning_rate=5e-4", "model.positions=sine"),
                "data.train=cifar10:train[root=~/data,download=true]",
            ],
        ),
        ("cifar100_cct7", ["batch_size=512", "optimizer.learning_rate=1.2e-3", "compile=true"]),
    ],
)
def test_changes_that_heads_advise_resolve(name: str, changes: list[str]) -> None:
    assert exaflops_of(resolve(name, changes), name) > 0


def shrink(config: TrainConfig, start: Path | None = None) -> TrainConfig:
    """Return a recipe for two steps of eight tiny images: another scale, the same kinds of everything.

    start: a trained model, for a recipe that begins with one.
    """
    size = config.model.get("image_size") or (48 if start else 32)
    pipeline = re.sub(r"inception_crop\(\d+", f"inception_crop({size}", config.data.pipeline)
    data = dataclasses.replace(
        config.data,
        train=small_data(config.data.train, 64, size),
        evaluate=config.data.evaluate and small_data(config.data.evaluate, 16, size),
        pipeline=pipeline,
        mix_until=None if config.data.mix_until is None else 1,
        group=4,
        workers=0,
    )
    schedule = dataclasses.replace(
        config.schedule,
        warmup=0 if config.schedule.warmup == 0 else 1,
        cooldown=0 if config.schedule.cooldown == 0 else 1,
    )
    return dataclasses.replace(
        config,
        model={"name": str(start)} if start else small_model(config.model),
        data=data,
        duration=2,
        batch_size=8,
        schedule=schedule,
        compile=False,
        micro_batch=4,
    )


def small_data(spec: str, count: int, size: int) -> str:
    parsed = parse_spec(spec)
    if parsed.source in ("digits", "shapes"):
        return str(dataclasses.replace(parsed, start=None, stop=str(count), shots=None))
    return f"shapes:{'train' if parsed.split == 'train' else 'val'}[:{count},size={size}]"


def small_model(settings: dict[str, Any]) -> dict[str, Any]:
    shape = model_config(settings["name"])
    small: dict[str, Any] = {}
    if isinstance(shape, ViTConfig | CompactConfig):
        small = {"width": 64, "depth": 2, "heads": 2, "mlp_width": 64}
        if settings.get("pre_logits"):
            small["pre_logits"] = 64
    if isinstance(shape, HybridConfig):
        small |= {"backbone_units": [1] * len(shape.backbone_units), "backbone_width": 32}
    if isinstance(shape, ResNetConfig):
        small |= {"units": [1, 1], "width_factor": 1}  # a later stage doubles the width
    return settings | small


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Leave out the measurement of this machine's speed; threads that wait for each other cost more than they give."""
    monkeypatch.setattr("vitkit.training.estimate.matrix_rate", lambda *_: 1e12)
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def two_steps(config: TrainConfig, path: Path) -> None:
    answer = train_config(config, path, device="cpu")
    assert (answer.status, answer.step) == ("done", 2)
    wanted = ["loss", "gradient_norm"]
    if config.data.evaluate:
        split = parse_spec(config.data.evaluate).split
        wanted += [f"{split}/loss"] + [f"{split}/accuracy"] * (config.objective.name == "supervised")
    assert all(math.isfinite(answer.metrics[metric]) for metric in wanted)
    assert (path / "model" / "model.safetensors").is_file()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
        for name in NAMES
        if name not in STARTS
    ],
)
def test_two_tiny_steps(name: str, tmp_path: Path) -> None:
    two_steps(shrink(resolve(name)), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_two_tiny_steps_of_recipes_that_start_from_a_run(tmp_path: Path) -> None:
    start = tmp_path / "imagenet_cct14"
    two_steps(shrink(resolve("imagenet_cct14")), start)
    for name in STARTS:
        two_steps(shrink(resolve(name), start), tmp_path / name)
        start = tmp_path / name


def test_another_name_replaces_a_shape_of_its_own(tmp_path: Path) -> None:
    """A name stands for a shape: what a recipe has in its place would make it another model."""
    assert resolve("digits", ["model.name=B/16"]).model == {"name": "B/16", "image_size": 16, "pool": "mean"}
    found = resolve("digits", ["model.name=CCT-2/3x2", "model.width=64"]).model
    assert found == {"name": "CCT-2/3x2", "image_size": 16, "width": 64}  # whose pool is another
    for same in (["model.dropout=0.1"], ["model.name=Ti/16"]):
        assert resolve("digits", same).model["width"] == 64
    found = resolve("scaling_g14", ["model.name=G/14"]).model
    assert found == {"name": "G/14", "pool": "map", "position_std": None, "head_bias": -10}
    path = tmp_path / "own.yaml"
    path.write_text((FOLDER / "digits.yaml").read_text().replace("pool: mean", "dropout: 0.3"))
    found = resolve(path, ["model.name=runs/pre-trained"]).model
    assert found == {"name": "runs/pre-trained", "image_size": 16, "dropout": 0.3}


def test_an_objective_is_named_in_a_file_as_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    text = (FOLDER / "shapes.yaml").read_text()
    path.write_text(re.sub(r"objective:\n(  .*\n)+", "objective: mae\n", text))
    assert resolve(path) == dataclasses.replace(resolve("shapes", ["objective=mae"]), name="own")


def test_the_page_lists_every_recipe() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in page] == []


def test_recipes_are_package_data() -> None:
    folder = resources.files("vitkit") / "recipes"
    assert all((folder / f"{name}.yaml").is_file() for name in NAMES)


def settings(document: Explanation) -> dict[str, Any]:
    return {row.name: as_json(row.value) for row in document.settings}


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ([], [8, 8]),
        (["model={name: Ti/16, patch: 4, width: 16, heads: 2}", "data.pipeline=inception_crop(12x16)|mixup(0.2)"], [12, 16]),
        (["model={name: Ti/16}", "data.pipeline=flip|mixup(0.2)"], [224, 224]),
        (["model={name: Ti/16, image_size: [32, 16]}", "data.pipeline=resize(64)|mixup(0.2)"], [32, 16]),
        (["model={name: Ti/16}", "model.image_size=32x16"], [32, 16]),
    ],
)  # fmt: skip
def test_the_image_size_is_the_one_that_is_built(changes: list[str], size: list[int], tmp_path: Path) -> None:
    recipe = tiny_runs.write_recipe(tmp_path)
    shown = settings(explain(recipe, changes))["model.image_size"]
    built, _, _ = build_model(resolve(recipe, changes), ("one", "two"))
    assert shown == size == list(built.config.size)


@pytest.mark.slow
def test_every_recipe_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    starts = {}
    for name in (row["name"] for row in list_recipes()):
        document = explain(name)
        for note in document.notes:
            if "only the given settings are shown" in note:
                starts[name] = note
        assert ("model.channels" in settings(document)) == (name not in starts), name
    first = "model: only the given settings are shown, because its weights can't be found: no such file or folder: ./runs/"
    assert starts == {
        "imagenet384_cct14": f"{first}imagenet_cct14",
        "flowers102_cct14": f"{first}imagenet384_cct14",
    }


def test_settings_given_beside_a_start_that_is_not_there(tmp_path: Path) -> None:
    recipe = tiny_runs.write_recipe(tmp_path)
    shown = settings(explain(recipe, ["model={name: ./no-such-run, dropout: 0.2}", "seed=7"]))
    assert {key: value for key, value in shown.items() if key.startswith("model.")} == {
        "model.name": "./no-such-run",
        "model.new_head": False,
        "model.dropout": 0.2,
    }
    assert shown["seed"] == 7


def test_an_unknown_model_is_an_error(tmp_path: Path) -> None:
    recipe = tiny_runs.write_recipe(tmp_path)
    with pytest.raises(InputError, match="unknown model 'Tii/16'"):
        explain(recipe, ["model.name=Tii/16"])


def test_runs_and_starts(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny_runs.run_tiny(run, "duration=2", "model.dropout=0.1")
    document = explain(run)
    recipe = tmp_path / "tiny.yaml"
    assert document.settings == explain(recipe, ["duration=2", "model.dropout=0.1"]).settings
    assert document.notes == (f"run: {run}",)
    with pytest.raises(
        InputError, match="the settings of a run can't be changed; explain its recipe instead: seed=1"
    ):
        explain(run, ["seed=1"])
    start = ["data.pipeline=resize(16)|mixup(0.2)", f"model={{name: {run}, stochastic_depth: 0.3}}"]
    shown = settings(explain(recipe, start))
    assert (shown["model.width"], shown["model.dropout"], shown["model.stochastic_depth"]) == (16, 0.1, 0.3)
    assert shown["model.image_size"] == [16, 16]
    assert settings(explain(recipe, [*start, "model.image_size=8x16"]))["model.image_size"] == [8, 16]
    with pytest.raises(InputError, match=r"^image_size in model is '8x'; expected a whole number or HEIGHTx"):
        explain(recipe, [*start, "model.image_size=8x"])
