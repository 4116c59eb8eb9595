"""Infer the config of a model from the names and shapes of its tensors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from vitkit.config import convert, from_dict
from vitkit.errors import InputError
from vitkit.models.configs import (
    CompactConfig,
    HybridConfig,
    ModelConfig,
    ResNetConfig,
    Size,
    ViTConfig,
    as_size,
)
from vitkit.models.names import SHAPE, SIZES
from vitkit.weights.files import Settings, Tensors

Sizes = list[tuple[int, int]]
MAX_STAGES = 8


def infer_config(
    tensors: Tensors, settings: Settings, named: ModelConfig | None, image_size: Size | None
) -> ModelConfig:
    """Return the config of the model that these tensors (under our names) belong to.

    `settings` come from the file's layout or its config; `named` is the model the user named, and
    `image_size` the size the user wants. Both settle what shapes leave open: heads and non-square grids.
    """
    sizes = [settings.get("image_size"), named.size if named else None]
    stated = [as_size(convert(size, Size)) for size in sizes if size is not None]
    asked = [] if image_size is None else [as_size(image_size)]
    if "patch_embed.proj.weight" in tensors:
        return _vit(tensors, settings, named, stated, asked)
    if "stem.conv.weight" in tensors:
        return _resnet(tensors, settings, [*asked, *stated])
    if "tokenizer.conv_layers.0.0.weight" in tensors:
        return _compact(tensors, settings, named, stated, asked)
    raise InputError("the file doesn't hold a model of a known family")


def _vit(
    tensors: Tensors,
    settings: Settings,
    named: ModelConfig | None,
    stated: Sizes,
    asked: Sizes,
) -> ModelConfig:
    patch = tensors["patch_embed.proj.weight"]
    width = patch.shape[0]
    depth = _count(tensors, "blocks.", 1)
    mlp = tensors.get("blocks.0.mlp.fc1.weight")
    if patch.ndim != 4 or not depth or mlp is None:
        raise InputError("the ViT in the file is incomplete: its blocks or patch embedding are missing")
    found: Settings = {
        "width": width,
        "depth": depth,
        "mlp_width": mlp.shape[0],
        "patch": patch.shape[2],
        "channels": patch.shape[1],
        "num_classes": _classes(tensors, "head.weight"),
        "class_token": "cls_token" in tensors,
        "registers": tensors["reg_token"].shape[1] if "reg_token" in tensors else 0,
        "final_norm": "pooled" if "fc_norm.weight" in tensors else "tokens",
        "pre_logits": tensors["pre_logits.fc.weight"].shape[0] if "pre_logits.fc.weight" in tensors else 0,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in tensors else None,
        "positions": "learned",
    }
    family: type[ViTConfig] = ViTConfig
    if backbone := _backbone(tensors):
        family = HybridConfig
        found |= backbone
    found["heads"] = _heads(found, settings, named if type(named) is family else None)
    found["pool"] = settings.get("pool") or _pool(tensors)
    if "pos_embed" in tensors:
        table = tensors["pos_embed"]
        found["positions_at"] = "every_layer" if table.shape[0] > 1 else "stem"
        probe = _probe(family, found, settings, (2**14, 2**14))
        grid_size, has_prefix = _grid_size(table.shape[1], probe, settings, stated, asked)
        found |= {"image_size": grid_size, "prefix_positions": has_prefix}
    else:
        if "pos_embed_x" in tensors:
            found["positions"] = "learned_2d"
        elif "blocks.0.attn.relative" in tensors:
            found["positions"] = "relative"
        elif "positions" in settings:  # fixed tables are not in the file
            found["positions"] = settings["positions"]
        found["image_size"] = next(iter([*asked, *stated]), (224, 224))
    return from_dict(family, {**settings, **found}, "weight file")


def _probe(family: type[ViTConfig], found: Settings, settings: Settings, size: tuple[int, int]) -> ViTConfig:
    return from_dict(family, {**settings, **found, "image_size": size, "positions": "none"}, "weight file")


def _grid_size(
    rows: int, probe: ViTConfig, settings: Settings, stated: Sizes, asked: Sizes
) -> tuple[tuple[int, int], bool]:
    """Return the image size that a position table of this many rows belongs to, and whether it has prefix rows.

    Stated sizes are tried first, then a square, then the requested size: a request for 112x448 pixels does not
    mean that a table of 14 x 14 rows was made for them.
    """
    known = settings.get("prefix_positions")
    layouts = [True, False] if known is None else [bool(known)]
    choices = [(has_prefix, rows - has_prefix * probe.num_prefix) for has_prefix in layouts]
    sides = [math.isqrt(patches) * probe.stride for _, patches in choices if patches > 0]
    for sizes in (stated, [(side, side) for side in sides], asked):
        for has_prefix, patches in choices:
            for size in sizes:
                if dataclasses.replace(probe, image_size=size).num_patches == patches:
                    return size, has_prefix
    raise InputError(
        f"the position table has {rows} rows, which is not a square grid; give the image size that it was made for"
    )


def _heads(found: Settings, settings: Settings, named: ModelConfig | None) -> object:
    heads = settings.get("heads")
    if heads is None and isinstance(named, ViTConfig):
        _check_fields(found, vars(named))
        heads = named.heads
    if heads is None:
        shape = (found["width"], found["depth"], found["mlp_width"])
        heads = next((row[3] for row in SIZES.values() if row[:3] == shape), None)
    if heads is None:
        raise InputError(
            "the file doesn't say how many attention heads the model has: name the model, as in NAME@FILE"
        )
    return heads


def _pool(tensors: Tensors) -> str:
    if "attn_pool.latent" in tensors:
        return "map"
    if "seq_pool.weight" in tensors:
        return "seqpool"
    # With mean pooling timm normalises after the pool, even if there is a class token.
    return "token" if "cls_token" in tensors and "fc_norm.weight" not in tensors else "mean"


def _backbone(tensors: Tensors) -> Settings:
    prefix = "patch_embed.backbone."
    units: tuple[int, ...] = ()
    if f"{prefix}conv.weight" in tensors:
        stem = tensors[f"{prefix}conv.weight"]
    elif f"{prefix}stem.conv.weight" in tensors:
        stem, units = tensors[f"{prefix}stem.conv.weight"], _units(tensors, f"{prefix}stages.")
    else:
        return {}
    return {
        "backbone_units": units,
        "backbone_width": stem.shape[0],
        "channels": stem.shape[1],
        "stem": _stem(stem.shape),
    }


def _stem(kernel: Sequence[int]) -> str:
    """Return which stem a ResNet has whose first kernel has this shape."""
    return "x".join(map(str, kernel[2:]))


def _resnet(tensors: Tensors, settings: Settings, hints: Sizes) -> ModelConfig:
    stem = tensors["stem.conv.weight"]
    if stem.shape[0] % 64:
        raise InputError(f"the ResNet's stem has {stem.shape[0]} channels, expected a multiple of 64")
    found = {
        "units": _units(tensors, "stages."),
        "width_factor": stem.shape[0] // 64,
        "channels": stem.shape[1],
        "stem": _stem(stem.shape),
        "num_classes": _classes(tensors, "head.fc.weight"),
        "image_size": hints[0] if hints else (224, 224),
    }
    return from_dict(ResNetConfig, {**settings, **found}, "weight file")


def _compact(
    tensors: Tensors,
    settings: Settings,
    named: ModelConfig | None,
    stated: Sizes,
    asked: Sizes,
) -> ModelConfig:
    first = tensors["tokenizer.conv_layers.0.0.weight"]
    patches = "tokenizer.conv_layers.0.0.bias" in tensors
    mlp = tensors.get("classifier.blocks.0.linear1.weight")
    if mlp is None or first.ndim != 4:
        raise InputError(
            "the Compact Transformer in the file is incomplete: its blocks or tokenizer are missing"
        )
    width = mlp.shape[1]
    convolutions = _count(tensors, "tokenizer.conv_layers.", 2)
    same = named if isinstance(named, CompactConfig) and named.width == width else None
    table = tensors.get("classifier.positional_emb")
    found = {
        "channels": first.shape[1],
        "num_classes": _classes(tensors, "classifier.fc.weight"),
        "width": width,
        "depth": _count(tensors, "classifier.blocks.", 2),
        "heads": same.heads if same else max(1, width // 64),
        "mlp_width": mlp.shape[0],
        "tokenizer": "patches" if patches else "convolutions",
        "kernel": first.shape[2],
        "convolutions": convolutions,
        "pool": "seqpool" if "classifier.attention_pool.weight" in tensors else "token",
        "positions": "none" if table is None else "sine" if same and same.positions == "sine" else "learned",
    }
    squares = [(side, side) for side in (32, 224, 384, *range(8, 1025, 4)) if side >= first.shape[2]]
    for size in [*stated, *squares, *asked] if table is not None else [*asked, *stated, *squares]:
        config = from_dict(CompactConfig, {**settings, **found, "image_size": size}, "weight file")
        if table is None or config.num_tokens == table.shape[1]:
            return config
    assert table is not None
    raise InputError(
        f"no square image gives the {table.shape[1]} tokens of the position table: give --image-size"
    )


def _classes(tensors: Tensors, name: str) -> int:
    return tensors[name].shape[0] if name in tensors else 0


def _count(tensors: Tensors, prefix: str, place: int) -> int:
    """Return the number of numbered modules after a prefix."""
    numbers = {name.split(".")[place] for name in tensors if name.startswith(prefix)}
    return len({number for number in numbers if number.isdigit()})


def _units(tensors: Tensors, prefix: str) -> tuple[int, ...]:
    place = prefix.count(".")
    stages = _count(tensors, prefix, place)
    if stages > MAX_STAGES:  # counting the units of each stage reads every name
        raise InputError(f"the file's ResNet has {stages:,} stages; the limit is {MAX_STAGES}")
    return tuple(_count(tensors, f"{prefix}{stage}.blocks.", place + 2) for stage in range(stages))


def check_name(config: ModelConfig, named: ModelConfig) -> None:
    """Raise InputError if a file's model is not the named one."""
    if type(config) is not type(named):
        kinds = (type(config).__name__, type(named).__name__)
        raise InputError(
            "the file holds a {}, but the name means a {}".format(*(k.removesuffix("Config") for k in kinds))
        )
    _check_fields(vars(config), vars(named))
    if isinstance(config, CompactConfig) and isinstance(named, CompactConfig) and config.pool != named.pool:
        raise InputError(f"the file's model has pool {config.pool!r}, but the named one has {named.pool!r}")


def _check_fields(found: Mapping[str, object], expected: Mapping[str, object]) -> None:
    for field in SHAPE:
        if field in found and found[field] != expected[field]:
            raise InputError(
                f"the file's model has {field} {found[field]}, but the named one has {expected[field]}"
            )
