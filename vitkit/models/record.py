"""Intermediate results of a forward pass, selected by kind and layer and reduced on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

from torch import Tensor

from vitkit.errors import InputError, did_you_mean

Kind = Literal["attention", "tokens", "pooling", "features"]
KINDS: tuple[str, ...] = get_args(Kind)


class Record:
    """Pass to `model(images, record=record)`, then read the attributes of the requested kinds.

    attention: layer -> (batch, heads, tokens, tokens), rows sum to one
    tokens: layer -> (batch, tokens, width), after that block
    pooling: (batch, heads, patches), the weights of a MAP head or SeqPool (one head)
    features: (batch, width), what the head reads

    `reduce(kind, layer, tensor)` returns what to keep instead of the tensor, so a whole network's
    attention never has to fit in memory. `layer` is None for pooling and features.
    """

    def __init__(
        self,
        *kinds: Kind,
        layers: Iterable[int] | None = None,
        reduce: Callable[[str, int | None, Tensor], Any] | None = None,
    ) -> None:
        for kind in kinds:
            if kind not in KINDS:
                raise InputError(f"unknown record kind {kind!r}{did_you_mean(kind, KINDS)}")
        self.kinds = frozenset(kinds)
        self.layers = None if layers is None else tuple(layers)
        self.reduce = reduce
        self.attention: dict[int, Any] = {}
        self.tokens: dict[int, Any] = {}
        self.pooling: Any = None
        self.features: Any = None
        self._chosen: frozenset[int] = frozenset()

    def start(self, depth: int) -> None:
        """Clear the record and resolve negative layers for a model of `depth` blocks."""
        self.attention, self.tokens, self.pooling, self.features = {}, {}, None, None
        layers = range(depth) if self.layers is None else self.layers
        for layer in layers:
            if not -depth <= layer < depth:
                raise InputError(f"cannot record layer {layer}: the model has {depth} layers")
        self._chosen = frozenset(layer % depth for layer in layers)

    def wants(self, kind: Kind, layer: int | None = None) -> bool:
        """Return whether to keep this kind at this layer."""
        return kind in self.kinds and (layer is None or layer in self._chosen)

    def keep(self, kind: Kind, tensor: Tensor, layer: int | None = None) -> None:
        """Reduce and keep a tensor, if it was requested."""
        if not self.wants(kind, layer):
            return
        kept = tensor if self.reduce is None else self.reduce(kind, layer, tensor)
        if layer is None:
            setattr(self, kind, kept)
        else:
            getattr(self, kind)[layer] = kept
