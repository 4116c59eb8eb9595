"""Layers shared by several model families."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.kernels.gelu import exact_gelu
from vitkit.models.attention.attention import Attention, attention_weights
from vitkit.models.attention.full import FullAttention
from vitkit.models.configs import Gelu, HybridConfig, ResNetConfig
from vitkit.models.float8 import infer_mlp
from vitkit.models.record import Record


class Activation(nn.Module):
    """GELU, exact or approximated with tanh."""

    def __init__(self, gelu: Gelu) -> None:
        super().__init__()
        self.gelu = gelu
        self.is_inferring = False
        "Whether its model has another precision than float32, for inference alone."

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh") if self.gelu == "tanh" else exact_gelu(x)


class Mlp(nn.Module):
    """Two dense layers with a GELU between them."""

    def __init__(self, width: int, hidden: int, gelu: Gelu, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.act = Activation(gelu)
        self.drop = nn.Dropout(dropout)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        if self.act.is_inferring:
            return infer_mlp(x, self.fc1, self.act.gelu, self.fc2)
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class LayerScale(nn.Module):
    """A learned scale per channel."""

    def __init__(self, width: int, value: float) -> None:
        super().__init__()
        self.value = value
        self.gamma = nn.Parameter(torch.full((width,), value))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class DropPath(nn.Module):
    """Stochastic depth: drops a branch for some images of a training batch."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return x
        kept = torch.rand(x.shape[0], *[1] * (x.ndim - 1), device=x.device) >= self.rate
        return x * (kept / (1.0 - self.rate)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.rate:g}"


def drop_path_rates(last: float, depth: int) -> list[float]:
    """Return each block's rate, from 0 for the first block to `last` for the last."""
    return [last * layer / max(1, depth - 1) for layer in range(depth)]


class MapPool(nn.Module):
    """Multi-head attention pooling (Scaling ViT): one learned query attends to all tokens, then an MLP."""

    def __init__(self, width: int, heads: int, mlp_width: int, gelu: Gelu, norm_epsilon: float) -> None:
        super().__init__()
        self.heads = heads
        self.latent = nn.Parameter(torch.zeros(1, 1, width))
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=norm_epsilon)
        self.mlp = Mlp(width, mlp_width, gelu)

    def forward(self, x: Tensor, record: Record | None = None) -> Tensor:
        batch, tokens, width = x.shape
        q = self.q(self.latent).reshape(1, 1, self.heads, -1).transpose(1, 2).expand(batch, -1, -1, -1)
        kv = self.kv(x).reshape(batch, tokens, 2, self.heads, width // self.heads)
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)  # each (batch, heads, tokens, width / heads)
        if record is not None and record.wants("pooling"):
            record.keep("pooling", attention_weights(q, k)[:, :, 0])
        y = F.scaled_dot_product_attention(q, k, v)  # (batch, heads, 1, width / heads)
        y = self.proj(y.transpose(1, 2).reshape(batch, width))
        return y + self.mlp(self.norm(y))


def sequence_pool(tokens: Tensor, scores: Tensor, record: Record | None = None) -> Tensor:
    """Return the mean of the tokens (batch, n, width) weighted by softmax of their scores (batch, n, 1)."""
    weights = scores.softmax(dim=1).transpose(1, 2)  # (batch, 1, n)
    if record is not None:
        record.keep("pooling", weights)
    return (weights @ tokens).squeeze(1)


class StandardizedConv2d(nn.Conv2d):
    """A convolution without bias whose kernel is standardised per output channel (Qiao et al. 2019)."""

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        kernel: int,
        stride: int = 1,
        *,
        config: HybridConfig | ResNetConfig,
    ) -> None:
        self.same = isinstance(config, HybridConfig)  # BiT pads symmetrically instead
        padding = 0 if self.same else (kernel - 1) // 2
        super().__init__(channels_in, channels_out, kernel, stride, padding, bias=False)
        self.formula = config.standardization
        self.epsilon = config.standardization_epsilon

    def forward(self, x: Tensor) -> Tensor:
        if self.same:
            x = pad_same(x, self.kernel_size[0], self.stride[0])
        return F.conv2d(x, self.standardize(self.weight), None, self.stride, self.padding)

    def standardize(self, weight: Tensor) -> Tensor:
        """Return the standardised kernel."""
        variance, mean = torch.var_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
        if self.formula == "std":
            return (weight - mean) / (variance.sqrt() + self.epsilon)
        return (weight - mean) * (variance + self.epsilon).rsqrt()


def group_norm(config: HybridConfig | ResNetConfig, channels: int) -> nn.GroupNorm:
    """Return the GroupNorm that a config describes."""
    return nn.GroupNorm(32, channels, eps=config.group_norm_epsilon)


def pad_same(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """Pad as TensorFlow's SAME does: the output has ceil(side / stride) cells, and an odd pixel goes at the end."""
    pads = []
    for side in (x.shape[-1], x.shape[-2]):
        total = max(0, (-(-side // stride) - 1) * stride + kernel - side)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads, value=value) if any(pads) else x


def lecun_normal_(weight: Tensor) -> Tensor:
    """Fill with Flax's lecun_normal: truncated at two standard deviations, variance 1 / fan_in after that."""
    fan_in = weight[0].numel()
    # The divisor is the standard deviation of a standard normal distribution truncated to [-2, 2].
    std = math.sqrt(1.0 / fan_in) / 0.87962566103423978
    return nn.init.trunc_normal_(weight, std=std, a=-2.0 * std, b=2.0 * std)


def init_encoder_layer(module: nn.Module) -> None:
    """Initialise an attention, MLP, scale or norm layer as the official Flax code does."""
    if isinstance(module, (Attention, MapPool)):
        for linear in module.children():
            if isinstance(linear, nn.Linear):
                # q, k and v are separate square matrices; Linformer's mixtures are drawn as if they were square.
                fan_in = linear.in_features
                bound = math.sqrt(6.0 / (2 * fan_in))
                nn.init.uniform_(linear.weight, -bound, bound)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)
        if isinstance(module, MapPool):
            nn.init.xavier_uniform_(module.latent[0])
        elif isinstance(module, FullAttention) and module.relative is not None:
            nn.init.normal_(module.relative, std=0.02)
    elif isinstance(module, Mlp):
        for linear in (module.fc1, module.fc2):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.normal_(linear.bias, std=1e-6)
    elif isinstance(module, LayerScale):
        nn.init.constant_(module.gamma, module.value)
    elif isinstance(module, (nn.LayerNorm, nn.GroupNorm)):
        module.reset_parameters()
