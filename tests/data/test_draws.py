"""Random numbers as functions of seed, stream and position."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vitkit.data.draws import Draw, Shuffle, generator, uniform


def test_numbers_are_uniform_and_unrelated() -> None:
    numbers = uniform(0, "a", np.arange(100_000), 3)
    assert numbers.min() >= 0 and numbers.max() < 1
    np.testing.assert_allclose(numbers.mean(axis=0), 0.5, atol=0.005)
    np.testing.assert_allclose(numbers.std(axis=0), 12**-0.5, atol=0.005)
    neighbours = np.corrcoef(numbers[:-1, 0], numbers[1:, 0])[0, 1]
    columns = np.corrcoef(numbers.T)[np.triu_indices(3, 1)]
    assert abs(neighbours) < 0.015 and np.abs(columns).max() < 0.015


def test_seed_stream_and_position_all_matter() -> None:
    base = uniform(0, "a", np.array([5]))
    for other in (
        uniform(1, "a", np.array([5])),
        uniform(0, "b", np.array([5])),
        uniform(0, "a", np.array([6])),
    ):
        assert base != other
    assert generator(0, "a", 5).random() != generator(0, "a", 6).random()


@given(st.integers(0, 2**40), st.integers(1, 50), st.integers(0, 50))
def test_a_batch_may_be_cut_anywhere(first: int, count: int, cut: int) -> None:
    positions = np.arange(first, first + count)
    whole = Draw(3, 1, positions).child("flip").uniform("p", 2)
    parts = [Draw(3, 1, part).child("flip").uniform("p", 2) for part in (positions[:cut], positions[cut:])]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


@given(st.integers(1, 3000), st.integers(0, 10))
def test_a_shuffle_is_a_permutation(length: int, seed: int) -> None:
    order = Shuffle(length, seed, "x")[np.arange(length)]
    assert sorted(order.tolist()) == list(range(length))


def test_a_shuffle_looks_random() -> None:
    places = np.arange(20_000)
    order, other = (Shuffle(20_000, seed, "x")[places] for seed in (0, 1))
    assert abs(np.corrcoef(places, order)[0, 1]) < 0.03
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.03
    assert abs(np.corrcoef(order, other)[0, 1]) < 0.03
    assert (order == places).sum() < 10
