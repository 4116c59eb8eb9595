"""What few-shot, probe and nearest neighbours share: training and test features, evaluators, results."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import ClassifierMixin, clone

from vitkit.data.open import Data, open_data
from vitkit.data.pipeline import Pipeline
from vitkit.data.sources.source import Source, Subset, shared_images
from vitkit.data.splits import listed
from vitkit.data.threads import Unreadable
from vitkit.data.unreadable import BadImageRule, BadImages, Skipped, skipped_notes
from vitkit.errors import InputError
from vitkit.evaluation.features import Features, frozen_features, load_frozen
from vitkit.evaluation.passes import Rows, SourcePass
from vitkit.models.configs import Size
from vitkit.models.model import Model
from vitkit.predictor import AnyModel, Predictor
from vitkit.progress import Progress, Tell, showing, telling
from vitkit.results import Result

R = TypeVar("R", bound="FrozenResult")


@dataclass(frozen=True)
class FrozenResult(Result):
    """How every result on frozen features begins; notes and seconds end it."""

    model: str
    train: str
    test: str
    num_classes: int
    num_train: int
    num_test: int
    image_size: tuple[int, int]
    protocol: str
    unreadable: tuple[Unreadable, ...]
    "Images that were skipped."


@dataclass(frozen=True)
class StrengthRow(Result):
    """How well a strength of regularisation did."""

    l2: float
    accuracy: float
    loss: float | None = field(default=None, metadata={"optional": True})
    "Mean cross-entropy, where the strength is that of a probe."


@dataclass(frozen=True)
class Pair:
    """Images to learn from and images to measure on, with the same classes."""

    train: Source
    test: Source
    began: float
    "When the first of them was asked for, on time.perf_counter's clock."

    def features(
        self,
        model: AnyModel,
        *,
        device: str,
        batch_size: int,
        image_size: Size | None,
        progress: bool | Progress | None,
        bad_images: BadImages,
        choose: Callable[[Collection[int]], np.ndarray] | None = None,
        adapt: Callable[[Predictor], tuple[Predictor, Pipeline]] | None = None,
    ) -> PairFeatures:
        """Return a model's features of both.

        choose: returns the images to learn from, where that aren't all; it is told which are known to be unreadable, and
        asked again when there are more. adapt: gives the model and the pipeline to use instead, where images are not prepared as the model states it.
        """
        predictor, pipeline = load_frozen(model, device, image_size), None
        if adapt is not None:
            predictor, pipeline = adapt(predictor)
        rule = BadImageRule(bad_images, "option")
        tell_note = telling(progress)
        with showing(progress, "features") as tell:
            compute = partial(
                frozen_features, predictor, batch_size=batch_size, progress=tell, pipeline=pipeline
            )
            if choose is None:
                train = compute(self.train, bad_images=rule)
            else:
                train = self._chosen(choose, compute, rule)
            return PairFeatures(predictor, self, train, compute(self.test, bad_images=rule), tell_note)

    def _chosen(
        self,
        choose: Callable[[Collection[int]], np.ndarray],
        compute: Callable[..., Features],
        rule: BadImageRule,
    ) -> Features:
        """Return the features of images to learn from, others chosen for those that are unreadable."""
        skipped = Skipped(self.train, rule)
        while True:
            places = choose(skipped.found)
            # Judged by all of train: shots are so few that one of them may be all of a class.
            found = compute(Subset(self.train, places), bad_images=rule, judge=False)
            skipped.add({int(places[place]): entry for place, entry in found.bad.items()})
            if not found.bad:
                return replace(found, indices=places, bad=skipped.found)


@dataclass(frozen=True)
class PairFeatures:
    """A model's features of a pair."""

    predictor: Predictor
    pair: Pair
    train: Features
    test: Features
    tell_note: Tell

    def result(self, kind: type[R], protocol: str, notes: Sequence[str] = (), **measured: Any) -> R:
        """Return what was measured, of what and how; `notes` follow those of model and data."""
        unreadable = (*self.train.bad.values(), *self.test.bad.values())
        every = (*self.predictor.notes, *self.train.notes, *self.test.notes, *notes)
        told = tuple(dict.fromkeys((*every, *skipped_notes(unreadable))))
        for line in told:
            self.tell_note(line)
        fields: dict[str, Any] = {
            "model": self.predictor.spec,
            "train": self.pair.train.data_name,
            "test": self.pair.test.data_name,
            "num_classes": len(np.unique(self.pair.train.labels)),
            "num_train": len(self.pair.train) - len(self.train.bad),
            "num_test": len(self.test.labels),
            "image_size": self.predictor.preprocessing.size,
            "protocol": protocol,
            "unreadable": unreadable,
            "notes": told,
            "seconds": time.perf_counter() - self.pair.began,
        }
        return kind(**fields, **measured)


def open_pair(data: Data, evaluate: Data | None) -> Pair:
    """Return the data to learn from and that to measure on; what can't be measured is an error before any work."""
    began = time.perf_counter()
    train = open_data(data, default="train")
    if evaluate is None:
        if train.spec is None:
            raise InputError(f"{train.data_name}: name the images to measure on (evaluate= in Python)")
        evaluate = train.spec.whole
    test = open_data(evaluate, default="measure", classes=train.class_names)
    names = (train.data_name, test.data_name)
    if shared := shared_images(train, test):
        raise InputError(
            f"{names[0]} holds {shared:,} of the images that would be measured ({names[1]}): "
            "measure on others, with --evaluate (evaluate= in Python)"
        )
    for name, source in zip(names, (train, test), strict=True):
        if source.is_multi_label:
            raise InputError(f"{name} is multi-label; frozen features are measured with one label per image")
    unlearned = np.setdiff1d(test.labels, train.labels)
    if len(unlearned):
        raise InputError(
            f"{names[0]} has no image of {listed([train.class_names[number] for number in unlearned])}, but {names[1]} does: "
            "learn from data with all classes"
        )
    if len(np.unique(train.labels)) < 2:
        raise InputError(f"{names[0]} only has images of one class; expected two or more")
    return Pair(train, test, began)


class FrozenEvaluator:
    """Accuracy of a classifier of frozen features while a model trains: the mean over choices of images to learn from."""

    def __init__(
        self,
        name: str,
        classifier: ClassifierMixin,
        train: SourcePass,
        test: SourcePass,
        choices: Sequence[np.ndarray | None] = (None,),
    ) -> None:
        """choices: places of images in train's source, None for all."""
        for images in (train, test):
            if images.source.is_multi_label:
                raise InputError(
                    f"{images.source.name} is multi-label; {name} is measured with one label per image"
                )
        self.name, self.classifier, self.choices = name, classifier, choices
        self.train, self.test, self.world = train, test, train.world

    @property
    def unreadable(self) -> tuple[Unreadable, ...]:
        """Images of all processes that could not be read in the last pass."""
        return (*self.train.bad.values(), *self.test.bad.values())

    def run(self, model: Model, dtype: torch.dtype = torch.float32) -> dict[str, float]:
        """Return the accuracy, the same on every process."""
        train, test = (images.features(model, dtype) for images in (self.train, self.test))
        accuracy = self._accuracy(train, test) if self.world.is_first else 0.0
        return {self.name: self.world.sum(torch.tensor(accuracy, dtype=torch.float64)).item()}

    def _accuracy(self, train: Rows, test: Rows) -> float:
        labels, answers = self.train.source.labels[train.indices], self.test.source.labels[test.indices]
        accuracies = []
        for choice in self.choices:
            rows = slice(None) if choice is None else np.isin(train.indices, choice)
            fitted = clone(self.classifier).fit(train.values[rows], labels[rows])
            accuracies.append(np.mean(fitted.predict(test.values) == answers))
        return float(np.mean(accuracies))


def row_blocks(
    x: np.ndarray, size: int, rows: np.ndarray | None = None
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield places and float64 copies of `size` rows at a time: of all, or of those that `rows` numbers."""
    count = len(x) if rows is None else len(rows)
    for start in range(0, count, size):
        places = slice(start, min(start + size, count))
        yield places, np.array(x[places if rows is None else rows[places]], np.float64)


def mean_and_std(x: np.ndarray, size: int, rows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return each column's mean and population standard deviation, block by block in float64."""
    count = len(x) if rows is None else len(rows)
    mean = sum(block.sum(0) for _, block in row_blocks(x, size, rows)) / count
    if not np.isfinite(mean).all():
        raise InputError("features are not finite")
    square = sum(np.square(block - mean).sum(0) for _, block in row_blocks(x, size, rows)) / count
    return mean, np.sqrt(square)


def check_rows(x: Any, y: Any = None, width: int | None = None) -> np.ndarray:
    """Return features as an array (images, width), or say what is wrong with them or their labels."""
    x = np.asanyarray(x)
    if x.ndim != 2 or not len(x):
        raise InputError(f"features have shape {x.shape}; expected (images, width)")
    if width is not None and x.shape[1] != width:
        raise InputError(f"features are {x.shape[1]} wide; the training features are {width}")
    if y is not None and np.shape(y) != (len(x),):
        raise InputError(f"labels have shape {np.shape(y)}; expected one for each of {len(x):,} images")
    return x


def check_classes(y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes, in order, and each label's place among them."""
    classes, places = np.unique(np.asarray(y), return_inverse=True)
    if len(classes) < 2:
        raise InputError("all images have one class; expected two or more")
    return classes, places
