"""Evaluation: `evaluate(model, data)` is the public function; few-shot, probe and nearest neighbours are beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitkit.evaluate.run import evaluate as evaluate


def __getattr__(name: str) -> Any:
    if name != "evaluate":
        raise AttributeError(f"module 'vitkit.evaluate' has no attribute {name!r}")
    from vitkit.evaluate.run import evaluate  # here: the training loop needs none of it

    return evaluate
