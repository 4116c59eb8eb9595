"""Temperature scaling: one number that divides a classifier's logits, so that its confidence fits its accuracy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vitkit.errors import InputError
from vitkit.evaluation.metrics import binary_losses, calibration_by_chance, calibration_error, read_answers
from vitkit.results import Result

PRIOR = 3.0
"How strongly a temperature is held at 1: the weight of its prior next to that of one image."
_ROWS = 1024
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class FittedTemperature(Result):
    """A temperature, and what it was fitted on."""

    temperature: float
    fitted_on: str
    images: int


@dataclass(frozen=True)
class Calibration(FittedTemperature):
    """A fitted temperature, and what it changes on the images reported on, which had no part in it."""

    loss_before: float
    loss_after: float
    error_before: float | None = None
    "Calibration error of the same logits at temperature 1; None for multi-label data."
    error_after: float | None = None
    error_by_chance: float | None = None
    "What a perfectly calibrated model with these confidences would have on average, on this number of images."


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the temperature at which held-out logits (images, classes) explain their labels best (Guo et al., 2017).

    labels: int (images,) for a softmax over classes, or bool (images, classes) for a sigmoid of each.

    With s = 1 / temperature, the sum of losses + PRIOR (s - 1 - log s) is minimised. The second term is the logarithm
    of a Gamma prior on s whose mode is 1. It is worth a few images: it keeps s positive and finite where all images
    are right, or all wrong, and close to 1 where there are few. Both terms are convex, so there is one minimum.
    """
    if len(logits) != len(labels) or (labels.ndim == 2 and labels.shape != logits.shape):
        raise InputError(
            f"logits have shape {logits.shape}, labels {labels.shape}; expected a label for each image"
        )
    if not np.isfinite(logits).all():
        raise InputError("logits are not finite")
    low, high, place = (
        -math.inf,
        math.inf,
        0.0,
    )  # of log s; the slope of the objective is negative below the minimum
    step = 1.0
    while high - low > _TOLERANCE:
        scale = math.exp(place)
        slope, curvature = _derivatives(logits, labels, scale)
        slope, curvature = slope + PRIOR * (1 - 1 / scale), curvature + PRIOR / scale**2
        low, high = (place, high) if slope < 0 else (low, place)
        newton = place - slope / (curvature * scale)
        if math.isinf(low) or math.isinf(high):  # look for the other side of the minimum, ever further away
            place += math.copysign(step, -slope)
            step *= 2
        elif low < newton < high:
            if abs(newton - place) < _TOLERANCE:
                return math.exp(-newton)
            place = newton
        else:
            place = (low + high) / 2
    return math.exp(-place)


def measure_calibration(logits: np.ndarray, labels: np.ndarray, fitted: FittedTemperature) -> Calibration:
    """Return what a temperature changes on images with these logits, not yet divided by it, and labels."""
    scaled = logits / fitted.temperature
    if labels.ndim == 2:
        before, after = (float(binary_losses(values, labels).mean()) for values in (logits, scaled))
        return Calibration(**vars(fitted), loss_before=before, loss_after=after)
    members = np.eye(logits.shape[1], dtype=bool)
    plain, divided = (read_answers(values, labels, members) for values in (logits, scaled))
    is_right = plain.ranks == 0
    return Calibration(
        **vars(fitted),
        loss_before=float(plain.losses.mean()),
        loss_after=float(divided.losses.mean()),
        error_before=calibration_error(plain.confidence, is_right),
        error_after=calibration_error(divided.confidence, is_right),
        error_by_chance=calibration_by_chance(divided.confidence),
    )


def _derivatives(logits: np.ndarray, labels: np.ndarray, scale: float) -> tuple[float, float]:
    """Return the first and second derivative of the sum of losses by the scale of the logits."""
    slope = curvature = 0.0
    for start in range(0, len(logits), _ROWS):
        z, truth = logits[start : start + _ROWS].astype(np.float64), labels[start : start + _ROWS]
        if labels.ndim == 2:
            margin = np.where(truth, z, -z)
            wrong = np.exp(-np.logaddexp(0, scale * margin))
            slope -= float((margin * wrong).sum())
            curvature += float((margin**2 * wrong * (1 - wrong)).sum())
        else:
            z -= z[np.arange(len(z)), truth][:, None]  # so that the derivative is the mean logit
            weights = np.exp(scale * (z - z.max(1, keepdims=True)))
            weights /= weights.sum(1, keepdims=True)
            mean = (weights * z).sum(1, keepdims=True)
            slope += float(mean.sum())
            curvature += float((weights * (z - mean) ** 2).sum())
    return slope, curvature
