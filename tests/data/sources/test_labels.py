"""Labels as they are stored: which are numbers, which are names, and how many classes numbers may make."""

from __future__ import annotations

import pytest

from vitkit.data.sources.labels import name_classes, read_labels
from vitkit.errors import InputError


def test_numbers_are_numbers_unless_two_texts_are_one() -> None:
    assert read_labels(["7", "0", "12"]) == [7, 0, 12]
    assert read_labels(["007", "012"]) == [7, 12]
    assert read_labels(["007", "7"]) == ["007", "7"]
    assert name_classes(read_labels(["007", "7"])) == ("007", "7")
    assert name_classes(["10", "9", "-1"]) == ("-1", "9", "10")
    assert name_classes(["10", "9", "x"]) == ("10", "9", "x")


def test_a_number_far_above_the_images_is_no_class() -> None:
    assert len(name_classes([21_842, 3])) == 21_843
    assert len(name_classes([*range(30_000), 200_000])) == 200_001
    with pytest.raises(InputError) as error:
        name_classes([0, 1, 999_999_999_999])
    assert str(error.value).startswith(
        "3 images have labels up to 999999999999, but labels count classes from 0"
    )
    assert "classes.txt" in str(error.value) and "\n" not in str(error.value)
