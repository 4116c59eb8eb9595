"""Nearest neighbours: each image gets the class that most of its nearest neighbours have, weighted by cosine similarity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor

from vitkit.config import Bounds
from vitkit.data.open import Data
from vitkit.data.sources.source import Source
from vitkit.data.unreadable import BadImages
from vitkit.errors import InputError
from vitkit.evaluation.frozen import FrozenEvaluator, FrozenResult, check_classes, check_rows, open_pair
from vitkit.evaluation.neighbours import nearest, unit_rows
from vitkit.evaluation.passes import SourcePasses
from vitkit.models.configs import Size
from vitkit.notes import Note
from vitkit.predictor import AnyModel
from vitkit.progress import Progress
from vitkit.results import Result

K, TEMPERATURE = 20, 0.07


class KNN(ClassifierMixin, BaseEstimator):
    """The k images of the greatest cosine similarity vote for their classes with exp(similarity / temperature).

    device: where similarities are computed; block_size: images of either side taken at once, which bounds memory.
    Of equal similarities the first image counts, of equal votes the first class. Learned: classes_.
    """

    def __init__(
        self, k: int = K, temperature: float = TEMPERATURE, device: str = "cpu", block_size: int = 4096
    ) -> None:
        self.k = k
        self.temperature = temperature
        self.device = device
        self.block_size = block_size

    def fit(self, x: Any, y: Any) -> KNN:
        """Keep the images to compare with, not copied; x is (images, width), y holds their classes."""
        self._x = check_rows(x, y)
        _check([self.k], [self.temperature], len(self._x))
        self.classes_, labels = check_classes(y)
        self._labels = torch.from_numpy(labels)
        self._dtype = np.float64 if self._x.dtype == np.float64 and self.device != "mps" else np.float32
        self.n_features_in_ = self._x.shape[1]
        return self

    def predict_proba(self, x: Any) -> np.ndarray:
        """Return each class's share of the votes: (images, classes)."""
        parts = [self.vote(*near, self.k, self.temperature) for near in self.nearest(x, self.k)]
        return np.concatenate(parts)

    def predict(self, x: Any) -> np.ndarray:
        """Return the class with the most votes."""
        votes = (self.vote(*near, self.k, self.temperature) for near in self.nearest(x, self.k))
        return np.concatenate([self.classes_[part.argmax(1)] for part in votes])

    def accuracies(
        self, x: Any, y: Any, ks: Sequence[int], temperatures: Sequence[float]
    ) -> dict[tuple[int, float], float]:
        """Return the accuracy for each k and temperature; neighbours are searched once."""
        _check(ks, temperatures, len(self._x))
        x, y = check_rows(x, y, self.n_features_in_), np.asarray(y)
        right = {(k, temperature): 0 for k in ks for temperature in temperatures}
        start = 0
        for near in self.nearest(x, max(ks)):
            stop = start + len(near[0])
            for k, temperature in right:
                answers = self.classes_[self.vote(*near, k, temperature).argmax(1)]
                right[k, temperature] += int(np.count_nonzero(answers == y[start:stop]))
            start = stop
        return {setting: count / len(x) for setting, count in right.items()}

    def nearest(self, x: Any, k: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield similarities and numbers of the k nearest images, block by block: both (images, k), nearest first."""
        x = check_rows(x, width=self.n_features_in_)
        for block in self._unit_blocks(x):
            similarities, numbers = nearest(block, self._unit_blocks(self._x), k)
            yield similarities.cpu().double(), numbers.cpu()

    def vote(self, similarities: Tensor, numbers: Tensor, k: int, temperature: float) -> np.ndarray:
        """Return each class's share of the votes of the first k neighbours, on the CPU: sums there keep their order."""
        labels, near = self._labels[numbers[:, :k]], similarities[:, :k]
        weights = ((near - near[:, :1]) / temperature).exp()
        votes = torch.zeros(len(near), len(self.classes_), dtype=torch.float64).scatter_add_(
            1, labels, weights
        )
        return (votes / votes.sum(1, keepdim=True)).numpy()

    def _unit_blocks(self, x: np.ndarray) -> Iterator[Tensor]:
        for start in range(0, len(x), self.block_size):
            yield unit_rows(x[start : start + self.block_size], self._dtype, self.device)


@dataclass(frozen=True)
class KNNRow(Result):
    """The accuracy with some neighbours and a temperature."""

    k: int
    temperature: float
    accuracy: float


@dataclass(frozen=True)
class KNNResult(FrozenResult):
    """What `knn` measured."""

    results: tuple[KNNRow, ...]
    notes: tuple[str, ...]
    seconds: float

    _leads = ("results", "model", "train", "test")
    _tables = ("results",)


def knn(
    model: AnyModel,
    data: Data,
    *,
    k: int | Sequence[int] | None = None,
    temperature: float | Sequence[float] = TEMPERATURE,
    evaluate: Data | None = None,
    device: str = "auto",
    batch_size: int = 64,
    image_size: Size | None = None,
    bad_images: BadImages = "skip",
    progress: bool | Progress | None = True,
) -> KNNResult:
    """Return the accuracy of nearest neighbours, for each k and temperature.

    k: numbers of neighbours that vote; by default 20, or all training images if there are fewer.
    evaluate: DATA to measure on; by default the source's test split, else val.
    bad_images: "skip", "error" or "any", for unreadable images.
    progress: False shows none; a function is called with the number of images done, and with their total.
    """
    ks = [1] if k is None else [k] if isinstance(k, int) else list(k)
    temperatures = [temperature] if isinstance(temperature, int | float) else list(temperature)
    pair = open_pair(data, evaluate)
    _check(ks, temperatures, len(pair.train))
    features = pair.features(
        model,
        device=device,
        batch_size=batch_size,
        image_size=image_size,
        progress=progress,
        bad_images=bad_images,
    )
    train, test, notes = features.train, features.test, []
    if k is None:
        ks = [min(K, len(train.labels))]
        if ks[0] < K:
            text = (
                f"only {len(train.labels)} training images: all of them vote, instead of the default of {K}"
            )
            notes.append(Note(text, "warning"))
    neighbours = KNN(device=features.predictor.device.type, k=ks[0]).fit(train.x, train.labels)
    found = neighbours.accuracies(test.x, test.labels, ks, temperatures)
    how = "cosine similarity to every image of train; the k nearest vote with exp(similarity / temperature)"
    rows = tuple(KNNRow(number, float(heat), accuracy) for (number, heat), accuracy in found.items())
    return features.result(KNNResult, how, notes, results=rows)


class KNNEvaluator(FrozenEvaluator):
    """Accuracy of nearest neighbours of a model while it trains."""

    def __init__(
        self,
        train: Source,
        test: Source,
        passes: SourcePasses,
        *,
        k: int = K,
        temperature: float = TEMPERATURE,
    ) -> None:
        _check([k], [temperature], len(train))
        images = passes(train)
        neighbours = KNN(k, temperature, str(images.world.device))
        super().__init__(f"knn_{k}", neighbours, images, passes(test))


def _check(ks: Sequence[int], temperatures: Sequence[float], count: int) -> None:
    for name, values in (("k", ks), ("temperature", temperatures)):
        if not len(values):
            raise InputError(f"no {name} given; expected one or more numbers")
    Bounds(at_least=1, at_most=count).check(f"k (neighbours among {count:,} images)", list(ks))
    Bounds(above=0).check("temperature", list(temperatures))
