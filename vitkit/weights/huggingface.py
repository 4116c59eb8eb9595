"""transformers' ViT and BiT: names on disk, version 5's names in memory, and the folder's JSON files."""

from __future__ import annotations

import re
from collections.abc import Collection

from vitkit.errors import InputError
from vitkit.models.configs import HybridConfig, ModelConfig, Preprocessing, ResNetConfig, ViTConfig
from vitkit.weights import timm
from vitkit.weights.files import Document, Numeric, Reading, Settings, Tensors
from vitkit.weights.rules import COPY, POINTWISE, Rule, beyond_first_vit, copies, stacked, to_ours, to_theirs

LAYOUT = "transformers' layout"
MULTI_LABEL = "multi_label_classification"
LAYER = "vit.encoder.layer.{i}."
VIT_RULES = [
    Rule("cls_token", ("vit.embeddings.cls_token",), COPY),
    Rule("pos_embed", ("vit.embeddings.position_embeddings",), COPY),
    *copies([("patch_embed.proj", "vit.embeddings.patch_embeddings.projection")]),
    *[
        Rule(
            f"blocks.{{i}}.attn.qkv.{kind}",
            tuple(f"{LAYER}attention.attention.{part}.{kind}" for part in ("query", "key", "value")),
            stacked(3),
        )
        for kind in ("weight", "bias")
    ],
    *copies(
        [
            ("blocks.{i}.norm1", LAYER + "layernorm_before"),
            ("blocks.{i}.attn.proj", LAYER + "attention.output.dense"),
            ("blocks.{i}.norm2", LAYER + "layernorm_after"),
            ("blocks.{i}.mlp.fc1", LAYER + "intermediate.dense"),
            ("blocks.{i}.mlp.fc2", LAYER + "output.dense"),
            ("norm", "vit.layernorm"),
            ("pre_logits.fc", "vit.pooler.dense"),
            ("head", "classifier"),
        ]
    ),
]
# Version 5's names in memory, each with its name on disk.
MEMORY_NAMES = [
    (r"vit\.layers\.(\d+)\.attention\.([qkv])_proj\.", r"vit.encoder.layer.\1.attention.attention.\2."),
    (r"vit\.layers\.(\d+)\.attention\.o_proj\.", r"vit.encoder.layer.\1.attention.output.dense."),
    (r"vit\.layers\.(\d+)\.mlp\.fc1\.", r"vit.encoder.layer.\1.intermediate.dense."),
    (r"vit\.layers\.(\d+)\.mlp\.fc2\.", r"vit.encoder.layer.\1.output.dense."),
    (r"vit\.layers\.(\d+)\.", r"vit.encoder.layer.\1."),
    (r"attention\.attention\.q\.", "attention.attention.query."),
    (r"attention\.attention\.k\.", "attention.attention.key."),
    (r"attention\.attention\.v\.", "attention.attention.value."),
]
BIT_UNIT = "bit.encoder.stages.{s}.layers.{u}."
BIT_RULES = [
    Rule("stem.conv.weight", ("bit.embedder.convolution.weight",), COPY),
    *[
        Rule(f"stages.{{s}}.blocks.{{u}}.{part}.weight", (f"{BIT_UNIT}{part}.weight",), COPY)
        for part in ("conv1", "conv2", "conv3", "downsample.conv")
    ],
    *copies([(f"stages.{{s}}.blocks.{{u}}.norm{n}", f"{BIT_UNIT}norm{n}") for n in "123"]),
    *copies([("norm", "bit.norm")]),
    Rule("head.fc.weight", ("classifier.1.weight",), POINTWISE),
    Rule("head.fc.bias", ("classifier.1.bias",), COPY),
]
GELUS = {"gelu": "erf", "gelu_pytorch_tanh": "tanh", "gelu_new": "tanh"}
RESAMPLES = {2: "bilinear", 3: "bicubic"}
# Settings that change transformers' BiT but not its tensors.
BIT_SETTINGS = {
    "layer_type": "preactivation",
    "hidden_act": "relu",
    "global_padding": None,
    "num_groups": 32,
    "embedding_dynamic_padding": False,
    "output_stride": 32,
}


def matches(names: Collection[str]) -> bool:
    marks = ("embeddings.patch_embeddings.projection.weight", "embedder.convolution.weight")
    return any(name.endswith(marks) for name in names)


def read(theirs: Tensors, extra: Document | None = None) -> Reading:
    """Return the tensors under our names, with what the folder's config says about the model."""
    extra = extra or {}
    bit = any(name.endswith("embedder.convolution.weight") for name in theirs)
    family = "bit" if bit else "vit"
    plain = {_disk_name(name, family): tensor for name, tensor in theirs.items()}
    ours, unused = to_ours(BIT_RULES if bit else VIT_RULES, plain)
    settings: Settings = {}
    if bit:
        for name, value in BIT_SETTINGS.items():
            if (found := extra.get(name, value)) != value:
                raise InputError(f"transformers' BiT with {name} {found!r} is not supported, only {value!r}")
        settings |= timm.RESNET_NUMERICS
    else:
        act = extra.get("hidden_act", "gelu")
        if act not in GELUS:
            raise InputError(
                f"transformers' activation {act!r} is not supported; expected one of {', '.join(GELUS)}"
            )
        pooler = extra.get("pooler_act", "tanh")
        if "pre_logits.fc.weight" in ours and pooler != "tanh":
            raise InputError(f"transformers' ViT with pooler_act {pooler!r} is not supported, only 'tanh'")
        settings |= {
            "gelu": GELUS[act],
            "norm_epsilon": extra.get("layer_norm_eps", 1e-12),
            "resample": "bicubic_plain",
            "prefix_positions": True,
        }
        if "num_attention_heads" in extra:
            settings["heads"] = extra["num_attention_heads"]
        if "image_size" in extra:
            settings["image_size"] = extra["image_size"]
    reading = Reading(ours, unused, settings, {"crop_fraction": None, "interpolation": "bilinear"})
    labels = extra.get("id2label")
    if isinstance(labels, dict) and set(labels) == {str(index) for index in range(len(labels))}:
        names = tuple(str(labels[str(index)]) for index in range(len(labels)))
        if names != tuple(f"LABEL_{index}" for index in range(len(names))):
            reading.class_names = names
    reading.multi_label = extra.get("problem_type") == MULTI_LABEL
    if "preprocessor" in extra:
        reading.preprocessing |= _read_preprocessor(extra["preprocessor"])
        if bit and (size := _input_size(extra["preprocessor"])):
            settings["image_size"] = size
    return reading


def write(config: ModelConfig, ours: Tensors) -> Tensors:
    """Return the tensors under transformers' names on disk."""
    return to_theirs(BIT_RULES if isinstance(config, ResNetConfig) else VIT_RULES, ours, config, LAYOUT)


def unsupported(config: ModelConfig) -> str | None:
    """Return the reason why transformers' native models can't store this one, or None."""
    if isinstance(config, (HybridConfig, ResNetConfig)) and config.stem != "7x7":
        return f"its ResNets have no {config.stem} stem"
    if isinstance(config, ResNetConfig):
        return None
    if not isinstance(config, ViTConfig) or isinstance(config, HybridConfig):
        return "it has native ViTs and BiT ResNets only"
    if reason := beyond_first_vit(config):
        return reason
    if config.pre_logits and config.num_classes:
        return "its ViT classifier has no tanh layer before the head"
    return None


def numerics(config: ModelConfig) -> dict[str, Numeric]:
    """Return the numerics that are fixed in transformers' code, whatever the config says."""
    if isinstance(config, ResNetConfig):
        return dict(timm.RESNET_NUMERICS)
    return {}


def config_json(
    config: ModelConfig, class_names: tuple[str, ...] | None, multi_label: bool
) -> dict[str, object]:
    """Return the config.json of a native folder."""
    names = class_names or tuple(f"LABEL_{index}" for index in range(config.num_classes))
    labels = {
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
        **({"problem_type": MULTI_LABEL} if multi_label else {}),
    }
    if isinstance(config, ResNetConfig):
        width = 64 * config.width_factor
        return {
            "model_type": "bit",
            "architectures": ["BitForImageClassification" if config.num_classes else "BitModel"],
            "num_channels": config.channels,
            "embedding_size": width,
            "hidden_sizes": [4 * width * 2**stage for stage in range(len(config.units))],
            "depths": list(config.units),
            "layer_type": "preactivation",
            "hidden_act": "relu",
            "num_groups": 32,
            "width_factor": 1,
            **labels,
        }
    assert isinstance(config, ViTConfig)
    height, width = config.size
    return {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification" if config.num_classes else "ViTModel"],
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp_width,
        "hidden_act": "gelu_pytorch_tanh" if config.gelu == "tanh" else "gelu",
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "layer_norm_eps": config.norm_epsilon,
        "image_size": height if height == width else [height, width],
        "patch_size": config.patch,
        "num_channels": config.channels,
        "qkv_bias": True,
        **({"pooler_output_size": config.pre_logits} if config.pre_logits else {}),
        **labels,
    }


def preprocessor_json(preprocessing: Preprocessing) -> dict[str, object]:
    """Return the preprocessor_config.json of a native folder."""
    height, width = preprocessing.size
    values = {
        "do_resize": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
        "resample": {name: code for code, name in RESAMPLES.items()}[preprocessing.interpolation],
    }
    if preprocessing.crop_fraction is None:
        return {
            "image_processor_type": "ViTImageProcessor",
            "size": {"height": height, "width": width},
            **values,
        }
    if height != width:
        raise InputError("transformers' image processors crop squares only; write another format")
    return {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": int(height / preprocessing.crop_fraction)},
        "do_center_crop": True,
        "crop_size": {"height": height, "width": width},
        **values,
    }


def _disk_name(name: str, family: str) -> str:
    if not name.startswith((f"{family}.", "classifier.")):
        name = f"{family}.{name}"
    for pattern, disk in MEMORY_NAMES:
        name = re.sub(pattern, disk, name)
    return name


def _read_preprocessor(values: Document) -> Settings:
    if values.get("do_normalize", True):
        found = {"mean": values.get("image_mean"), "std": values.get("image_std")}
    else:
        channels = len(values.get("image_mean") or (0, 0, 0))
        found = {"mean": [0.0] * channels, "std": [1.0] * channels}
    result: Settings = {name: value for name, value in found.items() if value is not None}
    code = values.get("resample", 2)
    if code not in RESAMPLES:
        raise InputError(
            f"the image processor's resample {code!r} is not supported; expected 2 (bilinear) or 3 (bicubic)"
        )
    result["interpolation"] = RESAMPLES[code]
    size, crop = values.get("size"), values.get("crop_size")
    shortest = size.get("shortest_edge") if isinstance(size, dict) else None
    if shortest and values.get("do_center_crop", True) and crop:
        edge = crop["height"] if isinstance(crop, dict) else crop
        result["crop_fraction"] = _fraction(edge, shortest)
    return result


def _input_size(values: Document) -> list[int] | None:
    """Return the output size of an image processor, the only place where transformers' BiT states its input size."""
    for size in (values.get("crop_size"), values.get("size")):
        if isinstance(size, dict) and {"height", "width"} <= size.keys():
            return [size["height"], size["width"]]
    return None


def _fraction(crop: int, resized: int) -> float:
    """Return a crop fraction with int(crop / fraction) == resized."""
    fraction = crop / resized
    return fraction if int(crop / fraction) == resized else crop / (resized + 0.5)
