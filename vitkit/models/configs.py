"""Model configs: one frozen dataclass per family, with each field's meaning below it. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from vitkit.config import Bounds, Count, CountOrZero, NotNegative, Positive, Rate, check_bounds
from vitkit.errors import InputError
from vitkit.models.words import OTHER_WORDS

AttentionKind = Literal["full", "axial", "local", "sparse", "linformer", "reformer"]
Gelu = Literal["tanh", "erf"]
Resample = Literal["bilinear_corners", "bicubic", "bicubic_plain", "bilinear"]
Standardization = Literal["std", "variance"]
Interpolation = Literal["bilinear", "bicubic"]
Stem = Literal["7x7", "3x3"]
Size = int | tuple[int, int]
# A config may come from an untrusted file. These bounds are checked before any loop or allocation of that size.
Layers = Annotated[int, Bounds(at_least=1, at_most=1000)]
Stages = Annotated[tuple[int, ...], Bounds(at_least=1, at_most=1000)]
Width = Annotated[int, Bounds(at_least=1, at_most=2**18)]
Side = Annotated[int, Bounds(at_least=1, at_most=2**14)]
Pixels = Annotated[Size, Bounds(at_least=1, at_most=2**14)]


def as_size(size: Size) -> tuple[int, int]:
    """Return (height, width); one number means a square."""
    if isinstance(size, int) and not isinstance(size, bool):
        return size, size
    if isinstance(size, (tuple, list)) and len(size) == 2 and all(isinstance(side, int) for side in size):
        return size[0], size[1]
    raise InputError(f"image size is {size!r}; expected a number of pixels, or height and width")


def write_size(size: Size) -> str:
    """Return a size as written in settings and pipelines: 224, or 160x320."""
    height, width = as_size(size)
    return str(height) if height == width else f"{height}x{width}"


@dataclass(frozen=True)
class ModelConfig:
    """Settings of every family."""

    other_words: ClassVar[Mapping[str, str]] = OTHER_WORDS

    image_size: Pixels = (224, 224)
    "Height and width of the input in pixels; one number means a square."
    channels: Count = 3
    "Image channels."
    num_classes: CountOrZero = 1000
    "Width of the classification head; with 0 there is no head and the model returns its features."

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", as_size(self.image_size))
        check_bounds(self)

    @property
    def size(self) -> tuple[int, int]:
        """The input's (height, width)."""
        return as_size(self.image_size)

    @property
    def covered(self) -> tuple[int, int]:
        """Height and width, in pixels, of the part that the model reads, from the top-left corner."""
        return self.size

    def require(self, claim: bool, message: str) -> None:
        if not claim:
            raise InputError(message)


@dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """Settings of every transformer family."""

    width: Width = 768
    "Size of a token."
    depth: Layers = 12
    "Number of encoder blocks."
    heads: Layers = 12
    "Attention heads per block."
    mlp_width: Width = 3072
    "Hidden size of each block's MLP."

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            self.width % self.heads == 0, f"width {self.width} is not a multiple of heads {self.heads}"
        )

    @property
    def num_layers(self) -> int:
        """Number of attentions, each with an MLP after it."""
        return self.depth

    @property
    def pool(self) -> str:
        """How tokens become features."""
        raise NotImplementedError

    @property
    def stride(self) -> int:
        """Pixels per token along each side."""
        raise NotImplementedError

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches; pixels beyond the last whole patch are ignored."""
        raise NotImplementedError

    @property
    def covered(self) -> tuple[int, int]:
        return min(self.size[0], self.grid[0] * self.stride), min(self.size[1], self.grid[1] * self.stride)

    @property
    def num_patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def num_prefix(self) -> int:
        """Class and register tokens, which come before the patches."""
        raise NotImplementedError

    @property
    def num_tokens(self) -> int:
        return self.num_prefix + self.num_patches


# Each setting of a kind of attention, and its default; None is the grid's width. Other kinds don't have it.
ATTENTION_SETTINGS: dict[str, tuple[AttentionKind, int | None]] = {
    "attention_window": ("local", 7),
    "attention_stride": ("sparse", None),
    "attention_rank": ("linformer", 64),
    "attention_hashes": ("reformer", 2),
    "attention_chunk": ("reformer", 32),
}


@dataclass(frozen=True)
class ViTConfig(TransformerConfig):
    """The Vision Transformer."""

    patch: Side = 16
    "Side of a patch in pixels."
    attention: AttentionKind = "full"
    "Which tokens a patch attends to: all (full); its row, then its column, in a block with two attentions and two MLPs (axial); a square around it (local); its neighbours in raster order or every n-th patch, by head (sparse); learned mixtures of all patches (linformer); patches in the same hash bucket (reformer)."
    attention_window: Annotated[int, Bounds(at_least=1, at_most=2**14 - 1)] | None = None
    "Side of the square for attention 'local', in patches; an odd number, 7 by default."
    attention_stride: Side | None = None
    "For attention 'sparse', how far neighbours reach and the distance of every n-th patch. Default: the grid's width."
    attention_rank: Annotated[int, Bounds(at_least=1, at_most=2**16)] | None = None
    "Number of mixtures for attention 'linformer', at most one per patch. Default: 64, or fewer if there are fewer patches."
    attention_hashes: Annotated[int, Bounds(at_least=1, at_most=16)] | None = None
    "Rounds of hashing for attention 'reformer', 2 by default."
    attention_chunk: Annotated[int, Bounds(at_least=8, at_most=2**14)] | None = None
    "Patches per chunk of the sorted hashes for attention 'reformer', 32 by default."
    positions: Literal["none", "learned", "learned_2d", "sincos_2d", "relative"] = "learned"
    "Position embedding: none, one learned vector per token, learned vectors per grid row and grid column (half the width each), fixed 2-D sines and cosines, or 1-D relative attention."
    positions_at: Literal["stem", "every_layer", "every_layer_shared"] = "stem"
    "Where positions are added: once at the stem, before every block, or before every block with shared weights."
    position_std: NotNegative | None = 0.02
    "Standard deviation of the initial learned positions. The default is vit_jax's; none means 1 / sqrt(width), as in big_vision."
    prefix_positions: bool = True
    "Whether class and register tokens have learned positions too (vit_jax, timm) or not (big_vision)."
    pool: Literal["token", "mean", "map", "seqpool", "none"] = "token"
    "How tokens become features: class token, mean of patches, attention pooling (MAP), SeqPool, or none, which returns all tokens."
    class_token: bool | None = None
    "Whether there is a class token. By default, there is one only if the pool is 'token'."
    registers: Annotated[int, Bounds(at_least=0, at_most=1000)] = 0
    "Number of learned register tokens after the class token. The head doesn't read them."
    final_norm: Literal["tokens", "pooled"] = "tokens"
    "Whether the last LayerNorm runs on all tokens before pooling or on the pooled features (timm's fc_norm)."
    pre_logits: Annotated[int, Bounds(at_least=0, at_most=2**18)] = 0
    "Width of the tanh layer before the head; 0 for no such layer."
    head_bias: float = 0.0
    "Initial bias of the (zero-initialised) head."
    dropout: Rate = 0.0
    "Dropout after positions, attention projection and both MLP layers."
    attention_dropout: Rate = 0.0
    "Dropout on attention weights."
    stochastic_depth: Rate = 0.0
    "Probability of skipping the last block's branches. It grows linearly from 0 at the first block."
    patch_dropout: Rate = 0.0
    "Share of patch tokens dropped at each training step."
    layer_scale: float | None = None
    "Initial value of a learned per-channel scale on every branch; none for no scale."
    gelu: Gelu = "tanh"
    "GELU form: tanh in Google's code, erf in timm, transformers and torchvision."
    norm_epsilon: Positive = 1e-6
    "Epsilon of every LayerNorm."
    resample: Resample = "bilinear_corners"
    "How learned positions are resampled to another grid: Google's bilinear with aligned corners, timm's antialiased bicubic, plain bicubic, or bilinear."

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_token is None:
            object.__setattr__(self, "class_token", self.pool == "token")
        rows, columns = self.grid
        self.require(
            rows >= 1 and columns >= 1,
            f"an image of {self.size[0]}x{self.size[1]} pixels is smaller than one patch of {self.stride}",
        )
        self._check_attention()
        self.require(
            self.class_token is True or self.pool != "token",
            "pool 'token' needs a class token: remove class_token from the settings, or set it to true",
        )
        if self.positions in ("none", "relative"):
            self.require(
                self.positions_at == "stem",
                f"positions_at {self.positions_at!r} does not apply to positions {self.positions!r}",
            )
        if self.positions in ("sincos_2d", "learned_2d"):
            parts = 4 if self.positions == "sincos_2d" else 2
            self.require(
                self.width % parts == 0,
                f"positions {self.positions!r} need a width divisible by {parts}, not {self.width}",
            )
        self.require(
            not self.patch_dropout
            or self.positions == "none"
            or (self.positions != "relative" and self.positions_at == "stem"),
            "patch_dropout needs positions that are added at the stem",
        )
        self.require(
            self.final_norm == "tokens" or self.pool in ("token", "mean"),
            f"final_norm 'pooled' needs pool 'token' or 'mean', not {self.pool!r}",
        )

    def _check_attention(self) -> None:
        for name, (kind, _) in ATTENTION_SETTINGS.items():
            self.require(
                self.attention == kind or getattr(self, name) is None,
                f"{name} applies to attention {kind!r}, not {self.attention!r}: remove it",
            )
        if self.attention == "full":
            return
        self.require(
            self.positions != "relative",
            f"positions 'relative' need attention 'full', not {self.attention!r}",
        )
        self.require(
            not self.patch_dropout or self.attention == "reformer",
            f"attention {self.attention!r} needs all patches, but patch_dropout drops some: set it to 0",
        )
        if self.attention_window is not None:
            self.require(
                self.attention_window % 2 == 1, f"attention_window must be odd, not {self.attention_window}"
            )
        if self.attention == "sparse":
            self.require(
                self.heads > 1, "attention 'sparse' needs at least 2 heads: each half sees other patches"
            )
        for name in ("attention_stride", "attention_rank"):
            given = getattr(self, name)
            self.require(
                given is None or given <= self.num_patches,
                f"{name} {given} is larger than the number of patches, {self.num_patches}",
            )

    def attention_setting(self, name: str) -> int:
        """Return a setting of this kind of attention, as given or by default."""
        given, default = getattr(self, name), ATTENTION_SETTINGS[name][1] or self.grid[1]
        if name == "attention_rank":
            default = min(default, self.num_patches)
        return int(given or default)

    @property
    def num_layers(self) -> int:
        return 2 * self.depth if self.attention == "axial" else self.depth

    @property
    def stride(self) -> int:
        return self.patch

    @property
    def grid(self) -> tuple[int, int]:
        return self.size[0] // self.stride, self.size[1] // self.stride

    @property
    def num_prefix(self) -> int:
        return int(bool(self.class_token)) + self.registers

    @property
    def num_features(self) -> int:
        """Width of the features that the head reads."""
        return self.pre_logits or self.width


@dataclass(frozen=True)
class HybridConfig(ViTConfig):
    """A ViT whose tokens are cells of a ResNet's feature map."""

    patch: Side = 1
    "Side of a patch in cells of the feature map."
    backbone_units: Stages = (3, 4, 9)
    "Residual units per stage of the ResNet; an empty list keeps only its stem."
    backbone_width: Width = 64
    "Channels of the ResNet's stem."
    stem: Stem = "7x7"
    "The ResNet's first convolution: 7x7 with stride 2, then max-pooling, or 3x3 with stride 1 and no pooling, for images of about 32 pixels."
    group_norm_epsilon: Positive = 1e-5
    "Epsilon of every GroupNorm."
    standardization: Standardization = "variance"
    "Weight standardisation divides by sqrt(variance + epsilon), as timm does, or by (std + epsilon), as vit_jax does."
    standardization_epsilon: Positive = 1e-8
    "Epsilon of the weight standardisation."

    def __post_init__(self) -> None:
        self.require(len(self.backbone_units) <= 4, "a ResNet backbone has at most four stages")
        self.require(
            self.backbone_width >= 32 and self.backbone_width % 32 == 0,
            f"backbone_width must be a multiple of GroupNorm's 32 groups, not {self.backbone_width}",
        )
        super().__post_init__()

    @property
    def backbone_stride(self) -> int:
        """Pixels per cell of the feature map: 4 after the stem (1 if it is 3x3), doubled by every stage after the first."""
        return (4 if self.stem == "7x7" else 1) * 2 ** max(0, len(self.backbone_units) - 1)

    @property
    def stride(self) -> int:
        return self.backbone_stride * self.patch

    @property
    def cells(self) -> tuple[int, int]:
        """Rows and columns of the feature map; TensorFlow's SAME padding rounds up."""
        return -(-self.size[0] // self.backbone_stride), -(-self.size[1] // self.backbone_stride)

    @property
    def grid(self) -> tuple[int, int]:
        return self.cells[0] // self.patch, self.cells[1] // self.patch

    @property
    def backbone_channels(self) -> int:
        """Channels of the feature map."""
        if not self.backbone_units:
            return self.backbone_width
        return 4 * self.backbone_width * 2 ** (len(self.backbone_units) - 1)


@dataclass(frozen=True)
class ResNetConfig(ModelConfig):
    """BiT's ResNet-v2: pre-activation bottlenecks, GroupNorm, weight standardisation."""

    units: Stages = (3, 4, 6, 3)
    "Residual units per stage."
    width_factor: Layers = 1
    "Multiplies every channel count."
    stem: Stem = "7x7"
    "The first convolution: 7x7 with stride 2, then max-pooling, or 3x3 with stride 1 and no pooling, for images of about 32 pixels."
    head_bias: float = 0.0
    "Initial bias of the (zero-initialised) head."
    group_norm_epsilon: Positive = 1e-5
    "Epsilon of every GroupNorm."
    standardization: Standardization = "variance"
    "Weight standardisation divides by sqrt(variance + epsilon), or by (std + epsilon)."
    standardization_epsilon: Positive = 1e-8
    "Epsilon of the weight standardisation."

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(1 <= len(self.units) <= 8, f"a ResNet has 1 to 8 stages, not {len(self.units)}")

    @property
    def num_features(self) -> int:
        return 256 * self.width_factor * 2 ** (len(self.units) - 1)


@dataclass(frozen=True)
class CompactConfig(TransformerConfig):
    """Compact Transformers: ViT-Lite (patches, class token), CVT (patches, SeqPool), CCT (convolutions, SeqPool)."""

    # The base classes document these fields. The defaults are those of CCT-7/3x1 for CIFAR-10.
    image_size: Pixels = (32, 32)
    num_classes: CountOrZero = 10
    width: Width = 256
    depth: Layers = 7
    heads: Layers = 4
    mlp_width: Width = 512
    tokenizer: Literal["patches", "convolutions"] = "convolutions"
    "How images become tokens: one strided convolution, or blocks of convolution, ReLU and max-pooling."
    kernel: Side = 3
    "Side of a patch, or of the convolutions' kernel."
    convolutions: Annotated[int, Bounds(at_least=1, at_most=16)] = 1
    "Number of convolution blocks."
    pool: Literal["token", "seqpool"] = "seqpool"
    "Class token, or SeqPool."
    positions: Literal["none", "learned", "sine"] = "learned"
    "Position table added to the tokens: none, learned, or fixed 1-D sines."
    dropout: Rate = 0.0
    "Dropout after positions, attention projection and both MLP layers."
    attention_dropout: Rate = 0.1
    "Dropout on attention weights."
    stochastic_depth: Rate = 0.1
    "Probability of skipping the last block's branches. It grows linearly from 0 at the first block."
    gelu: Gelu = "erf"
    "GELU form."
    norm_epsilon: Positive = 1e-5
    "Epsilon of every LayerNorm."
    resample: Resample = "bilinear"
    "How learned positions are resampled to another grid."

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            self.tokenizer == "convolutions" or self.convolutions == 1,
            "a patch tokenizer has one convolution",
        )
        self.require(
            min(self.grid) >= 1,
            f"an image of {self.size[0]}x{self.size[1]} pixels is too small for this tokenizer",
        )

    @property
    def conv_stride(self) -> int:
        return self.kernel if self.tokenizer == "patches" else max(1, self.kernel // 2 - 1)

    @property
    def conv_padding(self) -> int:
        return 0 if self.tokenizer == "patches" else max(1, self.kernel // 2)

    @property
    def stride(self) -> int:
        pooled = 2 if self.tokenizer == "convolutions" else 1
        return int((self.conv_stride * pooled) ** self.convolutions)

    @property
    def grid(self) -> tuple[int, int]:
        sides = []
        for side in self.size:
            for _ in range(self.convolutions):
                side = (side + 2 * self.conv_padding - self.kernel) // self.conv_stride + 1
                if self.tokenizer == "convolutions":
                    side = (side + 2 - 3) // 2 + 1  # 3x3 max-pool, stride 2, padding 1
            sides.append(side)
        return sides[0], sides[1]

    @property
    def num_prefix(self) -> int:
        return int(self.pool == "token")

    @property
    def num_features(self) -> int:
        return self.width


@dataclass(frozen=True)
class OwnConfig(ModelConfig):
    """The user's own module: what one forward pass shows about it."""

    module: str = "module"
    "Name of its class."
    num_features: Annotated[int, Bounds(at_least=0, at_most=2**18)] = 0
    "Width of what its method features(images) returns; 0 if it has no such method."
    new_head: bool = False
    "Whether a linear layer on its features replaces its own logits."
    parameters: CountOrZero = 0
    "Number of parameters."
    macs_per_pixel: NotNegative = 0.0
    "Multiply-adds of its forward pass per pixel of the image."

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.num_features > 0 or not self.new_head, "a new head needs features")


@dataclass(frozen=True)
class Preprocessing:
    """How an image file becomes the model's input; it belongs to the weights, not to the data."""

    image_size: Pixels = (224, 224)
    "Height and width of the model's input."
    crop_fraction: Annotated[float, Bounds(at_least=0.25, at_most=1)] | None = None
    "Share of the resized image that the centre crop keeps: the image is first resized to just cover image_size / crop_fraction. None stretches the whole image to image_size."
    interpolation: Interpolation = "bilinear"
    "Interpolation of the resize, antialiased."
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    "Subtracted from each channel, on the scale 0 to 1."
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    "Divides each channel."

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", as_size(self.image_size))
        check_bounds(self)
        if len(self.mean) != len(self.std) or min(self.std) <= 0.0:
            raise InputError("mean and std need one number per channel, and std must be positive")

    @property
    def size(self) -> tuple[int, int]:
        """The input's (height, width)."""
        return as_size(self.image_size)
