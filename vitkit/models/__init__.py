"""Models by name: names -> configs -> modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitkit.errors import InputError
from vitkit.models.configs import CompactConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig
from vitkit.models.names import list_models, model_config

if TYPE_CHECKING:
    from vitkit.models.model import Model

__all__ = ["build", "create_model", "list_models", "model_config"]


def create_model(name: str, **settings: Any) -> Model:
    """Return an untrained model by name in either dialect; settings are the fields of its config."""
    if "@" in name:
        raise InputError(f"create_model makes untrained models; vitkit.load({name!r}) reads weights")
    return build(model_config(name, **settings))


def build(config: ModelConfig) -> Model:
    """Return the module that a config describes, freshly initialised."""
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
    raise TypeError(f"no model is built from {type(config).__name__}")
