"""Tiny models of every family, and models whose attention is known."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.random_models import images_for as images_for
from tests.random_models import make as make
from vitkit.models.configs import CompactConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig

SHAPE: dict[str, Any] = dict(width=16, depth=3, heads=2, mlp_width=24, num_classes=5)
VIT: dict[str, Any] = dict(SHAPE, image_size=(8, 12), patch=4)
COMPACT: dict[str, Any] = dict(SHAPE, image_size=(8, 12), kernel=4, tokenizer="patches")

FAMILIES: dict[str, ModelConfig] = {
    "token": ViTConfig(**VIT, registers=1),
    "mean": ViTConfig(**VIT, pool="mean", class_token=True),
    "map": ViTConfig(**VIT, pool="map", positions="learned_2d", positions_at="every_layer"),
    "seqpool": ViTConfig(**VIT, pool="seqpool", positions="none"),
    "unpooled": ViTConfig(**VIT, pool="none"),
    "sincos": ViTConfig(**VIT, pool="mean", positions="sincos_2d"),
    "relative": ViTConfig(**VIT, positions="relative"),
    "axial": ViTConfig(**VIT, attention="axial"),
    "local": ViTConfig(**VIT, attention="local", attention_window=3, pool="mean"),
    "sparse": ViTConfig(**VIT, attention="sparse", attention_stride=2),
    "reformer": ViTConfig(**VIT, attention="reformer", attention_chunk=8),
    "linformer": ViTConfig(**VIT, attention="linformer", attention_rank=2),
    "hybrid": HybridConfig(**dict(VIT, image_size=(16, 24), patch=2), backbone_units=(), backbone_width=32),
    "hybrid-stages": HybridConfig(
        **dict(VIT, image_size=(16, 24), patch=1), backbone_units=(1, 1), backbone_width=32
    ),
    "bit": ResNetConfig(image_size=16, num_classes=5, units=(1,)),
    "vit-lite": CompactConfig(**COMPACT, pool="token"),
    "cvt": CompactConfig(**COMPACT, positions="sine"),
    "cct": CompactConfig(**dict(SHAPE, image_size=(8, 12)), positions="none"),
}


def steered(logits: list[dict[int, float]], **settings: Any) -> Any:
    """Return a ViT in whose first head, layer by layer, a query's logit of a key is that of their offset, else zero.

    Its other heads attend uniformly. Offsets count tokens from the key to the query.
    """
    config = ViTConfig(**dict(VIT, positions="relative", depth=len(logits), **settings))
    model = make(config)
    size = config.width // config.heads
    with torch.no_grad():
        for block, offsets in zip(model.blocks, logits, strict=True):
            block.attn.qkv.weight.zero_()
            block.attn.qkv.bias.zero_()
            block.attn.qkv.bias[:size] = 1.0  # the first head's query
            block.attn.relative.zero_()
            for offset, logit in offsets.items():
                block.attn.relative[offset + config.num_tokens - 1] = logit / math.sqrt(size)
    return model
