"""Token merging (ToMe, Bolya et al. 2023): each layer merges the patches that are most alike, without training.

Between attention and MLP, patches are split into two halves. Each of one half finds the most similar key in the other, and
the `merge` closest pairs become their mean. Attention weighs a token by the number of patches that it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.errors import InputError
from vitkit.models.attention.attention import Attention, attention_weights, join_heads, unpack
from vitkit.models.configs import TransformerConfig
from vitkit.models.model import Model, recomputed
from vitkit.models.record import Record


class Merging:
    """What is merged in one forward pass: for each layer, which token each patch is in.

    A layer's entry depends on its input alone, so that a layer can be recomputed for the backward pass.
    """

    def __init__(self, merge: int, num_prefix: int) -> None:
        """num_prefix: class and register tokens, which stay as they are."""
        self.merge, self.num_prefix = merge, num_prefix
        # Before each layer: the place of each original token (batch, tokens), and the patches in each token (batch, places).
        self._places: dict[int, Tensor] = {}
        self._sizes: dict[int, Tensor] = {}
        self._steps: dict[int, Tensor] = {}

    def attend(self, attention: Attention, x: Tensor, record: Record | None, layer: int) -> Tensor:
        """Return the attention of merged tokens, and choose the pairs that `join` merges."""
        q, k, v = unpack(attention.project(x))  # each (batch, heads, tokens, size)
        sizes = self._sizes.get(layer)
        # A token of n patches gets the weight of n equal ones.
        bias = None if sizes is None else sizes.log().to(q.dtype)[:, None, None]
        self._steps[layer] = match(k.detach().mean(1), self.merge, self.num_prefix)
        if record is not None and record.wants("attention", layer):
            weights = self._spread_pairs(attention_weights(q, k, bias), layer)
            record.keep("attention", weights, layer)
            mixed = self._join_pairs(weights, layer) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, bias)
        return attention.proj(join_heads(mixed))

    def join(self, x: Tensor, layer: int) -> Tensor:
        """Return tokens with the chosen pairs merged into means of their patches: (batch, fewer tokens, width)."""
        step, sizes = self._steps.pop(layer), self._sizes.get(layer)
        before = torch.ones_like(step, dtype=torch.float32) if sizes is None else sizes
        places = torch.arange(count_after(step.shape[1], self.merge, self.num_prefix), device=x.device)
        shares = (step[:, None] == places[:, None]) * before[:, None]  # (batch, places, tokens)
        self._sizes[layer + 1] = after = shares.sum(-1)
        earlier = self._places.get(layer)
        self._places[layer + 1] = step if earlier is None else step.gather(1, earlier)
        return (shares / after[..., None]).to(x.dtype) @ x

    def spread(self, x: Tensor, layer: int) -> Tensor:
        """Return a row for each original token, equal for those that are merged before this layer."""
        places = self._places.get(layer)
        return x if places is None else x.gather(1, places[..., None].expand(-1, -1, x.shape[2]))

    def _spread_pairs(self, weights: Tensor, layer: int) -> Tensor:
        """Return attention between original tokens: merged ones share the attention that they get."""
        if layer not in self._places:
            return weights
        shared = weights / self._sizes[layer].to(weights.dtype)[:, None, None]
        places, heads = self._places[layer][:, None], weights.shape[1]
        tokens = places.shape[-1]
        rows = shared.gather(2, places[..., None].expand(-1, heads, -1, shared.shape[-1]))
        return rows.gather(3, places[:, :, None].expand(-1, heads, tokens, -1))

    def _join_pairs(self, weights: Tensor, layer: int) -> Tensor:
        """Return attention between merged tokens, the inverse of `_spread_pairs`, so that gradients pass the recorded one."""
        if layer not in self._places:
            return weights
        sizes = self._sizes[layer].to(weights.dtype)
        members = F.one_hot(self._places[layer], sizes.shape[1]).to(weights.dtype)[:, None]
        means = (members / sizes[:, None, None]).transpose(-2, -1)  # (batch, 1, places, tokens)
        return means @ weights @ members


def encode_merged(
    model: Model, blocks: Iterable[nn.Module], norm: nn.Module, tokens: Tensor, record: Record | None
) -> Tensor:
    """Return an encoder's output with `model.merge` patches merged in each layer; merged patches have equal rows.

    With a row for each patch, pools and maps need to know nothing of merging.
    """
    if model.training:
        raise InputError("patches are merged only in inference: call model.eval() or model.set_merge(0)")
    assert isinstance(model.config, TransformerConfig)
    merging, layer = Merging(model.merge, model.config.num_prefix), 0
    for layer, block in enumerate(blocks, start=1):
        inputs = (tokens, record, layer - 1, merging)
        checkpoints = model.activation_checkpointing and torch.is_grad_enabled()
        tokens = recomputed(block, *inputs) if checkpoints else block(*inputs)
        if record is not None and record.wants("tokens", layer - 1):
            record.keep("tokens", merging.spread(tokens, layer), layer - 1)
    return merging.spread(norm(tokens), layer)


def count_after(tokens: int, merge: int, num_prefix: int) -> int:
    """Return how many tokens a layer leaves: at most half of the patches can be merged."""
    return tokens - min(merge, (tokens - num_prefix) // 2)


def match(keys: Tensor, merge: int, num_prefix: int) -> Tensor:
    """Return each token's place after merging: (batch, tokens), equal for those that are merged into one.

    keys: (batch, tokens, size). The order is that of the paper's code: class and register tokens, patches of the first half
    that are not merged, patches of the second half.
    """
    patches = F.normalize(keys[:, num_prefix:].float(), dim=-1)
    merge = min(merge, patches.shape[1] // 2)
    first, second = patches[:, 1::2], patches[:, ::2]
    similarity, nearest = (first @ second.transpose(1, 2)).max(-1)  # each (batch, first)
    # A token's rank counts those that are closer to theirs: quicker than a sort, and the same on every device.
    number = torch.arange(first.shape[1], device=keys.device)
    closer = similarity[:, None] > similarity[..., None]
    earlier = (similarity[:, None] == similarity[..., None]) & (number < number[:, None])
    merged = (closer | earlier).sum(-1) < merge
    kept = first.shape[1] - merge
    places = keys.new_empty(patches.shape[:2], dtype=torch.long)
    places[:, 1::2] = torch.where(merged, kept + nearest, (~merged).cumsum(1) - 1)
    places[:, ::2] = kept + torch.arange(second.shape[1], device=keys.device)
    prefix = torch.arange(num_prefix, device=keys.device).expand(len(keys), -1)
    return torch.cat([prefix, places + num_prefix], dim=1)
