"""The order of training images: which image stands at which position, a function of the seed and the position alone."""

from __future__ import annotations

from typing import Literal

import numpy as np

from vitkit.data.draws import Shuffle, bits
from vitkit.errors import InputError

Sampling = Literal["shuffle", "balanced"]
WITHIN_CLASS = 50
"Attempts to find a readable image of the same class."


class Order:
    """The endless sequence of image indices that a run goes through."""

    def __init__(
        self, labels: np.ndarray, num_classes: int, seed: int, sampling: Sampling = "shuffle"
    ) -> None:
        self.length = len(labels)
        self.seed = seed
        self.sampling = sampling
        self._shuffles: dict[str, Shuffle] = {}
        if sampling == "balanced":
            if labels.ndim != 1:
                raise InputError("sampling=balanced needs images with one label each")
            by_class = [np.flatnonzero(labels == number) for number in range(num_classes)]
            self.classes = [members for members in by_class if len(members)]

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        """Return the image index at each global position: int64."""
        positions = np.asarray(positions, np.int64)
        return self._balanced(positions) if self.sampling == "balanced" else self._shuffled(positions)

    def replacement(self, position: int, attempt: int) -> int:
        """Return another image's index for a position whose image can't be read: balanced, of the same class if it may.

        After some attempts it is any class's: all images of one may be unreadable.
        """
        place = np.array([position])
        word = int(bits(self.seed, f"replacement/{attempt}", place)[0, 0])
        if self.sampling == "shuffle" or attempt >= WITHIN_CLASS:
            return word % self.length
        members = self.classes[self._walk(place, len(self.classes), "classes")[0]]
        return int(members[word % len(members)])

    def _shuffled(self, positions: np.ndarray) -> np.ndarray:
        """Each epoch is a permutation of its own: every image once."""
        return self._walk(positions, self.length, "epoch")

    def _balanced(self, positions: np.ndarray) -> np.ndarray:
        """With C classes, each C positions in a row hold every class once; a class's images come in a shuffled order."""
        rounds = positions // len(self.classes)
        numbers = self._walk(positions, len(self.classes), "classes")
        indices = np.empty_like(positions)
        for number in np.unique(numbers):
            here = numbers == number
            members = self.classes[number]
            indices[here] = members[self._walk(rounds[here], len(members), f"class/{number}")]
        return indices

    def _walk(self, places: np.ndarray, length: int, stream: str) -> np.ndarray:
        """Return the elements at these places of permutation after permutation of range(length)."""
        result = np.empty_like(places)
        epochs = places // length
        for epoch in np.unique(epochs):
            here = epochs == epoch
            result[here] = self._shuffle(length, f"{stream}/{epoch}")[places[here] % length]
        return result

    def _shuffle(self, length: int, stream: str) -> Shuffle:
        if stream not in self._shuffles:
            if len(self._shuffles) > 1000:  # a handful is in use at a time
                self._shuffles.clear()
            self._shuffles[stream] = Shuffle(length, self.seed, stream)
        return self._shuffles[stream]
