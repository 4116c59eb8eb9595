"""A model's predictions for every image of a source, and the metrics and pictures computed from them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vitkit.data.decode import decode
from vitkit.data.sources.source import Picture, Source, Subset
from vitkit.data.threads import Unreadable, work_through
from vitkit.errors import InputError
from vitkit.evaluation.metrics import (
    Answers,
    average_precision,
    binary_losses,
    calibration_by_chance,
    calibration_error,
    class_scores,
    confusion_matrix,
    read_answers,
)
from vitkit.evaluation.passes import SourcePass
from vitkit.figures.mistakes import OTHERS, Tile, confusion_picture, mistake_sheet
from vitkit.figures.sheets import name_class
from vitkit.files import written_whole
from vitkit.models.configs import Preprocessing
from vitkit.models.model import Model
from vitkit.results import Result
from vitkit.world import World

CONFUSION, MISTAKES = "confusion.png", "mistakes.png"
MOST_MISTAKES = 24
MOST_PICTURED = 100
"Classes up to which a notebook shows their confusion."
TOP = 5


@dataclass(frozen=True)
class ClassScore(Result):
    """How well a class fares where an image has one label."""

    name: str = field(metadata={"json": "class"})
    images: int
    recall: float
    precision: float | None
    "None for a class that is never the answer."
    f1: float


@dataclass(frozen=True)
class ClassPrecision(Result):
    """How well a class fares of multi-label images."""

    name: str = field(metadata={"json": "class"})
    images: int
    average_precision: float


@dataclass(frozen=True)
class Mistake(Result):
    """A wrong image: where it is, its class, what it was predicted as and with which probability."""

    image: str
    true: str = field(metadata={"json": "class"})
    predicted: str
    probability: float


SINGLE = (
    *("accuracy", "top_5_accuracy", "balanced_accuracy", "macro_f1"),
    *("calibration_error", "calibration_by_chance", "confusion", "mistakes"),
)
SEVERAL = ("mean_average_precision",)
BOTH = ("loss", "per_class")


@dataclass(frozen=True, kw_only=True)
class Measures(Result):
    """All numbers of a classifier, ratios 0 to 1; None for what is undefined, or not for this kind of labels.

    Means over classes, and the lists by class, are of the classes with images.
    """

    accuracy: float | None = None
    top_5_accuracy: float | None = None
    loss: float | None = None
    balanced_accuracy: float | None = None
    macro_f1: float | None = None
    calibration_error: float | None = None
    calibration_by_chance: float | None = None
    "What a perfectly calibrated model with these confidences would have on average, on this number of images."
    mean_average_precision: float | None = None
    per_class: tuple[ClassScore, ...] | tuple[ClassPrecision, ...] | None = None
    confusion: dict[str, dict[str, int]] | None = None
    "Class -> what it was predicted as -> images, the most frequent first, without zeros."
    mistakes: tuple[Mistake, ...] | None = None
    "The wrong images that the model was surest of, as mistakes.png shows them."

    _leads: ClassVar[tuple[str, ...]] = (
        "accuracy",
        "mean_average_precision",
        "top_5_accuracy",
        "loss",
        "calibration_error",
    )
    _tables = ("per_class",)

    def _pictures(self) -> list[tuple[str, bytes]]:
        if not self.confusion or len(self.confusion) > MOST_PICTURED:
            return []
        matrix, names = _as_matrix(self.confusion)
        file = BytesIO()
        confusion_picture(matrix, names, file)
        return [(CONFUSION, file.getvalue())]

    def to_json(self) -> dict[str, Any]:
        """Return the document, whose keys are those of its kind of labels."""
        has_one, is_measured = self.confusion is not None, self.per_class is not None
        absent = (*(() if has_one else SINGLE), *(() if is_measured and not has_one else SEVERAL))
        absent += () if is_measured else BOTH
        return {key: value for key, value in super().to_json().items() if key not in absent}


def _as_matrix(confusion: dict[str, dict[str, int]]) -> tuple[np.ndarray, list[str]]:
    """Return the images of each class by what they were predicted as, all that is no row in one last column."""
    places = {name: place for place, name in enumerate(confusion)}
    matrix = np.zeros((len(places), len(places) + 1), np.int64)
    for name, row in confusion.items():
        for predicted, count in row.items():
            matrix[places[name], places.get(predicted, len(places))] += count
    return matrix if matrix[:, -1].any() else matrix[:, :-1], list(places)


class Predictions:
    """Logits of every image with its labels.

    logits: float32 (images, answers), finite.
    labels: int64 (images,), or bool (images, answers) where an image may have several.
    class_names: names of the classes.
    answer_names: names of the answers, where they are others than the classes.
    members: which answers are right for a class, bool (classes, answers); without it each class is one answer.
    """

    def __init__(
        self,
        logits: np.ndarray,
        source: Source,
        *,
        labels: np.ndarray | None = None,
        class_names: Sequence[str] | None = None,
        answer_names: Sequence[str] | None = None,
        members: np.ndarray | None = None,
    ) -> None:
        self.logits, self.source = logits, source
        self.labels = source.labels if labels is None else labels
        self.class_names = tuple(source.class_names if class_names is None else class_names)
        self.answer_names = tuple(self.class_names if answer_names is None else answer_names)
        self.members = np.eye(len(self.class_names), dtype=bool) if members is None else members

    @property
    def is_multi_label(self) -> bool:
        return self.labels.ndim == 2

    @cached_property
    def answers(self) -> Answers:
        """Each image's likeliest answer, its probability, and what the right one got."""
        return read_answers(self.logits, self.labels, self.members)

    @property
    def is_right(self) -> np.ndarray:
        """Whether an image's likeliest answer is right, bool (images,)."""
        return self.answers.ranks == 0

    @cached_property
    def predictions(self) -> np.ndarray:
        """The class of each image's likeliest answer, int64 (images,); len(class_names) where it is none of them."""
        owner = np.where(self.members.any(0), self.members.argmax(0), len(self.class_names))
        # An answer may be right for several classes: it then counts for the image's own.
        return np.where(self.is_right, self.labels, owner[self.answers.predicted])

    @cached_property
    def matrix(self) -> np.ndarray:
        """Images of each class (rows) by the class they were predicted as, int64 (classes, classes + 1): last, others."""
        classes = len(self.class_names)
        return confusion_matrix(self.labels, self.predictions, classes, classes + 1)

    def numbers(self) -> Measures:
        """Return all that is measured."""
        return self._several() if self.is_multi_label else self._single()

    def _single(self) -> Measures:
        scores, has_images = class_scores(self.matrix), self.matrix.any(1)
        rows = tuple(
            ClassScore(
                name=self.class_names[number],
                images=int(self.matrix[number].sum()),
                recall=float(scores.recall[number]),
                precision=None if math.isnan(scores.precision[number]) else float(scores.precision[number]),
                f1=float(scores.f1[number]),
            )
            for number in np.flatnonzero(has_images).tolist()
        )
        is_ranked = self.logits.shape[1] > TOP
        return Measures(
            accuracy=float(self.is_right.mean()),
            top_5_accuracy=float((self.answers.ranks < TOP).mean()) if is_ranked else None,
            loss=float(self.answers.losses.mean()),
            balanced_accuracy=float(scores.recall[has_images].mean()),
            macro_f1=float(scores.f1[has_images].mean()),
            calibration_error=calibration_error(self.answers.confidence, self.is_right),
            calibration_by_chance=calibration_by_chance(self.answers.confidence),
            per_class=rows,
            confusion=self._confusion(),
            mistakes=tuple(map(self._mistake, self.mistakes().tolist())),
        )

    def _confusion(self) -> dict[str, dict[str, int]]:
        """Return class -> what it was predicted as -> images, the most frequent first, without zeros."""
        names = [*self.class_names, OTHERS]
        found: dict[str, dict[str, int]] = {}
        for number in np.flatnonzero(self.matrix.any(1)).tolist():
            row = self.matrix[number]
            order = np.argsort(-row, kind="stable")[: np.count_nonzero(row)].tolist()
            found[names[number]] = {names[place]: int(row[place]) for place in order}
        return found

    def _several(self) -> Measures:
        counts, precision = self.labels.sum(0), average_precision(self.logits, self.labels)
        rows = tuple(
            ClassPrecision(self.class_names[number], int(counts[number]), float(precision[number]))
            for number in np.flatnonzero(counts).tolist()
        )
        mean = float(np.mean([row.average_precision for row in rows])) if rows else None
        loss = float(binary_losses(self.logits, self.labels).mean())
        return Measures(mean_average_precision=mean, loss=loss, per_class=rows)

    def mistakes(self, most: int = MOST_MISTAKES) -> np.ndarray:
        """Return the wrong images, the most confident first, int64."""
        wrong = np.flatnonzero(~self.is_right)
        return wrong[np.argsort(-self.answers.confidence[wrong], kind="stable")][:most]

    def draw(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write confusion.png and mistakes.png; multi-label images have neither."""
        if self.is_multi_label:
            return []
        Path(folder).mkdir(parents=True, exist_ok=True)
        confusion, mistakes = (Path(folder, name) for name in (CONFUSION, MISTAKES))
        with written_whole(confusion) as part:
            confusion_picture(*self._pictured(), part)
        chosen = self.mistakes()
        shown = work_through(self.source, chosen, _pixels)
        # One that can't be read any more keeps its place, so that tiles and listed mistakes agree.
        tiles = [
            Tile(None if isinstance(pixels, Unreadable) else pixels, *self._words(index))
            for index, pixels in shown
        ]
        wrong = int((~self.is_right).sum())
        with written_whole(mistakes) as part:
            mistake_sheet(tiles, part, wrong, len(self.labels))
        return [confusion, mistakes]

    def _pictured(self) -> tuple[np.ndarray, list[str]]:
        """Return the matrix of the classes with images, all else that they were predicted as in one last column."""
        kept = np.flatnonzero(self.matrix.any(1))
        rows = self.matrix[kept]
        inside = rows[:, kept]
        others = rows.sum(1, keepdims=True) - inside.sum(1, keepdims=True)
        matrix = np.hstack([inside, others]) if others.any() else inside
        return matrix, [name_class(self.class_names[number], number) for number in kept.tolist()]

    def _mistake(self, index: int) -> Mistake:
        true, predicted = (
            self.class_names[self.labels[index]],
            self.answer_names[self.answers.predicted[index]],
        )
        return Mistake(self.source.where(index), true, predicted, float(self.answers.confidence[index]))

    def _words(self, index: int) -> tuple[str, str, float]:
        label, answer = self.labels[index], self.answers.predicted[index]
        # Where answers are others than the classes, the same number means another.
        word = "class" if self.answer_names == self.class_names else "answer"
        predicted = name_class(self.answer_names[answer], answer, word)
        return name_class(self.class_names[label], label), predicted, float(self.answers.confidence[index])


def measure(
    model: Model,
    source: Source,
    preprocessing: Preprocessing,
    *,
    batch_size: int = 64,
) -> Predictions:
    """Run a model, where it is, over a source whose classes are the head's (open_data's `classes`).

    Predictions are of the images that can be read.
    """
    if model.config.num_classes != source.num_classes:
        raise InputError(
            f"the head has {model.config.num_classes} classes and {source.name} has {source.num_classes}: "
            "open the data with the head's classes"
        )
    world = World(0, 1, next(model.parameters()).device)
    indices, logits = SourcePass(source, preprocessing, world=world, batch_size=batch_size).logits(model)
    check_finite(logits, "the model")
    return Predictions(logits, source if len(indices) == len(source) else Subset(source, indices))


def check_finite(logits: np.ndarray, model: str) -> None:
    """Refuse logits of which nothing can be said."""
    if not np.isfinite(logits).all():
        raise InputError(f"{model} gives logits that are not finite: its weights are broken")


def _pixels(picture: Picture) -> np.ndarray:
    return decode(picture).permute(1, 2, 0).contiguous().numpy()
