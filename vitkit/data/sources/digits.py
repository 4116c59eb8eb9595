"""scikit-learn's handwritten digits: 1,797 real images of 8 x 8 pixels, in a fixed split by handwritten form."""

from __future__ import annotations

import functools

import numpy as np

from vitkit.data.sources.source import Source
from vitkit.errors import InputError, did_you_mean

# First image, and first image after. The data is the test set of UCI's, in its order: 13 writers filled in 14 forms
# of the same 130 digits (some are missing), so that the labels show where each form starts. No form is cut: a hand
# met in training isn't met again, but for the one writer of two forms, who isn't named.
SPLITS: dict[str, tuple[int, int]] = {
    "train": (0, 1157),  # 9 forms, 1,157 images
    "val": (1157, 1415),  # 2 forms, 258 images
    "test": (1415, 1797),  # 3 forms, 382 images
    "all": (0, 1797),
}


class Digits(Source):
    """Digits 0 to 9, light on black; grey repeated as RGB, uint8 (images, 8, 8, 3)."""

    name = "digits"
    class_names = tuple("0123456789")

    def __init__(self, split: str = "train") -> None:
        if split not in SPLITS:
            hint = did_you_mean(split, SPLITS) or ";"
            raise InputError(f"digits has no split {split!r}{hint} expected {', '.join(SPLITS)}")
        images, labels = _read()
        self.split = split
        self.start, stop = SPLITS[split]
        self.labels = labels[self.start : stop].astype(np.int64)
        grey = np.round(images[self.start : stop] * (255 / 16)).astype(np.uint8)  # stored as 0 to 16
        self.images = np.repeat(grey[..., None], 3, axis=-1)

    def where(self, index: int) -> str:
        return f"digits, image {self.start + index} of scikit-learn's"


@functools.cache
def _read() -> tuple[np.ndarray, np.ndarray]:
    """Parse scikit-learn's text file once, not for each split."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return data.images, data.target
