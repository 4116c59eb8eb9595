"""Looking inside models: functions that return arrays. `vitkit.figures.maps` draws them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitkit.inspection.attention import attention_distance as attention_distance
    from vitkit.inspection.attention import attention_maps as attention_maps
    from vitkit.inspection.attention import pooling_map as pooling_map
    from vitkit.inspection.attention import token_colors as token_colors
    from vitkit.inspection.attention import uniform_distance as uniform_distance
    from vitkit.inspection.flow import gradient_rollout as gradient_rollout
    from vitkit.inspection.flow import rollout as rollout
    from vitkit.inspection.weights import embedding_filters as embedding_filters
    from vitkit.inspection.weights import position_similarity as position_similarity

# Loaded on first use: pictures and pages made from arrays need no torch.
PUBLIC = {
    "attention_distance": "attention",
    "attention_maps": "attention",
    "embedding_filters": "weights",
    "gradient_rollout": "flow",
    "pooling_map": "attention",
    "position_similarity": "weights",
    "rollout": "flow",
    "token_colors": "attention",
    "uniform_distance": "attention",
}

__all__ = [
    "attention_distance",
    "attention_maps",
    "embedding_filters",
    "gradient_rollout",
    "pooling_map",
    "position_similarity",
    "rollout",
    "token_colors",
    "uniform_distance",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name not in PUBLIC:
        raise AttributeError(f"module 'vitkit.inspection' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"vitkit.inspection.{PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
