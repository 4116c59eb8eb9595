"""Hybrids: a ViT whose patches are cut from a ResNet's feature map."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.configs import HybridConfig
from vitkit.models.layers import StandardizedConv2d, group_norm, lecun_normal_, pad_same
from vitkit.models.vit import Embedding, VisionTransformer


class Stem(nn.Module):
    """7x7 convolution and max-pool, which divide height and width by 4; or a 3x3 convolution, which keeps them."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.is_small = config.stem == "3x3"
        kernel, stride = (3, 1) if self.is_small else (7, 2)
        self.conv = StandardizedConv2d(config.channels, config.backbone_width, kernel, stride, config=config)
        self.norm = group_norm(config, config.backbone_width)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(images)))
        if self.is_small:
            return x
        return F.max_pool2d(pad_same(x, 3, 2, value=-torch.inf), 3, 2)


class Bottleneck(nn.Module):
    """A residual unit with its activations after the convolutions, as in the original ResNet."""

    def __init__(self, config: HybridConfig, channels_in: int, middle: int, stride: int, first: bool) -> None:
        super().__init__()
        self.conv1 = StandardizedConv2d(channels_in, middle, 1, config=config)
        self.norm1 = group_norm(config, middle)
        self.conv2 = StandardizedConv2d(middle, middle, 3, stride, config=config)
        self.norm2 = group_norm(config, middle)
        self.conv3 = StandardizedConv2d(middle, 4 * middle, 1, config=config)
        self.norm3 = group_norm(config, 4 * middle)
        self.downsample = Shortcut(config, channels_in, 4 * middle, stride) if first else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return F.relu(self.downsample(x) + y)


class Shortcut(nn.Module):
    """The projection on the residual connection of a stage's first unit."""

    def __init__(self, config: HybridConfig, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv = StandardizedConv2d(channels_in, channels_out, 1, stride, config=config)
        self.norm = group_norm(config, channels_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class Stage(nn.Module):
    """Residual units of one width; only the first has a stride."""

    def __init__(self, config: HybridConfig, units: int, channels_in: int, middle: int, stride: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            Bottleneck(config, channels_in, middle, stride, first=True),
            *[Bottleneck(config, 4 * middle, middle, 1, first=False) for _ in range(units - 1)],
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


class Backbone(nn.Module):
    """Stem and stages: (batch, channels, rows, columns)."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.stem = Stem(config)
        self.stages = nn.Sequential()
        channels = config.backbone_width
        for index, units in enumerate(config.backbone_units):
            middle = config.backbone_width * 2**index
            self.stages.append(Stage(config, units, channels, middle, stride=1 if index == 0 else 2))
            channels = 4 * middle

    def forward(self, images: Tensor) -> Tensor:
        return self.stages(self.stem(images))


class HybridEmbedding(Embedding):
    """Patches of the feature map, projected to the ViT's width."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.backbone = Backbone(config) if config.backbone_units else Stem(config)
        self.proj = nn.Conv2d(config.backbone_channels, config.width, config.patch, config.patch)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(self.backbone(images)).flatten(2).transpose(1, 2)  # (batch, patches, width)


class Hybrid(VisionTransformer):
    """A ViT on top of a ResNet."""

    config: HybridConfig

    def build_embedding(self, config: HybridConfig) -> Embedding:  # type: ignore[override]
        return HybridEmbedding(config)

    def init_embedding(self) -> None:
        super().init_embedding()
        for module in self.patch_embed.modules():
            if isinstance(module, StandardizedConv2d):
                lecun_normal_(module.weight)
            elif isinstance(module, Bottleneck):  # a unit starts as its shortcut
                nn.init.zeros_(module.norm3.weight)
