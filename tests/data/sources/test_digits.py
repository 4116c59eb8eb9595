"""Digits are scikit-learn's, in splits that never cut a form."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from vitkit.data.sources.digits import SPLITS, Digits
from vitkit.errors import InputError


def test_splits_are_disjoint_and_complete() -> None:
    parts = [Digits(split) for split in ("train", "val", "test")]
    whole = Digits("all")
    assert [len(part) for part in parts] == [1157, 258, 382]
    assert np.array_equal(np.concatenate([part.labels for part in parts]), load_digits().target)
    assert np.array_equal(np.concatenate([part.images for part in parts]), whole.images)
    assert np.array_equal(whole.labels, load_digits().target)


def test_pixels_are_scikit_learns() -> None:
    digits = Digits("val")
    assert digits.images is not None
    assert digits.images.shape == (258, 8, 8, 3) and digits.images.dtype == np.uint8
    assert np.array_equal(np.round(digits.images[..., 1] / 255 * 16), load_digits().images[1157:1415])
    assert digits.images.min() == 0 and digits.images.max() == 255
    assert np.array_equal(digits.read(7), digits.images[7])


def test_every_split_starts_a_form() -> None:
    form = [*range(10), *range(10)]  # all forms begin with the digits in order, twice at least
    for split in SPLITS:
        assert Digits(split).labels[:20].tolist() == form


def test_classes_are_balanced() -> None:
    for split in SPLITS:
        counts = np.bincount(Digits(split).labels, minlength=10)
        assert counts.min() > 0.9 * counts.mean() and counts.max() < 1.1 * counts.mean()


def test_names() -> None:
    digits = Digits("test")
    assert digits.class_names == ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
    assert digits.num_classes == 10 and not digits.is_multi_label
    assert digits.where(2) == "digits, image 1417 of scikit-learn's"


def test_unknown_split() -> None:
    with pytest.raises(InputError) as error:
        Digits("trian")
    assert (
        str(error.value)
        == "digits has no split 'trian'; did you mean 'train'? expected train, val, test, all"
    )
