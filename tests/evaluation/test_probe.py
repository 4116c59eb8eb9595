"""The linear probe finds scikit-learn's minimum, in memory or in blocks, and chooses its l2 on a dev split."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vitkit.data.open import open_data
from vitkit.errors import InputError
from vitkit.evaluation.features import frozen_features, load_frozen
from vitkit.evaluation.passes import SourcePass
from vitkit.evaluation.probe import GRID, Probe, ProbeEvaluator, cut_dev, probe
from vitkit.world import World

ALONE = World(0, 1, torch.device("cpu"))


def clouds(
    count: int = 120, width: int = 6, classes: int = 4, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    y = np.arange(count) % classes
    x = random.normal(size=(classes, width))[y] + random.normal(size=(count, width))
    return (x * np.arange(1, width + 1) + 50).astype(np.float32), y


def reference(x: np.ndarray, y: np.ndarray, l2: float) -> Any:
    """Return scikit-learn's: C = 1 / (l2 N); for two classes it has one vector, not two, so that C is twice that."""
    strength = (2 if len(np.unique(y)) == 2 else 1) / (l2 * len(x))
    regression = LogisticRegression(C=strength, tol=1e-10, max_iter=10000)
    return make_pipeline(StandardScaler(), regression).fit(x.astype(np.float64), y)


@pytest.mark.parametrize("l2", [10.0, 1.0, 0.1, 1e-2, 1e-3])
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_equals_scikit_learns(l2: float, classes: int) -> None:
    x, y = clouds(classes=classes)
    ours, theirs = Probe(l2, tolerance=1e-7).fit(x, y), reference(x, y, l2)
    assert ours.converged_ and ours.l2_ == l2 and ours.grid_ == {}
    np.testing.assert_allclose(ours.predict_proba(x), theirs.predict_proba(x), atol=1e-5)
    assert ours.predict(x).tolist() == theirs.predict(x).tolist()
    if classes > 2:
        regression = theirs[-1]
        np.testing.assert_allclose(ours.coef_, regression.coef_, atol=1e-4)
        free = [biases - biases.mean() for biases in (ours.intercept_, regression.intercept_)]
        np.testing.assert_allclose(*free, atol=1e-4)


@pytest.mark.slow
@given(st.integers(1, 130), st.sampled_from([0, 2**30]))
@settings(max_examples=8)
def test_blocks_do_not_matter(block_size: int, kept_bytes: int) -> None:
    x, y = clouds()
    whole = Probe(0.01, tolerance=1e-9).fit(x, y)
    parts = Probe(0.01, tolerance=1e-9, block_size=block_size, kept_bytes=kept_bytes).fit(x, y)
    np.testing.assert_allclose(parts.coef_, whole.coef_, atol=1e-6)
    np.testing.assert_allclose(parts.decision_function(x), whole.decision_function(x), atol=1e-5)


def test_features_on_disk(tmp_path: Path) -> None:
    x, y = clouds()
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    ours, theirs = Probe(block_size=50, kept_bytes=0).fit(mapped, y), Probe().fit(x, y)
    assert ours.grid_ == theirs.grid_
    np.testing.assert_allclose(ours.predict_proba(x), theirs.predict_proba(x), atol=1e-3)


def test_l2_is_chosen_on_a_dev_split_and_all_of_train_is_learned_from() -> None:
    x, y = clouds(200, 30, classes=4)
    found = Probe(tolerance=1e-8).fit(x, y)
    assert sorted(found.grid_, reverse=True) == list(GRID)
    held = cut_dev(y, 0.1, 0)
    assert held.sum() == 20 and np.bincount(y[held]).tolist() == [5, 5, 5, 5]
    for l2 in (10.0, 0.01):
        alone = Probe(l2, tolerance=1e-8).fit(x[~held], y[~held])
        assert found.grid_[l2] == pytest.approx(alone.score(x[held], y[held]))
    best = max(found.grid_.values())
    assert found.l2_ == max(l2 for l2, accuracy in found.grid_.items() if accuracy == best)
    refitted = Probe(found.l2_, tolerance=1e-8).fit(x, y)
    np.testing.assert_allclose(found.coef_, refitted.coef_, atol=1e-7)


def test_the_order_of_a_grid_does_not_matter() -> None:
    x, y = clouds(200, 30, classes=4)
    up, down = Probe(grid=[0.01, 0.1, 1.0]).fit(x, y), Probe(grid=[1.0, 0.1, 0.01]).fit(x, y)
    assert up.l2_ == down.l2_ and up.grid_ == down.grid_


def test_a_constant_feature_is_harmless() -> None:
    x, y = clouds()
    constant = np.full((len(x), 1), 0.1, np.float32)
    ours = Probe(0.1, tolerance=1e-9).fit(np.hstack([x, constant]), y)
    np.testing.assert_allclose(ours.coef_[:, :-1], Probe(0.1, tolerance=1e-9).fit(x, y).coef_, atol=1e-6)
    np.testing.assert_allclose(ours.coef_[:, -1], 0, atol=1e-6)


def test_too_few_iterations_are_told() -> None:
    x, y = clouds()
    assert not Probe(1e-4, tolerance=1e-12, iterations=2).fit(x, y).converged_


def test_it_is_a_scikit_learn_classifier() -> None:
    x, y = clouds()
    fitted = clone(Probe(1.0)).set_params(l2=0.1).fit(x, np.array(["a", "b", "c", "d"])[y])
    assert fitted.get_params()["l2"] == 0.1 and set(fitted.predict(x)) == {"a", "b", "c", "d"}


@pytest.mark.parametrize(
    ("options", "rows", "message"),
    [
        (dict(l2=0.0), slice(None), "l2 must be above 0, not 0"),
        (dict(grid=()), slice(None), "grid is empty"),
        (dict(), slice(4), "no class has two images, so that the dev split is empty"),
        (dict(dev=1.0), slice(None), "dev must be above 0 and below 1, not 1"),
    ],
)
def test_bad_settings(options: dict[str, Any], rows: slice, message: str) -> None:
    x, y = clouds()
    with pytest.raises(InputError) as error:
        Probe(**options).fit(x[rows], y[rows])
    assert message in str(error.value)


def test_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path))
    result = probe("mu/16", "digits", l2=0.1, image_size=32, device="cpu")
    predictor = load_frozen("mu/16", "cpu", 32)
    train, test = open_data("digits:train"), open_data("digits:test")
    x, x_test = (frozen_features(predictor, source).x for source in (train, test))
    expected = reference(x, train.labels, 0.1).score(x_test.astype(np.float64), test.labels)
    assert result.accuracy == pytest.approx(expected, abs=1.1 / 382)
    assert (result.l2, result.grid, result.converged) == (0.1, (), True)
    passes = partial(SourcePass, preprocessing=predictor.preprocessing, world=ALONE)
    evaluator = ProbeEvaluator(train, test, passes, l2=0.1)
    assert evaluator.run(predictor.model) == {"probe": pytest.approx(result.accuracy, abs=2.1 / 382)}
    chosen = probe("mu/16", "digits", image_size=32, device="cpu")
    assert [row.l2 for row in chosen.grid] == list(GRID) and chosen.l2 in GRID


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ("digits", dict(l2=-1.0), "l2 must be above 0, not -1"),
        ("digits:train[1shot]", dict(), "the dev split is empty"),
        ("digits:train[:5]", dict(), "digits:train[:5] has no image of 5 classes that digits:test measures"),
    ],
)
def test_bad_questions_cost_nothing(
    data: str, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("vitkit.evaluation.frozen.load_frozen", refuse)
    with pytest.raises(InputError) as error:
        probe("mu/16", data, **options)
    assert message in str(error.value)
