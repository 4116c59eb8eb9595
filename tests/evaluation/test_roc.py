"""Rates at thresholds: as scikit-learn computes them, and as brute force does where it has none."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq
from sklearn.metrics import roc_auc_score, roc_curve

from vitkit.evaluation.roc import best_threshold, fold_accuracies, resolved_rates, roc


def example(seed: int, count: int = 500, steps: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Similarities that tell the same from different with errors; with steps, many are equal."""
    random = np.random.default_rng(seed)
    is_same = random.random(count) < 0.3
    is_same[:2] = [True, False]
    scores = random.normal(is_same * 1.2, 1.0)
    return (np.round(scores * steps) / steps if steps else scores), is_same


EXAMPLES = [(0, None), (1, 3), (2, 1), (3, 20)]


@pytest.mark.parametrize(("seed", "steps"), EXAMPLES)
@pytest.mark.parametrize("weighted", [False, True])
def test_rates_are_scikit_learns(seed: int, steps: int | None, weighted: bool) -> None:
    scores, is_same = example(seed, steps=steps)
    weights = np.random.default_rng(9).integers(0, 4, len(scores)) if weighted else None
    if weights is not None:
        weights[:2] = 1
    found = roc(scores, is_same, weights)
    far, tar, thresholds = roc_curve(is_same, scores, sample_weight=weights, drop_intermediate=False)
    if not weighted:  # scikit-learn leaves out thresholds of pairs without weight
        np.testing.assert_allclose(found.far, far, atol=1e-12)
        np.testing.assert_allclose(found.tar, tar, atol=1e-12)
        np.testing.assert_allclose(found.thresholds[1:], thresholds[1:])
    assert found.auc == pytest.approx(roc_auc_score(is_same, scores, sample_weight=weights), abs=1e-12)
    rate = brentq(lambda x: 1 - x - np.interp(x, far, tar), 0, 1)
    if steps is None and not weighted:
        assert found.equal_error[0] == pytest.approx(rate, abs=1e-3)
    for target in (0.5, 0.1, 0.01, 0.001):
        accepted, threshold = found.accepted(target)
        assert accepted == pytest.approx(tar[far <= target + 1e-12].max(), abs=1e-12)
        at = scores >= threshold
        share = np.average(at[is_same], weights=None if weights is None else weights[is_same])
        assert share == pytest.approx(accepted, abs=1e-12)


@pytest.mark.parametrize(
    ("same", "different", "rate"),
    [
        ([0.9, 0.8], [0.1, 0.2], 0),  # told apart
        ([0.1, 0.2], [0.8, 0.9], 1),
        ([0.5, 0.5], [0.5, 0.5], 0.5),  # all alike
        ([4, 3, 1, 1], [2, 0, 0, 0], 0.25),
    ],
)
def test_equal_error_rates(same: list[float], different: list[float], rate: float) -> None:
    scores = np.array([*same, *different], float)
    found = roc(scores, np.arange(len(scores)) < len(same))
    assert found.equal_error[0] == pytest.approx(rate)


@pytest.mark.parametrize(("seed", "steps"), EXAMPLES)
def test_the_best_threshold_is_brute_forces(seed: int, steps: int | None) -> None:
    scores, is_same = example(seed, 100, steps)
    best = max(np.mean((scores >= limit) == is_same) for limit in (*scores, np.inf))
    threshold = best_threshold(scores, is_same)
    assert np.mean((scores >= threshold) == is_same) == best
    assert threshold not in scores or threshold == scores.min()


def test_thresholds_at_the_ends() -> None:
    scores = np.array([0.2, 0.4])
    assert np.all(scores >= best_threshold(scores, np.array([True, True])))
    assert np.all(scores < best_threshold(scores, np.array([False, False])))
    assert best_threshold(scores, np.array([False, True])) == pytest.approx(0.3)


def test_a_fold_has_the_threshold_of_the_others() -> None:
    same = np.array([False, True])
    folds = [(np.array([low, low + 0.1]), same) for low in (0.0, 0.2, 0.4)]
    # The best thresholds of two folds: (0.2, 0.4) of 0.2 0.3 0.4 0.5 and so on; the first fold lies below both.
    found = fold_accuracies(folds)
    for number, (accuracy, threshold) in enumerate(found):
        others = [fold for place, fold in enumerate(folds) if place != number]
        joined, labels = (np.concatenate(parts) for parts in zip(*others, strict=True))
        assert threshold == best_threshold(joined, labels)
        assert accuracy == np.mean((folds[number][0] >= threshold) == same)


def test_only_rates_that_pairs_can_resolve() -> None:
    assert resolved_rates(299) == []
    assert resolved_rates(300) == [0.1]
    assert resolved_rates(78_000) == [0.1, 0.01, 0.001]
