"""Reformer's attention by locality-sensitive hashing (Kitaev et al. 2020): patches see those in the same hash bucket.

Queries are keys. In each of several rounds, patches are hashed into buckets, sorted by bucket and cut into chunks; a
patch sees those of its bucket in its own chunk and the one before. The result is a softmax over all that a patch sees
in any round. The reversible layers are left out: activation checkpointing saves the same memory.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.models.attention.grid import GridAttention
from vitkit.models.configs import ViTConfig
from vitkit.models.pairs import bucket_factors
from vitkit.models.positions import Grid

SELF = -5e4  # in the range of float16
"Added to a token's logit for itself: queries are keys, so it would outweigh all others. A token that sees no other still sees itself."
UNSEEN = -1e9
"The logit of a pair that isn't seen: as good as minus infinity, of which ONNX Runtime makes NaN."


class ReformerAttention(GridAttention):
    """Hashes come from fixed random rotations, the same in training and evaluation, so that runs resume bit for bit."""

    projections = 2  # queries, which are keys too, and values
    own_logit = SELF
    rotations: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.rounds = config.attention_setting("attention_hashes")
        self.chunk = config.attention_setting("attention_chunk")
        self.register_buffer("rotations", None, persistent=False)
        self.reset_tables()

    def set_grid(self, grid: Grid) -> None:
        super().set_grid(grid)
        self.reset_tables()

    def reset_tables(self) -> None:
        size = self.qkv.in_features // self.heads
        self.factors = bucket_factors(math.prod(self.grid), self.chunk)
        shape = (self.rounds, size, sum(self.factors) // 2)
        if self.qkv.weight.is_meta:  # drawn once there are weights, whose shapes have been checked
            self.rotations = torch.empty(shape, device="meta", dtype=self.qkv.weight.dtype)
            return
        drawn = torch.randn(shape, device="cpu", generator=torch.Generator().manual_seed(0))
        self.rotations = drawn.to(self.qkv.weight)

    def project(self, x: Tensor) -> Tensor:  # of all patches or fewer
        q, v = self.qkv(x).unflatten(2, (2, self.heads, -1)).unbind(2)
        return torch.stack([q, F.normalize(q, dim=-1), v], dim=2)

    def hash(self, q: Tensor) -> Tensor:
        """Return each patch's bucket in each round: (batch, heads, rounds, patches)."""
        turned = q.detach()[:, :, None] @ self.rotations  # (batch, heads, rounds, patches, directions)
        bucket = torch.zeros((), dtype=torch.int64, device=q.device)
        for part in turned.split([factor // 2 for factor in self.factors], dim=-1):
            bucket = 2 * part.shape[-1] * bucket + torch.cat([part, -part], dim=-1).argmax(dim=-1)
        return bucket

    def mix_prefix(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        q = q[:, :, : self.num_prefix]
        itself = torch.eye(self.num_prefix, k.shape[2], dtype=q.dtype, device=q.device) * SELF
        return F.scaled_dot_product_attention(q, k, v, itself, dropout)

    def mix_patches(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        return attend_hashed(q, k, v, self.hash(q), self.chunk, dropout)

    def sees(self, q: Tensor) -> Tensor:
        found = self.hash(q)
        place = sort_by_bucket(found).argsort(dim=3)
        chunks = place // self.chunk
        back = chunks[..., :, None] - chunks[..., None, :]
        together = (found[..., :, None] == found[..., None, :]) & (back >= 0) & (back <= 1)
        return together.any(dim=2)


def sort_by_bucket(buckets: Tensor) -> Tensor:
    """Return the patches of each round in the order of their buckets, then of the grid: (batch, heads, rounds, patches)."""
    patches = buckets.shape[3]
    # All keys differ, so that any sort gives this order: torch.onnx has no stable one.
    return (buckets * patches + torch.arange(patches, device=buckets.device)).argsort(dim=3)


def attend_hashed(q: Tensor, k: Tensor, v: Tensor, buckets: Tensor, chunk: int, dropout: float) -> Tensor:
    """Attend to patches of the same bucket in the same chunk or the one before, in any round, and to the prefix.

    q: patches (batch, heads, patches, size); k and v have the prefix before these.
    buckets: (batch, heads, rounds, patches).
    """
    patches, rounds = q.shape[2], buckets.shape[2]
    chunk = min(chunk, patches)
    prefix, spare = k.shape[2] - patches, -patches % chunk
    q = q / math.sqrt(q.shape[3])
    # Zeros fill up the last chunk. They come last, in a bucket of their own.
    fillers = torch.arange(patches, patches + spare, device=q.device).expand(*buckets.shape[:3], -1)
    order = torch.cat([sort_by_bucket(buckets), fillers], dim=3)  # (batch, heads, rounds, patches)
    buckets = F.pad(buckets, (0, spare), value=-1)
    filled = [F.pad(x, (0, 0, 0, spare)) for x in (q, k[:, :, prefix:], v[:, :, prefix:])]
    place = order.argsort(dim=3)
    queries, keys, values = (_chunks(_sort(x, order), chunk) for x in filled)
    keys, values = _with_previous(keys), _with_previous(values)  # (..., chunks, 2 * chunk, size)

    exact = torch.promote_types(q.dtype, torch.float32)
    logits = (queries @ keys.transpose(-2, -1)).to(exact)  # (batch, heads, rounds, chunks, chunk, 2 * chunk)
    seen, itself, times = _pairs(buckets, place, order, chunk)
    # A pair that meets in several rounds counts once: each round gets an equal share.
    logits = (logits + SELF * itself - times.to(exact).log()).masked_fill(~seen, UNSEEN)
    total = logits.logsumexp(dim=-1, keepdim=True)
    mixed = F.dropout((logits - total).exp().to(v.dtype), dropout) @ values
    back = place[..., :patches, None]
    total = total.flatten(3, 4).gather(3, back)  # (batch, heads, rounds, patches, 1)
    mixed = mixed.flatten(3, 4).gather(3, back.expand(*back.shape[:-1], v.shape[3]))
    if prefix:
        logits = (q @ k[:, :, :prefix].transpose(-2, -1)).to(exact)
        sum_prefix = logits.logsumexp(dim=-1, keepdim=True)
        seen_prefix = F.dropout((logits - sum_prefix).exp().to(v.dtype), dropout) @ v[:, :, :prefix]
        total = torch.cat([total, sum_prefix[:, :, None]], dim=2)
        mixed = torch.cat([mixed, seen_prefix[:, :, None]], dim=2)
    elif rounds == 1:
        return mixed[:, :, 0]
    shares = total.softmax(dim=2).to(v.dtype)
    return (shares * mixed).sum(dim=2)


def _pairs(buckets: Tensor, place: Tensor, order: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return which pairs of a chunk and the one before are seen, which are a patch and itself, and in how many rounds.

    Each (batch, heads, rounds, chunks, chunk, 2 * chunk).
    """
    rounds = buckets.shape[2]
    patch = _chunks(order[..., None], chunk)
    itself = patch == _with_previous(patch, outside=-1).transpose(-2, -1)
    times = torch.zeros_like(itself, dtype=torch.int8)
    own = torch.zeros_like(itself)
    for other in range(rounds):
        # Bucket and chunk in the other round, of the patches in the order of each round.
        bucket, part = (
            _chunks(_sort(x[:, :, other, :, None], order), chunk) for x in (buckets, place // chunk)
        )
        same = bucket == _with_previous(bucket, outside=-1).transpose(-2, -1)
        back = part - _with_previous(part, outside=-3).transpose(-2, -1)
        met = same & (back >= 0) & (back <= 1)
        times += met
        own[:, :, other] = met[:, :, other]
    return own, itself, times.clamp(min=1)


def _sort(x: Tensor, order: Tensor) -> Tensor:
    """Return x (batch, heads, patches, size) in each round's order: (batch, heads, rounds, patches, size)."""
    rounds, size = order.shape[2], x.shape[3]
    spread = x[:, :, None].expand(-1, -1, rounds, -1, -1)
    return spread.gather(3, order[..., None].expand(*order.shape, size))


def _chunks(x: Tensor, chunk: int) -> Tensor:
    return x.unflatten(3, (-1, chunk))  # (batch, heads, rounds, chunks, chunk, size)


def _with_previous(x: Tensor, outside: int = 0) -> Tensor:
    """Put the chunk before each chunk in front of it; before the first one is `outside`."""
    before = F.pad(x[:, :, :, :-1], (0, 0, 0, 0, 1, 0), value=outside)
    return torch.cat([before, x], dim=4)
