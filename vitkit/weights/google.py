"""Google's .npz files: vit_jax in its old and Linen names, big_vision (also scanned, MAP head), hybrids, BiT."""

from __future__ import annotations

import re
from collections.abc import Collection

from vitkit.errors import InputError
from vitkit.models.configs import HybridConfig, ModelConfig, ResNetConfig, ViTConfig
from vitkit.weights.files import MAX_TENSORS, Document, Numeric, Reading, Settings, Tensors
from vitkit.weights.rules import (
    CONV,
    COPY,
    DENSE,
    OUT,
    VECTOR,
    Rule,
    split_head_biases,
    split_heads,
    to_ours,
    to_theirs,
)

LAYOUT = "Google's .npz"
# The official code resizes the whole image to the input's size.
GOOGLE_PREPROCESSING: Settings = {
    "crop_fraction": None,
    "interpolation": "bilinear",
    "mean": (0.5,) * 3,
    "std": (0.5,) * 3,
}
PREFIXES = ("opt/target/", "params/img/", "params/")
BLOCK = "Transformer/encoderblock_{i}/"
# vit_jax's first files number a block's modules in call order; Linen numbers each kind from zero.
OLD_TO_LINEN = {
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
    "LayerNorm_2": "LayerNorm_1",
    "MlpBlock_3": "MlpBlock_0",
}
LINEN_TO_OLD = {linen: old for old, linen in OLD_TO_LINEN.items()}
MAX_SCANNED = 1000


def _norm(ours: str, theirs: str) -> list[Rule]:
    return [
        Rule(f"{ours}.weight", (f"{theirs}/scale",), VECTOR),
        Rule(f"{ours}.bias", (f"{theirs}/bias",), VECTOR),
    ]


def _dense(ours: str, theirs: str) -> list[Rule]:
    return [
        Rule(f"{ours}.weight", (f"{theirs}/kernel",), DENSE),
        Rule(f"{ours}.bias", (f"{theirs}/bias",), COPY),
    ]


def _attention(ours: str, theirs: str, parts: tuple[str, ...]) -> list[Rule]:
    return [
        Rule(f"{ours}.weight", tuple(f"{theirs}/{p}/kernel" for p in parts), split_heads(len(parts))),
        Rule(f"{ours}.bias", tuple(f"{theirs}/{p}/bias" for p in parts), split_head_biases(len(parts))),
    ]


def _attention_out(ours: str, theirs: str) -> list[Rule]:
    return [
        Rule(f"{ours}.weight", (f"{theirs}/out/kernel",), OUT),
        Rule(f"{ours}.bias", (f"{theirs}/out/bias",), COPY),
    ]


def _unit(ours: str, theirs: str) -> list[Rule]:
    """A hybrid's residual unit."""
    rules = []
    for n in "123":
        rules += [Rule(f"{ours}.conv{n}.weight", (f"{theirs}/conv{n}/kernel",), CONV)]
        rules += _norm(f"{ours}.norm{n}", f"{theirs}/gn{n}")
    rules += [Rule(f"{ours}.downsample.conv.weight", (f"{theirs}/conv_proj/kernel",), CONV)]
    return rules + _norm(f"{ours}.downsample.norm", f"{theirs}/gn_proj")


VIT_RULES = [
    Rule("cls_token", ("cls",), COPY),
    Rule("patch_embed.proj.weight", ("embedding/kernel",), CONV),
    Rule("patch_embed.proj.bias", ("embedding/bias",), COPY),
    *_norm("blocks.{i}.norm1", BLOCK + "LayerNorm_0"),
    *_attention("blocks.{i}.attn.qkv", BLOCK + "MultiHeadDotProductAttention_0", ("query", "key", "value")),
    *_attention_out("blocks.{i}.attn.proj", BLOCK + "MultiHeadDotProductAttention_0"),
    *_norm("blocks.{i}.norm2", BLOCK + "LayerNorm_1"),
    *_dense("blocks.{i}.mlp.fc1", BLOCK + "MlpBlock_0/Dense_0"),
    *_dense("blocks.{i}.mlp.fc2", BLOCK + "MlpBlock_0/Dense_1"),
    *_norm("norm", "Transformer/encoder_norm"),
    Rule("attn_pool.latent", ("MAPHead_0/probe",), COPY),
    *_attention("attn_pool.q", "MAPHead_0/MultiHeadDotProductAttention_0", ("query",)),
    *_attention("attn_pool.kv", "MAPHead_0/MultiHeadDotProductAttention_0", ("key", "value")),
    *_attention_out("attn_pool.proj", "MAPHead_0/MultiHeadDotProductAttention_0"),
    *_norm("attn_pool.norm", "MAPHead_0/LayerNorm_0"),
    *_dense("attn_pool.mlp.fc1", "MAPHead_0/MlpBlock_0/Dense_0"),
    *_dense("attn_pool.mlp.fc2", "MAPHead_0/MlpBlock_0/Dense_1"),
    *_dense("pre_logits.fc", "pre_logits"),
    *_dense("head", "head"),
]
VIT_JAX_POSITIONS = Rule("pos_embed", ("Transformer/posembed_input/pos_embedding",), COPY)
BIG_VISION_POSITIONS = Rule("pos_embed", ("pos_embedding",), COPY)


def _stem_rules(stem: str) -> list[Rule]:
    return [Rule(f"{stem}.conv.weight", ("conv_root/kernel",), CONV), *_norm(f"{stem}.norm", "gn_root")]


STAGE_RULES = [
    *_stem_rules("patch_embed.backbone.stem"),
    *_unit("patch_embed.backbone.stages.{s}.blocks.{u}", "block{s+1}/unit{u+1}"),
]


def _bit_part(ours: str, theirs: str) -> list[Rule]:
    return [
        Rule(f"{ours}.weight", (f"{theirs}/group_norm/gamma",), VECTOR),
        Rule(f"{ours}.bias", (f"{theirs}/group_norm/beta",), VECTOR),
    ]


_OUR_UNIT, _BIT_UNIT = "stages.{s}.blocks.{u}.", "resnet/block{s+1}/unit{u+1:02}/"
BIT_RULES = [
    Rule("stem.conv.weight", ("resnet/root_block/standardized_conv2d/kernel",), CONV),
    *[
        rule
        for number, letter in zip("123", "abc", strict=True)
        for rule in (
            *_bit_part(f"{_OUR_UNIT}norm{number}", f"{_BIT_UNIT}{letter}"),
            Rule(
                f"{_OUR_UNIT}conv{number}.weight", (f"{_BIT_UNIT}{letter}/standardized_conv2d/kernel",), CONV
            ),
        )
    ],
    Rule(f"{_OUR_UNIT}downsample.conv.weight", (f"{_BIT_UNIT}a/proj/standardized_conv2d/kernel",), CONV),
    *_bit_part("norm", "resnet"),
    Rule("head.fc.weight", ("resnet/head/conv2d/kernel",), CONV),
    Rule("head.fc.bias", ("resnet/head/conv2d/bias",), COPY),
]


def matches(names: Collection[str]) -> bool:
    return any(name.endswith(("embedding/kernel", "standardized_conv2d/kernel")) for name in names) or any(
        re.search(r"standardized_conv2d_\d+/kernel$", name) for name in names
    )


def read(theirs: Tensors, extra: Document | None = None) -> Reading:
    """Return the tensors under our names, with what the layout says about the model."""
    if any(name.startswith("resnet/") for name in theirs):
        plain = {re.sub(r"((?:standardized_)?conv2d|group_norm)_\d+", r"\1", n): t for n, t in theirs.items()}
        ours, unused = to_ours(BIT_RULES, plain)
        numerics: Settings = {
            "standardization": "variance",
            "standardization_epsilon": 1e-10,
            "group_norm_epsilon": 1e-5,
        }
        return Reading(ours, unused, numerics, GOOGLE_PREPROCESSING)
    plain = _linen_names(theirs)
    settings: Settings = {"gelu": "tanh", "norm_epsilon": 1e-6, "resample": "bilinear_corners"}
    rules = list(VIT_RULES)
    if any(name.startswith("block1/") for name in plain):
        rules += STAGE_RULES
    elif "conv_root/kernel" in plain:
        rules += _stem_rules("patch_embed.backbone")
    if "conv_root/kernel" in plain:
        settings |= {"standardization": "std", "standardization_epsilon": 1e-5, "group_norm_epsilon": 1e-6}
    big_vision = VIT_JAX_POSITIONS.theirs[0] not in plain
    rules.append(BIG_VISION_POSITIONS if big_vision else VIT_JAX_POSITIONS)
    ours, unused = to_ours(rules, plain)
    settings["prefix_positions"] = not big_vision
    vit_jax = "conv_root/kernel" in plain or any("MultiHeadDotProductAttention_1/" in name for name in theirs)
    if "pos_embed" not in ours and not vit_jax:  # only big_vision has a fixed table, which it doesn't store
        settings["positions"] = "sincos_2d"
    query = next((t for n, t in plain.items() if n.endswith("encoderblock_0/" + _QUERY)), None)
    if query is not None and query.ndim == 3:
        settings["heads"] = query.shape[1]
    return Reading(ours, unused, settings, GOOGLE_PREPROCESSING)


_QUERY = "MultiHeadDotProductAttention_0/query/kernel"


def write(config: ModelConfig, ours: Tensors) -> Tensors:
    """Return the tensors under Google's names: vit_jax's old ones, or big_vision's for models that only it has."""
    if isinstance(config, ResNetConfig):
        return to_theirs(BIT_RULES, ours, config, LAYOUT)
    assert isinstance(config, ViTConfig)
    big_vision = _is_big_vision(config)
    rules = [*VIT_RULES, BIG_VISION_POSITIONS if big_vision else VIT_JAX_POSITIONS]
    if isinstance(config, HybridConfig):
        rules += STAGE_RULES if config.backbone_units else _stem_rules("patch_embed.backbone")
    theirs = to_theirs(rules, ours, config, LAYOUT)
    if big_vision:
        return {f"params/{name}": tensor for name, tensor in theirs.items()}
    return {_rename_block(name, LINEN_TO_OLD): tensor for name, tensor in theirs.items()}


def unsupported(config: ModelConfig) -> str | None:
    """Return the reason why Google's files can't store this model, or None."""
    if isinstance(config, (HybridConfig, ResNetConfig)) and config.stem != "7x7":
        return f"its ResNets have no {config.stem} stem"
    if isinstance(config, ResNetConfig):
        return None
    if not isinstance(config, ViTConfig):
        return "it has no Compact Transformers"
    if config.attention != "full":
        return f"its ViT has no attention {config.attention!r}"
    if config.positions not in ("learned", "sincos_2d") or config.positions_at != "stem":
        return f"its ViT has no positions {config.positions!r} at {config.positions_at!r}"
    if isinstance(config, HybridConfig) and _is_big_vision(config):
        return "its hybrids have learned positions with a row for the class token, and no MAP head"
    if config.pool not in ("token", "mean", "map") or config.class_token is not (config.pool == "token"):
        return f"its ViT has a class token only for pool 'token', and no pool {config.pool!r} like this one"
    if config.registers or config.layer_scale is not None or config.final_norm != "tokens":
        return "its ViT has no registers and no LayerScale, and its last norm comes before the pool"
    return None


def numerics(config: ModelConfig) -> dict[str, Numeric]:
    """Return nothing: the JSON next to our .npz files states their numerics."""
    return {}


def _is_big_vision(config: ViTConfig) -> bool:
    bare_prefix = config.num_prefix > 0 and not config.prefix_positions
    return config.positions == "sincos_2d" or config.pool == "map" or bare_prefix


def _linen_names(theirs: Tensors) -> Tensors:
    """Return the tensors without prefix, with scanned blocks split, under Linen's names."""
    prefix = next((p for p in PREFIXES if f"{p}embedding/kernel" in theirs), "")
    plain: Tensors = {}
    for name, tensor in theirs.items():
        name = name.removeprefix(prefix)
        if name.startswith("Transformer/encoderblock/"):
            if len(tensor) > MAX_SCANNED:
                raise InputError(f"{name} has {len(tensor)} layers; the limit is {MAX_SCANNED}")
            if len(plain) + len(tensor) > MAX_TENSORS:
                raise InputError(f"its scanned blocks hold more than {MAX_TENSORS:,} tensors")
            for layer, part in enumerate(tensor.unbind(0)):
                plain[name.replace("encoderblock", f"encoderblock_{layer}", 1)] = part
        else:
            plain[_rename_block(name, OLD_TO_LINEN)] = tensor
    if "probe" in plain:  # old big_vision files have the MAP head's parts at the top level
        tops = ("probe", "MlpBlock_0/", "MultiHeadDotProductAttention_0/", "LayerNorm_0/")
        plain = {f"MAPHead_0/{n}" if n.startswith(tops) else n: t for n, t in plain.items()}
    return plain


def _rename_block(name: str, table: dict[str, str]) -> str:
    start, *rest = name.split("/")
    if start == "Transformer" and len(rest) > 1 and rest[0].startswith("encoderblock_"):
        rest[1] = table.get(rest[1], rest[1])
    return "/".join([start, *rest])
