"""What follows from logits: classes of several answers, ties, and a large set in bounded memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from vitkit.data.sources.source import Files
from vitkit.evaluation.measured import Predictions


def source(labels: list[int], *names: str) -> Files:
    return Files("set", "all", names, np.array(labels), [f"{number}.png" for number in range(len(labels))])


def test_an_answer_that_is_right_for_two_classes_counts_for_the_images_own() -> None:
    members = np.array([[True, True, False, False], [False, True, True, False]])
    logits = 5 * np.eye(4, dtype=np.float32)[[1, 1, 0, 2, 3]]
    measured = Predictions(
        logits, source([0, 1, 1, 0, 1], "a", "b"), answer_names=tuple("wxyz"), members=members
    )
    assert measured.is_right.tolist() == [True, True, False, False, False]
    assert measured.predictions.tolist() == [0, 1, 0, 1, 2]  # 2: an answer of neither
    assert measured.matrix.tolist() == [[1, 1, 0], [1, 1, 1]]
    found = measured.numbers()
    assert found.confusion == {"a": {"a": 1, "b": 1}, "b": {"a": 1, "b": 1, "other classes": 1}}
    assert found.accuracy == 0.4 and found.top_5_accuracy is None
    assert [row.precision for row in found.per_class] == [0.5, 0.5]
    assert found.balanced_accuracy == pytest.approx((1 / 2 + 1 / 3) / 2)


def test_mistakes_are_listed_the_surest_first() -> None:
    logits = np.array([[2, 0], [9, 0], [0, 1]], np.float32)
    first, second, *others = Predictions(logits, source([1, 1, 1], "cat", "dog")).numbers().mistakes or ()
    assert not others and (first.image, second.image) == ("1.png", "0.png")
    assert second.to_json() == {
        "image": "0.png",
        "class": "dog",
        "predicted": "cat",
        "probability": pytest.approx(1 / (1 + np.exp(-2))),
    }


def test_classes_without_images_are_not_reported() -> None:
    measured = Predictions(np.eye(3, dtype=np.float32), source([0, 0, 2], "a", "b", "c"))
    found = measured.numbers()
    assert [row.name for row in found.per_class] == ["a", "c"]
    assert found.confusion == {"a": {"a": 1, "b": 1}, "c": {"c": 1}}
    assert found.balanced_accuracy == 0.75


def test_a_class_that_is_never_the_answer_has_no_precision() -> None:
    logits = np.array([[1, 0], [1, 0]], np.float32)
    rows = Predictions(logits, source([0, 1], "a", "b")).numbers().per_class
    assert rows is not None
    assert rows[1].to_json() == {"class": "b", "images": 1, "recall": 0.0, "precision": None, "f1": 0.0}


def test_images_without_any_label_have_no_mean() -> None:
    several = source([0, 0], "a", "b")
    several.labels = np.zeros((2, 2), bool)
    found = Predictions(np.zeros((2, 2), np.float32), several).numbers()
    assert found.to_json() == {
        "mean_average_precision": None,
        "loss": pytest.approx(2 * np.log(2)),
        "per_class": [],
    }


def test_memory_stays_near_that_of_the_logits() -> None:
    images, classes = 20_000, 500
    logits = np.random.default_rng(0).normal(size=(images, classes)).astype(np.float32)
    measured = Predictions(logits, source((np.arange(images) % classes).tolist(), *map(str, range(classes))))
    tracemalloc.start()
    measured.numbers()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * logits.nbytes
