"""Results: what a verb returns, a frozen dataclass whose `to_json` is what `--json` prints."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """Base of what verbs return, and of their rows.

    A field is a key of the document under its own name, or under metadata["json"] where that is no Python name.
    """

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values; numbers that are not finite are None."""
        return {
            field.metadata.get("json", field.name): as_json(getattr(self, field.name))
            for field in dataclasses.fields(self)
        }


def as_json(value: Any) -> Any:
    """Return a value as JSON has it: lists, objects, text, finite numbers, None."""
    if isinstance(value, Result):
        return value.to_json()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if hasattr(value, "_asdict"):  # a named tuple
        return as_json(value._asdict())
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(entry) for entry in value]
    if hasattr(value, "tolist"):  # NumPy's and torch's arrays and numbers
        return as_json(value.tolist())
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, str) else value
