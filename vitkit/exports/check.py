"""The check after an export: how far the graph's outputs are from the source's on real images, and what accuracy it costs."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitkit.data.sources.source import Source
from vitkit.evaluation.run import Evaluation, evaluate
from vitkit.models.model import Model
from vitkit.predictor import Predictor
from vitkit.results import Result
from vitkit.runtimes import Precision

BATCH = 8


@dataclass(frozen=True)
class Tolerance:
    """What an export may lose."""

    error: float
    "Relative error of the outputs."
    accuracy: float
    "Or two images, where that is more."


TOLERANCES: dict[Precision, Tolerance] = {
    "float32": Tolerance(0.001, 0.0005),
    "bfloat16": Tolerance(0.05, 0.005),
    "int8": Tolerance(0.2, 0.01),
}


@dataclass(frozen=True)
class Check(Result):
    """An exported graph next to its source, on the same prepared images."""

    images: int
    what: str = field(metadata={"json": "of"})
    "Which images these are."
    largest_difference: float
    "Of a logit, or of a feature where the model has no head."
    relative_error: float
    "Root of the mean squared difference, as a share of the outputs' standard deviation."
    agreement: float | None
    "Share of images with the same likeliest class; None without a head, or where each token has logits."
    data: str | None = None
    data_images: int | None = None
    metric: str | None = None
    "accuracy, or mean_average_precision of multi-label data."
    before: float | None = None
    after: float | None = None


def compare(source: Model, exported: Model, images: Tensor, what: str) -> Check:
    """Return how far an exported model's outputs are from its source's."""
    with torch.inference_mode():
        expected, found = (
            torch.cat([model(batch).float() for batch in images.split(BATCH)]) for model in (source, exported)
        )
    difference = (found - expected).double()
    spread = expected.double().std().item()
    error = difference.square().mean().sqrt().item()
    classified = source.config.num_classes > 0 and expected.ndim == 2
    same = (expected.argmax(1) == found.argmax(1)).float().mean().item() if classified else None
    relative = 0.0 if error == 0.0 else error / max(spread, 1e-12)
    return Check(len(images), what, difference.abs().max().item(), relative, same)


def measure(source: Predictor, exported: Predictor, data: Source) -> dict[str, object]:
    """Return the accuracy of both on the same images, as fields of a check."""
    before, after = (evaluate(model, data, progress=False) for model in (source, exported))
    metric = "accuracy" if before.accuracy is not None else "mean_average_precision"
    return {
        "data": data.data_name,
        "data_images": before.images,
        "metric": metric,
        "before": _value(before, metric),
        "after": _value(after, metric),
    }


def _value(result: Evaluation, metric: str) -> float | None:
    value = getattr(result, metric)
    return None if value is None else float(value)


def what_is_lost(check: Check, precision: Precision) -> str | None:
    """Return what an export loses beyond the tolerance, or None."""
    limit = TOLERANCES[precision]
    if not check.relative_error <= limit.error:  # NaN too
        return f"its outputs differ by {check.relative_error:.2%} on {check.what}; the limit for {precision} is {limit.error:.2%}"
    if check.before is None or check.after is None or not check.data_images:
        return None
    allowed = max(limit.accuracy, 2 / check.data_images)
    if check.before - check.after > allowed + 1e-9:
        return f"{check.metric} on {check.data} falls from {check.before:.2%} to {check.after:.2%}; the limit is {allowed:.2%}"
    return None
