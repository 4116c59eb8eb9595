"""The complete Vision Transformer in PyTorch: the public names, each loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitkit.costs import cost as cost
    from vitkit.data.open import open_data as open_data
    from vitkit.data.pack import pack as pack
    from vitkit.data.report import describe_data as describe_data
    from vitkit.errors import InputError as InputError
    from vitkit.evaluation.embed import embed as embed
    from vitkit.evaluation.embeddings import open_embeddings as open_embeddings
    from vitkit.evaluation.fewshot import fewshot as fewshot
    from vitkit.evaluation.knn import knn as knn
    from vitkit.evaluation.probe import probe as probe
    from vitkit.evaluation.run import evaluate as evaluate
    from vitkit.evaluation.search import find_duplicates as find_duplicates
    from vitkit.evaluation.search import search as search
    from vitkit.evaluation.verify import verify as verify
    from vitkit.exports.run import export as export
    from vitkit.models.create import create_model as create_model
    from vitkit.models.names import list_models as list_models
    from vitkit.predictor import load as load
    from vitkit.predictor import predict as predict
    from vitkit.predictor import wrap as wrap
    from vitkit.reports.inspection import inspect_model as inspect_model
    from vitkit.reports.runs import report as report
    from vitkit.serving.cluster import ray_application as ray_application
    from vitkit.serving.run import serve as serve
    from vitkit.studies.plan import plan_study as plan_study
    from vitkit.studies.run import run_study as run_study
    from vitkit.studies.show import show_study as show_study
    from vitkit.timing.run import bench as bench
    from vitkit.training.run import train as train
    from vitkit.transfer.finetune import finetune as finetune
    from vitkit.transfer.vtab.run import vtab as vtab
    from vitkit.weights.convert import convert as convert
    from vitkit.weights.convert import save as save

__version__ = "0.1.0"

# One function for each verb, and what they take and return.
PUBLIC = {
    "InputError": "vitkit.errors",
    "bench": "vitkit.timing.run",
    "convert": "vitkit.weights.convert",
    "cost": "vitkit.costs",
    "create_model": "vitkit.models.create",
    "describe_data": "vitkit.data.report",
    "embed": "vitkit.evaluation.embed",
    "evaluate": "vitkit.evaluation.run",
    "export": "vitkit.exports.run",
    "fewshot": "vitkit.evaluation.fewshot",
    "find_duplicates": "vitkit.evaluation.search",
    "finetune": "vitkit.transfer.finetune",
    "inspect_model": "vitkit.reports.inspection",
    "knn": "vitkit.evaluation.knn",
    "list_models": "vitkit.models.names",
    "load": "vitkit.predictor",
    "open_data": "vitkit.data.open",
    "open_embeddings": "vitkit.evaluation.embeddings",
    "pack": "vitkit.data.pack",
    "plan_study": "vitkit.studies.plan",
    "predict": "vitkit.predictor",
    "probe": "vitkit.evaluation.probe",
    "ray_application": "vitkit.serving.cluster",
    "report": "vitkit.reports.runs",
    "run_study": "vitkit.studies.run",
    "save": "vitkit.weights.convert",
    "search": "vitkit.evaluation.search",
    "serve": "vitkit.serving.run",
    "show_study": "vitkit.studies.show",
    "train": "vitkit.training.run",
    "verify": "vitkit.evaluation.verify",
    "vtab": "vitkit.transfer.vtab.run",
    "wrap": "vitkit.predictor",
}

__all__ = [
    "InputError",
    "__version__",
    "bench",
    "convert",
    "cost",
    "create_model",
    "describe_data",
    "embed",
    "evaluate",
    "export",
    "fewshot",
    "find_duplicates",
    "finetune",
    "inspect_model",
    "knn",
    "list_models",
    "load",
    "open_data",
    "open_embeddings",
    "pack",
    "plan_study",
    "predict",
    "probe",
    "ray_application",
    "report",
    "run_study",
    "save",
    "search",
    "serve",
    "show_study",
    "train",
    "verify",
    "vtab",
    "wrap",
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
