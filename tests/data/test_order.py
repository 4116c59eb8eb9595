"""The order of a run, addressable at any position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitkit import InputError
from vitkit.data.order import Order


@given(st.integers(1, 300), st.integers(0, 5), st.integers(0, 4))
def test_each_epoch_holds_every_image_once(length: int, seed: int, epoch: int) -> None:
    order = Order(np.zeros(length, np.int64), 1, seed)
    positions = np.arange(epoch * length, (epoch + 1) * length)
    assert sorted(order[positions].tolist()) == list(range(length))


def test_epochs_and_seeds_differ() -> None:
    labels = np.zeros(1000, np.int64)
    first, second = Order(labels, 1, 0)[np.arange(1000)], Order(labels, 1, 0)[np.arange(1000, 2000)]
    assert (first != second).mean() > 0.9
    assert (first != Order(labels, 1, 1)[np.arange(1000)]).mean() > 0.9


@given(st.integers(0, 10**12), st.lists(st.integers(0, 500), min_size=1, max_size=20))
def test_any_position_can_be_asked_alone(first: int, offsets: list[int]) -> None:
    labels = np.arange(700) % 7
    for sampling in ("shuffle", "balanced"):
        order = Order(labels, 7, 2, sampling)
        positions = first + np.array(offsets)
        alone = [Order(labels, 7, 2, sampling)[np.array([position])][0] for position in positions]
        assert order[positions].tolist() == alone


def test_balanced_sampling_gives_every_class_its_turn() -> None:
    labels = np.array([0] * 90 + [1] * 9 + [3])  # class 2 has no image
    indices = Order(labels, 4, 0, "balanced")[np.arange(3 * 90)]
    assert np.bincount(labels[indices], minlength=4).tolist() == [90, 90, 0, 90]
    assert np.bincount(indices[labels[indices] == 0]).tolist() == [1] * 90
    assert np.bincount(indices[labels[indices] == 1])[90:].tolist() == [10] * 9


def test_a_replacement_is_of_the_same_class_where_classes_are_balanced() -> None:
    labels = np.array([0] * 90 + [1] * 9 + [3])
    order = Order(labels, 4, 0, "balanced")
    for position in range(30):
        others = [order.replacement(position, attempt) for attempt in range(20)]
        assert set(labels[others]) == {labels[order[np.array([position])][0]]}
    shuffled = Order(labels, 4, 0)
    assert set(labels[[shuffled.replacement(3, attempt) for attempt in range(300)]]) == {0, 1, 3}


def test_balanced_sampling_needs_single_labels() -> None:
    with pytest.raises(InputError, match="needs images with one label each"):
        Order(np.zeros((3, 2), bool), 2, 0, "balanced")
