"""Attention rollout: how much each patch contributes, through all layers, to the features or to one class.

From top to bottom: the rollout; the product of layers; the steps for one layer's attention (fuse heads, discard the
smallest, mix in the residual, normalise rows); the row that the head reads; the gradient rollout for a class.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vitkit.config import Bounds, check_choice
from vitkit.errors import InputError
from vitkit.inspection.asking import (
    Inspected,
    Undefined,
    ask,
    attending,
    batches,
    check_head,
    evaluating,
    reads_class_token,
)
from vitkit.models.configs import TransformerConfig
from vitkit.models.model import Model
from vitkit.models.record import Record

Fuse = Literal["mean", "max", "min"]


def rollout(
    model: Inspected,
    images: Tensor,
    fuse: Fuse = "mean",
    residual: float = 0.5,
    discard: float = 0.0,
    *,
    batch_size: int | None = None,
) -> np.ndarray:
    """Return how much each patch contributes to the features that the head reads: (images, rows, columns).

    In each layer, heads are fused, the smallest entries are discarded, the identity is mixed in for the residual, and rows
    are normalised to sum to one. The product of all layers is the rollout (Abnar and Zuidema 2020; ViT, D.8), and its class
    row is the map. If the head reads no class token, the map is the mean of the patches' rows, weighted by the pooling
    weights if there is a SeqPool or a MAP head (mean over its heads). Layers are multiplied as they are computed, so only
    one layer's attention is in memory.

    fuse: mean, max or min over heads.
    residual: weight of the identity.
    discard: share of the off-diagonal entries of each image's fused matrix to set to zero, smallest first.
    """
    module, config = attending(model, "attention rollout")
    check_choice("fuse", fuse, Fuse)
    flow = Flow(residual, discard)

    def reduce(kind: str, layer: int | None, tensor: Tensor) -> Tensor | None:
        if layer is None:  # pooling weights
            return tensor.float().mean(1)  # (batch, patches)
        flow.add(fuse_heads(tensor.float(), fuse), is_first=layer == 0)
        return None

    def take(record: Record) -> np.ndarray:
        row = read_row(config, flow.product, record.pooling)
        return _map(config, (row[:, None] @ flow.product).squeeze(1))

    return np.concatenate(
        ask(module, images, Record("attention", "pooling", reduce=reduce), take, batch_size)
    )


class Flow:
    """The product of the layers so far, the last one on the left: (batch, tokens, tokens).

    Entry (i, j) is the share of token i that comes from token j of the input.
    """

    product: Tensor

    def __init__(self, residual: float, discard: float) -> None:
        for name, share in (("residual", residual), ("discard", discard)):
            Bounds(at_least=0, below=1).check(name, share)
        self.residual = residual
        self.discard = discard

    def add(self, fused: Tensor, is_first: bool) -> None:
        """Multiply by the next layer's attention, one matrix per image; the first layer starts over."""
        layer = self.mix(fused)
        # A layer's tokens are mixtures of its inputs; the product so far says how these mix the patches.
        self.product = layer if is_first else layer @ self.product

    def mix(self, fused: Tensor) -> Tensor:
        """Return a layer's matrix, with the smallest entries discarded and the identity mixed in."""
        return mix_residual(discard_smallest(fused, self.discard), self.residual)


def fuse_heads(attention: Tensor, fuse: Fuse) -> Tensor:
    """Reduce attention (batch, heads, tokens, tokens) to one matrix per image."""
    match fuse:
        case "mean":
            return attention.mean(1)
        case "max":
            return attention.amax(1)
        case "min":
            return attention.amin(1)


def discard_smallest(fused: Tensor, share: float) -> Tensor:
    """Set a share of the off-diagonal entries of each (tokens, tokens) matrix to zero, smallest first.

    Every token attends a little to all others. Multiplied over many layers, this becomes an even haze that hides the
    patches that matter. The diagonal, what a token keeps of itself, is not part of the haze.
    """
    tokens = fused.shape[-1]
    count = int(share * tokens * (tokens - 1) + 1e-9)  # 0.7 * 90 is slightly below 63 in floating point
    if not count:
        return fused
    diagonal = torch.eye(tokens, dtype=torch.bool, device=fused.device)
    order = fused.masked_fill(diagonal, torch.inf).flatten(1).argsort(stable=True)  # (batch, entries)
    return fused.flatten(1).scatter(1, order[:, :count], 0.0).view_as(fused)


def mix_residual(fused: Tensor, residual: float) -> Tensor:
    """Return residual * identity + (1 - residual) * fused, with rows that sum to one."""
    # A block adds attention's output to the token itself. The identity stands for the token, which would
    # otherwise be lost after one layer. Abnar and Zuidema weigh both equally (residual 0.5).
    identity = torch.eye(fused.shape[-1], dtype=fused.dtype, device=fused.device)
    mixed = residual * identity + (1 - residual) * fused
    # Rows of max, min, discarded or gradient-weighted attention don't sum to one. Without normalising, their sums would
    # multiply over layers, and a map would show those instead of shares. The clamp keeps empty rows at zero.
    return mixed / mixed.sum(-1, keepdim=True).clamp(min=torch.finfo(mixed.dtype).tiny)


def read_row(config: TransformerConfig, like: Tensor, pooling: Tensor | None) -> Tensor:
    """Return the weights with which the head reads the last layer's tokens: (images, tokens), for the images in `like`."""
    row = torch.zeros(len(like), config.num_tokens, device=like.device)
    if reads_class_token(config):
        row[:, 0] = 1
    else:
        num_patches = config.num_tokens - config.num_prefix
        row[:, config.num_prefix :] = 1 / num_patches if pooling is None else pooling
    return row


def _map(config: TransformerConfig, row: Tensor) -> np.ndarray:
    """Return the patch tokens of (images, tokens) as a grid."""
    return row[:, config.num_prefix :].unflatten(-1, config.grid).cpu().numpy()


def gradient_rollout(
    model: Inspected,
    images: Tensor,
    classes: int | Sequence[int] | np.ndarray | Tensor,
    residual: float = 0.5,
    discard: float = 0.0,
    *,
    batch_size: int | None = None,
) -> np.ndarray:
    """Return how much each patch contributes to the logit of a class: (images, rows, columns).

    Each layer's matrix is attention times the gradient of that logit, averaged over heads, with negative values set to
    zero. The rest is as in `rollout`. The backward pass recomputes each layer's attention and multiplies one row of the
    product, so only one layer's attention is in memory. A model built in inference mode has no gradients.

    classes: one class index for all images, or one for each.
    """
    module, config = attending(model, "gradient rollout")
    check_head(module, "gradient rollout")
    numbers = _class_numbers(classes, len(images), config.num_classes)
    flow, maps, done, has_gradient = Flow(residual, discard), list[np.ndarray](), 0, False
    with evaluating(module), recomputing(module), torch.inference_mode(False), torch.enable_grad():
        for batch in batches(module, images, batch_size, num_kept=4):
            back = Backflow(flow)
            record = Record("attention", "pooling", reduce=back.take)
            # Images require the gradient, so weights don't have to: this also works for a frozen model.
            asking = batch.detach().clone().requires_grad_()
            logits = module(asking, record)
            chosen = numbers[done : done + len(batch), None].to(logits.device).clone()
            back.row = read_row(config, logits, record.pooling)
            torch.autograd.grad(logits.gather(1, chosen).sum(), asking)
            maps.append(_map(config, back.row))
            has_gradient |= back.has_gradient
            done += len(batch)
    if not has_gradient:
        raise Undefined(
            "gradient rollout", "its logits have no gradient: the head is all zeros, as before training"
        )
    return np.concatenate(maps)


class Backflow:
    """One row of the product of all layers, built from the last to the first during the backward pass."""

    row: Tensor
    "The contribution of each token to the features, through the layers so far: (batch, tokens)."

    def __init__(self, flow: Flow) -> None:
        self.flow, self.has_gradient = flow, False
        self._attention: dict[int, Tensor | None] = {}

    def take(self, kind: str, layer: int | None, tensor: Tensor) -> Tensor | None:
        """Reduce recorded attention. The backward pass recomputes it, so it comes a second time, just before its gradient."""
        if layer is None:  # pooling weights
            return tensor.detach().float().mean(1)
        if layer in self._attention:
            self._attention[layer] = tensor.detach()
        else:
            self._attention[layer] = None
            tensor.register_hook(functools.partial(self._weigh, layer))
        return None

    def _weigh(self, layer: int, gradient: Tensor) -> None:
        attention, self._attention[layer] = self._attention[layer], None
        assert attention is not None
        self.has_gradient |= bool(gradient.any())
        fused = (attention * gradient).float().mean(1).clamp(min=0)  # (batch, tokens, tokens)
        # The last layer comes first, so a row times each matrix gives that row of the product, which is much smaller.
        self.row = (self.row[:, None] @ self.flow.mix(fused)).squeeze(1)


@contextmanager
def recomputing(model: Model) -> Iterator[None]:
    """Turn on activation checkpointing: keep only each block's input for the backward pass."""
    before, model.activation_checkpointing = model.activation_checkpointing, True
    try:
        yield
    finally:
        model.activation_checkpointing = before


def _class_numbers(
    classes: int | Sequence[int] | np.ndarray | Tensor, num_images: int, num_classes: int
) -> Tensor:
    try:
        numbers = torch.as_tensor(classes).cpu()
    except (TypeError, ValueError, RuntimeError):  # names, or None
        raise InputError(
            f"classes are {classes!r}; expected indices, such as class_names.index(name)"
        ) from None
    if numbers.is_floating_point() or numbers.dtype == torch.bool or numbers.shape not in ((), (num_images,)):
        raise InputError(
            f"classes have shape {tuple(numbers.shape)} and type {numbers.dtype}; expected one whole number, "
            f"or one for each of the {num_images} images"
        )
    wrong = numbers[(numbers < 0) | (numbers >= num_classes)]
    if wrong.numel():
        raise InputError(
            f"no class {wrong.flatten()[0].item()}: the model has {num_classes} classes, counted from 0"
        )
    return numbers.long().expand(num_images)
