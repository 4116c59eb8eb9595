"""The temperature that fits confidence to accuracy: the minimum that brute force finds, and finite where data are few."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitkit.data.open import open_data
from vitkit.errors import InputError
from vitkit.evaluation.measured import Measures, Predictions
from vitkit.evaluation.temperature import (
    PRIOR,
    FittedTemperature,
    fit_temperature,
    measure_calibration,
)


def objective(logits: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    """Return what is minimised, by its formula."""
    scaled, inverse = logits.astype(np.float64) / temperature, 1 / temperature
    if labels.ndim == 2:
        losses = np.logaddexp(0, np.where(labels, -scaled, scaled))
    else:
        losses = np.logaddexp.reduce(scaled, axis=1) - scaled[np.arange(len(labels)), labels]
    return float(losses.sum() + PRIOR * (inverse - 1 - math.log(inverse)))


def case(
    images: int, classes: int, scale: float, several: bool, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    logits = (random.normal(size=(images, classes)) * scale).astype(np.float32)
    if several:
        return logits, random.random((images, classes)) < 0.3
    return logits, random.integers(0, classes, images)


@given(st.integers(1, 40), st.integers(2, 12), st.floats(0.01, 100), st.booleans(), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_brute_force_finds_no_better(
    images: int, classes: int, scale: float, several: bool, seed: int
) -> None:
    logits, labels = case(images, classes, scale, several, seed)
    found = objective(logits, labels, fit_temperature(logits, labels))
    grid = np.exp(np.linspace(-12, 12, 2001))
    assert found <= min(objective(logits, labels, float(value)) for value in grid) + 1e-9


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("truth", [0.2, 1.0, 3.0])
def test_many_images_tell_the_temperature(truth: float, several: bool) -> None:
    """Labels are drawn from the probabilities that logits have at a temperature."""
    random = np.random.default_rng(0)
    logits = random.normal(size=(20_000, 5)) * 2
    if several:
        labels = random.random(logits.shape) < 1 / (1 + np.exp(-logits / truth))
    else:
        labels = (logits / truth + random.gumbel(size=logits.shape)).argmax(1)
    assert fit_temperature(logits, labels) == pytest.approx(truth, rel=0.05)


@pytest.mark.parametrize("several", [False, True])
def test_separable_logits_have_a_finite_temperature(several: bool) -> None:
    """Without a prior all right would be T = 0, and all wrong T = infinity."""
    logits = np.array([[3, -3], [-3, 3], [5, -5]], np.float32)
    right = logits > 0 if several else logits.argmax(1)
    wrong = ~right if several else 1 - right
    sharper, softer = fit_temperature(logits, right), fit_temperature(logits, wrong)
    assert 0.5 < sharper < 1 < softer < 20
    many = fit_temperature(np.tile(logits, (1000, 1)), np.concatenate([right] * 1000))
    assert 0.1 < many < sharper


def test_few_images_say_little() -> None:
    logits, labels = np.array([[0.5, -0.5]]), np.array([0])
    assert fit_temperature(logits, labels) == pytest.approx(1, abs=0.1)
    assert fit_temperature(np.zeros((0, 3)), np.zeros(0, np.int64)) == pytest.approx(1)
    assert fit_temperature(np.ones((50, 3)), np.zeros(50, np.int64)) == pytest.approx(1)


def test_extreme_logits_do_no_harm() -> None:
    for scale in (1e-9, 1e9):
        logits, labels = case(50, 3, scale, several=False)
        assert math.isfinite(math.log(fit_temperature(logits, labels)))


def test_blocks_do_not_matter() -> None:
    logits, labels = case(3000, 4, 2.0, several=False)
    order = np.random.default_rng(1).permutation(3000)
    assert fit_temperature(logits[order], labels[order]) == pytest.approx(
        fit_temperature(logits, labels), rel=1e-7
    )


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (np.zeros((3, 2)), np.zeros(2, int), "logits have shape (3, 2), labels (2,); expected a label for"),
        (np.zeros((3, 2)), np.zeros((3, 4), bool), "logits have shape (3, 2), labels (3, 4); expected"),
        (np.full((3, 2), np.nan), np.zeros(3, int), "logits are not finite"),
    ],
)
def test_bad_input(logits: np.ndarray, labels: np.ndarray, message: str) -> None:
    with pytest.raises(InputError) as raised:
        fit_temperature(logits, labels)
    assert message in str(raised.value)


def numbers(logits: np.ndarray, labels: np.ndarray) -> Measures:
    names = [str(number) for number in range(logits.shape[1])]
    images = open_data(f"digits:train[:{len(logits)}]")
    return Predictions(logits, images, labels=labels, class_names=names).numbers()


@pytest.mark.parametrize("several", [False, True])
def test_what_a_temperature_changes_is_what_eval_measures(several: bool) -> None:
    logits, labels = case(200, 4, 3.0, several)
    fitted = FittedTemperature(2.5, "some images", 30)
    found = measure_calibration(logits, labels, fitted)
    before, after = numbers(logits, labels), numbers((logits / 2.5).astype(np.float32), labels)
    assert (found.temperature, found.fitted_on, found.images) == (2.5, "some images", 30)
    assert (found.loss_before, found.loss_after) == pytest.approx((before.loss, after.loss))
    if several:
        assert (found.error_before, found.error_after, found.error_by_chance) == (None, None, None)
        return
    assert (found.error_before, found.error_after) == pytest.approx(
        (before.calibration_error, after.calibration_error)
    )
    assert found.error_by_chance == pytest.approx(after.calibration_by_chance)
