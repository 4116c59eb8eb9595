"""Training: `train(recipe)` is the public function; the loop is in loop.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitkit.train.run import train as train


def __getattr__(name: str) -> Any:
    if name != "train":
        raise AttributeError(f"module 'vitkit.train' has no attribute {name!r}")
    from vitkit.train.run import train  # here, so that listing runs needs no torch

    return train
