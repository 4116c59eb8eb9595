"""Few-shot ridge regression: published reference values, the official code's arrays, and NumPy's own solution."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.base import clone

import vitkit
from vitkit.data.open import open_data
from vitkit.data.sources.source import choose_shots
from vitkit.errors import InputError
from vitkit.evaluation.features import frozen_features, load_frozen
from vitkit.evaluation.fewshot import SWEEP, FewShot, FewShotEvaluator, as_protocol, choose_l2, fewshot
from vitkit.evaluation.passes import SourcePass
from vitkit.models.configs import Preprocessing
from vitkit.predictor import Predictor
from vitkit.world import World

GOLDEN = Path(__file__).parents[1] / "golden" / "fewshot_lsr.npz"
ALONE = World(0, 1, torch.device("cpu"))
# computed by hand
X = np.array([(0, 1, 2), (1, 0, 1), (2, 1, 0), (0, 2, 1), (1, 1, 1), (2, 0, 2)], float)
Y = np.array([0, 0, 0, 1, 1, 1])


def solve(x: np.ndarray, y: np.ndarray, l2: float, primal: bool) -> np.ndarray:
    """Return the weights by a direct solve, written down from big_vision's fewshot_lsr.py."""
    x = x.astype(np.float64)
    x = (x - x.mean(0)) / (x.std(0) + 1e-5)
    x = np.hstack([x, np.full((len(x), 1), 100.0)])
    targets = 2.0 * np.eye(y.max() + 1)[y] - 1.0
    if primal:
        return np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ targets)
    return x.T @ np.linalg.solve(x @ x.T + l2 * np.eye(len(x)), targets)


@pytest.mark.parametrize(
    ("l2", "column", "digits"),
    [
        (1.0, (0.3635120, 0.5005505, 0.4266319, 0), 5e-8),
        (1024.0, (7.3465e-6, 1.41526e-3, 1.41525e-3, 0), 5e-9),
    ],
)
def test_reference_values(l2: float, column: tuple[float, ...], digits: float) -> None:
    fitted = FewShot(l2).fit(X, Y)
    for primal in (True, False):
        np.testing.assert_allclose(fitted.coef_, solve(X, Y, l2, primal), rtol=0, atol=1e-12)
    np.testing.assert_allclose(fitted.coef_[:, 1], column, rtol=0, atol=digits)
    np.testing.assert_allclose(fitted.coef_[:, 0], -fitted.coef_[:, 1], rtol=0, atol=1e-12)
    if l2 == 1.0:
        assert fitted.predict(X).tolist() == [1, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("part", ["full", "small"])
@pytest.mark.parametrize("l2", [1, 1024])
def test_official_arrays(part: str, l2: int) -> None:
    """All 60 rows take the primal branch, 12 rows of width 16 the dual one."""
    with np.load(GOLDEN, allow_pickle=False) as arrays:
        golden = dict(arrays)
    rows = np.arange(60) if part == "full" else golden["small_index"]
    fitted = FewShot(float(l2)).fit(golden["x"][rows], golden["y"][rows])
    np.testing.assert_allclose(fitted.mean_, golden[f"{part}/mean"][0], rtol=1e-12, atol=1e-12)
    names = f"{part}/l2_{l2}/f64"
    np.testing.assert_allclose(fitted.coef_, golden[f"{names}/W"], rtol=0, atol=2e-12)
    scores = fitted.decision_function(golden["x_test"])
    np.testing.assert_allclose(scores, golden[f"{names}/scores"], rtol=0, atol=1e-10)
    assert fitted.predict(golden["x_test"]).tolist() == golden[f"{names}/predictions"].tolist()
    accuracy = float(golden[f"{names}/accuracy"])
    assert fitted.score(golden["x_test"], golden["y_test"]) == pytest.approx(accuracy)
    found = fitted.accuracies(golden["x_test"], golden["y_test"], [1.0, 1024.0])
    for place, other in enumerate((1, 1024)):
        assert found[place] == pytest.approx(float(golden[f"{part}/l2_{other}/f64/accuracy"]))


@given(
    st.integers(3, 30),
    st.integers(1, 30),
    st.integers(2, 3),
    st.sampled_from([2.0**-10, 1.0, 1024.0]),
    st.integers(1, 40),
)
@settings(max_examples=60)
def test_equals_a_direct_solve(count: int, width: int, classes: int, l2: float, block_size: int) -> None:
    random = np.random.default_rng([count, width])
    x = random.normal(3, 2, (count, width)).astype(np.float32)
    y = np.arange(count) % classes
    fitted = FewShot(l2, block_size).fit(x, y)
    for primal in (True, False):
        np.testing.assert_allclose(fitted.coef_, solve(x, y, l2, primal), rtol=1e-6, atol=1e-6)
    whole = FewShot(l2).fit(x, y)
    np.testing.assert_allclose(fitted.coef_, whole.coef_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(fitted.decision_function(x), whole.decision_function(x), atol=1e-6)


def test_the_branches_meet() -> None:
    """As many images as columns, the bias among them, take the primal branch, one image less the dual one."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(8, 7)), np.arange(8) % 3
    primal, dual = FewShot(1.0).fit(x, y), FewShot(1.0).fit(x[:7], y[:7])
    assert primal._basis.shape == (8, 8) and dual._basis.shape == (8, 7)
    np.testing.assert_allclose(primal.coef_, solve(x, y, 1.0, primal=False), rtol=0, atol=1e-11)
    np.testing.assert_allclose(dual.coef_, solve(x[:7], y[:7], 1.0, primal=True), rtol=0, atol=1e-11)


def test_a_constant_feature_is_harmless() -> None:
    x = np.hstack([X, np.ones((6, 1))])
    np.testing.assert_allclose(FewShot(1.0).fit(x, Y).coef_[:3], FewShot(1.0).fit(X, Y).coef_[:3], atol=1e-12)


def test_it_is_a_scikit_learn_classifier() -> None:
    fitted = FewShot(l2=1.0)
    assert fitted.get_params() == {"l2": 1.0, "block_size": 4096}
    assert fitted.set_params(l2=2.0).l2 == 2.0
    assert fitted.fit(X, Y) is fitted
    names = np.array(["cat", "dog"])
    named = clone(fitted).fit(X, names[Y])
    assert named.classes_.tolist() == ["cat", "dog"]
    assert named.predict(X).tolist() == names[fitted.predict(X)].tolist()


@pytest.mark.parametrize(
    ("x", "y", "l2", "message"),
    [
        (X[0], Y, 1.0, "features have shape (3,); expected (images, width)"),
        (X, Y[:5], 1.0, "labels have shape (5,); expected one for each of 6 images"),
        (X, Y * 0, 1.0, "all images have one class"),
        (np.full((6, 3), np.inf), Y, 1.0, "features are not finite"),
        (X, Y, 0.0, "l2 must be above 0, not 0"),
    ],
)
def test_bad_arrays(x: Any, y: Any, l2: float, message: str) -> None:
    with pytest.raises(InputError) as error:
        FewShot(l2).fit(x, y)
    assert message in str(error.value)


def test_features_of_another_width_are_refused() -> None:
    with pytest.raises(InputError, match="features are 2 wide; the training features are 3"):
        FewShot().fit(X, Y).predict(X[:, :2])


def test_the_older_rule_ranks_over_data_sets() -> None:
    """The best by mean accuracy is the first, by mean rank the second."""
    accuracies = np.array([[0.9, 0.1, 0.0], [0.5, 0.6, 0.4], [0.5, 0.6, 0.4]])
    assert accuracies.mean(0).argmax() == 0 and choose_l2(accuracies) == 1
    assert choose_l2(accuracies[:1]) == 0
    assert choose_l2(np.array([[0.5, 0.7, 0.7, 0.2]])) == 2
    assert (len(SWEEP), SWEEP[0], SWEEP[-1]) == (30, 2**-10, 2**19)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path))


@pytest.mark.usefixtures("cache")
def test_the_whole_protocol() -> None:
    """Features, choice of images and solution, each done again by hand."""
    result = fewshot("mu/16", "digits", shots=(2, 5), seeds=3, image_size=32, device="cpu")
    assert (result.train, result.test) == ("digits:train", "digits:test")
    assert (result.num_classes, result.num_train, result.num_test) == (10, 1157, 382)
    assert any("is untrained" in note for note in result.notes)
    predictor = load_frozen("mu/16", "cpu", 32)
    train, test = open_data("digits:train"), open_data("digits:test")
    x, x_test = (
        SourcePass(source, predictor.preprocessing, world=ALONE).features(predictor.model).values
        for source in (train, test)
    )
    for row, shots in zip(result.results, (2, 5), strict=True):
        assert (row.shots, row.l2) == (shots, 1024.0)
        accuracies = []
        for seed in range(3):
            rows = choose_shots(train.labels, shots, seed, train.class_names)
            weights = solve(x[rows], train.labels[rows], 1024.0, primal=False)
            chosen = x[rows].astype(np.float64)
            z = (x_test - chosen.mean(0)) / (chosen.std(0) + 1e-5)
            answers = np.hstack([z, np.full((len(z), 1), 100.0)]) @ weights
            accuracies.append(np.mean(answers.argmax(1) == test.labels))
        assert row.accuracies == pytest.approx(accuracies, abs=1.1 / 382)  # an image may lie on an edge
        assert row.accuracy == pytest.approx(np.mean(row.accuracies))
        assert row.std == pytest.approx(np.std(row.accuracies, ddof=1))
    passes = partial(SourcePass, preprocessing=predictor.preprocessing, world=ALONE)
    evaluator = FewShotEvaluator(train, test, passes, shots=5, seeds=3)
    found = evaluator.run(predictor.model)
    assert found == {"fewshot_5": pytest.approx(result.results[1].accuracy, abs=1.1 / 382)}


@pytest.mark.usefixtures("cache")
def test_the_sweep_reports_the_best_and_says_how() -> None:
    result = fewshot("mu/16", "digits", shots=(3,), seeds=2, l2="sweep", image_size=32, device="cpu")
    [row] = result.results
    assert [entry.l2 for entry in row.sweep] == list(SWEEP)
    best = max(entry.accuracy for entry in row.sweep)
    assert row.accuracy == pytest.approx(best)
    assert any("chosen on the evaluation images" in note for note in result.notes)
    fixed = fewshot("mu/16", "digits", shots=(3,), seeds=2, l2=row.l2, image_size=32, device="cpu")
    assert fixed.results[0].accuracies == pytest.approx(row.accuracies, abs=1.1 / 382)
    alone = fewshot("mu/16", "digits", shots=(3,), seeds=1, image_size=32, device="cpu")
    assert alone.results[0].std is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(shots=(5, 1000)), "1000shot: class '0' has only 114 images"),
        (dict(shots=()), "no shots given"),
        (dict(shots=(0,)), "shots must be at least 1, not 0"),
        (dict(shots=(5, 5)), "shots are 5, 5; name each number once"),
        (dict(seeds=0), "seeds must be at least 1, not 0"),
        (dict(l2=-1.0), "l2 must be above 0, not -1"),
        (dict(l2="swep"), "l2 is 'swep'; expected a number above 0, or 'sweep'"),
    ],
)
def test_bad_questions_cost_nothing(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("vitkit.evaluation.frozen.load_frozen", refuse)
    with pytest.raises(InputError) as error:
        fewshot("mu/16", "digits", **options)
    assert message in str(error.value)


@pytest.mark.slow
def test_a_thousand_classes_take_seconds() -> None:
    random = np.random.default_rng(0)
    y = np.repeat(np.arange(1000), 25)
    centres = random.normal(size=(1000, 1280)).astype(np.float32)
    x = centres[y] + 2 * random.normal(size=(25000, 1280)).astype(np.float32)
    began = time.process_time()
    fitted = FewShot().fit(x, y)
    assert time.process_time() - began < 60
    assert fitted.score(x[::50], y[::50]) > 0.9


def test_the_protocols_own_preprocessing(tmp_path: Path) -> None:
    """Squashed to 256x256 by Pillow, the centre of 224 cut out, values from -1 to 1: by hand."""
    random = np.random.default_rng(0)
    for number in range(12):
        folder = tmp_path / ("train" if number < 8 else "test") / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = Image.fromarray(random.integers(0, 256, (20, 30, 3), np.uint8))
        pixels.resize((450, 300), Image.Resampling.BICUBIC).save(folder / f"{number:02}.png")
    shape: dict[str, Any] = dict(width=16, depth=1, heads=2, mlp_width=16, num_classes=0)
    torch.manual_seed(0)
    network = vitkit.create_model("Ti/16", **shape).eval()
    model = Predictor(network, Preprocessing(224, crop_fraction=0.9, mean=(0.4,) * 3, std=(0.2,) * 3), ())
    options: dict[str, Any] = dict(shots=(4,), seeds=1, l2=1.0, evaluate=f"{tmp_path}/test:all")
    found = fewshot(model, f"{tmp_path}/train:all", preprocessing="protocol", **options)
    assert found.protocol.endswith("images resized to 256x256, central 224x224, values from -1 to 1")

    def by_hand(path: Path) -> np.ndarray:
        with Image.open(path) as image:
            small = image.resize((256, 256), Image.Resampling.BILINEAR).crop((16, 16, 240, 240))
        values = torch.from_numpy(np.array(small)).permute(2, 0, 1)[None] / 127.5 - 1
        with torch.no_grad():
            return network.features(values)[0].numpy()

    files = [sorted((tmp_path / split).rglob("*.png")) for split in ("train", "test")]
    x, x_test = (np.stack([by_hand(path) for path in paths]) for paths in files)
    y, y_test = (np.array([path.parent.name == "b" for path in paths]) for paths in files)
    expected = FewShot(1.0).fit(x, y).predict(x_test) == y_test
    assert found.results[0].accuracy == expected.mean()
    predictor, pipeline = as_protocol(model)
    ours = frozen_features(predictor, f"{tmp_path}/test:all", cache=False, pipeline=pipeline).x
    np.testing.assert_allclose(ours, x_test, atol=0.02)
    assert np.abs(frozen_features(model, f"{tmp_path}/test:all", cache=False).x - x_test).max() > 0.1
    said = fewshot(model, f"{tmp_path}/train:all", **options).protocol
    assert said.endswith("images prepared as the model states it")
    with pytest.raises(InputError, match="preprocessing is 'paper'; expected one of model, protocol"):
        fewshot(model, f"{tmp_path}/train:all", preprocessing="paper", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("l2", [None, "weak", [1.0]])
def test_a_strength_is_a_number_or_chosen(l2: Any) -> None:
    with pytest.raises(InputError, match="expected a number above 0, or 'sweep'"):
        fewshot("Ti/16", "digits", l2=l2)
