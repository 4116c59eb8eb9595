"""Model names, in the papers' dialect and in timm's, and the configs they stand for. Needs no torch."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Mapping
from typing import Any

from vitkit.config import from_dict
from vitkit.errors import InputError, did_you_mean
from vitkit.models.configs import (
    CompactConfig,
    HybridConfig,
    ModelConfig,
    Preprocessing,
    ResNetConfig,
    ViTConfig,
)

Fields = dict[str, object]
"Some of a config's fields by name."
SHAPE = (
    *("patch", "width", "depth", "heads", "mlp_width", "backbone_units", "backbone_width", "units"),
    *("stem", "width_factor", "tokenizer", "kernel", "convolutions"),
)
"Settings that a model's name fixes. Weights loaded under that name must match them."
# size: width, depth, MLP width, heads, timm's word.
# b is B with its hidden sizes halved (ViT, figure 4); the paper doesn't state its heads. 6 heads keep B's head size.
SIZES: dict[str, tuple[int, int, int, int, str | None]] = {
    "mu": (32, 1, 128, 2, None),
    "s": (256, 6, 1024, 8, None),
    "Ti": (192, 12, 768, 3, "tiny"),
    "S": (384, 12, 1536, 6, "small"),
    "M": (512, 12, 2048, 8, "medium"),
    "b": (384, 12, 1536, 6, None),
    "B": (768, 12, 3072, 12, "base"),
    "L": (1024, 24, 4096, 16, "large"),
    "So400m": (1152, 27, 4304, 16, "so400m"),
    "H": (1280, 32, 5120, 16, "huge"),
    "g": (1408, 40, 6144, 16, "giant"),
    "g-opt": (1536, 40, 6144, 16, "giantopt"),
    "G": (1664, 48, 8192, 16, "gigantic"),
    "G-opt": (1536, 48, 8192, 16, None),
    "e": (1792, 56, 15360, 16, None),
}

# hybrid: ViT size, ResNet units, patch on the feature map, timm's name without the image size.
# R+Ti/16 keeps its published name although its tokens are 32 pixels apart: 4 (the stem) times 8 (the patch).
HYBRIDS: dict[str, tuple[str, tuple[int, ...], int, str]] = {
    "R+Ti/16": ("Ti", (), 8, "vit_tiny_r_s16_p8"),
    "R26+S/32": ("S", (2, 2, 2, 2), 1, "vit_small_r26_s32"),
    "R26+B/32": ("B", (2, 2, 2, 2), 1, "vit_base_r26_s32"),
    "R50+B/32": ("B", (3, 4, 6, 3), 1, "vit_base_r50_s32"),
    "R50+B/16": ("B", (3, 4, 9), 1, "vit_base_r50_s16"),
    "R50+L/32": ("L", (3, 4, 6, 3), 1, "vit_large_r50_s32"),
    "R50+L/16": ("L", (3, 4, 9), 1, "vit_large_r50_s16"),
}

# BiT depth: units per stage.
RESNETS: dict[int, tuple[int, ...]] = {
    26: (2, 2, 2, 2),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}

# Compact Transformers' layers: width, heads, MLP width.
COMPACT_SIZES: dict[int, tuple[int, int, int]] = {
    2: (128, 2, 128),
    4: (128, 2, 128),
    6: (256, 4, 512),
    7: (256, 4, 512),
    8: (256, 4, 512),
    14: (384, 6, 1152),
}

# Published compact shapes: image size and classes of the published model.
COMPACTS: dict[str, tuple[int, int]] = {
    "ViT-Lite-2/4": (32, 10),
    "ViT-Lite-4/4": (32, 10),
    "ViT-Lite-6/4": (32, 10),
    "ViT-Lite-6/8": (32, 10),
    "ViT-Lite-6/16": (32, 10),
    "ViT-Lite-7/4": (32, 10),
    "ViT-Lite-7/8": (32, 10),
    "ViT-Lite-7/16": (32, 10),
    "CVT-2/4": (32, 10),
    "CVT-4/4": (32, 10),
    "CVT-6/4": (32, 10),
    "CVT-6/8": (32, 10),
    "CVT-7/4": (32, 10),
    "CVT-7/8": (32, 10),
    "CVT-8/4": (32, 10),
    "CCT-2/3x2": (32, 10),
    "CCT-4/3x2": (32, 10),
    "CCT-6/3x1": (32, 10),
    "CCT-6/3x2": (32, 10),
    "CCT-7/3x1": (32, 10),
    "CCT-7/3x2": (32, 10),
    "CCT-7/7x2": (224, 102),
    "CCT-14/7x2": (224, 1000),
}

# The plain ViTs that `vit models` lists; any other patch size works as well.
VITS = (
    "mu/16 s/28 s/16 Ti/16 S/32 S/16 M/32 M/16 b/32 B/32 B/28 B/16 B/8 L/32 L/16 So400m/14 "
    "H/14 g/14 g-opt/16 G/14 G-opt/16 e/14"
).split()

_NUMBER = r"[1-9]\d{0,3}"
_SIZE = "|".join(sorted(map(re.escape, SIZES), key=len, reverse=True))
_TIMM_SIZES = {row[4]: size for size, row in SIZES.items() if row[4]}
_PAPER_VIT = re.compile(rf"(?:ViT-)?({_SIZE})[/_]({_NUMBER})")
_TIMM_VIT = re.compile(rf"vit_({'|'.join(_TIMM_SIZES)})_patch({_NUMBER})(?:_({_NUMBER}))?")
_HYBRID = re.compile(r"(R\d*)(?:x1)?\+(?:ViT-)?(\w+)[/_](\d+)")
_PAPER_RESNET = re.compile(r"BiT-(?:[SML]-)?R(\d+)x([1-4])")
_TIMM_RESNET = re.compile(r"resnetv2_(\d+)x([1-4])_bit[sm]?")
_PAPER_COMPACT = re.compile(rf"(CCT|CVT|ViT-Lite)-(\d+)/({_NUMBER})(?:x([1-9]))?")
_OFFICIAL_COMPACT = re.compile(
    rf"(cct|cvt|vit)_(\d+)_({_NUMBER})(?:x([1-9]))?_({_NUMBER})(_sine)?(_c100)?(_fl)?"
)

IMAGENET_MEAN_STD = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CIFAR10_MEAN_STD = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100_MEAN_STD = ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
FLOWERS_MEAN_STD = ((0.4353, 0.3773, 0.2872), (0.2966, 0.2455, 0.2698))


def list_models(pattern: str = "*") -> list[str]:
    """Return the papers' names of the models that match a glob in either dialect."""
    pattern = pattern.lower()
    rows = [*VITS, *HYBRIDS, *_resnet_names(), *COMPACTS]
    return [
        name
        for name in rows
        if any(fnmatch.fnmatchcase(alias.lower(), pattern) for alias in (name, other_name(name)) if alias)
    ]


def model_config(name: str, **settings: Any) -> ModelConfig:
    """Return the config of a model name in either dialect, with `settings` applied."""
    family, fields = _parse(name)
    return from_dict(family, {**fields, **settings}, f"model {name!r}")


def size_in_name(name: str) -> int | None:
    """Return the image size at the end of a name in timm's dialect, or None."""
    size = _parse(name)[1].get("image_size") if name.startswith(("vit_", "cct_", "cvt_")) else None
    return size if isinstance(size, int) else None


def canonical_name(name: str) -> str:
    """Return the papers' name of a model, without its image size or classes."""
    if match := _TIMM_VIT.fullmatch(name):
        return f"{_TIMM_SIZES[match[1]]}/{match[2]}"
    if match := _PAPER_VIT.fullmatch(name):
        return f"{match[1]}/{match[2]}"
    if hybrid := _hybrid(name):
        return hybrid[0]
    match = _PAPER_RESNET.fullmatch(name) or _TIMM_RESNET.fullmatch(name)
    if match and int(match[1]) in RESNETS:
        return f"BiT-R{match[1]}x{match[2]}"
    if compact := _compact(name):
        return compact[0]
    raise unknown(name)


def other_name(name: str) -> str | None:
    """Return the name of a paper's model in timm's dialect (Compact-Transformers' for its family), if it has one."""
    if name in HYBRIDS:
        return f"{HYBRIDS[name][3]}_224"
    if match := _PAPER_VIT.fullmatch(name):
        word = SIZES[match[1]][4]
        return f"vit_{word}_patch{match[2]}_224" if word else None
    if match := _PAPER_RESNET.fullmatch(name):
        return f"resnetv2_{match[1]}x{match[2]}_bit"
    if name in COMPACTS:
        word, shape = name.replace("ViT-Lite", "vit").lower().split("-", 1)
        return f"{word}_{shape.replace('/', '_')}_{COMPACTS[name][0]}"
    return None


@functools.cache
def _listed() -> dict[str, ModelConfig]:
    return {name: model_config(name) for name in list_models()}


def find_name(config: ModelConfig) -> str | None:
    """Return the papers' name of a config's shape, if it has one."""
    for name, known in _listed().items():
        if type(known) is type(config) and _shape(known) == _shape(config):
            return name
    if type(config) is ViTConfig:
        for size in SIZES:
            fields = _vit_fields(size)
            if fields == {field: getattr(config, field) for field in fields}:
                return f"{size}/{config.patch}"
    return None


def default_preprocessing(config: ModelConfig) -> Preprocessing:
    """Return the preprocessing of a model whose weights don't state their own: timm's for its family."""
    mean: tuple[float, ...] = (0.5,) * config.channels
    large = min(config.size) >= 384
    std, crop, interpolation = mean, (1.0 if large else 0.9), "bicubic"
    if isinstance(config, ResNetConfig):
        crop, interpolation = (1.0 if large else 0.875), "bilinear"
    elif isinstance(config, CompactConfig):
        crop, interpolation = (0.9 if config.num_classes == 1000 else 1.0), "bicubic"
        by_classes = {10: CIFAR10_MEAN_STD, 100: CIFAR100_MEAN_STD, 102: FLOWERS_MEAN_STD}
        if config.channels == 3:
            mean, std = by_classes.get(config.num_classes, IMAGENET_MEAN_STD)
    return from_dict(
        Preprocessing,
        dict(image_size=config.size, crop_fraction=crop, interpolation=interpolation, mean=mean, std=std),
        "preprocessing",
    )


def changed_shape(name: str, settings: Mapping[str, object]) -> list[str]:
    """Return the settings that change the shape fixed by a model's name: ['patch 4', 'width 64'].

    The shape of a folder or file isn't known here, so all of its shape settings are returned.
    """
    try:
        usual: object = model_config(name.partition("@")[0])
    except InputError:
        usual = None
    given = {key: settings[key] for key in SHAPE if key in settings}
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return [f"{key} {given[key]}" for key in given if plain[key] != getattr(usual, key, None)]


def unknown(name: str) -> InputError:
    """Return the error for an unknown model name."""
    names = [*list_models(), *filter(None, map(other_name, list_models()))]
    hint = did_you_mean(name, names) or ";"
    return InputError(f"unknown model {name!r}{hint} `vit models` lists them all")


def _parse(name: str) -> tuple[type[ModelConfig], Fields]:
    size: str | None = None
    if match := _TIMM_VIT.fullmatch(name):
        vit, patch, size = _TIMM_SIZES[match[1]], match[2], match[3]
    elif match := _PAPER_VIT.fullmatch(name):
        vit, patch = match[1], match[2]
    if match:
        fields = _vit_fields(vit) | {"patch": int(patch)}
        return ViTConfig, fields | ({"image_size": int(size)} if size else {})
    if hybrid := _hybrid(name):
        vit, units, patch_cells, _ = HYBRIDS[hybrid[0]]
        fields = _vit_fields(vit) | {"patch": patch_cells, "backbone_units": units}
        return HybridConfig, fields | ({"image_size": hybrid[1]} if hybrid[1] else {})
    match = _PAPER_RESNET.fullmatch(name) or _TIMM_RESNET.fullmatch(name)
    if match and int(match[1]) in RESNETS:
        return ResNetConfig, {"units": RESNETS[int(match[1])], "width_factor": int(match[2])}
    if compact := _compact(name):
        return CompactConfig, compact[1]
    raise unknown(name)


def _vit_fields(size: str) -> Fields:
    width, depth, mlp_width, heads, _ = SIZES[size]
    return {"width": width, "depth": depth, "mlp_width": mlp_width, "heads": heads}


def _hybrid(name: str) -> tuple[str, int | None] | None:
    if match := _HYBRID.fullmatch(name):
        paper = f"{match[1]}+{match[2]}/{match[3]}"
        return (paper, None) if paper in HYBRIDS else None
    stem, _, size = name.rpartition("_")
    for paper, row in HYBRIDS.items():
        if row[3] == name:
            return paper, None
        if row[3] == stem and re.fullmatch(_NUMBER, size):
            return paper, int(size)
    return None


def _compact(name: str) -> tuple[str, Fields] | None:
    image_size = positions = None
    classes: int | None = None
    if match := _PAPER_COMPACT.fullmatch(name):
        family, layers, kernel, convolutions = match.groups()
    elif match := _OFFICIAL_COMPACT.fullmatch(name):
        family, layers, kernel, convolutions, side, sine, c100, flowers = match.groups()
        family = {"cct": "CCT", "cvt": "CVT", "vit": "ViT-Lite"}[family]
        image_size, positions = int(side), "sine" if sine else None
        classes = 100 if c100 else 102 if flowers else None
    else:
        return None
    if int(layers) not in COMPACT_SIZES or (family == "CCT") != bool(convolutions):
        return None
    width, heads, mlp_width = COMPACT_SIZES[int(layers)]
    paper = f"{family}-{layers}/{kernel}" + (f"x{convolutions}" if convolutions else "")
    default_size, default_classes = COMPACTS.get(paper, (32, 10))
    fields: Fields = {
        "image_size": image_size or default_size,
        "num_classes": classes or default_classes,
        "width": width,
        "depth": int(layers),
        "heads": heads,
        "mlp_width": mlp_width,
        "tokenizer": "convolutions" if family == "CCT" else "patches",
        "kernel": int(kernel),
        "convolutions": int(convolutions or 1),
        "pool": "token" if family == "ViT-Lite" else "seqpool",
    }
    return paper, fields | ({"positions": positions} if positions else {})


def _resnet_names() -> list[str]:
    return [f"BiT-R{depth}x{width}" for depth in RESNETS for width in range(1, 5)]


def _shape(config: ModelConfig) -> list[object]:
    """Return the settings that a name fixes: SHAPE, and the pool of a compact model."""
    names = (*SHAPE, "pool") if isinstance(config, CompactConfig) else SHAPE
    return [getattr(config, name) for name in names if hasattr(config, name)]
