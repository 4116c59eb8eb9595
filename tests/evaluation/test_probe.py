"""The linear probe finds scikit-learn's minimum, in memory or in blocks, and chooses its l2 by images held out."""

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
from vitkit.evaluation.metrics import calibration_error
from vitkit.evaluation.passes import SourcePass
from vitkit.evaluation.probe import GRID, Probe, ProbeEvaluator, cut_dev, probe
from vitkit.evaluation.temperature import fit_temperature
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


def held_out_logits(
    x: np.ndarray, y: np.ndarray, l2: float, turns: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits of all images that are held out, each by what the others of its turn teach."""
    logits, labels = [], []
    for rows in turns:
        learned = Probe(l2, tolerance=1e-8).fit(np.delete(x, rows, 0), np.delete(y, rows))
        logits.append(learned.decision_function(x[rows]))
        labels.append(y[rows])
    return np.concatenate(logits), np.concatenate(labels)


@pytest.mark.parametrize("count", [60, 2000])
def test_l2_and_temperature_are_those_of_held_out_images_and_all_of_train_is_learned_from(count: int) -> None:
    x, y = clouds(count, 8, classes=4)
    grid = [1.0, 0.1, 0.001]
    found = Probe(grid=grid, tolerance=1e-8).fit(x, y)
    turns = cut_dev(y, 0.1, 0)
    assert found.held_out_ == sum(map(len, turns)) == min(count, 200)
    judged = {l2: held_out_logits(x, y, l2, turns) for l2 in grid}
    for l2, (logits, labels) in judged.items():
        losses = np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(labels)), labels]
        assert found.grid_[l2] == pytest.approx(np.mean(logits.argmax(1) == labels))
        assert found.losses_[l2] == pytest.approx(losses.mean(), abs=1e-4)
    assert found.temperature_ == pytest.approx(fit_temperature(*judged[found.l2_]), abs=1e-3)
    refitted = Probe(found.l2_, tolerance=1e-8).fit(x, y)
    np.testing.assert_allclose(found.coef_, refitted.coef_, atol=1e-7)
    scaled = torch.from_numpy(refitted.decision_function(x) / found.temperature_).softmax(1)
    np.testing.assert_allclose(found.predict_proba(x), scaled, atol=1e-6)
    assert (refitted.temperature_, refitted.held_out_, refitted.losses_) == (1.0, 0, {})


def test_of_equally_accurate_strengths_the_one_with_the_lowest_loss_is_taken() -> None:
    """Classes far apart are told by every strength; a strong one leaves their probabilities near to even."""
    y = np.arange(80) % 4
    x = np.eye(4)[y] * 20 + np.random.default_rng(0).normal(size=(80, 4))
    found = Probe().fit(x, y)
    assert set(found.grid_.values()) == {1.0}
    assert found.l2_ == min(found.losses_, key=lambda l2: found.losses_[l2]) != max(GRID)
    assert found.predict_proba(x).max(1).min() > 0.9


def test_a_share_of_each_class_is_held_out_until_there_are_enough() -> None:
    many = np.arange(5000) % 10
    [only] = cut_dev(many, 0.1, 0)
    assert np.bincount(many[only]).tolist() == [50] * 10
    few = np.repeat(np.arange(5), [1, 2, 3, 10, 40])
    turns = cut_dev(few, 0.1, 0)
    rows = np.concatenate(turns)
    assert sorted(rows) == list(range(1, 56))  # each once, but for the image that is alone
    assert [np.bincount(few[turn], minlength=5).tolist() for turn in turns[:3]] == [
        [0, 1, 1, 1, 4],
        [0, 1, 1, 1, 4],
        [0, 0, 1, 1, 4],
    ]
    assert [turn.tolist() for turn in cut_dev(few, 0.1, 1)] != [turn.tolist() for turn in turns]


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
        (dict(), slice(4), "no class has two images, so the dev split is empty"),
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
    assert result.calibration is None and result.calibration_error is not None
    passes = partial(SourcePass, preprocessing=predictor.preprocessing, world=ALONE)
    evaluator = ProbeEvaluator(train, test, passes, l2=0.1)
    assert evaluator.run(predictor.model) == {"probe": pytest.approx(result.accuracy, abs=2.1 / 382)}
    chosen = probe("mu/16", "digits", image_size=32, device="cpu")
    assert [row.l2 for row in chosen.grid] == list(GRID) and chosen.l2 in GRID
    fitted = Probe(device="cpu").fit(x, train.labels)
    probabilities = fitted.predict_proba(x_test)
    right = probabilities.argmax(1) == test.labels
    found = chosen.calibration
    assert found is not None and found.error_before == chosen.calibration_error
    assert found.error_after == pytest.approx(calibration_error(probabilities.max(1), right), abs=1e-6)
    assert (found.temperature, found.images) == (pytest.approx(fitted.temperature_), fitted.held_out_)
    assert found.fitted_on == "held-out images of digits:train" and found.loss_after < found.loss_before
    assert f"the best of 7 on {found.images} held-out images of train" in chosen.protocol


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ("digits", dict(l2=-1.0), "l2 must be above 0, not -1"),
        ("digits:train[1shot]", dict(), "the dev split is empty"),
        (
            "digits:train[:5]",
            dict(),
            "digits:train[:5] has no image of 5, 6, 7, 8, 9, but digits:test does: learn",
        ),
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


def test_small_fits_use_one_thread_and_give_the_others_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before, used = torch.get_num_threads(), list[int]()
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    x, y = np.random.default_rng(0).standard_normal((40, 8)), np.arange(40) % 4
    Probe(1e-2).fit(x, y)
    assert used == [1, before]
    monkeypatch.setattr("vitkit.evaluation.probe.ALONE", 0)
    Probe(1e-2).fit(x, y)
    assert used[2:] == [before, before]
