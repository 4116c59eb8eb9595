"""Verification by a threshold on similarity: ROC, AUC, equal error rate, accept rates, accuracy over folds.

Pairs show the same identity or different ones. At a threshold, the true accept rate (TAR) is the share of same pairs that
are at least as similar, the false accept rate (FAR) that of different pairs. Pairs may have weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RULE = 30
"""Errors that a rate must rest on: with 30, it is within 30% of the true one with 90% confidence (Doddington's rule of 30),
if pairs are independent."""


@dataclass(frozen=True, eq=False)
class Roc:
    """The rates at every threshold that changes one of them, from the strictest to accepting every pair."""

    thresholds: np.ndarray
    "In falling order; the first accepts no pair."
    far: np.ndarray
    tar: np.ndarray
    different: float
    "How many different pairs there are, or their weight."

    @property
    def auc(self) -> float:
        """The probability that a same pair is more similar than a different one, where equal ones count half."""
        return float(np.trapezoid(self.tar, self.far))

    @property
    def equal_error(self) -> tuple[float, float]:
        """The rate at which as large a share of different pairs is accepted as of same pairs is refused, and its threshold.

        Between two thresholds both rates are taken as linear.
        """
        missed = 1 - self.tar
        place = int(np.argmax(self.far >= missed))  # there is one: the last threshold accepts all
        gap = missed[place - 1] - self.far[place - 1]
        step = gap + self.far[place] - missed[place]
        share = gap / step
        rate = self.far[place - 1] + share * (self.far[place] - self.far[place - 1])
        return float(rate), float(self.thresholds[place])

    def accepted(self, far: float) -> tuple[float, float]:
        """Return the TAR at the lowest threshold that keeps to a FAR, and the threshold."""
        place = int(np.searchsorted(self.far, far * (1 + 1e-12), side="right")) - 1
        return float(self.tar[place]), float(self.thresholds[place])


def roc(scores: np.ndarray, is_same: np.ndarray, weights: np.ndarray | None = None) -> Roc:
    """Return the rates of pairs with these similarities; each kind must have a weight."""
    order = np.argsort(-scores, kind="stable")
    scores, is_same = scores[order], is_same[order]
    weights = np.ones(len(scores)) if weights is None else weights[order].astype(np.float64)
    last = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)  # equal ones are accepted together
    same = np.append(0, np.cumsum(weights * is_same)[last])
    different = np.append(0, np.cumsum(weights * ~is_same)[last])
    thresholds = np.append(np.inf, scores[last])
    return Roc(thresholds, different / different[-1], same / same[-1], float(different[-1]))


def resolved_rates(different: int) -> list[float]:
    """Return the FARs 10%, 1%, 0.1%, ... that so many different pairs can resolve."""
    powers = range(1, 10)
    return [10.0**-power for power in powers if different * 10.0**-power >= RULE - 1e-9]


def best_threshold(scores: np.ndarray, is_same: np.ndarray) -> float:
    """Return the threshold with the greatest accuracy, midway between two similarities; of equal ones the lowest."""
    order = np.argsort(scores, kind="stable")
    ordered, same = scores[order], is_same[order]
    # With the threshold below place p, the pairs from p on are accepted.
    right = np.append(0, np.cumsum(~same)) + same.sum() - np.append(0, np.cumsum(same))
    edges = np.append(True, np.append(np.diff(ordered) > 0, True))  # equal similarities can't be parted
    place = int(np.argmax(np.where(edges, right, -1)))
    if place in (0, len(ordered)):
        return float(ordered[0]) if place == 0 else float(np.nextafter(ordered[-1], np.inf))
    return float((ordered[place - 1] + ordered[place]) / 2)


def fold_accuracies(folds: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[tuple[float, float]]:
    """Return the accuracy in each fold, with the threshold that is best in all others, and this threshold.

    folds: similarities, and which of the pairs are the same.
    """
    found = []
    for number, (scores, is_same) in enumerate(folds):
        others = [fold for place, fold in enumerate(folds) if place != number]
        threshold = best_threshold(*(np.concatenate(column) for column in zip(*others, strict=True)))
        found.append((float(np.mean((scores >= threshold) == is_same)), threshold))
    return found
