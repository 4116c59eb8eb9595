"""Metrics are scikit-learn's where it has them, and a computation by hand where it hasn't."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn

from vitkit.evaluation.metrics import (
    average_precision,
    binary_losses,
    calibration_by_chance,
    calibration_error,
    class_scores,
    confusion_matrix,
    mean_average_precision,
    read_answers,
)


@st.composite
def answered(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Labels and predictions of a few classes, some without images, some without predictions."""
    classes = draw(st.integers(1, 6))
    pairs = draw(
        st.lists(st.tuples(st.integers(0, classes - 1), st.integers(0, classes - 1)), min_size=1, max_size=40)
    )
    labels, predictions = np.array(pairs).T
    return labels, predictions, classes


@given(answered())
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_matrix_and_scores_are_sklearns(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    labels, predictions, classes = case
    matrix = confusion_matrix(labels, predictions, classes, classes)
    np.testing.assert_array_equal(
        matrix, sklearn.confusion_matrix(labels, predictions, labels=range(classes))
    )
    scores, present = class_scores(matrix), np.unique(labels)
    precision, recall, f1, _ = sklearn.precision_recall_fscore_support(
        labels, predictions, labels=present, zero_division=0
    )
    np.testing.assert_allclose(scores.recall[present], recall)
    np.testing.assert_allclose(np.nan_to_num(scores.precision[present]), precision)
    np.testing.assert_allclose(scores.f1[present], f1)
    expected = sklearn.balanced_accuracy_score(labels, predictions)
    assert scores.recall[present].mean() == pytest.approx(expected)
    absent = np.setdiff1d(np.arange(classes), present)
    assert np.isnan(scores.recall[absent]).all() and np.isnan(scores.f1[absent]).all()
    unused = np.setdiff1d(np.arange(classes), predictions)
    assert np.isnan(scores.precision[unused]).all()


def test_a_column_for_other_answers_counts_against_recall_alone() -> None:
    scores = class_scores(np.array([[3, 0, 1], [1, 2, 1]]))
    assert scores.recall.tolist() == [3 / 4, 2 / 4]
    assert scores.precision.tolist() == [3 / 4, 1]
    assert scores.f1.tolist() == [pytest.approx(3 / 4), pytest.approx(2 * 0.5 / 1.5)]


@st.composite
def scored(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Scores with ties, and labels."""
    images, classes = draw(st.integers(1, 20)), draw(st.integers(1, 4))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = random.integers(0, draw(st.integers(1, 30)), (images, classes)).astype(np.float32) / 7
    return scores, random.random((images, classes)) < draw(st.sampled_from([0.1, 0.5, 0.9]))


@given(scored())
def test_average_precision_is_sklearns(case: tuple[np.ndarray, np.ndarray]) -> None:
    scores, labels = case
    found = average_precision(scores, labels)
    for number in range(labels.shape[1]):
        if labels[:, number].any():
            expected = sklearn.average_precision_score(labels[:, number], scores[:, number])
            assert found[number] == pytest.approx(expected)
        else:
            assert math.isnan(found[number])
    if labels.any():
        assert mean_average_precision(scores, labels) == pytest.approx(np.nanmean(found))


@given(scored())
def test_answers_are_torchs(case: tuple[np.ndarray, np.ndarray]) -> None:
    logits, _ = case
    labels = np.arange(len(logits)) % logits.shape[1]
    found = read_answers(logits, labels, np.eye(logits.shape[1], dtype=bool))
    probabilities = torch.from_numpy(logits).double().softmax(1)
    np.testing.assert_array_equal(found.predicted, logits.argmax(1))
    np.testing.assert_allclose(found.confidence, probabilities.max(1).values)
    expected = F.cross_entropy(torch.from_numpy(logits).double(), torch.from_numpy(labels), reduction="none")
    np.testing.assert_allclose(found.losses, expected, atol=1e-12)
    order = np.argsort(-logits, axis=1, kind="stable")
    np.testing.assert_array_equal(found.ranks, (order == labels[:, None]).argmax(1))


def test_answers_of_which_several_are_right() -> None:
    logits = np.log(np.array([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], [0.25, 0.25, 0.25, 0.25]]))
    members = np.array([[True, True, False, False], [False, False, False, True]])
    found = read_answers(logits.astype(np.float32), np.array([0, 1, 1]), members)
    assert found.predicted.tolist() == [3, 0, 0]
    assert found.ranks.tolist() == [2, 3, 3]
    np.testing.assert_allclose(np.exp(-found.losses), [0.1 + 0.2, 0.1, 0.25], rtol=1e-6)
    assert read_answers(logits, np.array([0, 0, 0]), members).ranks.tolist() == [2, 0, 0]


def test_many_images_are_read_in_parts() -> None:
    random = np.random.default_rng(0)
    logits, labels = random.normal(size=(2500, 3)).astype(np.float32), random.integers(0, 3, 2500)
    whole = read_answers(logits, labels, np.eye(3, dtype=bool))
    assert (whole.ranks == 0).mean() == (logits.argmax(1) == labels).mean()
    single = [
        read_answers(logits[i : i + 1], labels[i : i + 1], np.eye(3, dtype=bool)) for i in (0, 1500, 2499)
    ]
    assert [whole.losses[i] for i in (0, 1500, 2499)] == [part.losses[0] for part in single]


def test_large_logits_don_t_overflow() -> None:
    logits = np.array([[5000, -5000], [5000, -5000]], np.float32)
    found = read_answers(logits, np.array([0, 1]), np.eye(2, dtype=bool))
    assert found.losses.tolist() == [0, 10000] and found.confidence.tolist() == [1, 1]


def test_calibration_error_by_hand() -> None:
    # Bins 1/15 wide: (0.4, 0.4667] holds the first two, (0.8667, 0.9333] the next two, and the last one all to itself.
    confidence = np.array([0.41, 0.45, 0.90, 0.93, 1.0])
    right = np.array([True, False, True, True, False])
    gaps = [abs(1 - 0.86), abs(2 - 1.83), abs(0 - 1.0)]
    assert calibration_error(confidence, right) == pytest.approx(sum(gaps) / 5)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=50))
def test_calibration_error_by_bins(cases: list[tuple[float, bool]]) -> None:
    confidence, right = np.array([case[0] for case in cases]), np.array([case[1] for case in cases])
    expected = 0.0
    for low, high in pairwise(np.arange(16) / 15):
        members = (confidence * 15 > low * 15) & (confidence * 15 <= high * 15)
        if low == 0:
            members |= confidence == 0
        if members.any():
            expected += members.mean() * abs(right[members].mean() - confidence[members].mean())
    assert calibration_error(confidence, right) == pytest.approx(expected, abs=1e-9)


def test_calibration_by_chance_falls_with_more_images() -> None:
    """Of one image with confidence c it is c (1 - c) + (1 - c) c; of many it goes to 0."""
    alone = calibration_by_chance(np.array([0.8]))
    assert alone == pytest.approx(2 * 0.8 * 0.2, abs=0.05)
    confidence = np.random.default_rng(1).uniform(0.2, 1, 20_000)
    found = [calibration_by_chance(confidence[:images]) for images in (20, 200, 20_000)]
    assert found[0] > 0.15 > found[1] > 0.05 > 0.01 > found[2] > 0
    assert calibration_by_chance(np.ones(5)) == 0
    assert found[1] == calibration_by_chance(confidence[:200])


def test_binary_losses_are_torchs() -> None:
    random = np.random.default_rng(0)
    logits, labels = random.normal(0, 30, (1100, 5)).astype(np.float32), random.random((1100, 5)) < 0.5
    expected = F.binary_cross_entropy_with_logits(
        torch.from_numpy(logits).double(), torch.from_numpy(labels).double(), reduction="none"
    ).sum(1)
    np.testing.assert_allclose(binary_losses(logits, labels), expected, rtol=1e-6, atol=1e-12)
