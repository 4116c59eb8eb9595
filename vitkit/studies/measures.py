"""What measuring a trained model will take, checked and counted before anything is spent."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from vitkit.config import Bounds, merge
from vitkit.costs import cost_of
from vitkit.data.open import open_data
from vitkit.data.sources.source import Absent, Source
from vitkit.data.spec import as_spec
from vitkit.data.splits import Default
from vitkit.errors import InputError
from vitkit.evaluation.classes import HeadClasses, match
from vitkit.evaluation.frozen import Pair, open_pair
from vitkit.evaluation.probe import DEV, cut_dev
from vitkit.models import build as build_module
from vitkit.models.configs import ModelConfig
from vitkit.models.names import default_preprocessing
from vitkit.studies.config import MeasureConfig
from vitkit.training.config import TrainConfig
from vitkit.training.estimate import operations
from vitkit.transfer.plan import MINUTES, Plan, Start, make_plan
from vitkit.transfer.protocols import in_proportion, named_rule, paper_settings, part_changes
from vitkit.weights.load import LoadedModel


@dataclass(frozen=True)
class Work:
    """What a run takes, apart from how fast the device is."""

    trained: float = 0.0
    "Floating-point operations of training, and of fine-tuning."
    passed: float = 0.0
    "Floating-point operations of images that are only passed forward."
    starts: int = 0
    "How often a model is built and compiled."
    kept: int = 0
    "Images that are read into memory, where data.cache keeps them."
    seconds: float = 0.0
    "Of quick fine-tunings, which take the minutes that they are given."

    def __add__(self, other: Work) -> Work:
        return Work(
            self.trained + other.trained,
            self.passed + other.passed,
            self.starts + other.starts,
            self.kept + other.kept,
            self.seconds + other.seconds,
        )


class Sources:
    """The data of a study, each opened once."""

    def __init__(self) -> None:
        self._opened: dict[tuple[str, bool], Source | None] = {}

    @property
    def absent(self) -> tuple[str, ...]:
        """Data that was looked for and isn't here."""
        return tuple(dict.fromkeys(data for (data, _), source in self._opened.items() if source is None))

    def open(self, data: str, *, to_measure: bool = False, labelled: bool = True) -> Source | None:
        """Return a DATA, by default its train split, or that to measure on; None if it isn't here."""
        key = (data, to_measure)
        if key not in self._opened:
            spec = as_spec(data)
            self._opened[key] = None
            if not spec.is_path or any(path.exists() for path in spec.paths):
                default: Default = "measure" if to_measure else "train"
                with suppress(Absent):
                    self._opened[key] = open_data(data, default=default, labelled=labelled)
        return self._opened[key]


@dataclass(frozen=True)
class Trained:
    """A model as it will be after its training."""

    config: TrainConfig
    model: ModelConfig
    class_names: Sequence[str] | None
    "None if its data isn't here."


class Measures:
    """What the measures of a study take, as far as their data is here; what can't work is refused."""

    def __init__(self, sources: Sources, device: str) -> None:
        self.sources, self.device = sources, device
        self._pairs: dict[tuple[str, str | None], Pair | None] = {}
        self._plans: dict[str, Plan] = {}

    def work(self, measure: MeasureConfig, trained: Trained) -> Work:
        """Return what one measure of a trained model takes."""
        try:
            if measure.by == "finetune":
                return self._finetune(measure, trained)
            images = self._tested(measure, trained) if measure.by == "test" else self._passed(measure)
            return Work(passed=2.0 * cost_of(trained.model).macs * images)
        except InputError as error:
            raise InputError(f"measure {measure.name!r}: {error}") from None

    def _passed(self, measure: MeasureConfig) -> int:
        """Return the images whose features are computed: to learn from, and to measure on."""
        key = (measure.data, measure.evaluate)
        if key not in self._pairs:
            train, test = self._open(measure)
            self._pairs[key] = None if train is None or test is None else open_pair(train, test)
        if (pair := self._pairs[key]) is None:
            return 0
        train, count = pair.train, len(pair.train)
        if measure.by == "fewshot":
            most = int(np.bincount(train.labels).max())
            Bounds(at_most=most).check(f"shots of {train.data_name}", measure.shots)
            count = min(count, measure.shots * train.num_classes * measure.seeds)
        elif measure.by == "knn":
            Bounds(at_most=count).check(f"neighbours in {train.data_name}", measure.neighbours)
        else:
            cut_dev(train.labels, DEV, 0, "add images")
        return count + len(pair.test)

    def _tested(self, measure: MeasureConfig, trained: Trained) -> int:
        """Return the images of the run's own classes."""
        if trained.config.objective.name != "supervised":
            raise InputError(f"a run with objective {trained.config.objective.name} has no classes to test")
        test = self.sources.open(measure.data, to_measure=True)
        if test is not None and trained.class_names is not None:
            match(test, HeadClasses(trained.config.data.train, trained.class_names), None, "head")
        return 0 if test is None else len(test)

    def _finetune(self, measure: MeasureConfig, trained: Trained) -> Work:
        """Return what a fine-tuning for each seed takes, with the size and the steps of its own plan."""
        transfer, rest = part_changes(measure.settings)
        is_quick = transfer.protocol == "quick" or (transfer.protocol == "auto" and self.device != "cuda")
        plan, flops = self._plan(measure, trained), 0.0
        kept = 0
        if plan is not None:
            is_quick = not plan.has_duration
            flops = 0.0 if is_quick else plan.operations(1)
            is_kept = merge({}, rest).get("data", {}).get("cache", "none") != "none"
            kept = is_kept * (plan.num_images + len(plan.measured))
        elif not is_quick and (rule := named_rule(as_spec(measure.data))) is not None:
            size = transfer.image_size or in_proportion(trained.model, rule.image_size)
            settings = merge(paper_settings(rule, size), rest)
            steps, batch_size = settings["duration"], settings["batch_size"]
            if isinstance(steps, int) and isinstance(batch_size, int):
                flops = operations(trained.model, size, trained=steps * batch_size, measured=0)
        if is_quick:
            return Work(seconds=measure.seeds * 60 * (transfer.minutes or MINUTES))
        return Work(trained=measure.seeds * flops, starts=measure.seeds, kept=measure.seeds * kept)

    def _plan(self, measure: MeasureConfig, trained: Trained) -> Plan | None:
        """Return the plan of a fine-tuning; models of one size and patch share it."""
        train, test = self._open(measure)
        if train is None or test is None:
            return None
        start, model = _start(trained), trained.model
        key = f"{measure} {model.size} {getattr(model, 'stride', 1)}"
        if key not in self._plans:
            changes = finetune_changes(measure)
            self._plans[key] = make_plan(start, train, changes, self.device, measured=test)
        return replace(self._plans[key], start=start)

    def _open(self, measure: MeasureConfig) -> tuple[Source | None, Source | None]:
        """Return the data to learn from, and that to measure on."""
        test = str(as_spec(measure.data).whole) if measure.evaluate is None else measure.evaluate
        return self.sources.open(measure.data), self.sources.open(test, to_measure=True)


def finetune_changes(measure: MeasureConfig) -> dict[str, Any]:
    """Return the settings of a fine-tuning that measures a model."""
    return dict(measure.settings) | ({} if measure.evaluate is None else {"data.evaluate": measure.evaluate})


def _start(trained: Trained) -> Start:
    """Return the trained model as fine-tuning starts from it, without its weights."""
    with torch.device("meta"):
        module = build_module(trained.model)
    name = str(trained.config.model["name"])
    names = None if trained.class_names is None else tuple(trained.class_names)
    return Start(name, LoadedModel(module, default_preprocessing(trained.model), names, name), True)
