"""timm's layout and config.json. Our names are timm's (for Compact Transformers, their authors')."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from vitkit.errors import InputError
from vitkit.models.configs import HybridConfig, ModelConfig, Preprocessing, ResNetConfig, ViTConfig
from vitkit.models.names import find_name, model_config, other_name
from vitkit.weights.files import Document, Numeric, Reading, Settings, Tensors

LAYOUT = "timm's layout"
# The numerics of timm's and transformers' ResNets, whichever code wrote the weights.
RESNET_NUMERICS: dict[str, Numeric] = {
    "standardization": "variance",
    "standardization_epsilon": 1e-8,
    "group_norm_epsilon": 1e-5,
}
# Names that timm registers, without the image size; other ViT shapes are vit_base_patch16_224 with arguments.
VITS = frozenset(
    "vit_tiny_patch16 vit_small_patch32 vit_small_patch16 vit_small_patch8 vit_base_patch32 vit_base_patch16 "
    "vit_base_patch8 vit_large_patch32 vit_large_patch16 vit_large_patch14 vit_huge_patch14 vit_giant_patch14 "
    "vit_gigantic_patch14".split()
)
HYBRIDS = frozenset(
    "vit_tiny_r_s16_p8_224 vit_small_r26_s32_224 vit_base_r26_s32_224 vit_base_r50_s16_224 "
    "vit_large_r50_s32_224".split()
)
RESNETS = frozenset(
    "resnetv2_50x1_bit resnetv2_50x3_bit resnetv2_101x1_bit resnetv2_101x3_bit resnetv2_152x2_bit "
    "resnetv2_152x4_bit".split()
)
# Arguments of timm's models that are implied by tensor shapes, read here, or used only in training.
MODEL_ARGS = frozenset(
    "img_size patch_size in_chans num_classes embed_dim depth num_heads mlp_ratio class_token reg_tokens init_values "
    "global_pool fc_norm no_embed_class pos_embed act_layer drop_rate pos_drop_rate patch_drop_rate proj_drop_rate "
    "attn_drop_rate drop_path_rate weight_init".split()
)
POOLS = {"token": "token", "mean": "avg", "map": "map", "none": ""}
POOLS_BACK = {theirs: ours for ours, theirs in POOLS.items()}
# In timm's code but not in config.json: architectures with the tanh GELU, and with another number of heads.
TANH = (
    "vit_base_patch32_siglip",
    "vit_giantopt_patch16_siglip",
    "vit_large_patch16_siglip_512",
    "vit_large_patch16_siglip_gap_512",
    "vit_so400m_patch16_siglip",
)
HEADS = {"vit_base_patch16_gap_224": 16}


def matches(names: Collection[str]) -> bool:
    return any(
        name in names
        for name in ("patch_embed.proj.weight", "stem.conv.weight", "tokenizer.conv_layers.0.0.weight")
    )


def read(theirs: Tensors, extra: Document | None = None) -> Reading:
    """Return the tensors unchanged, with what timm's config says about the model."""
    if "tokenizer.conv_layers.0.0.weight" in theirs:
        return Reading(theirs)
    settings: Settings = {}
    if "patch_embed.proj.weight" in theirs:
        settings |= {"gelu": "erf", "norm_epsilon": 1e-6, "resample": "bicubic"}
    if any(
        name.endswith("stem.conv.weight") or name == "patch_embed.backbone.conv.weight" for name in theirs
    ):
        settings |= RESNET_NUMERICS
    reading = Reading(theirs, settings=settings)
    if extra is not None:
        _read_config(reading, extra)
    return reading


def _read_config(reading: Reading, config: Document) -> None:
    settings, args = reading.settings, config.get("model_args") or {}
    if unknown := sorted(set(args) - MODEL_ARGS):
        raise InputError(f"timm's model argument {unknown[0]!r} is not supported")
    architecture = str(config.get("architecture"))
    if "patch_embed.proj.weight" in reading.tensors:
        with suppress(InputError, AttributeError):  # an architecture of timm that we have no name for
            settings["heads"] = model_config(architecture).heads  # type: ignore[attr-defined]
        if architecture in HEADS:
            settings["heads"] = HEADS[architecture]
        if "num_heads" in args:
            settings["heads"] = args["num_heads"]
        pool = args.get("global_pool", config.get("global_pool", "token"))
        if pool not in POOLS_BACK:
            raise InputError(
                f"timm's pool {pool!r} is not supported; expected one of {', '.join(map(repr, POOLS_BACK))}"
            )
        settings["pool"] = POOLS_BACK[pool]
        if "no_embed_class" in args:
            settings["prefix_positions"] = not args["no_embed_class"]
        if args.get("pos_embed") in ("none", ""):
            settings["positions"] = "none"
        act = args.get("act_layer", "gelu_tanh" if architecture.startswith(TANH) else "gelu")
        if act not in ("gelu", "gelu_tanh"):
            raise InputError(f"timm's activation {act!r} is not supported; expected gelu or gelu_tanh")
        settings["gelu"] = "tanh" if act == "gelu_tanh" else "erf"
    states = config.get("pretrained_cfg") or {}
    if size := args.get("img_size") or (states.get("input_size") or [])[1:]:
        settings["image_size"] = size
    fields = {"mean": "mean", "std": "std", "interpolation": "interpolation", "crop_pct": "crop_fraction"}
    for theirs, ours in fields.items():
        if states.get(theirs) is not None:
            reading.preprocessing[ours] = states[theirs]
    if states.get("crop_mode") == "squash":
        reading.preprocessing["crop_fraction"] = None
    if names := config.get("label_names"):
        reading.class_names = tuple(map(str, names))


def write(config: ModelConfig, ours: Tensors) -> Tensors:
    """Return the tensors unchanged."""
    return ours


def unsupported(config: ModelConfig) -> str | None:
    """Return the reason why timm doesn't have this model, or None."""
    if isinstance(config, (HybridConfig, ResNetConfig)) and config.stem != "7x7":
        return f"its ResNets have no {config.stem} stem"
    if isinstance(config, (HybridConfig, ResNetConfig)) and _registered(config) is None:
        return "it doesn't list this size"
    if isinstance(config, ResNetConfig):
        return None
    if not isinstance(config, ViTConfig):
        return "it has no Compact Transformers"
    if config.attention != "full":
        return f"its ViT has no attention {config.attention!r}"
    if config.positions not in ("none", "learned") or config.positions_at != "stem":
        return f"its ViT has no positions {config.positions!r} at {config.positions_at!r}"
    if config.pool not in POOLS:
        return f"its ViT has no pool {config.pool!r}"
    if config.pre_logits:
        return "its ViT has no tanh layer before the head"
    return None


def numerics(config: ModelConfig) -> dict[str, Numeric]:
    """Return the numerics that are fixed in timm's code, whatever the config says."""
    found: dict[str, Numeric] = {}
    if isinstance(config, ViTConfig):
        found["norm_epsilon"] = 1e-6
    if isinstance(config, (HybridConfig, ResNetConfig)):
        found |= RESNET_NUMERICS
    return found


def config_json(config: ModelConfig, preprocessing: Preprocessing) -> dict[str, object]:
    """Return the config.json entries from which timm and transformers rebuild the model."""
    args: Settings = {}
    if isinstance(config, ViTConfig):
        args = _vit_args(config)
        if config.size[0] == config.size[1]:
            args["img_size"] = config.size[0]
        else:
            args["img_size"] = list(config.size)
    if config.channels != 3:
        args["in_chans"] = config.channels
    pretrained = {
        "input_size": [config.channels, *preprocessing.size],
        "fixed_input_size": isinstance(config, ViTConfig),
        "interpolation": preprocessing.interpolation,
        "crop_pct": preprocessing.crop_fraction or 1.0,
        "crop_mode": "squash" if preprocessing.crop_fraction is None else "center",
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "num_classes": config.num_classes,
        "pool_size": None,
        "first_conv": None,
        "classifier": "head.fc" if isinstance(config, ResNetConfig) else "head",
    }
    return {
        "architecture": _registered(config) or "vit_base_patch16_224",
        "num_classes": config.num_classes,
        "num_features": config.num_features,  # type: ignore[attr-defined]
        "global_pool": args.get("global_pool", "avg" if isinstance(config, ResNetConfig) else "token"),
        "model_args": args,
        "pretrained_cfg": pretrained,
    }


def _registered(config: ModelConfig) -> str | None:
    name = find_name(config)
    alias = other_name(name) if name else None
    if alias is None or (isinstance(config, HybridConfig) and config.backbone_width != 64):
        return None
    if isinstance(config, ResNetConfig):
        return alias if alias in RESNETS else None
    if isinstance(config, HybridConfig):
        return alias if alias in HYBRIDS else None
    return alias if alias.removesuffix("_224") in VITS else None


def _vit_args(config: ViTConfig) -> Settings:
    """Return the arguments of timm's VisionTransformer that differ from the registered model's."""
    args: Settings = {}
    if _registered(config) is None:
        args |= {
            "patch_size": config.patch,
            "embed_dim": config.width,
            "depth": config.depth,
            "num_heads": config.heads,
            "mlp_ratio": _ratio(config.width, config.mlp_width),
        }
    if config.pool != "token":
        args["global_pool"] = POOLS[config.pool]
    if not config.class_token:
        args["class_token"] = False
    if config.pool in ("mean", "token") and (config.final_norm == "pooled") != (config.pool == "mean"):
        args["fc_norm"] = config.final_norm == "pooled"
    if config.num_prefix and not config.prefix_positions:
        args["no_embed_class"] = True
    if config.registers:
        args["reg_tokens"] = config.registers
    if config.positions == "none":
        args["pos_embed"] = "none"
    if config.layer_scale is not None:
        args["init_values"] = config.layer_scale
    if config.gelu == "tanh":
        args["act_layer"] = "gelu_tanh"
    return args


def _ratio(width: int, mlp_width: int) -> float:
    """Return a ratio with int(width * ratio) == mlp_width, which a rounded quotient may miss by one."""
    ratio = mlp_width / width
    return ratio if int(width * ratio) == mlp_width else (mlp_width + 0.5) / width
