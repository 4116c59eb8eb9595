"""torchvision's VisionTransformer, with its current and its older names."""

from __future__ import annotations

from collections.abc import Collection

from vitkit.models.configs import HybridConfig, ModelConfig, ViTConfig
from vitkit.models.names import IMAGENET_MEAN_STD
from vitkit.weights.files import Document, Numeric, Reading, Settings, Tensors
from vitkit.weights.rules import COPY, Rule, beyond_first_vit, copies, to_ours, to_theirs

LAYOUT = "torchvision's layout"
LAYER = "encoder.layers.encoder_layer_{i}."
RULES = [
    Rule("cls_token", ("class_token",), COPY),
    Rule("pos_embed", ("encoder.pos_embedding",), COPY),
    Rule("blocks.{i}.attn.qkv.weight", (LAYER + "self_attention.in_proj_weight",), COPY),
    Rule("blocks.{i}.attn.qkv.bias", (LAYER + "self_attention.in_proj_bias",), COPY),
    *copies(
        [
            ("patch_embed.proj", "conv_proj"),
            ("blocks.{i}.norm1", LAYER + "ln_1"),
            ("blocks.{i}.attn.proj", LAYER + "self_attention.out_proj"),
            ("blocks.{i}.norm2", LAYER + "ln_2"),
            ("blocks.{i}.mlp.fc1", LAYER + "mlp.0"),
            ("blocks.{i}.mlp.fc2", LAYER + "mlp.3"),
            ("norm", "encoder.ln"),
            ("pre_logits.fc", "heads.pre_logits"),
            ("head", "heads.head"),
        ]
    ),
]


def matches(names: Collection[str]) -> bool:
    return "conv_proj.weight" in names


def read(theirs: Tensors, extra: Document | None = None) -> Reading:
    """Return the tensors under our names, with torchvision's numerics and ImageNet's mean and standard deviation."""
    plain = {name.replace(".linear_1.", ".0.").replace(".linear_2.", ".3."): t for name, t in theirs.items()}
    ours, unused = to_ours(RULES, plain)
    settings: Settings = {
        "gelu": "erf",
        "norm_epsilon": 1e-6,
        "resample": "bicubic",
        "prefix_positions": True,
    }
    mean, std = IMAGENET_MEAN_STD
    preprocessing: Settings = {"crop_fraction": 0.875, "interpolation": "bilinear", "mean": mean, "std": std}
    return Reading(ours, unused, settings, preprocessing)


def write(config: ModelConfig, ours: Tensors) -> Tensors:
    """Return the tensors under torchvision's names."""
    return to_theirs(RULES, ours, config, LAYOUT)


def unsupported(config: ModelConfig) -> str | None:
    """Return the reason why torchvision doesn't have this model, or None."""
    if not isinstance(config, ViTConfig) or isinstance(config, HybridConfig):
        return "it has plain ViTs only"
    if reason := beyond_first_vit(config):
        return reason
    if config.size[0] != config.size[1] or config.size[0] % config.patch:
        return "its images are square, with a whole number of patches"
    if config.channels != 3:
        return "its images have three channels"
    if not config.num_classes:
        return "its ViT always has a head"
    return None


def numerics(config: ModelConfig) -> dict[str, Numeric]:
    """Return the numerics that are fixed in torchvision's code, whatever the config says."""
    return {"gelu": "erf", "norm_epsilon": 1e-6}
