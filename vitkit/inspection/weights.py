"""What weights show without an image: the filters of the first layer, and how alike position embeddings are."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from vitkit.config import Bounds
from vitkit.errors import InputError
from vitkit.inspection.asking import Inspected, Undefined, bare, transformer
from vitkit.models.configs import CompactConfig, HybridConfig, ResNetConfig
from vitkit.models.layers import StandardizedConv2d
from vitkit.models.model import Model, first_convolution
from vitkit.models.vit import VisionTransformer

NUM_FILTERS = 28
"Components in the paper's figure 7."


def embedding_filters(model: Inspected, count: int = NUM_FILTERS) -> np.ndarray:
    """Return the first filters that the model sees pixels through: float32 (filters, height, width, channels).

    There are up to `count`. Of a patch embedding (ViT, ViT-Lite, CVT) they are the principal components of its filters, each filter a sample;
    a component's sign is free, so its largest weight is made positive. A hybrid, a BiT ResNet or a CCT starts with
    a convolution: they are its own kernels, standardised where the model standardises them.
    """
    return captioned_filters(model, count)[0]


def captioned_filters(model: Inspected, count: int = NUM_FILTERS) -> tuple[np.ndarray, str]:
    """Return the filters, and what they are."""
    Bounds(at_least=1).check("count", count)
    convolution, owner, is_embedding = _first_convolution(bare(model))
    kernels = _kernels(convolution)  # (filters, height, width, channels)
    size = f"{kernels.shape[1]}×{kernels.shape[2]} pixels"
    if not is_embedding:
        values = kernels[:count].astype(np.float32)
        return values, f"{_first(len(values), len(kernels))} filters of {owner}, {size} each"
    components, shares = principal_components(kernels.reshape(len(kernels), -1))
    if not len(components):
        raise Undefined("a picture of filters", f"all filters of {owner} are the same")
    values = components[:count].reshape(-1, *kernels.shape[1:]).astype(np.float32)
    whole = shares[: len(values)].sum()
    caption = (
        f"{_first(len(values), len(components))} principal components of the {len(kernels)} filters of {owner}, "
        f"{size} each; they hold {whole:.0%} of the variance"
    )
    return values, caption


def position_similarity(model: Inspected, layer: int = 0) -> np.ndarray:
    """Return the cosine similarity of each patch's position embedding with every other's.

    The result is (rows, columns, rows, columns); class and register tokens are left out.
    layer: whose table, of a model that adds one of its own before every block; others have one.
    """
    module, config = transformer(model, "similarity of positions")
    table = _position_table(module)  # (tables, tokens, width)
    if not -len(table) <= layer < len(table):
        raise InputError(f"no position table of layer {layer}: the model has {len(table)}")
    rows, columns = config.grid
    patches = table[layer][-rows * columns :]
    norms = np.linalg.norm(patches, axis=1, keepdims=True)
    unit = patches / np.maximum(norms, np.finfo(np.float64).tiny)
    return (unit @ unit.T).clip(-1, 1).reshape(rows, columns, rows, columns).astype(np.float32)


def principal_components(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return directions (components, dimensions) of samples (samples, dimensions), and their shares of the variance.

    Directions along which the samples don't vary are left out.
    """
    centered = samples - samples.mean(axis=0)
    _, spread, directions = np.linalg.svd(centered, full_matrices=False)
    # As numpy's matrix_rank, but by the size of the samples: of samples all alike, rounding alone is left as variance.
    rank = int((spread > np.abs(samples).max() * max(samples.shape) * np.finfo(np.float64).eps).sum())
    variances = spread[:rank] ** 2
    return fix_signs(directions[:rank]), variances / variances.sum() if rank else variances


def fix_signs(directions: np.ndarray) -> np.ndarray:
    """Turn each row (directions, dimensions) so that its largest entry is positive: results are always the same."""
    largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=1)[:, None], axis=1)
    return directions * np.where(largest < 0, -1.0, 1.0)


def _first_convolution(model: Model) -> tuple[nn.Conv2d, str, bool]:
    """Return the convolution that reads pixels, what it is called, and whether it embeds patches."""
    found = model.get_submodule(first_convolution(model))
    match model.config:
        case HybridConfig():
            owner, is_embedding = "the ResNet's first convolution", False
        case ResNetConfig():
            owner, is_embedding = "the first convolution", False
        case CompactConfig(tokenizer="convolutions"):
            owner, is_embedding = "the tokenizer's first convolution", False
        case _:
            owner, is_embedding = "the patch embedding", True
    assert isinstance(found, nn.Conv2d)
    return found, owner, is_embedding


@torch.no_grad()
def _kernels(convolution: nn.Conv2d) -> np.ndarray:
    """Return what the convolution multiplies pixels with: float64 (filters, height, width, channels)."""
    weight = convolution.weight.detach().cpu().double()
    if isinstance(convolution, StandardizedConv2d):
        weight = convolution.standardize(weight)
    return weight.permute(0, 2, 3, 1).numpy()


def _position_table(model: Model) -> np.ndarray:
    """Return the tables that are added to tokens: float64 (tables, tokens, width)."""
    positions: str
    table: Tensor | None
    if isinstance(model.config, CompactConfig):
        positions = model.config.positions
        table = None if positions == "none" else model.get_parameter("classifier.positional_emb")
    else:
        assert isinstance(model, VisionTransformer)
        positions, table = model.config.positions, model.position_table()
    if table is None:
        reasons = {
            "none": "it has no position embeddings",
            "relative": "its positions are offsets between two tokens: no patch has an embedding of its own",
        }
        raise Undefined("similarity of positions", reasons[positions])
    return table.detach().cpu().double().numpy()


def _first(shown: int, whole: int) -> str:
    return f"the {whole}" if shown == whole else f"the first {shown} of {whole}"
