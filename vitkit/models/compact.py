"""Compact Transformers: ViT-Lite, CVT and CCT, with the published block and its published parameter names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitkit.kernels.pooling import relu_pool
from vitkit.models.attention.full import FullAttention
from vitkit.models.configs import CompactConfig, ModelConfig
from vitkit.models.float8 import infer_mlp
from vitkit.models.layers import Activation, DropPath, drop_path_rates, sequence_pool
from vitkit.models.merging import Merging, encode_merged
from vitkit.models.model import Model, recomputed
from vitkit.models.positions import resample_table, sine_1d
from vitkit.models.record import Record


class Tokenizer(nn.Module):
    """One strided convolution, or blocks of convolution, ReLU and max-pooling."""

    def __init__(self, config: CompactConfig) -> None:
        super().__init__()
        self.conv_layers = nn.Sequential()
        channels = config.channels
        for index in range(config.convolutions):
            last = index == config.convolutions - 1
            channels_out = config.width if last else 64  # as published, at every width
            self.conv_layers.append(_conv_block(config, channels, channels_out))
            channels = channels_out

    def forward(self, images: Tensor) -> Tensor:
        # With channels last, tokens need no copy.
        images = images.contiguous(memory_format=torch.channels_last)
        return self.conv_layers(images).flatten(2).transpose(1, 2)  # (batch, patches, width)


def _conv_block(config: CompactConfig, channels_in: int, channels_out: int) -> nn.Sequential:
    patches = config.tokenizer == "patches"
    convolution = nn.Conv2d(
        channels_in, channels_out, config.kernel, config.conv_stride, config.conv_padding, bias=patches
    )
    return nn.Sequential(convolution, *([] if patches else [ReluPool()]))


class ReluPool(nn.Module):
    """ReLU and max-pooling."""

    def forward(self, x: Tensor) -> Tensor:
        return relu_pool(x)


class Block(nn.Module):
    """The published encoder block: its second norm changes the residual stream, not only the MLP branch."""

    def __init__(self, config: CompactConfig, drop_path: float) -> None:
        super().__init__()
        self.pre_norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.self_attn = FullAttention(
            config.width,
            config.heads,
            qkv_bias=False,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
        )
        self.norm1 = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.linear1 = nn.Linear(config.width, config.mlp_width)
        self.act = Activation(config.gelu)
        self.linear2 = nn.Linear(config.mlp_width, config.width)
        self.drop = nn.Dropout(config.dropout)
        self.drop_path = DropPath(drop_path)

    def forward(
        self, x: Tensor, record: Record | None = None, layer: int = 0, merging: Merging | None = None
    ) -> Tensor:
        if merging is None:
            x = x + self.drop_path(self.self_attn(self.pre_norm(x), record, layer))
        else:
            x = merging.join(x + merging.attend(self.self_attn, self.pre_norm(x), record, layer), layer)
        x = self.norm1(x)
        if self.act.is_inferring:
            return x + infer_mlp(x, self.linear1, self.act.gelu, self.linear2)
        y = self.drop(self.linear2(self.drop(self.act(self.linear1(x)))))
        return x + self.drop_path(y)


class Classifier(nn.Module):
    """Positions, encoder, pool and head; a separate module, to match the published parameter names."""

    def __init__(self, config: CompactConfig) -> None:
        super().__init__()
        if config.pool == "token":
            self.class_emb = nn.Parameter(torch.zeros(1, 1, config.width))
        else:
            self.attention_pool = nn.Linear(config.width, 1)
        if config.positions != "none":
            self.positional_emb = nn.Parameter(
                torch.zeros(1, config.num_tokens, config.width), requires_grad=config.positions == "learned"
            )
        rates = drop_path_rates(config.stochastic_depth, config.depth)
        self.blocks = nn.ModuleList(Block(config, rate) for rate in rates)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.drop = nn.Dropout(config.dropout)
        self.fc = nn.Linear(config.width, config.num_classes) if config.num_classes else nn.Identity()


class CompactTransformer(Model):
    """ViT-Lite, CVT or CCT, depending on the config."""

    config: CompactConfig

    def __init__(self, config: CompactConfig) -> None:
        super().__init__()
        self.config = config
        self.tokenizer = Tokenizer(config)
        self.classifier = Classifier(config)
        self.reset_parameters()

    def features(self, images: Tensor, record: Record | None = None) -> Tensor:
        tokens = self.encode(images, record)  # (batch, tokens, width)
        return self.pool_features(tokens, record)  # (batch, width)

    def pool_features(self, x: Tensor, record: Record | None = None) -> Tensor:
        if self.config.pool == "token":
            return x[:, 0]
        return sequence_pool(x, self.classifier.attention_pool(x), record)

    def forward_features(self, images: Tensor) -> Tensor:
        return self.encode(images)

    def classify(self, features: Tensor) -> Tensor:
        return self.classifier.fc(features)

    def encode(
        self,
        images: Tensor,
        record: Record | None = None,
        corrupt: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Return the encoder's output, normalised: (batch, tokens, width).

        corrupt: applied to the patch embeddings (batch, patches, width) before positions are added.
        """
        images = self.check_images(images)
        if record is not None:
            record.start(self.config.depth)
        classifier = self.classifier
        tokens = self.tokenizer(images)  # (batch, patches, width)
        if corrupt is not None:
            tokens = corrupt(tokens)
        if self.config.pool == "token":
            tokens = torch.cat([classifier.class_emb.expand(tokens.shape[0], -1, -1), tokens], dim=1)
        if self.config.positions != "none":
            tokens = tokens + classifier.positional_emb
        tokens = classifier.drop(tokens)
        if self.merge:
            return encode_merged(self, classifier.blocks, classifier.norm, tokens, record)
        for layer, block in enumerate(classifier.blocks):
            if self.activation_checkpointing and torch.is_grad_enabled():
                tokens = recomputed(block, tokens, *(() if record is None else (record, layer)))
            else:
                tokens = block(tokens, record, layer)
            if record is not None:
                record.keep("tokens", tokens, layer)
        return classifier.norm(tokens)

    def why_unmerged(self) -> str | None:
        return None

    def reset_head(self, num_classes: int, bias: float = 0.0) -> None:
        like = self.classifier.norm.weight
        self.config = replace(self.config, num_classes=num_classes)
        head = nn.Linear(self.config.width, num_classes) if num_classes else nn.Identity()
        if isinstance(head, nn.Linear):
            nn.init.zeros_(head.weight)
            nn.init.constant_(head.bias, bias)
        self.classifier.fc = head.to(device=like.device, dtype=like.dtype)

    def resample_positions(self, old: ModelConfig) -> None:
        assert isinstance(old, CompactConfig)
        new = self.config
        if new.positions == "none":
            return
        table = self.classifier.positional_emb.data
        if new.positions == "sine":
            table = sine_1d(new.num_tokens, new.width).to(table)
        else:
            table = resample_table(table, old.grid, new.grid, new.num_prefix, new.resample)
        trained = self.classifier.positional_emb.requires_grad
        self.classifier.positional_emb = nn.Parameter(table, requires_grad=trained)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise all weights as the published code does."""
        for module in self.modules():
            _init(module)
        if self.config.pool == "token":
            nn.init.zeros_(self.classifier.class_emb)
        if self.config.positions == "learned":
            # The published code's standard deviation, ten times ViT's.
            nn.init.trunc_normal_(self.classifier.positional_emb, std=0.2)
        elif self.config.positions == "sine":
            self.classifier.positional_emb.copy_(sine_1d(self.config.num_tokens, self.config.width))


@torch.no_grad()
def _init(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.LayerNorm):
        module.reset_parameters()
    elif isinstance(module, nn.Conv2d):
        module.reset_parameters()  # PyTorch's default bias
        nn.init.kaiming_normal_(module.weight)
