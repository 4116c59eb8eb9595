"""Few-shot accuracy: ridge regression in closed form on the features of a few images a class."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from vitkit.data.fetch import BadImages
from vitkit.data.open import Data
from vitkit.data.sources.source import Source, Subset, choose_shots
from vitkit.errors import InputError
from vitkit.evaluation.features import (
    FrozenEvaluator,
    Progress,
    check_classes,
    check_rows,
    describe,
    frozen_features,
    load_frozen,
    mean_and_spread,
    mean_and_std,
    open_pair,
    row_blocks,
)
from vitkit.evaluation.passes import Rows
from vitkit.models.configs import Preprocessing, Size
from vitkit.predictor import Predictor
from vitkit.world import World

L2 = 1024.0
SWEEP = tuple(2.0**power for power in range(-10, 20))
"The older code's strengths of regularisation."
BIAS = 100.0  # so large a column that its weight is hardly regularised
EPSILON = 1e-5


class FewShot(ClassifierMixin, BaseEstimator):
    """Least squares onto targets of -1 and +1 with whitened features, solved exactly by eigendecomposition in float64.

    l2: strength of the regularisation; block_size: images taken at once, which bounds memory.
    Learned: classes_, mean_, scale_, coef_ (width + 1, classes), whose last row belongs to the bias column.
    """

    def __init__(self, l2: float = L2, block_size: int = 4096) -> None:
        self.l2 = l2
        self.block_size = block_size

    def fit(self, x: Any, y: Any) -> FewShot:
        """Solve for the weights; x is (images, width), y holds their classes."""
        if not 0 < self.l2 < math.inf:
            raise InputError(f"l2 is {self.l2}; expected a number above 0")
        x = check_rows(x, y)
        self.classes_, labels = check_classes(y)
        self.n_features_in_ = x.shape[1]
        self.mean_, std = mean_and_std(x, self.block_size)
        self.scale_ = std + EPSILON
        columns = np.arange(len(self.classes_))
        if len(x) > x.shape[1]:  # primal: W = (X'X + l2 I)^-1 X'Y
            gram = np.zeros((x.shape[1] + 1,) * 2)
            moment = np.zeros((x.shape[1] + 1, len(columns)))
            for places, block in row_blocks(x, self.block_size):
                rows = self._whiten(block)
                gram += rows.T @ rows
                moment += rows.T @ np.where(labels[places, None] == columns, 1.0, -1.0)
            values, vectors = np.linalg.eigh(gram)
            self._basis, self._projected = vectors, vectors.T @ moment
        else:  # dual: W = X' (XX' + l2 I)^-1 Y
            rows = self._whiten(np.array(x, np.float64))
            values, vectors = np.linalg.eigh(rows @ rows.T)
            targets = np.where(labels[:, None] == columns, 1.0, -1.0)
            self._basis, self._projected = rows.T @ vectors, vectors.T @ targets
        self._eigenvalues = values.clip(min=0)
        self.coef_ = self._basis @ self._solved(self.l2)
        return self

    def decision_function(self, x: Any) -> np.ndarray:
        """Return the score of each class: (images, classes)."""
        x = check_rows(x, width=self.n_features_in_)
        return np.concatenate(
            [self._whiten(block) @ self.coef_ for _, block in row_blocks(x, self.block_size)]
        )

    def predict(self, x: Any) -> np.ndarray:
        """Return the class with the highest score, of equal ones the first."""
        x = check_rows(x, width=self.n_features_in_)
        blocks = (self._whiten(block) @ self.coef_ for _, block in row_blocks(x, self.block_size))
        return np.concatenate([self.classes_[scores.argmax(1)] for scores in blocks])

    def accuracies(self, x: Any, y: Any, l2s: Sequence[float]) -> np.ndarray:
        """Return the accuracy for each strength of regularisation, from the one decomposition."""
        x, y = check_rows(x, y, self.n_features_in_), np.asarray(y)
        right = np.zeros(len(l2s))
        for places, block in row_blocks(x, self.block_size):
            projected = self._whiten(block) @ self._basis
            for number, l2 in enumerate(l2s):
                answers = self.classes_[(projected @ self._solved(l2)).argmax(1)]
                right[number] += np.count_nonzero(answers == y[places])
        return right / len(x)

    def _whiten(self, block: np.ndarray) -> np.ndarray:
        rows = np.empty((len(block), block.shape[1] + 1))
        rows[:, :-1] = (block - self.mean_) / self.scale_
        rows[:, -1] = BIAS
        return rows

    def _solved(self, l2: float) -> np.ndarray:
        return self._projected / (self._eigenvalues + l2)[:, None]


def choose_l2(accuracies: np.ndarray) -> int:
    """Return the place of the strength with the best mean rank over data sets: accuracies (data sets, strengths).

    The older code's rule; it looks at the data measured on. With one data set that is the most accurate strength,
    of equal ones the last.
    """
    ranks = np.argsort(np.argsort(accuracies, axis=1, kind="stable"), axis=1, kind="stable").mean(0)
    return len(ranks) - 1 - int(ranks[::-1].argmax())


def fewshot(
    model: str | os.PathLike[str] | Predictor,
    data: Data,
    *,
    shots: Sequence[int] = (1, 5, 10, 25),
    seeds: int = 3,
    l2: float | Literal["sweep"] = L2,
    evaluate: Data | None = None,
    device: str = "auto",
    batch_size: int = 64,
    image_size: Size | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return what `vit fewshot --json` prints: accuracy by number of images a class, over choices of them.

    evaluate: DATA to measure on; left open, the source's test split, else val.
    l2: strength of regularisation, or "sweep": the older 30, of which the best on the data measured on is reported.
    """
    began = time.perf_counter()
    _check(shots, seeds, l2)
    pair = open_pair(data, evaluate)
    chosen = {(count, seed): _choose(pair.train, count, seed) for count in shots for seed in range(seeds)}
    union = np.unique(np.concatenate(list(chosen.values())))
    predictor = load_frozen(model, device, image_size)
    train, test = (
        frozen_features(predictor, source, batch_size=batch_size, progress=progress)
        for source in (Subset(pair.train, union), pair.test)
    )
    strengths = SWEEP if l2 == "sweep" else (float(l2),)
    results = []
    for count in shots:
        table = []  # (seeds, strengths)
        for seed in range(seeds):
            rows = np.searchsorted(union, chosen[count, seed])
            solver = FewShot(strengths[0]).fit(train.x[rows], train.labels[rows])
            table.append(_measure(solver, test.x, test.labels, strengths))
        best = choose_l2(np.mean(table, axis=0)[None])
        accuracies = [float(row[best]) for row in table]
        mean, std = mean_and_spread(accuracies)
        row: dict[str, Any] = {
            "shots": count,
            "accuracy": mean,
            "std": std,
            "accuracies": accuracies,
            "l2": strengths[best],
        }
        if l2 == "sweep":
            row["sweep"] = [
                {"l2": strength, "accuracy": float(value)}
                for strength, value in zip(strengths, np.mean(table, axis=0), strict=True)
            ]
        results.append(row)
    notes = [*predictor.notes, *train.notes, *test.notes]
    how = f"l2 {strengths[0]:g}"
    if l2 == "sweep":
        how = "the best l2 of 2^-10 to 2^19, chosen on the images measured on"
        notes.append("l2 was chosen on the images measured on, as older code does: say so beside the numbers")
    return {
        **describe(predictor, pair),
        "protocol": (
            "closed-form ridge regression on whitened features (bias column 100, targets -1 and +1), "
            f"{how}; images of each class drawn with {'seed 0' if seeds == 1 else f'seeds 0 to {seeds - 1}'}; std is the sample's"
        ),
        "results": results,
        "notes": list(dict.fromkeys(notes)),
        "seconds": time.perf_counter() - began,
    }


class FewShotEvaluator(FrozenEvaluator):
    """Few-shot accuracy of a model while it trains, the mean over seeds."""

    def __init__(
        self,
        train_source: Source,
        test_source: Source,
        preprocessing: Preprocessing,
        *,
        shots: int = 10,
        seeds: int = 1,
        l2: float = L2,
        world: World,
        batch_size: int = 64,
        workers: int | None = None,
        bad_images: BadImages | None = None,
    ) -> None:
        _check((shots,), seeds, l2)
        self.name, self.l2 = f"fewshot_{shots}", l2
        chosen = [_choose(train_source, shots, seed) for seed in range(seeds)]
        union = np.unique(np.concatenate(chosen))
        self.chosen = [np.searchsorted(union, indices) for indices in chosen]
        super().__init__(
            Subset(train_source, union),
            test_source,
            preprocessing,
            world=world,
            batch_size=batch_size,
            workers=workers,
            bad_images=bad_images,
        )

    def measure(self, train: Rows, test: Rows) -> float:
        labels, answers = self.train.source.labels[train.indices], self.test.source.labels[test.indices]
        accuracies = []
        for chosen in self.chosen:
            rows = np.flatnonzero(np.isin(train.indices, chosen))
            solver = FewShot(self.l2).fit(train.values[rows], labels[rows])
            accuracies.append(_measure(solver, test.values, answers, (self.l2,)))
        return float(np.mean(accuracies))


def _measure(solver: FewShot, x: np.ndarray, y: np.ndarray, strengths: Sequence[float]) -> np.ndarray:
    if len(strengths) > 1:
        return solver.accuracies(x, y, strengths)
    return np.array([np.mean(solver.predict(x) == y)])


def _choose(source: Source, shots: int, seed: int) -> np.ndarray:
    """Return the images to learn from; classes that have none in the source are left out."""
    if source.has_several_labels:
        raise InputError(f"{source.name} has several labels an image; shots are chosen by one")
    present, places = np.unique(source.labels, return_inverse=True)
    return choose_shots(places, shots, seed, [source.class_names[number] for number in present])


def _check(shots: Sequence[int], seeds: int, l2: float | str) -> None:
    if not shots or min(shots) < 1:
        raise InputError(
            f"shots are {', '.join(map(str, shots)) or 'none'}; expected 1 or more, such as 1,5,10,25"
        )
    if len(set(shots)) < len(shots):
        raise InputError(f"shots are {', '.join(map(str, shots))}; name each number once")
    if seeds < 1:
        raise InputError(f"seeds is {seeds}; expected 1 or more")
    if l2 != "sweep" and not (isinstance(l2, int | float) and 0 < l2 < math.inf):
        raise InputError(f"l2 is {l2!r}; expected a number above 0, or 'sweep'")
