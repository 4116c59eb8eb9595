"""Few-shot accuracy: ridge regression in closed form on the features of a few images a class."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from vitkit.config import Bounds, check_choice
from vitkit.data.open import Data
from vitkit.data.pipeline import Pipeline, Step
from vitkit.data.sources.source import Source, Subset, choose_shots
from vitkit.data.splits import counted, listed
from vitkit.data.unreadable import BadImages
from vitkit.errors import InputError
from vitkit.evaluation.frozen import (
    FrozenEvaluator,
    FrozenResult,
    StrengthRow,
    check_classes,
    check_rows,
    mean_and_std,
    open_pair,
    row_blocks,
)
from vitkit.evaluation.metrics import mean_and_spread
from vitkit.evaluation.passes import SourcePasses
from vitkit.models.configs import Size
from vitkit.notes import Note
from vitkit.predictor import AnyModel, Predictor
from vitkit.progress import Progress
from vitkit.results import Result

L2 = 1024.0
SWEEP = tuple(2.0**power for power in range(-10, 20))
"The older code's strengths of regularisation."
BIAS = 100.0  # so large a column that its weight is hardly regularised
EPSILON = 1e-5
PreprocessingChoice = Literal["model", "protocol"]


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
        Bounds(above=0).check("l2", self.l2)
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


@dataclass(frozen=True)
class FewShotRow(Result):
    """The accuracy with some images a class."""

    shots: int
    accuracy: float
    std: float | None
    accuracies: tuple[float, ...]
    l2: float
    sweep: tuple[StrengthRow, ...] | None = field(default=None, metadata={"optional": True})


@dataclass(frozen=True)
class FewShotResult(FrozenResult):
    """What `fewshot` measured."""

    results: tuple[FewShotRow, ...]
    notes: tuple[str, ...]
    seconds: float

    _leads = ("results", "model", "train", "test")
    _tables = ("results",)


def fewshot(
    model: AnyModel,
    data: Data,
    *,
    shots: Sequence[int] = (1, 5, 10, 25),
    seeds: int = 3,
    l2: float | Literal["sweep"] = L2,
    preprocessing: PreprocessingChoice = "model",
    evaluate: Data | None = None,
    device: str = "auto",
    batch_size: int = 64,
    image_size: Size | None = None,
    bad_images: BadImages = "skip",
    progress: bool | Progress | None = True,
) -> FewShotResult:
    """Return the accuracy for each number of images per class, over several choices of these images.

    evaluate: DATA to measure on; by default the source's test split, else val.
    l2: regularisation strength. "sweep" tries the older 30 strengths and reports the best on the images measured on.
    preprocessing: "model" prepares images as the model's folder states; "protocol" as big_vision's few-shot code does:
    resized to 8/7 of the model's input (256x256 for 224), cut to the centre, scaled to values from -1 to 1.
    bad_images: "skip", "error" or "any"; an unreadable shot is replaced with the next image of its class.
    progress: False shows none; a function is called with the number of images done, and with their total.
    """
    _check(shots, seeds, l2)
    check_choice("preprocessing", preprocessing, PreprocessingChoice)
    pair = open_pair(data, evaluate)
    chosen: dict[tuple[int, int], np.ndarray] = {}
    most = 0 if pair.train.is_multi_label else int(np.bincount(pair.train.labels).max())

    def choose(unreadable: Collection[int]) -> np.ndarray:
        """Return all images that any number of shots and seed learn from, in order."""
        for count, seed in product(shots, range(seeds)):
            chosen[count, seed] = _choose(pair.train, count, seed, unreadable, takes_fewer=count <= most)
        return np.unique(np.concatenate(list(chosen.values())))

    choose(())  # what can't be chosen is an error before the model is loaded
    features = pair.features(
        model,
        device=device,
        batch_size=batch_size,
        image_size=image_size,
        progress=progress,
        bad_images=bad_images,
        choose=choose,
        adapt=as_protocol if preprocessing == "protocol" else None,
    )
    train, test = features.train, features.test
    strengths = SWEEP if l2 == "sweep" else (float(l2),)
    results = []
    for count in shots:
        table = []  # (seeds, strengths)
        for seed in range(seeds):
            rows = np.searchsorted(train.indices, chosen[count, seed])
            solver = FewShot(strengths[0]).fit(train.x[rows], train.labels[rows])
            table.append(_measure(solver, test.x, test.labels, strengths))
        best = choose_l2(np.mean(table, axis=0)[None])
        accuracies = [float(row[best]) for row in table]
        mean, std = mean_and_spread(accuracies)
        swept = None
        if l2 == "sweep":
            means = np.mean(table, axis=0).tolist()
            swept = tuple(StrengthRow(*pair) for pair in zip(strengths, means, strict=True))
        results.append(FewShotRow(count, mean, std, tuple(accuracies), strengths[best], swept))
    notes = _small_classes(pair.train, max(shots))
    how = f"l2 {strengths[0]:g}"
    if l2 == "sweep":
        how = "the best l2 of 2^-10 to 2^19, chosen on the evaluation images"
        text = "l2 was chosen on the evaluation images, as in older code: say so next to the numbers"
        notes.append(Note(text, "protocol"))
    prepared = "images prepared as the model states it"
    if preprocessing == "protocol":
        height, width = features.predictor.preprocessing.size
        prepared = f"images resized to {height * 8 // 7}x{width * 8 // 7}, central {height}x{width}, values from -1 to 1"
    protocol = (
        "closed-form ridge regression on whitened features (bias column 100, targets -1 and +1), "
        f"{how}; images of each class drawn with {'seed 0' if seeds == 1 else f'seeds 0 to {seeds - 1}'}; "
        f"std is the sample's; {prepared}"
    )
    return features.result(FewShotResult, protocol, notes, results=tuple(results))


def as_protocol(predictor: Predictor) -> tuple[Predictor, Pipeline]:
    """Return a model that takes values from -1 to 1, and how big_vision's few-shot code prepares images for its size."""
    size, half = predictor.preprocessing.size, (0.5,) * 3
    larger = tuple(side * 8 // 7 for side in size)  # 256 for 224
    resize = Step("resize", (("size", larger), ("interpolation", "bilinear")))
    plain = Predictor(
        predictor.model,
        dataclasses.replace(predictor.preprocessing, mean=half, std=half),
        predictor.class_names,
        predictor.name,
        predictor.notes,
        predictor.device,
        spec=predictor.spec,
    )
    return plain, Pipeline(image=(resize, Step("central_crop", (("size", size),))))


class FewShotEvaluator(FrozenEvaluator):
    """Few-shot accuracy of a model while it trains, the mean over seeds."""

    def __init__(
        self,
        train: Source,
        test: Source,
        passes: SourcePasses,
        *,
        shots: int = 10,
        seeds: int = 1,
        l2: float = L2,
    ) -> None:
        _check((shots,), seeds, l2)
        chosen = [_choose(train, shots, seed) for seed in range(seeds)]
        union = np.unique(np.concatenate(chosen))
        part = Subset(train, union)
        part.may_lack_classes = True  # shots are so few that one of them may be all of a class
        super().__init__(
            f"fewshot_{shots}",
            FewShot(l2),
            passes(part),
            passes(test),
            [np.searchsorted(union, indices) for indices in chosen],
        )


def _measure(solver: FewShot, x: np.ndarray, y: np.ndarray, strengths: Sequence[float]) -> np.ndarray:
    if len(strengths) > 1:
        return solver.accuracies(x, y, strengths)
    return np.array([np.mean(solver.predict(x) == y)])


def _small_classes(source: Source, shots: int) -> list[str]:
    """Return a warning that names the classes with fewer images than `shots`, if there are any."""
    present, counts = np.unique(source.labels, return_counts=True)
    few = [
        f"{source.class_names[number]} ({count})"
        for number, count in zip(present, counts, strict=True)
        if count < shots
    ]
    if not few:
        return []
    verb = "has" if len(few) == 1 else "have"
    text = (
        f"{counted(len(few), 'class')} {verb} fewer than {shots} images; all of them are used: {listed(few)}"
    )
    return [Note(text, "warning")]


def _choose(
    source: Source, shots: int, seed: int, unreadable: Collection[int] = (), takes_fewer: bool = False
) -> np.ndarray:
    """Return the images to learn from; classes that have none in the source are skipped.

    unreadable: images in whose place others are chosen; a class that has no others is skipped, too.
    takes_fewer: whether a class with fewer images gives all that it has; otherwise it is an error.
    """
    if source.is_multi_label:
        raise InputError(f"{source.name} is multi-label; shots are chosen by one label per image")
    present, places = np.unique(source.labels, return_inverse=True)
    names = [source.class_names[number] for number in present]
    advice = "; ask for fewer shots"
    return choose_shots(places, shots, seed, names, takes_fewer, unreadable=unreadable, advice=advice)


def _check(shots: Sequence[int], seeds: int, l2: float | str) -> None:
    if not len(shots):
        raise InputError("no shots given; expected one or more numbers, such as 1,5,10,25")
    Bounds(at_least=1).check("shots", list(shots))
    if len(set(shots)) < len(shots):
        raise InputError(f"shots are {', '.join(map(str, shots))}; name each number once")
    Bounds(at_least=1).check("seeds", seeds)
    if l2 != "sweep" and not isinstance(l2, int | float):
        raise InputError(f"l2 is {l2!r}; expected a number above 0, or 'sweep'")
    Bounds(above=0).check("l2", l2)
