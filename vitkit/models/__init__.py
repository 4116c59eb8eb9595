"""Models by name: names -> configs -> modules. Names and configs need no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitkit.models.names import list_models, model_config

if TYPE_CHECKING:
    from vitkit.models.create import build as build
    from vitkit.models.create import create_model as create_model

__all__ = ["build", "create_model", "list_models", "model_config"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'vitkit.models' has no attribute {name!r}")
    import vitkit.models.create as create  # imports torch, which names don't need

    globals().update(build=create.build, create_model=create.create_model)
    return globals()[name]
