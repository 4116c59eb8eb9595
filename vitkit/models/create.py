"""Models from names and configs."""

from __future__ import annotations

from typing import Unpack

from vitkit.errors import InputError
from vitkit.models.configs import (
    CompactConfig,
    HybridConfig,
    ModelConfig,
    OwnConfig,
    ResNetConfig,
    ViTConfig,
)
from vitkit.models.model import Model
from vitkit.models.names import model_config
from vitkit.settings import ModelSettings


def create_model(name: str, **settings: Unpack[ModelSettings]) -> Model:
    """Return an untrained model by its name in either dialect; `settings` are fields of its config."""
    if "@" in name or "." in name:  # timm separates the tag by a point
        spec = name if "@" in name else name.replace(".", "@", 1)
        raise InputError(f"create_model returns untrained models; to load weights, use vitkit.load({spec!r})")
    return build(model_config(name, **settings))


def build(config: ModelConfig) -> Model:
    """Return the model that a config describes, with initial weights."""
    match config:
        case HybridConfig():
            from vitkit.models.hybrid import Hybrid

            return Hybrid(config)
        case ViTConfig():
            from vitkit.models.vit import VisionTransformer

            return VisionTransformer(config)
        case ResNetConfig():
            from vitkit.models.resnet import ResNet

            return ResNet(config)
        case CompactConfig():
            from vitkit.models.compact import CompactTransformer

            return CompactTransformer(config)
        case OwnConfig():
            raise InputError(
                f"{config.module} is a module of your own, which only you can build: pass it too, as in "
                f"vitkit.load(FOLDER, module={config.module}(...))"
            )
    raise TypeError(f"no model for config type {type(config).__name__}")
