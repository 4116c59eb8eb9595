"""The Vision Transformer: patches become tokens, an encoder mixes them, a head reads the result."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.errors import InputError
from vitkit.models.attention import Attention, build_attention
from vitkit.models.attention.full import FullAttention
from vitkit.models.configs import ModelConfig, Size, ViTConfig, as_size
from vitkit.models.layers import (
    DropPath,
    LayerScale,
    MapPool,
    Mlp,
    drop_path_rates,
    init_encoder_layer,
    lecun_normal_,
    sequence_pool,
)
from vitkit.models.merging import Merging, encode_merged
from vitkit.models.model import Model, recomputed
from vitkit.models.pairs import Axis
from vitkit.models.positions import concat_axes, resample_line, resample_table, sincos_2d
from vitkit.models.record import Record


class Embedding(nn.Module):
    """Turns images into patch tokens. Its last step is a projection to the encoder's width."""

    proj: nn.Conv2d


class PatchEmbedding(Embedding):
    """One linear layer, shared by all patches."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.proj = nn.Conv2d(config.channels, config.width, config.patch, config.patch)

    def forward(self, images: Tensor) -> Tensor:
        patches = cut_patches(images, self.proj.kernel_size[0])  # (batch, patches, channels * patch * patch)
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)  # (batch, patches, width)


def cut_patches(images: Tensor, patch: int) -> Tensor:
    """Return flattened patches in raster order. On a GPU, multiplying these is faster than a convolution."""
    batch, channels, height, width = images.shape
    rows, columns = height // patch, width // patch
    whole = images[:, :, : rows * patch, : columns * patch]
    tiles = whole.reshape(batch, channels, rows, patch, columns, patch)
    return tiles.permute(0, 2, 4, 1, 3, 5).reshape(batch, rows * columns, channels * patch * patch)


class Block(nn.Module):
    """Attention, then MLP: each with a LayerNorm before it and a residual connection around it."""

    def __init__(self, config: ViTConfig, drop_path: float, axis: Axis | None = None) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.attn = build_attention(config, axis)
        self.ls1 = _layer_scale(config)
        self.norm2 = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.mlp = Mlp(config.width, config.mlp_width, config.gelu, config.dropout)
        self.ls2 = _layer_scale(config)
        self.drop_path = DropPath(drop_path)

    def forward(
        self, x: Tensor, record: Record | None = None, layer: int = 0, merging: Merging | None = None
    ) -> Tensor:
        if merging is None:
            x = x + self.drop_path(self.ls1(self.attn(self.norm1(x), record, layer)))
        else:
            x = merging.join(x + self.ls1(merging.attend(self.attn, self.norm1(x), record, layer)), layer)
        x = x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))
        return x


class AxialBlock(nn.Module):
    """Attention along rows and an MLP, then attention along columns and an MLP (ViT, D.6): two layers."""

    def __init__(self, config: ViTConfig, drop_path: float) -> None:
        super().__init__()
        self.row = Block(config, drop_path, "rows")
        self.column = Block(config, drop_path, "columns")

    def forward(self, x: Tensor, record: Record | None = None, layer: int = 0) -> Tensor:
        x = self.row(x, record, 2 * layer)
        if record is not None:
            record.keep("tokens", x, 2 * layer)
        return self.column(x, record, 2 * layer + 1)


def _layer_scale(config: ViTConfig) -> nn.Module:
    return nn.Identity() if config.layer_scale is None else LayerScale(config.width, config.layer_scale)


class VisionTransformer(Model):
    """ViT as in the paper, with the positions, pools and regularisers of its successors."""

    config: ViTConfig
    pos_embed: nn.Parameter
    positions: Tensor | None
    head: nn.Module

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = self.build_embedding(config)
        if config.class_token:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, config.width))
        if config.registers:
            self.reg_token = nn.Parameter(torch.zeros(1, config.registers, config.width))
        self._build_positions(config)
        self.pos_drop = nn.Dropout(config.dropout)
        rates = drop_path_rates(config.stochastic_depth, config.depth)
        block = AxialBlock if config.attention == "axial" else Block
        self.blocks = nn.ModuleList(block(config, rate) for rate in rates)
        norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.norm = norm if config.final_norm == "tokens" else nn.Identity()
        if config.pool == "map":
            self.attn_pool = MapPool(
                config.width, config.heads, config.mlp_width, config.gelu, config.norm_epsilon
            )
        elif config.pool == "seqpool":
            self.seq_pool = nn.Linear(config.width, 1)
        self.fc_norm = norm if config.final_norm == "pooled" else nn.Identity()
        self.pre_logits = _pre_logits(config)
        self.head = _head(config)
        self.reset_parameters()

    def features(self, images: Tensor, record: Record | None = None) -> Tensor:
        tokens = self.encode(images, record)  # (batch, tokens, width)
        return self.pool_features(tokens, record)  # (batch, width)

    def pool_features(self, x: Tensor, record: Record | None = None) -> Tensor:
        return self.pre_logits(self.fc_norm(self.pool(x, record)))

    def forward_features(self, images: Tensor) -> Tensor:
        return self.encode(images)

    def classify(self, features: Tensor) -> Tensor:
        return self.head(features)

    def encode(
        self,
        images: Tensor,
        record: Record | None = None,
        keep: Tensor | None = None,
        corrupt: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Return the encoder's output, normalised: (batch, tokens, width).

        keep: indices of the patches that the encoder reads, (batch, kept). Default: all patches.
        corrupt: applied to the patch embeddings (batch, patches, width) before positions are added.
        """
        if record is not None:
            record.start(self.config.num_layers)
        tokens = self.embed(images, corrupt)  # (batch, tokens, width)
        if keep is not None:
            tokens = self.take_patches(tokens, keep)
        if self.merge:
            return encode_merged(self, self.blocks, self.norm, tokens, record)
        for layer, block in enumerate(self.blocks):
            if self.config.positions_at != "stem":
                tokens = self.add_positions(tokens, layer)
            if self.activation_checkpointing and torch.is_grad_enabled():
                tokens = recomputed(block, tokens, *(() if record is None else (record, layer)))
            else:
                tokens = block(tokens, record, layer)
            if record is not None:
                record.keep("tokens", tokens, (layer + 1) * self.config.num_layers // self.config.depth - 1)
        return self.norm(tokens)

    def why_unmerged(self) -> str | None:
        config = self.config
        if config.attention != "full":
            return f"merging needs attention 'full', not {config.attention!r}"
        if config.positions == "relative":
            return "relative positions are those of single patches"
        if config.positions_at == "every_layer":
            return "every layer adds the positions of single patches"
        return None

    def embed(self, images: Tensor, corrupt: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Return the input of the first block: class and register tokens, then patches, with positions added."""
        images = self.check_images(images)
        config = self.config
        tokens = self.patch_embed(images)  # (batch, patches, width)
        if corrupt is not None:
            tokens = corrupt(tokens)
        prefix = []
        if config.class_token:
            prefix.append(self.cls_token.expand(tokens.shape[0], -1, -1))
        if config.registers:
            prefix.append(self.reg_token.expand(tokens.shape[0], -1, -1))
        if prefix:
            tokens = torch.cat([*prefix, tokens], dim=1)
        if config.positions_at == "stem":
            tokens = self.add_positions(tokens, 0)
        tokens = self.drop_patches(tokens)
        return self.pos_drop(tokens)

    def add_positions(self, tokens: Tensor, layer: int) -> Tensor:
        """Add a layer's position table; tokens that have no row in it are unchanged."""
        table = self.position_table()  # (1 or depth, rows, width)
        if table is None:
            return tokens
        table = table[layer % len(table)]
        bare = tokens.shape[1] - len(table)
        return tokens + (F.pad(table, (0, 0, bare, 0)) if bare else table)

    def position_table(self) -> Tensor | None:
        """Return the table to add to tokens, or None for positions 'none' and 'relative'."""
        if self.config.positions == "learned":
            return self.pos_embed
        if self.config.positions == "learned_2d":
            return concat_axes(self.pos_embed_y, self.pos_embed_x)
        return self.positions

    def drop_patches(self, tokens: Tensor) -> Tensor:
        """In training, keep a random subset of each image's patch tokens."""
        if not self.training or not self.config.patch_dropout:
            return tokens
        patches = tokens.shape[1] - self.config.num_prefix
        kept = max(1, round(patches * (1.0 - self.config.patch_dropout)))
        order = torch.rand((len(tokens), patches), device=tokens.device).argsort(dim=1)
        return self.take_patches(tokens, order[:, :kept])

    def take_patches(self, tokens: Tensor, numbers: Tensor) -> Tensor:
        """Return the class and register tokens and each image's patches at these indices (batch, kept)."""
        prefix, patches = tokens[:, : self.config.num_prefix], tokens[:, self.config.num_prefix :]
        taken = patches.gather(1, numbers[:, :, None].expand(-1, -1, patches.shape[2]))
        return torch.cat([prefix, taken], dim=1)

    def pool(self, tokens: Tensor, record: Record | None = None) -> Tensor:
        """Return pooled tokens (batch, width), or all tokens if the pool is 'none'."""
        patches = tokens[:, self.config.num_prefix :]
        match self.config.pool:
            case "token":
                return tokens[:, 0]
            case "mean":
                return patches.mean(dim=1)
            case "map":
                return self.attn_pool(patches, record)
            case "seqpool":
                return sequence_pool(patches, self.seq_pool(patches), record)
            case _:
                return tokens

    def reset_head(self, num_classes: int, bias: float = 0.0) -> None:
        """Replace the head, including its tanh layer, with a zero-initialised linear layer."""
        like = self.patch_embed.proj.weight
        self.config = config = replace(self.config, num_classes=num_classes, pre_logits=0, head_bias=bias)
        self.pre_logits = _pre_logits(config)
        self.head = _head(config).to(device=like.device, dtype=like.dtype)
        self._reset_head_parameters()

    def set_image_size(self, image_size: Size) -> None:
        # Without the rank, which a smaller grid may not have: the grid is what doesn't fit.
        new = replace(self.config, image_size=as_size(image_size), attention_rank=None)
        if new.attention == "linformer" and new.grid != self.config.grid:
            old, asked = (f"{rows}x{columns}" for rows, columns in (self.config.grid, new.grid))
            raise InputError(
                f"attention 'linformer' is tied to its grid of {old} patches; this image size has {asked}"
            )
        super().set_image_size(image_size)

    def resample_positions(self, old: ModelConfig) -> None:
        assert isinstance(old, ViTConfig)
        new = self.config
        if new.positions == "learned":
            num_prefix = new.num_prefix if new.prefix_positions else 0
            table = resample_table(self.pos_embed.data, old.grid, new.grid, num_prefix, new.resample)
            self.pos_embed = _parameter_like(table, self.pos_embed)
        elif new.positions == "learned_2d":
            for name, length in zip(("pos_embed_y", "pos_embed_x"), new.grid, strict=True):
                axis = getattr(self, name)
                setattr(self, name, _parameter_like(resample_line(axis.data, length), axis))
        elif new.positions == "sincos_2d":
            self.reset_tables()
        elif new.positions == "relative":
            for module in self.modules():
                if isinstance(module, FullAttention) and module.relative is not None:
                    table = resample_line(module.relative.data, 2 * new.num_tokens - 1)
                    module.relative = _parameter_like(table, module.relative)
        for module in self.modules():
            if isinstance(module, Attention):
                module.set_grid(new.grid)

    def build_embedding(self, config: ViTConfig) -> Embedding:
        return PatchEmbedding(config)

    def _build_positions(self, config: ViTConfig) -> None:
        layers = config.depth if config.positions_at == "every_layer" else 1
        if config.positions == "learned":
            rows = config.num_tokens if config.prefix_positions else config.num_patches
            self.pos_embed = nn.Parameter(torch.zeros(layers, rows, config.width))
        elif config.positions == "learned_2d":
            self.pos_embed_y = nn.Parameter(torch.zeros(layers, config.grid[0], config.width // 2))
            self.pos_embed_x = nn.Parameter(torch.zeros(layers, config.grid[1], config.width // 2))
        self.register_buffer("positions", None, persistent=False)
        self.reset_tables()

    def reset_tables(self) -> None:
        """Compute the fixed tables, which are not in weight files."""
        if self.config.positions == "sincos_2d":
            like = self.patch_embed.proj.weight
            table = sincos_2d(self.config.grid, self.config.width)
            self.positions = table.to(device=like.device, dtype=like.dtype)
        for module in self.modules():
            if isinstance(module, Attention):
                module.reset_tables()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise all weights as the official code does (vit_jax and Flax defaults)."""
        for module in self.modules():
            init_encoder_layer(module)
        self.init_embedding()
        for name, parameter in self.named_parameters(recurse=False):
            if name.startswith("pos_embed"):
                nn.init.normal_(parameter, std=self._position_std())
            elif name == "reg_token":
                nn.init.normal_(parameter, std=1e-6)
            elif name == "cls_token":
                nn.init.zeros_(parameter)
        if self.config.pool == "seqpool":
            lecun_normal_(self.seq_pool.weight)
            nn.init.zeros_(self.seq_pool.bias)
        for module in self.pre_logits.modules():
            if isinstance(module, nn.Linear):
                lecun_normal_(module.weight)
                nn.init.zeros_(module.bias)
        self._reset_head_parameters()

    def _position_std(self) -> float:
        std = self.config.position_std
        return 1 / math.sqrt(self.config.width) if std is None else std

    def init_embedding(self) -> None:
        lecun_normal_(self.patch_embed.proj.weight)
        nn.init.constant_(self.patch_embed.proj.get_parameter("bias"), 0.0)

    @torch.no_grad()
    def _reset_head_parameters(self) -> None:
        if isinstance(self.head, nn.Linear):
            nn.init.zeros_(self.head.weight)
            nn.init.constant_(self.head.bias, self.config.head_bias)


def _pre_logits(config: ViTConfig) -> nn.Module:
    if not config.pre_logits:
        return nn.Identity()
    return nn.Sequential(OrderedDict(fc=nn.Linear(config.width, config.pre_logits), act=nn.Tanh()))


def _head(config: ViTConfig) -> nn.Module:
    return nn.Linear(config.num_features, config.num_classes) if config.num_classes else nn.Identity()


def _parameter_like(data: Tensor, old: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(data, requires_grad=old.requires_grad)
