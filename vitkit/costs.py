"""The cost of a model: parameters, MACs, FLOPs and activation memory, computed exactly from its config.

A MAC is one multiply-add of a matrix product or convolution. An element-wise operation is one output element
of a bias, activation, norm, softmax, residual addition, scale or pooling. As in the published figures, adding
positions isn't counted. Both are counts for the forward pass of one image.

Activation memory is what autograd keeps per image for the backward pass, in eager PyTorch with fused attention and
without dropout: each additional image in a batch adds this much. It doesn't include the image itself, the loss, or
what is kept once per batch (weights, and what is computed only from weights). For attention 'reformer' it is an estimate.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from vitkit.config import Bounds, override
from vitkit.errors import InputError
from vitkit.models.configs import (
    AttentionKind,
    CompactConfig,
    HybridConfig,
    ModelConfig,
    OwnConfig,
    ResNetConfig,
    Size,
    TransformerConfig,
    ViTConfig,
)
from vitkit.models.names import find_name, model_config
from vitkit.models.pairs import Axis, attention_cost
from vitkit.results import Result

Sides = tuple[int, int]

GROUPS = 32  # of every GroupNorm
PRECISIONS = {"float32": 4, "bfloat16": 2}  # bytes per activation


@dataclass(frozen=True)
class Operation:
    """One layer's share of the cost, for one image."""

    part: str
    "The row of the report that it belongs to."
    parameters: int = 0
    macs: int = 0
    elementwise: int = 0
    saved: int = 0
    "Elements kept for the backward pass in the precision of the activations."
    saved_bytes: int = 0
    "Bytes kept regardless of the precision: norm statistics, log-sum-exp, max-pool indices."


@dataclass(frozen=True)
class Section:
    """A sequence of operations, repeated. With checkpointing it keeps only its input until its backward pass."""

    operations: tuple[Operation, ...]
    repeats: int = 1
    block_input: int | None = None
    "Elements of the input, if the section is a block that checkpointing can recompute."

    def saved_bytes(self, element_bytes: int) -> int:
        return sum(item.saved * element_bytes + item.saved_bytes for item in self.operations)


@dataclass(frozen=True)
class PartCost(Result):
    """One part's share of a model's cost."""

    parameters: int = 0
    macs: int = 0
    elementwise: int = 0

    def plus(self, item: Operation, repeats: int) -> PartCost:
        return PartCost(
            self.parameters + repeats * item.parameters,
            self.macs + repeats * item.macs,
            self.elementwise + repeats * item.elementwise,
        )


@dataclass(frozen=True)
class CostReport(Result):
    """The cost of a model per image."""

    model: str
    image_size: tuple[int, int]
    num_classes: int
    parameters: int
    tokens: int | None
    "Tokens in the encoder; a ResNet has none."
    macs: int
    "Multiply-adds of matrix products and convolutions."
    flops: int
    flops_with_elementwise: int
    parts: dict[str, PartCost]
    activation_bytes: dict[str, int]
    "By precision."
    activation_bytes_checkpointed: dict[str, int]
    images: int | None = None
    "Number of images to train on."
    exaflops: float | None = None
    "The cost of that training."

    _leads = ("model", "image_size", "num_classes", "parameters", "tokens", "macs", "flops", "exaflops")
    _tables = ("parts",)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values, without `images` and `exaflops` if they are not set."""
        asked = {"images", "exaflops"} if self.images is None else set()
        return {name: value for name, value in super().to_json().items() if name not in asked}


@dataclass(frozen=True)
class Cost:
    """The cost of one image's forward pass, and the memory that training keeps for it."""

    tokens: int | None
    "Tokens in the encoder; a ResNet has none."
    sections: tuple[Section, ...]

    @property
    def parameters(self) -> int:
        """Trainable parameters."""
        return sum(part.parameters for part in self.parts.values())

    @property
    def macs(self) -> int:
        """Multiply-adds of matrix products and convolutions."""
        return sum(part.macs for part in self.parts.values())

    @property
    def elementwise(self) -> int:
        """Element-wise operations."""
        return sum(part.elementwise for part in self.parts.values())

    @property
    def parts(self) -> dict[str, PartCost]:
        """Parameters, MACs and element-wise operations of each part."""
        parts: dict[str, PartCost] = {}
        for section in self.sections:
            for item in section.operations:
                parts[item.part] = parts.get(item.part, PartCost()).plus(item, section.repeats)
        return parts

    def activation_bytes(self, element_bytes: int, *, checkpointed: bool = False) -> int:
        """Return the bytes kept for the backward pass; with checkpointing, each block's input and all of the largest block."""
        total, largest = 0, 0
        for section in self.sections:
            saved = section.saved_bytes(element_bytes)
            if checkpointed and section.block_input is not None:
                block_input = section.block_input * element_bytes
                total += section.repeats * block_input
                largest = max(largest, saved - block_input)
            else:
                total += section.repeats * saved
        return total + largest


def cost(
    model: object,
    *,
    image_size: Size | None = None,
    num_classes: int | None = None,
    attention: AttentionKind | None = None,
    images: int | None = None,
) -> CostReport:
    """Return the cost of a model per image, and the exaFLOPs of training on a number of images.

    model: the name of a model, or what `create_model`, `load` or `wrap` returned.
    """
    Bounds(at_least=1).check("images", images)
    asked = {"image_size": image_size, "num_classes": num_classes, "attention": attention}
    given = {name: value for name, value in asked.items() if value is not None}
    if isinstance(model, str):
        if "@" in model or os.path.exists(model):
            raise InputError(
                f"vit cost takes the name of a model such as B/16, not weights or a path: {model!r}"
            )
        name, base = model, model_config(model)
    else:
        known = getattr(getattr(model, "model", model), "config", None)
        if not isinstance(known, ModelConfig):
            raise InputError(
                f"cost takes the name of a model such as B/16, or a model of vitkit, not {type(model).__name__}: pass "
                "vitkit.wrap(net, image_size=224)"
            )
        base, name = known, find_name(known) or type(getattr(model, "model", model)).__name__
    if attention is not None and not isinstance(base, ViTConfig):
        raise InputError(f"{name} has one kind of attention or none: --attention is for ViTs and hybrids")
    config = (
        model_config(model, **given) if isinstance(model, str) else override(base, given, f"model {name}")
    )
    found = cost_of(config)
    return CostReport(
        name,
        config.size,
        config.num_classes,
        found.parameters,
        found.tokens,
        found.macs,
        flops=2 * found.macs,
        flops_with_elementwise=2 * found.macs + found.elementwise,
        parts=found.parts,
        activation_bytes={name: found.activation_bytes(size) for name, size in PRECISIONS.items()},
        activation_bytes_checkpointed={
            name: found.activation_bytes(size, checkpointed=True) for name, size in PRECISIONS.items()
        },
        images=images,
        exaflops=None if images is None else training_exaflops(found.macs, images),
    )


def cost_of(config: ModelConfig) -> Cost:
    """Return the cost of the model that a config describes."""
    if isinstance(config, ViTConfig):
        return Cost(config.num_tokens, tuple(_vit(config)))
    if isinstance(config, CompactConfig):
        return Cost(config.num_tokens, tuple(_compact(config)))
    if isinstance(config, OwnConfig):
        return Cost(None, tuple(_own(config)))
    assert isinstance(config, ResNetConfig)
    return Cost(None, tuple(_resnet(config)))


def merged_macs(config: ModelConfig, merge: int) -> int:
    """Return the multiply-adds of one image if each layer merges this many patches (`Model.set_merge`)."""
    macs = cost_of(config).macs
    if not merge:
        return macs
    assert isinstance(config, TransformerConfig)
    width, full = config.width, config.num_tokens

    def layer(before: int, after: int) -> int:
        """One layer whose attention reads `before` tokens and whose MLP reads `after`."""
        return 4 * before * width**2 + 2 * before**2 * width + 2 * after * width * config.mlp_width

    tokens = full
    for _ in range(config.depth):
        patches = tokens - config.num_prefix
        after = tokens - min(merge, patches // 2)
        chosen = (patches // 2) * -(-patches // 2) * (width // config.heads) + after * tokens * width
        macs += layer(tokens, after) + chosen - layer(full, full)
        tokens = after
    return macs


def training_exaflops(macs: int, images: int) -> float:
    """Return the exaFLOPs of training on this many images: the forward pass, and the backward pass at twice its cost."""
    return 3 * 2 * macs * images / 1e18


def _vit(config: ViTConfig) -> Iterator[Section]:
    width, tokens, patches = config.width, config.num_tokens, config.num_patches
    channels = config.channels
    reads = patches * channels * config.patch**2  # the patches are a copy of the image
    if isinstance(config, HybridConfig):
        yield from _hybrid_backbone(config)
        channels = config.backbone_channels
        reads = channels * prod(config.cells)
    embedding = _linear("patch_embedding", patches, channels * config.patch**2, width, saved=reads)
    prefix = Operation("tokens", parameters=config.num_prefix * width)
    yield Section((embedding, prefix, Operation("positions", parameters=_position_parameters(config))))
    axes: tuple[Axis | None, ...] = ("rows", "columns") if config.attention == "axial" else (None,)
    layers = [
        operation
        for axis in axes
        for operation in _encoder_layer(
            tokens,
            width,
            config.mlp_width,
            tuple(_vit_attention(config, axis)),
            layer_scale=config.layer_scale is not None,
        )
    ]
    yield Section(tuple(layers), repeats=config.depth, block_input=tokens * width)
    yield Section(tuple(_vit_head(config)))


def _position_parameters(config: ViTConfig) -> int:
    layers = config.depth if config.positions_at == "every_layer" else 1
    if config.positions == "learned":
        rows = config.num_tokens if config.prefix_positions else config.num_patches
        return layers * rows * config.width
    if config.positions == "learned_2d":
        return layers * sum(config.grid) * (config.width // 2)
    return 0


def _vit_head(config: ViTConfig) -> Iterator[Operation]:
    width, tokens = config.width, config.num_tokens
    rows = tokens if config.pool == "none" else 1
    # The layer that reads the pooled features keeps them. The class token is a view, which keeps the whole sequence.
    kept = tokens * width if config.pool in ("token", "none") else width
    if config.final_norm == "tokens":
        yield _layer_norm(tokens, width)
    match config.pool:
        case "mean":
            yield Operation("pool", elementwise=width)
        case "map":
            yield from _map_pool(config.num_patches, width, config.heads, config.mlp_width)
        case "seqpool":
            yield from _sequence_pool(config.num_patches, width)
            if (
                config.num_prefix
            ):  # the patches are a view, which keeps the whole sequence in addition to a copy
                yield Operation("pool", saved=tokens * width)
    if config.final_norm == "pooled":
        yield _layer_norm(1, width, saved=kept)
        kept = width
    if config.pre_logits:
        yield _linear("pre_logits", rows, width, config.pre_logits, saved=kept)
        kept = rows * config.pre_logits  # the result of tanh, which its own backward pass needs too
        yield Operation("pre_logits", elementwise=kept, saved=0 if config.num_classes else kept)
    yield _head(rows, config, saved=kept)


def _compact(config: CompactConfig) -> Iterator[Section]:
    width, tokens = config.width, config.num_tokens
    yield Section(tuple(_tokenizer(config)))
    table = tokens * width if config.positions == "learned" else 0
    prefix = Operation("tokens", parameters=config.num_prefix * width)
    yield Section((prefix, Operation("positions", parameters=table)))
    attention = (
        _linear("qkv", tokens, width, 3 * width, bias=False),
        _attention("attention", tokens, tokens, width, config.heads, saved=3 * tokens * width),
    )
    layer = _encoder_layer(tokens, width, config.mlp_width, attention)
    yield Section(layer, repeats=config.depth, block_input=tokens * width)
    pooled = tuple(_sequence_pool(tokens, width)) if config.pool == "seqpool" else ()
    kept = width if pooled else tokens * width
    yield Section((_layer_norm(tokens, width), *pooled, _head(1, config, saved=kept)))


def _tokenizer(config: CompactConfig) -> Iterator[Operation]:
    part = "patch_embedding"
    if config.tokenizer == "patches":
        reads = config.channels * prod(config.size)  # a channels-last copy of the image
        yield _linear(part, prod(config.grid), config.channels * config.kernel**2, config.width, saved=reads)
        return
    channels, size, saved = config.channels, config.size, config.channels * prod(config.size)
    for index in range(config.convolutions):
        is_last = index == config.convolutions - 1
        out = config.width if is_last else 64
        rows, columns = (
            (side + 2 * config.conv_padding - config.kernel) // config.conv_stride + 1 for side in size
        )
        yield _conv(rows * columns, channels, out, config.kernel, part=part, saved=saved)
        size = _half((rows, columns))
        channels, saved = out, prod(size) * out
        yield _max_pool(saved, part=part, saved=rows * columns * out)
        # The ReLU comes after the pool, on fewer values. Except for the last, its output is the next convolution's input.
        yield Operation(part, elementwise=saved, saved=saved if is_last else 0)


def _hybrid_backbone(config: HybridConfig) -> Iterator[Section]:
    """The ResNet of a hybrid. SAME padding copies its input."""
    channels, size = config.backbone_width, config.size
    if config.stem == "3x3":
        root = _conv(prod(size), config.channels, channels, 3, saved=_padded(size, 3, 1) * config.channels)
        relu = Operation("backbone", elementwise=prod(size) * channels)  # whose output the next layer keeps
        yield Section((root, _group_norm(prod(size), channels), relu))
    else:
        halves = _half(size)
        root = _conv(prod(halves), config.channels, channels, 7, saved=_padded(size, 7, 2) * config.channels)
        size = _half(halves)
        pool = _max_pool(prod(size) * channels, saved=_padded(halves, 3, 2) * channels)
        yield Section((root, _group_norm(prod(halves), channels), _relu(prod(halves) * channels), pool))
    yield from _stages(config.backbone_units, channels, size, _unit_after)


def _resnet(config: ResNetConfig) -> Iterator[Section]:
    channels = 64 * config.width_factor
    if config.stem == "3x3":
        size = config.size
        yield Section((_conv(prod(size), config.channels, channels, 3),))
    else:
        rows, columns = _half(config.size)
        size = _half((rows, columns))
        root = _conv(rows * columns, config.channels, channels, 7)
        pool = _max_pool(prod(size) * channels, saved=(rows + 2) * (columns + 2) * channels)
        yield Section((root, pool))
    yield from _stages(config.units, channels, size, _unit_before)
    for _ in config.units[1:]:
        size = _half(size)
    cells, channels = prod(size), config.num_features
    mean = Operation("pool", elementwise=channels)
    yield Section(
        (_group_norm(cells, channels), _relu(cells * channels), mean, _head(1, config, saved=channels))
    )


def _own(config: OwnConfig) -> Iterator[Section]:
    """The user's own module, as measured; its activation memory is not known."""
    macs = round(config.macs_per_pixel * prod(config.size))
    operations = [Operation("module", config.parameters, macs)]
    if config.new_head and config.num_classes:
        operations.append(
            _linear("head", 1, config.num_features, config.num_classes, saved=config.num_features)
        )
    yield Section(tuple(operations))


def _stages(
    units: tuple[int, ...], channels: int, size: Sides, unit: Callable[[int, int, Sides, int], Section]
) -> Iterator[Section]:
    """The residual units: each stage doubles the channels, and all but the first halve the sides."""
    middle = channels
    for stage, count in enumerate(units):
        yield unit(channels, middle, size, 2 if stage else 1)
        channels, size = 4 * middle, _half(size) if stage else size
        if count > 1:
            yield replace(unit(channels, middle, size, 1), repeats=count - 1)
        middle *= 2


def _unit_after(channels: int, middle: int, size: Sides, stride: int) -> Section:
    """A hybrid's bottleneck, normalised after each convolution. The next layer keeps the output of its last ReLU."""
    before, after, out = prod(size), prod(_half(size) if stride == 2 else size), 4 * middle
    operations = [
        _conv(before, channels, middle, 1, saved=before * channels),
        _group_norm(before, middle),
        _relu(before * middle),
        _conv(after, middle, middle, 3, saved=_padded(size, 3, stride) * middle),
        _group_norm(after, middle),
        _relu(after * middle),
        _conv(after, middle, out, 1),
        _group_norm(after, out),
        Operation("backbone", elementwise=2 * after * out),  # residual and ReLU
    ]
    if channels != out:  # the first unit of a stage projects its shortcut
        operations += [_conv(after, channels, out, 1), _group_norm(after, out)]
    return Section(tuple(operations))


def _unit_before(channels: int, middle: int, size: Sides, stride: int) -> Section:
    """BiT's bottleneck, normalised before each convolution."""
    before, after, out = prod(size), prod(_half(size) if stride == 2 else size), 4 * middle
    operations = [
        _group_norm(before, channels),
        _relu(before * channels),
        _conv(before, channels, middle, 1),
        _group_norm(before, middle),
        _relu(before * middle),
        _conv(after, middle, middle, 3),
        _group_norm(after, middle),
        _relu(after * middle),
        _conv(after, middle, out, 1),
        Operation("backbone", elementwise=after * out),  # residual
    ]
    if channels != out:  # the first unit of a stage projects its shortcut
        operations.append(_conv(after, channels, out, 1))
    return Section(tuple(operations), block_input=before * channels)


def _vit_attention(config: ViTConfig, axis: Axis | None) -> Iterator[Operation]:
    """The projection to queries, keys and values, and what mixes the values."""
    tokens, width = config.num_tokens, config.width
    projections = 2 if config.attention == "reformer" else 3  # its queries are keys
    yield _linear("qkv", tokens, width, projections * width)
    if config.positions == "relative":
        yield _relative_logits(tokens, width, config.heads)
    found = attention_cost(config, axis)
    yield Operation(
        "attention",
        parameters=found.parameters,
        macs=2 * found.pairs * (width // config.heads) + found.more_macs,
        elementwise=found.pairs,
        saved=found.saved,
        saved_bytes=found.saved_bytes,
    )


def _encoder_layer(
    tokens: int,
    width: int,
    mlp_width: int,
    attention: tuple[Operation, ...],
    *,
    layer_scale: bool = False,
) -> tuple[Operation, ...]:
    residual = [Operation("residual", elementwise=tokens * width)]
    if layer_scale:
        scale = Operation("layer_scale", width, elementwise=tokens * width, saved=tokens * width)
        residual.insert(0, scale)
    return (
        _layer_norm(tokens, width),
        *attention,
        _linear("projection", tokens, width, width),
        *residual,
        _layer_norm(tokens, width),
        *_mlp("mlp", tokens, width, mlp_width),
        *residual,
    )


def _map_pool(tokens: int, width: int, heads: int, mlp_width: int) -> tuple[Operation, ...]:
    return (
        Operation("pool", parameters=width),  # the probe
        _linear("pool", 1, width, width, saved=0),  # its query is the same for all images
        _linear("pool", tokens, width, 2 * width),
        _attention("pool", 1, tokens, width, heads, saved=2 * tokens * width),
        _linear("pool", 1, width, width),
        replace(_layer_norm(1, width), part="pool"),
        *_mlp("pool", 1, width, mlp_width),
        Operation("pool", elementwise=width),  # residual
    )


def _sequence_pool(tokens: int, width: int) -> tuple[Operation, ...]:
    return (
        _linear("pool", tokens, width, 1),
        Operation("pool", elementwise=tokens, saved=tokens),  # softmax
        Operation("pool", macs=tokens * width),
    )


def _attention(part: str, queries: int, keys: int, width: int, heads: int, *, saved: int) -> Operation:
    """Fused attention keeps queries, keys, values and a log-sum-exp per query. The next layer keeps its output."""
    scores = heads * queries * keys
    return Operation(
        part,
        macs=2 * queries * keys * width,
        elementwise=scores,
        saved=saved,
        saved_bytes=4 * heads * queries,
    )


def _relative_logits(tokens: int, width: int, heads: int) -> Operation:
    """Queries times the key of each offset. It keeps all these logits and those that attention adds."""
    offsets, scores = 2 * tokens - 1, heads * tokens * tokens
    return Operation(
        "attention",
        parameters=offsets * (width // heads),
        macs=tokens * offsets * width,
        elementwise=scores,
        saved=tokens * width + heads * tokens * offsets + scores,
    )


def _mlp(part: str, rows: int, width: int, hidden: int) -> tuple[Operation, ...]:
    gelu = Operation(part, elementwise=rows * hidden, saved=rows * hidden)
    return _linear(part, rows, width, hidden), gelu, _linear(part, rows, hidden, width)


def _head(rows: int, config: ViTConfig | CompactConfig | ResNetConfig, *, saved: int) -> Operation:
    if not config.num_classes:
        return Operation("head")
    return _linear("head", rows, config.num_features, config.num_classes, saved=saved)


def _linear(
    part: str, rows: int, inputs: int, outputs: int, *, bias: bool = True, saved: int | None = None
) -> Operation:
    """A dense layer keeps its input, unless `saved` says otherwise."""
    return Operation(
        part,
        parameters=inputs * outputs + bias * outputs,
        macs=rows * inputs * outputs,
        elementwise=bias * rows * outputs,
        saved=rows * inputs if saved is None else saved,
    )


def _layer_norm(rows: int, width: int, *, saved: int | None = None) -> Operation:
    """A LayerNorm keeps its input, and the mean and standard deviation of each row."""
    kept = rows * width if saved is None else saved
    return Operation("norm", 2 * width, elementwise=rows * width, saved=kept, saved_bytes=8 * rows)


def _conv(
    cells: int, channels: int, outputs: int, kernel: int, *, part: str = "backbone", saved: int = 0
) -> Operation:
    """A convolution without bias; `saved` counts its input if nothing else keeps it."""
    weights = channels * outputs * kernel**2
    return Operation(part, parameters=weights, macs=cells * weights, saved=saved)


def _group_norm(cells: int, channels: int) -> Operation:
    """A GroupNorm keeps its input, and the mean and standard deviation of each group."""
    elements = cells * channels
    return Operation("backbone", 2 * channels, elementwise=elements, saved=elements, saved_bytes=8 * GROUPS)


def _relu(elements: int, *, part: str = "backbone") -> Operation:
    """A ReLU keeps its output, which the convolution after it shares."""
    return Operation(part, elementwise=elements, saved=elements)


def _max_pool(outputs: int, *, part: str = "backbone", saved: int = 0) -> Operation:
    """A max-pool keeps its input, and the index of each maximum as a 64-bit integer."""
    return Operation(part, elementwise=outputs, saved=saved, saved_bytes=8 * outputs)


def _half(size: Sides) -> Sides:
    """Return the sides after a stride of 2; every padding here rounds up."""
    return -(-size[0] // 2), -(-size[1] // 2)


def _padded(size: Sides, kernel: int, stride: int) -> int:
    """Return the number of cells after TensorFlow's SAME padding."""
    return prod(max(side, (-(-side // stride) - 1) * stride + kernel) for side in size)
