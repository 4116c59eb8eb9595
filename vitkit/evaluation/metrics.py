"""How good answers are: accuracy, F1, calibration and average precision, as functions of plain arrays."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

BINS = 15
"Bins of equal width over confidence, as Guo et al. (2017) take them."
_CHANCES = 100
"Sets of answers that are drawn to see what calibration error chance alone gives."
_ROWS = 1024
"Images that are computed in double precision at a time."


class Answers(NamedTuple):
    """What logits say of each image, and how that compares with its class."""

    predicted: np.ndarray
    "Place of the likeliest answer, int64 (images,); of equal ones the first."
    confidence: np.ndarray
    "Its probability, float64 (images,)."
    ranks: np.ndarray
    "How many answers come before the best that is right, int64 (images,)."
    losses: np.ndarray
    "-log of the probability of all answers that are right, float64 (images,): the cross-entropy where that is one."


def read_answers(logits: np.ndarray, labels: np.ndarray, members: np.ndarray) -> Answers:
    """Compare logits (images, answers) with labels (images,); members, bool (classes, answers), says what is right."""
    parts = [
        _read_answers(
            logits[start : start + _ROWS].astype(np.float64), members[labels[start : start + _ROWS]]
        )
        for start in range(0, len(logits), _ROWS)
    ]
    return Answers(*map(np.concatenate, zip(*parts, strict=True)))


def _read_answers(logits: np.ndarray, right: np.ndarray) -> Answers:
    rows = np.arange(len(logits))
    predicted = logits.argmax(1)
    highest = logits[rows, predicted]
    masked = np.where(right, logits, -np.inf)
    place = masked.argmax(1)
    best = masked[rows, place]
    before = (logits > best[:, None]).sum(1)
    before += ((logits == best[:, None]) & (np.arange(logits.shape[1]) < place[:, None])).sum(1)
    total = np.exp(logits - highest[:, None]).sum(1)
    losses = np.log(total) + highest - best - np.log(np.exp(masked - best[:, None]).sum(1))
    return Answers(predicted, 1 / total, before, losses)


def confusion_matrix(labels: np.ndarray, predictions: np.ndarray, classes: int, answers: int) -> np.ndarray:
    """Return how many images of each class (rows) got each answer (columns), int64 (classes, answers)."""
    return np.bincount(labels * answers + predictions, minlength=classes * answers).reshape(classes, answers)


class ClassScores(NamedTuple):
    """How well each class fares, float64 (classes,); NaN where a class has no image, or precision no answer."""

    recall: np.ndarray
    "Share of its images that got it as answer: the accuracy on the class."
    precision: np.ndarray
    "Share of the images with this answer that are of the class."
    f1: np.ndarray
    "Harmonic mean of both, 0 for a class that no image got rightly."


def class_scores(matrix: np.ndarray) -> ClassScores:
    """Return the scores of each class from its row and column; the matrix may have more columns than rows."""
    images, right = matrix.sum(1), matrix.diagonal()
    answers = matrix[:, : len(matrix)].sum(0)
    f1 = _divide(2 * right, images + answers)
    return ClassScores(_divide(right, images), _divide(right, answers), np.where(images > 0, f1, np.nan))


def _divide(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0)


def calibration_error(confidence: np.ndarray, is_right: np.ndarray, bins: int = BINS) -> float:
    """Return the expected calibration error: the mean over images of |accuracy - mean confidence| of their bin.

    Bins are of equal width and hold their upper end.
    """
    places = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(places, weights=is_right - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidence))


def calibration_by_chance(confidence: np.ndarray) -> float:
    """Return the mean calibration error of answers that are right exactly as often as their confidence says.

    It is above 0, since bins with few images are off by chance: an error near it is no evidence of miscalibration.
    """
    random = np.random.default_rng(0)
    drawn = [
        calibration_error(confidence, random.random(len(confidence)) < confidence) for _ in range(_CHANCES)
    ]
    return float(np.mean(drawn))


def binary_losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return each image's sum over classes of the binary cross-entropy of sigmoids, float64 (images,)."""
    losses = np.empty(len(logits))
    for start in range(0, len(logits), _ROWS):
        part = slice(start, start + _ROWS)
        margin = np.where(labels[part], logits[part], -logits[part]).astype(np.float64)
        losses[part] = np.logaddexp(0, -margin).sum(1)
    return losses


def average_precision(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return each class's area under precision over recall, float64 (classes,): the mean of precision over its images.

    Scores and labels, bool, are (images, classes). Images of equal score come together. NaN for a class without images.
    """
    return np.array([_average_precision(*column) for column in zip(scores.T, labels.T, strict=True)])


def _average_precision(scores: np.ndarray, labels: np.ndarray) -> float:
    if not labels.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # of each group of equal scores
    found = np.cumsum(labels[order])[last]
    return float((np.diff(found, prepend=0) * found / (last + 1)).sum() / found[-1])


def mean_average_precision(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean of average precision over classes with an image."""
    return float(average_precision(scores[:, labels.any(0)], labels[:, labels.any(0)]).mean())


def mean_and_spread(values: list[float]) -> tuple[float, float | None]:
    """Return the mean, and the sample standard deviation where there are two values or more."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
