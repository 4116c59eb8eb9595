"""What stands for every MODEL where a test is about what is done with one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vitkit.models.configs import Preprocessing
from vitkit.models.model import Model


def stand_for_every_model(
    monkeypatch: pytest.MonkeyPatch,
    model: Model,
    name: str,
    preprocessing: Preprocessing,
    class_names: tuple[str, ...] | None,
    note: str,
) -> SimpleNamespace:
    """Let `vitkit.load` find this model under any name; `asked` has what it was asked for."""
    found = SimpleNamespace(
        model=model,
        preprocessing=preprocessing,
        class_names=class_names,
        multi_label=False,
        name=name,
        notes=(note,),
        asked={},
    )

    def load_model(spec: str | Path, **settings: Any) -> SimpleNamespace:
        found.asked = {"spec": spec, **settings}
        return found

    monkeypatch.setattr("vitkit.weights.load.load_model", load_model)
    return found
