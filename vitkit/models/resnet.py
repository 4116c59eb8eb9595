"""BiT: ResNet-v2 with GroupNorm and standardised convolutions, the paper's baseline."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.errors import InputError
from vitkit.models.configs import ResNetConfig
from vitkit.models.layers import StandardizedConv2d, group_norm, lecun_normal_
from vitkit.models.model import Model, recomputed
from vitkit.models.record import Record


class Stem(nn.Module):
    """7x7 convolution and max-pool, symmetrically padded; or a 3x3 convolution, which keeps height and width."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.is_small = config.stem == "3x3"
        kernel, stride = (3, 1) if self.is_small else (7, 2)
        self.conv = StandardizedConv2d(
            config.channels, 64 * config.width_factor, kernel, stride, config=config
        )

    def forward(self, images: Tensor) -> Tensor:
        if self.is_small:
            return self.conv(images)
        # Pad with zeros, as BiT's code does. max_pool2d pads with minus infinity, which keeps negative values at the border.
        return F.max_pool2d(F.pad(self.conv(images), (1, 1, 1, 1)), 3, 2)


class Bottleneck(nn.Module):
    """A residual unit with norm and activation before each convolution."""

    def __init__(self, config: ResNetConfig, channels_in: int, middle: int, stride: int, first: bool) -> None:
        super().__init__()
        self.norm1 = group_norm(config, channels_in)
        self.conv1 = StandardizedConv2d(channels_in, middle, 1, config=config)
        self.norm2 = group_norm(config, middle)
        self.conv2 = StandardizedConv2d(middle, middle, 3, stride, config=config)
        self.norm3 = group_norm(config, middle)
        self.conv3 = StandardizedConv2d(middle, 4 * middle, 1, config=config)
        self.downsample = Shortcut(config, channels_in, 4 * middle, stride) if first else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(x))
        shortcut = x if self.downsample is None else self.downsample(y)
        y = self.conv1(y)
        y = self.conv2(F.relu(self.norm2(y)))
        y = self.conv3(F.relu(self.norm3(y)))
        return shortcut + y


class Shortcut(nn.Module):
    """The projection on the residual connection of a stage's first unit."""

    def __init__(self, config: ResNetConfig, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv = StandardizedConv2d(channels_in, channels_out, 1, stride, config=config)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class Stage(nn.Module):
    """Residual units of one width; only the first has a stride."""

    def __init__(self, config: ResNetConfig, units: int, channels_in: int, middle: int, stride: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            Bottleneck(config, channels_in, middle, stride, first=True),
            *[Bottleneck(config, 4 * middle, middle, 1, first=False) for _ in range(units - 1)],
        )

    def forward(self, x: Tensor, checkpointing: bool = False) -> Tensor:
        for block in self.blocks:
            x = recomputed(block, x) if checkpointing else block(x)
        return x


class Head(nn.Module):
    """A linear layer, stored as a 1x1 convolution as in the published weights."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.fc = nn.Conv2d(config.num_features, config.num_classes, 1)
        self.initial_bias = config.head_bias
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.fc.weight)
        nn.init.constant_(self.fc.get_parameter("bias"), self.initial_bias)

    def forward(self, features: Tensor) -> Tensor:
        return self.fc(features[:, :, None, None]).flatten(1)


class ResNet(Model):
    """Stem, stages, norm, global average, head."""

    config: ResNetConfig

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = Stem(config)
        self.stages = nn.ModuleList()
        channels = 64 * config.width_factor
        for index, units in enumerate(config.units):
            middle = 64 * config.width_factor * 2**index
            self.stages.append(Stage(config, units, channels, middle, stride=1 if index == 0 else 2))
            channels = 4 * middle
        self.norm = group_norm(config, channels)
        self.head = Head(config) if config.num_classes else nn.Identity()
        self.reset_parameters()

    def features(self, images: Tensor, record: Record | None = None) -> Tensor:
        if record is not None:
            if undefined := record.kinds - {"features"}:
                raise InputError(f"a ResNet has no {' or '.join(sorted(undefined))} to record")
            record.start(0)
        return self.pool_features(self.forward_features(images))  # (batch, features)

    def forward_features(self, images: Tensor) -> Tensor:
        # (batch, 64 * width_factor, height / 4, width / 4), or of all pixels after a 3x3 stem
        x = self.stem(self.check_images(images))
        for stage in self.stages:
            x = stage(x, self.activation_checkpointing and torch.is_grad_enabled())
        return F.relu(self.norm(x))  # (batch, features, rows, columns)

    def pool_features(self, x: Tensor, record: Record | None = None) -> Tensor:
        return x.mean(dim=(2, 3))

    def classify(self, features: Tensor) -> Tensor:
        return self.head(features)

    def reset_head(self, num_classes: int, bias: float = 0.0) -> None:
        like = self.norm.weight
        self.config = replace(self.config, num_classes=num_classes, head_bias=bias)
        self.head = Head(self.config) if num_classes else nn.Identity()
        self.head.to(device=like.device, dtype=like.dtype)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise all weights; the scale of the convolutions doesn't matter, since they are standardised."""
        for module in self.modules():
            if isinstance(module, StandardizedConv2d):
                lecun_normal_(module.weight)
            elif isinstance(module, (nn.GroupNorm, Head)):
                module.reset_parameters()
