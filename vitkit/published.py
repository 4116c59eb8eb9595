"""Published figures next to ours: commonly quoted model sizes, and the ViT paper's scaling study."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from vitkit.costs import cost_of, training_exaflops
from vitkit.errors import InputError
from vitkit.models.names import model_config
from vitkit.results import Result

JFT_IMAGES = 303_000_000

# Commonly quoted figures: parameters, GFLOPs, and the model and classes that the parameters are really of.
PUBLISHED_VITS = (
    ("B/16", "86M", 35.2, "B/16", 0),
    ("L/16", "307M", 123.2, "L/32", 1000),
    ("H/14", "632M", 334.8, "H/14", 1000),
)
# torchvision's name, image size, quoted parameters, quoted GFLOPs (which count a multiply-add once).
PUBLISHED_EFFICIENTNETS = (
    ("EfficientNet-B0", "efficientnet_b0", 224, "5.3M", 0.4),
    ("EfficientNet-B7", "efficientnet_b7", 600, "66M", 37.0),
)
# The ViT paper's table 6: model, epochs of JFT-300M, exaFLOPs.
PUBLISHED_SCALING = (
    ("B/32", 7, 55),
    ("B/16", 7, 224),
    ("L/32", 7, 196),
    ("L/16", 7, 783),
    ("L/16", 14, 1567),
    ("H/14", 14, 4262),
    ("BiT-R50x1", 7, 50),
    ("BiT-R50x2", 7, 199),
    ("BiT-R101x1", 7, 96),
    ("BiT-R152x1", 7, 141),
    ("BiT-R152x2", 7, 563),
    ("BiT-R152x2", 14, 1126),
    ("BiT-R200x3", 14, 3306),
    ("R50+B/32", 7, 106),
    ("R50+B/16", 7, 274),
    ("R50+L/32", 7, 246),
    ("R50+L/16", 7, 859),
    ("R50+L/16", 14, 1668),
)


@dataclass(frozen=True)
class SizeRow(Result):
    """A model's published size and our count."""

    model: str
    image_size: tuple[int, int]
    parameters: int
    macs: int
    flops: int
    flops_with_elementwise: int | None
    published_parameters: str
    published_gflops: float
    note: str


@dataclass(frozen=True)
class ScalingRow(Result):
    """A run of the ViT paper's scaling study: its published cost and our count."""

    model: str
    epochs: int
    macs: int
    exaflops: float
    published_exaflops: int
    difference: float


@dataclass(frozen=True)
class Sizes(Result):
    """Commonly quoted model sizes."""

    table: Literal["sizes"]
    convention: str
    rows: tuple[SizeRow, ...]


@dataclass(frozen=True)
class Scaling(Result):
    """The ViT paper's scaling study."""

    table: Literal["scaling"]
    convention: str
    rows: tuple[ScalingRow, ...]


def table(which: Literal["sizes", "scaling"]) -> Sizes | Scaling:
    """Return published figures next to ours: commonly quoted model sizes, or the ViT paper's scaling study."""
    if which == "sizes":
        convention = (
            "one image, 1000 classes; ViT figures count 2 FLOPs per multiply-add and 1 per element-wise "
            "operation, EfficientNet figures 1 per multiply-add"
        )
        return Sizes(which, convention, (*_vit_sizes(), *_efficientnet_sizes()))
    if which == "scaling":
        convention = (
            "exaFLOPs of pre-training at 224: 3 (forward and backward) x 2 per multiply-add x epochs "
            "x 303 million images"
        )
        return Scaling(which, convention, tuple(_scaling_rows()))
    raise InputError(f"unknown table {which!r}; expected 'sizes' or 'scaling'")


def _vit_sizes() -> Iterator[SizeRow]:
    for name, published, gflops, behind, num_classes in PUBLISHED_VITS:
        config = model_config(name)
        found = cost_of(config)
        counted = cost_of(model_config(behind, num_classes=num_classes)).parameters
        head = f"with {num_classes} classes" if num_classes else "without its head"
        yield SizeRow(
            name,
            config.size,
            found.parameters,
            found.macs,
            2 * found.macs,
            2 * found.macs + found.elementwise,
            published,
            gflops,
            f"{published} is {behind} {head}: {counted:,}",
        )


def _efficientnet_sizes() -> Iterator[SizeRow]:
    """Count torchvision's models on the meta device, without computing or downloading anything."""
    import torch
    import torchvision
    from torch.utils.flop_counter import FlopCounterMode

    for name, builder, side, published, gflops in PUBLISHED_EFFICIENTNETS:
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            model = torchvision.models.get_model(builder).eval()
            model(torch.empty(1, 3, side, side))
        flops = counter.get_total_flops()
        yield SizeRow(
            name,
            (side, side),
            sum(parameter.numel() for parameter in model.parameters()),
            flops // 2,
            flops,
            None,
            published,
            gflops,
            f"{gflops:g} counts a multiply-add once, as our GMACs do",
        )


def _scaling_rows() -> Iterator[ScalingRow]:
    for name, epochs, published in PUBLISHED_SCALING:
        macs = cost_of(model_config(name)).macs
        exaflops = training_exaflops(macs, epochs * JFT_IMAGES)
        yield ScalingRow(name, epochs, macs, exaflops, published, exaflops / published - 1)
