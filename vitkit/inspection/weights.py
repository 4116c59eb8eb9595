"""Inspection of weights, without images: filters of the first layer, and similarity of position embeddings."""

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
from vitkit.models.own import OwnModule
from vitkit.models.vit import VisionTransformer

NUM_FILTERS = 28
"Number of components in the paper's figure 7."


def embedding_filters(model: Inspected, count: int = NUM_FILTERS) -> np.ndarray:
    """Return up to `count` filters of the first layer: float32 (filters, height, width, channels).

    For a patch embedding (ViT, ViT-Lite, CVT) they are the principal components of its filters, each filter a sample.
    The sign of a component is arbitrary, so its largest weight is made positive. A hybrid, a BiT ResNet or a CCT starts
    with a convolution: for these they are its kernels, standardised if the model standardises them.
    """
    return captioned_filters(model, count)[0]


def captioned_filters(model: Inspected, count: int = NUM_FILTERS) -> tuple[np.ndarray, str]:
    """Return the filters and a caption for them."""
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
        f"{size} each; they explain {whole:.0%} of the variance"
    )
    return values, caption


def position_similarity(model: Inspected, layer: int = 0) -> np.ndarray:
    """Return the cosine similarity of each patch's position embedding to every other's.

    The result is (rows, columns, rows, columns), without class and register tokens.
    layer: which table, if the model has one for every block.
    """
    module, config = transformer(model, "similarity of positions")
    table = _position_table(module)  # (tables, tokens, width)
    if not -len(table) <= layer < len(table):
        raise InputError(f"no position table for layer {layer}: the model has {len(table)}")
    rows, columns = config.grid
    patches = table[layer][-rows * columns :]
    norms = np.linalg.norm(patches, axis=1, keepdims=True)
    unit = patches / np.maximum(norms, np.finfo(np.float64).tiny)
    return (unit @ unit.T).clip(-1, 1).reshape(rows, columns, rows, columns).astype(np.float32)


def principal_components(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return directions (components, dimensions) of samples (samples, dimensions), and their shares of the variance.

    Directions along which the samples don't vary are omitted.
    """
    centered = samples - samples.mean(axis=0)
    _, spread, directions = np.linalg.svd(centered, full_matrices=False)
    # Like numpy's matrix_rank, but relative to the samples' size: if they are all alike, only rounding errors vary.
    rank = int((spread > np.abs(samples).max() * max(samples.shape) * np.finfo(np.float64).eps).sum())
    variances = spread[:rank] ** 2
    return fix_signs(directions[:rank]), variances / variances.sum() if rank else variances


def fix_signs(directions: np.ndarray) -> np.ndarray:
    """Flip the rows (directions, dimensions) whose largest entry is negative, so that results are reproducible."""
    largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=1)[:, None], axis=1)
    return directions * np.where(largest < 0, -1.0, 1.0)


def _first_convolution(model: Model) -> tuple[nn.Conv2d, str, bool]:
    """Return the convolution that reads pixels, its name for captions, and whether it embeds patches."""
    if isinstance(model, OwnModule):
        return _own_convolution(model), "the first convolution", False
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


def _own_convolution(model: OwnModule) -> nn.Conv2d:
    """Return the first convolution of the user's own module that has as many input channels as images."""
    for found in model.module.modules():
        if isinstance(found, nn.Conv2d) and found.in_channels == model.config.channels and found.groups == 1:
            return found
    raise Undefined("a picture of filters", f"{model.config.module} has no convolution that reads pixels")


@torch.no_grad()
def _kernels(convolution: nn.Conv2d) -> np.ndarray:
    """Return the kernels that the convolution applies to pixels: float64 (filters, height, width, channels)."""
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
            "relative": "its positions are offsets between two tokens, so patches have no position embeddings",
        }
        raise Undefined("similarity of positions", reasons[positions])
    return table.detach().cpu().double().numpy()


def _first(shown: int, whole: int) -> str:
    return f"the {whole}" if shown == whole else f"the first {shown} of {whole}"
