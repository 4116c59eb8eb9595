"""Vision Transformers, whole: the public names, each loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitkit.data.open import open_data as open_data
    from vitkit.data.pack import pack as pack
    from vitkit.errors import InputError as InputError
    from vitkit.evaluate.fewshot import fewshot as fewshot
    from vitkit.evaluate.knn import knn as knn
    from vitkit.evaluate.probe import probe as probe
    from vitkit.models import create_model as create_model
    from vitkit.models.names import list_models as list_models
    from vitkit.predictor import load as load
    from vitkit.predictor import predict as predict
    from vitkit.transfer.finetune import finetune as finetune
    from vitkit.transfer.vtab.run import vtab as vtab
    from vitkit.weights.convert import convert as convert
    from vitkit.weights.convert import save as save

__version__ = "0.1.0"

# Names that are also modules (cost, doctor, models) stay modules: vitkit.cost.cost(...).
PUBLIC = {
    "InputError": "vitkit.errors",
    "convert": "vitkit.weights.convert",
    "create_model": "vitkit.models",
    "fewshot": "vitkit.evaluate.fewshot",
    "finetune": "vitkit.transfer.finetune",
    "knn": "vitkit.evaluate.knn",
    "list_models": "vitkit.models.names",
    "load": "vitkit.predictor",
    "open_data": "vitkit.data.open",
    "pack": "vitkit.data.pack",
    "predict": "vitkit.predictor",
    "probe": "vitkit.evaluate.probe",
    "save": "vitkit.weights.convert",
    "vtab": "vitkit.transfer.vtab.run",
}

__all__ = [
    "InputError",
    "__version__",
    "convert",
    "create_model",
    "fewshot",
    "finetune",
    "knn",
    "list_models",
    "load",
    "open_data",
    "pack",
    "predict",
    "probe",
    "save",
    "vtab",
]


def __getattr__(name: str) -> Any:
    import importlib
    import importlib.util

    if name in PUBLIC:
        value = getattr(importlib.import_module(PUBLIC[name]), name)
        globals()[name] = value
        return value
    if not name.startswith("_") and importlib.util.find_spec(f"vitkit.{name}"):
        return importlib.import_module(f"vitkit.{name}")
    raise AttributeError(f"module 'vitkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    import pkgutil

    return sorted({*__all__, *(module.name for module in pkgutil.iter_modules(__path__))})
