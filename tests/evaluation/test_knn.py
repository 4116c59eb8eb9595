"""Nearest neighbours agree with scikit-learn's, whatever the blocks; ties have one answer."""

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
from sklearn.neighbors import KNeighborsClassifier

from vitkit.data.open import open_data
from vitkit.errors import InputError
from vitkit.evaluation.features import load_frozen
from vitkit.evaluation.knn import KNN, KNNEvaluator, knn
from vitkit.evaluation.passes import SourcePass
from vitkit.world import World

ALONE = World(0, 1, torch.device("cpu"))


def reference(x: np.ndarray, y: np.ndarray, k: int, temperature: float) -> KNeighborsClassifier:
    def weights(distances: np.ndarray) -> np.ndarray:
        return np.exp((1 - distances) / temperature)

    return KNeighborsClassifier(k, weights=weights, algorithm="brute", metric="cosine").fit(x, y)


@pytest.mark.slow
@given(
    st.integers(2, 60),
    st.integers(2, 20),
    st.integers(1, 30),
    st.sampled_from([0.07, 1.0]),
    st.integers(1, 70),
)
@settings(max_examples=60)
def test_equals_scikit_learns(count: int, width: int, k: int, temperature: float, block_size: int) -> None:
    random = np.random.default_rng([count, width])
    x, x_test = random.normal(size=(count, width)), random.normal(size=(23, width))
    y, k = np.arange(count) % 3, min(k, count)
    ours = KNN(k, temperature, block_size=block_size).fit(x, y)
    theirs = reference(x, y, k, temperature)
    np.testing.assert_allclose(ours.predict_proba(x_test), theirs.predict_proba(x_test), atol=1e-9)
    assert ours.predict(x_test).tolist() == theirs.predict(x_test).tolist()


def test_float32_features_give_the_same_classes() -> None:
    random = np.random.default_rng(0)
    y = np.arange(500) % 10
    x = (random.normal(size=(10, 32))[y] + random.normal(size=(500, 32))).astype(np.float32)
    ours, theirs = KNN(block_size=128).fit(x[:400], y[:400]), reference(x[:400], y[:400], 20, 0.07)
    np.testing.assert_allclose(ours.predict_proba(x[400:]), theirs.predict_proba(x[400:]), atol=1e-4)
    assert ours.score(x[400:], y[400:]) == theirs.score(x[400:], y[400:]) > 0.5


@given(st.integers(1, 12), st.integers(1, 12))
def test_of_equal_similarities_the_first_count(k: int, block_size: int) -> None:
    """Twelve equal images: whatever the blocks, the k first are taken, and of equal votes the first class."""
    x, y = np.ones((12, 2)), np.arange(12)[::-1] % 4
    fitted = KNN(k, block_size=block_size).fit(x, y)
    [(similarities, numbers)] = fitted.nearest(np.ones((1, 2)), k)
    assert numbers.tolist() == [list(range(k))]
    np.testing.assert_allclose(similarities, 1.0)
    votes = np.bincount(y[:k], minlength=4)
    assert fitted.predict(np.ones((1, 2))).tolist() == [votes.argmax()]
    np.testing.assert_allclose(fitted.predict_proba(np.ones((1, 2)))[0], votes / k)


def test_extreme_temperatures_and_zero_features() -> None:
    x = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.0, 0.9], [0.1, 1.0]])
    y = np.array([1, 1, 0, 0, 0])
    assert KNN(5, 1e-4).fit(x, y).predict([[1.0, 0.0]]).tolist() == [1]
    assert KNN(5, 1e6).fit(x, y).predict([[1.0, 0.0]]).tolist() == [0]
    assert np.isfinite(KNN(5).fit(x, y).predict_proba(np.zeros((1, 2)))).all()


def test_many_settings_at_once() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(90, 5)), np.arange(90) % 3
    fitted = KNN(1, block_size=17).fit(x[:60], y[:60])
    found = fitted.accuracies(x[60:], y[60:], [1, 7, 20], [0.07, 0.5])
    for (k, temperature), accuracy in found.items():
        assert accuracy == KNN(k, temperature).fit(x[:60], y[:60]).score(x[60:], y[60:])
    assert len(found) == 6


def test_it_is_a_scikit_learn_classifier() -> None:
    x, y = np.array([[1.0, 0], [0, 1], [1, 1]]), np.array(["b", "a", "a"])
    fitted = clone(KNN(2, 0.5)).set_params(k=1).fit(x, y)
    assert fitted.get_params()["temperature"] == 0.5 and fitted.classes_.tolist() == ["a", "b"]
    assert fitted.predict(x).tolist() == ["b", "a", "a"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(k=4), "k (neighbours among 3 images) must be at least 1 and at most 3, not 4"),
        (dict(k=0), "must be at least 1 and at most 3, not 0"),
        (dict(temperature=0.0), "temperature must be above 0, not 0"),
    ],
)
def test_bad_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        KNN(**{"k": 1, **options}).fit(np.eye(3), [0, 1, 1])
    assert message in str(error.value)


def test_features_must_be_finite() -> None:
    with pytest.raises(InputError, match="features are not finite"):
        KNN(1).fit(np.full((3, 2), np.nan), [0, 1, 1]).predict(np.eye(2))


def test_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path))
    result = knn("mu/16", "digits", k=[5, 20], image_size=32, device="cpu")
    predictor = load_frozen("mu/16", "cpu", 32)
    train, test = open_data("digits:train"), open_data("digits:test")
    x, x_test = (
        SourcePass(source, predictor.preprocessing, world=ALONE).features(predictor.model).values
        for source in (train, test)
    )
    for row, k in zip(result.results, (5, 20), strict=True):
        expected = reference(x, train.labels, k, 0.07).score(x_test, test.labels)
        assert (row.k, row.temperature) == (k, 0.07)
        assert row.accuracy == pytest.approx(expected, abs=2.1 / 382)  # rounding may turn an image
    passes = partial(SourcePass, preprocessing=predictor.preprocessing, world=ALONE)
    evaluator = KNNEvaluator(train, test, passes, k=20)
    found = evaluator.run(predictor.model)
    assert found == {"knn_20": pytest.approx(result.results[1].accuracy, abs=1.1 / 382)}
    with pytest.raises(
        InputError, match=r"k \(neighbours among 1,157 images\) must be .* at most 1157, not 1158"
    ):
        knn("mu/16", "digits", k=1158)


def test_few_images_all_vote_unless_k_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path))
    data = "digits:train[1shot]"
    result = knn("mu/16", data, image_size=32, device="cpu")
    assert [row.k for row in result.results] == [10]
    assert "only 10 training images: all of them vote, instead of the default of 20" in result.notes
    assert result.results[0].accuracy == knn("mu/16", data, k=10, image_size=32).results[0].accuracy
    with pytest.raises(InputError, match="must be at least 1 and at most 10, not 20"):
        knn("mu/16", data, k=20, image_size=32)
