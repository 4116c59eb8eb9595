"""What a fine-tuning will do, settled and checked before anything is computed; its data is opened and its model loaded here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vitkit.config import Change, Changes, from_dict, merge
from vitkit.data.decode import read_pixels
from vitkit.data.open import Data, list_splits, open_data
from vitkit.data.pipeline import parse_pipeline
from vitkit.data.sources.source import Source, shared_images, take
from vitkit.data.splits import listed
from vitkit.data.unreadable import BadImageRule
from vitkit.errors import InputError
from vitkit.models.configs import ModelConfig, OwnConfig, Preprocessing, as_size, write_size
from vitkit.models.model import check_rgb
from vitkit.notes import Note
from vitkit.predictor import Predictor, choose_device, load
from vitkit.training.build import Inputs, given_preprocessing, resolve_periods
from vitkit.training.config import TrainConfig
from vitkit.training.estimate import operations, surprises
from vitkit.training.microbatch import sizes
from vitkit.training.schedules import build_schedule
from vitkit.transfer.protocols import (
    QUICK_EPOCHS,
    TrainingRule,
    TransferConfig,
    fitting_size,
    hyper_rule,
    in_proportion,
    is_neutral,
    learns_at_once,
    named_rule,
    paper_settings,
    part_changes,
    quick_settings,
    without_regularisation,
)
from vitkit.weights.load import LoadedModel, find_model, load_model, own_module
from vitkit.weights.public import find_weights

MINUTES = 10.0
CPU_MICRO_BATCH = 32
CPU_IMAGES = 50_000
"Images that a CPU should not be asked to learn from without a word."
FEW = 50
"Images below which a result is mostly chance."


@dataclass(frozen=True)
class Start:
    """The model that fine-tuning starts from, loaded once."""

    spec: str
    "Its MODEL string."
    loaded: LoadedModel
    is_trained: bool
    "Whether it has weights to start from; those of an untrained model are drawn by each run, from its seed."

    @property
    def config(self) -> ModelConfig:
        return self.loaded.model.config


def load_start(model: str | os.PathLike[str] | Predictor) -> Start:
    """Return a model to start from; one that takes other than RGB images is refused."""
    if isinstance(model, Predictor):
        start = Start(model.spec, model.as_loaded(), True)
    else:
        spec = os.fspath(model)
        start = Start(spec, load_model(spec), find_model(spec).path is not None)
    check_rgb(start.config, start.spec)
    return start


def start_notes(start: Start, preprocessing: Preprocessing) -> tuple[Note, ...]:
    """Return what to say of the model that training starts from; an untrained one is rarely what was meant."""
    if start.is_trained:
        return start.loaded.notes_with(preprocessing)
    words = f"{start.spec} has no trained weights, so training starts from scratch"
    with suppress(InputError):  # there are no public weights of this name
        find_weights(start.spec, "pretrained")
        words += f"; {start.spec}@pretrained starts from public ones"
    return (Note(words, "warning"),)


@dataclass(frozen=True)
class TrainDev:
    """Images to learn from, and those to choose by, if any."""

    train: Source
    dev: Source | None = None


@dataclass(frozen=True)
class Plan:
    """A model, data and protocol, as settings of training runs."""

    start: Start
    protocol: str
    transfer: TransferConfig
    rule: TrainingRule
    settings: dict[str, Any]
    changes: list[Change]
    whole: TrainDev
    "The last run: all of train; a quick one without a sweep and without a val split keeps what it chooses by apart."
    tuning: TrainDev | None
    "What a sweep learns from and measures on: train cut in two; None without a sweep."
    measured: Source
    "What is reported on."
    test: str
    "Its DATA string, as the user names it."
    num_images: int
    "Of train."
    held_out: Source | None
    "What a temperature is fitted on: what the last run chooses by, else a val split that nothing else looks at."
    summary: str = ""
    "Which model learns from what, and what it is measured on."
    start_notes: tuple[Note, ...] = ()
    "On the model that training starts from."
    notes: tuple[Note, ...] = ()
    "On the data and the settings."

    @property
    def is_multi_label(self) -> bool:
        return self.measured.is_multi_label

    @property
    def head_first(self) -> bool:
        given, config = self.transfer.head_first, self.start.config
        if given is not None:
            return given
        has_features = not isinstance(config, OwnConfig) or config.num_features > 0
        return self.protocol == "quick" and not self.is_multi_label and has_features

    @property
    def bad_images(self) -> BadImageRule:
        return BadImageRule(merge({}, self.changes).get("data", {}).get("bad_images", "skip"), "setting")

    @property
    def minutes(self) -> float:
        return self.transfer.minutes or MINUTES

    def config(self, data: TrainDev, changes: Sequence[str] = (), **settings: Any) -> TrainConfig:
        """Return a run of this plan; the user's changes come before those given here.

        Where the last run has no images to choose by, test metrics are logged but never used for selection: the last
        weights are kept, in a sweep's runs too.
        """
        evaluate = self.test if data.dev is None else data.dev.data_name
        named = {**self.settings["data"], "train": data.train.data_name, "evaluate": evaluate}
        merged = merge({**self.settings, "data": named, **settings}, [*self.changes, *changes])
        merged["data"]["evaluate"] = evaluate
        if self.whole.dev is None:
            merged["select"] = "last"
        config = from_dict(TrainConfig, merged, "the settings")
        return learns_at_once(config) if self.protocol == "quick" else config

    def open_model(self, path: str, device: str) -> str | Predictor:
        """Return a model folder of one of its runs as `evaluate` takes it: of a module of the user's own, loaded."""
        own = own_module(self.start.loaded)
        return path if own is None else load(path, device=device, module=own)

    def inputs(self, data: TrainDev, start: LoadedModel | None = None) -> Inputs:
        """Return what such a run reads, opened; `start` replaces the plan's model."""
        measured = self.measured if data.dev is None else data.dev
        own = self.start.loaded if self.start.is_trained else None
        return Inputs(data.train, measured, own if start is None else start)

    @property
    def has_duration(self) -> bool:
        return "duration" in merge(self.settings, self.changes)

    def operations(self, runs: int) -> float:
        """Return the floating-point operations of so many runs, whose length is given."""
        config = self.config(self.whole)
        size = parse_pipeline(config.data.pipeline).size or self.start.config.size
        trained = resolve_periods(config, self.num_images).total * config.batch_size
        passed = len(self.measured) + self.head_first * self.num_images
        return runs * operations(self.start.config, size, trained=trained, measured=passed)

    def surprises(self, steps: int | None = None) -> list[Note]:
        """Return warnings about settings of the last run, whose length is given here if the plan doesn't say it."""
        config = self.config(self.whole) if steps is None else self.config(self.whole, duration=steps)
        total = resolve_periods(config, len(self.whole.train)).total
        size = parse_pipeline(config.data.pipeline).size or self.start.config.size
        return surprises(config, replace(self.start.config, image_size=size), total)

    @property
    def departures(self) -> tuple[str, ...]:
        """The changes that make this another protocol than its name says."""
        own = [f"image_size={write_size(self.transfer.image_size)}"] if self.transfer.image_size else []
        if self.transfer.head_first is not None and self.transfer.head_first != (self.protocol == "quick"):
            own.append(f"head_first={str(self.transfer.head_first).lower()}")
        return (*own, *(change for change in self.changes if not is_neutral(change)))


def make_plan(
    model: str | os.PathLike[str] | Predictor | Start,
    data: Data,
    changes: Changes,
    device: str,
    sweep: bool = False,
    measured: Source | None = None,
) -> Plan:
    """Return what to run; what can't work is refused here.

    measured: what is reported on, where the caller has opened it.
    """
    transfer, rest = part_changes(changes)
    asked = merge({}, rest)
    on = choose_device(device)
    protocol = transfer.protocol
    if protocol == "auto":
        protocol = "paper" if on.type == "cuda" else "quick"
    if transfer.minutes is not None and protocol != "quick":
        raise InputError("minutes is a setting of protocol=quick; with protocol=paper, give duration=STEPS")
    if sweep and "learning_rate" in asked.get("optimizer", {}):
        raise InputError("a sweep finds optimizer.learning_rate: leave it out, or leave out --sweep")
    start = model if isinstance(model, Start) else load_start(model)
    source = open_train(data)
    assert source.spec is not None
    evaluate = asked.get("data", {}).get("evaluate")
    splits = list_splits(source.spec) if evaluate is None or source.split == "train" else []
    measured = open_measured(source, splits, evaluate if measured is None else measured)
    test = measured.data_name if evaluate is None else str(evaluate)
    check_pair(source, measured, test)
    spec = source.spec
    rule = named_rule(spec) or hyper_rule(len(source), typical_area(source))
    size = as_size(transfer.image_size or start.config.size)
    if transfer.image_size is None and protocol == "paper":
        size = in_proportion(start.config, rule.image_size)
    if size != start.config.size and (fitting := fitting_size(start.config, size)) != size:
        raise InputError(
            f"image_size {write_size(size)} is not a multiple of the model's patch; {write_size(fitting)} is"
        )
    settings = paper_settings(rule, size) if protocol == "paper" else quick_settings(len(source), size)
    if protocol == "paper" and "duration" in asked:
        settings["schedule"]["warmup"] = f"{100 * rule.warmup / rule.steps:g}%"
    settings |= {"name": "finetune", "micro_batch": "auto", "keep_checkpoints": 1}
    settings["model"] = {"name": start.spec, "new_head": True, **without_regularisation(start.config)}
    merged = merge(settings, rest)
    batch_size = merged["batch_size"]
    if merged.get("compile") == "graphs":
        settings["micro_batch"] = None  # a graph holds a whole batch
    elif on.type != "cuda" and isinstance(batch_size, int) and batch_size > 0:
        settings["micro_batch"] = next(size for size in sizes(batch_size, 1) if size <= CPU_MICRO_BATCH)
    is_cut = spec.start is not None or spec.stop is not None or spec.shots is not None
    if sweep and is_cut:
        raise InputError(
            f"a sweep cuts its dev split from train, and {spec} is a slice or shots: leave them out"
        )
    tuning = cut_train(source, rule.dev_percent) if sweep else None
    whole, val = TrainDev(source), open_val(source, splits, measured)
    if protocol == "quick":
        if val is not None:
            whole = TrainDev(source, val)
        elif not sweep and not is_cut:
            whole = cut_train(source, rule.dev_percent)
    if asked.get("select") == "best" and whole.dev is None:
        why = ", because the last run of a sweep learns all of train" if sweep else ""
        raise InputError(
            f"select=best has only the images of {test} to choose by, which the result is measured on{why}: leave it out"
        )
    plan = Plan(
        *(start, protocol, transfer, rule, settings, rest, whole, tuning, measured, test, len(source)),
        val if whole.dev is None else whole.dev,
    )
    config = plan.config(whole) if plan.has_duration else plan.config(whole, duration=1000)
    made = parse_pipeline(config.data.pipeline).size
    if made and made != size:
        raise InputError(
            f"images are to be {write_size(size)} pixels, but data.pipeline makes them {made[0]}x{made[1]}: change "
            f"that, or give image_size={write_size(made)}"
        )
    check_head_first(plan)
    periods = resolve_periods(config, len(source))
    build_schedule(config.schedule, config.optimizer.learning_rate, periods.total, periods.per_epoch)
    sized = replace(start.loaded.preprocessing, image_size=size)
    dev = (tuning or whole).dev
    warnings = [
        *unlearned(source, measured, test),
        *unmeasured(measured, test),
        *other_preprocessing(config, start.loaded),
        *few_images(measured, *([] if dev is None else [dev])),
    ]
    if dev is not None:
        warnings += unlearned((tuning or whole).train, dev, dev.data_name)
    if protocol == "paper" and on.type == "cpu" and periods.total * config.batch_size > CPU_IMAGES:
        warnings.append("the paper's protocol is made for a GPU; protocol=quick takes minutes here")
    summary = (
        f"{start.loaded.name} on {spec}: {len(source):,} images of {source.num_classes:,} classes, "
        f"{len(measured):,} to measure on in {test}"
    )
    read = (*source.notes, *measured.notes, *(() if dev is None else dev.notes))
    notes = (
        *dict.fromkeys(read),
        *(Note(line, "warning") for line in warnings),
        *(plan.surprises() if plan.has_duration else ()),
        Note(protocol_line(plan, config, write_size(size), sweep), "protocol"),
    )
    about_start = start_notes(start, given_preprocessing(config, sized))
    return replace(plan, summary=summary, start_notes=about_start, notes=notes)


def check_head_first(plan: Plan) -> None:
    """Refuse a head on features where it can't be fitted."""
    if not plan.head_first:
        return
    if plan.is_multi_label:
        raise InputError(
            "head_first fits one label per image, and this data is multi-label: leave it out, or set it to false"
        )
    own = plan.start.config
    if isinstance(own, OwnConfig) and not own.num_features:
        raise InputError(
            f"head_first needs features, and {own.module} has no method features(images): leave it out"
        )
    for data in filter(None, (plan.whole, plan.tuning)):
        if np.bincount(data.train.labels).max() < 2:
            raise InputError(
                f"no class of {data.train.data_name} has two images, which fitting a head needs: add images, or set "
                "head_first=false"
            )


def open_train(data: Data) -> Source:
    """Return what is learned from: two classes or more."""
    source = open_data(data, default="train")
    if source.spec is None:
        raise InputError(f"{source.data_name} was not opened by open_data; give the DATA that it would take")
    if source.num_classes < 2:
        raise InputError(f"{source.data_name} only has images of one class; expected two or more")
    return source


def open_measured(source: Source, splits: Sequence[str], evaluate: str | Source | None) -> Source:
    """Return what is reported on, its labels in the order of train's classes: as named, else the data's own split."""
    assert source.spec is not None
    if evaluate is None and "test" not in splits and "val" not in splits:
        raise InputError(
            f"{source.data_name} has no images to measure on (its splits: {listed(splits) or 'none'}): name them with "
            "data.evaluate=DATA (evaluate= in Python)"
        )
    other = source.spec.whole if evaluate is None else evaluate
    return open_data(other, default="measure", classes=source.class_names)


def check_pair(source: Source, measured: Source, test: str) -> None:
    """Refuse to report on images that are learned from, or that are labelled in another way."""
    if shared := shared_images(source, measured):
        raise InputError(
            f"{shared:,} images of {test} would be both trained and measured on: name another split than "
            f"{source.data_name}, or data.evaluate=DATA"
        )
    if source.is_multi_label != measured.is_multi_label:
        raise InputError(
            f"{source.data_name} and {test} differ: one is multi-label, the other has one label per image"
        )


def few_images(*sources: Source) -> list[str]:
    """Return a warning where a result, or what is chosen by, would be mostly chance."""
    few = [source for source in sources if len(source) < FEW]
    if not few:
        return []
    held = ", ".join(f"{len(source):,} in {source.data_name}" for source in few)
    share = 1 / min(len(source) for source in few)
    return [f"few images to measure on: {held}; one mistake is {share:.1%}"]


def other_preprocessing(config: TrainConfig, loaded: LoadedModel) -> list[str]:
    """Return a warning where images are normalised in another way than the weights were trained with."""
    given, stored = config.preprocessing, loaded.preprocessing
    lines = []
    for name in ("mean", "std"):
        asked, known = getattr(given, name), getattr(stored, name)
        if asked is not None and tuple(asked) != tuple(known):
            lines.append(
                f"preprocessing.{name} is {listed_numbers(asked)}; the weights were trained with "
                f"{listed_numbers(known)}"
            )
    return lines


def listed_numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in dict.fromkeys(values))


def unlearned(source: Source, measured: Source, test: str) -> list[str]:
    """Return a warning where images are reported on whose classes have none to learn from."""
    if source.is_multi_label:
        return []
    learned, asked = (np.bincount(part.labels, minlength=source.num_classes) for part in (source, measured))
    missing = [
        name for name, has, wants in zip(source.class_names, learned, asked, strict=True) if wants and not has
    ]
    if not missing:
        return []
    learned_from = source.data_name
    return [
        f"{learned_from} has no image of {listed(missing)}: those in {test} will be predicted as other classes"
    ]


def unmeasured(measured: Source, test: str) -> list[str]:
    """Return a warning where classes are learned of which no image is reported on."""
    if measured.is_multi_label:
        return []
    count = np.bincount(measured.labels, minlength=measured.num_classes)
    missing = [name for name, images in zip(measured.class_names, count, strict=True) if not images]
    if not missing:
        return []
    which = "this class" if len(missing) == 1 else "these classes"
    return [f"{test} has no image of {listed(missing)}, so the result doesn't cover {which}"]


def cut_train(source: Source, percent: int) -> TrainDev:
    """Return train cut in two, every class by its share."""
    assert source.spec is not None
    at = f"{100 - percent}%"
    parts = []
    for spec in (replace(source.spec, stop=at, seed=0), replace(source.spec, start=at, seed=0)):
        parts.append(take(source, spec))
        parts[-1].spec = spec
    parts[1].may_lack_classes = True  # nothing is reported of it, and a class may have one image there
    return TrainDev(*parts)


def open_val(source: Source, splits: Sequence[str], measured: Source) -> Source | None:
    """Return the data's own val split to choose by; None if it has none, or if it is reported on."""
    assert source.spec is not None
    whole = source.spec.whole
    if source.split != "train" or "val" not in splits:
        return None
    if measured.spec is not None and measured.spec.whole == whole and measured.split == "val":
        return None
    val = open_data(replace(whole, split="val"), classes=source.class_names)
    return None if shared_images(val, measured) else val


def typical_area(source: Source, most: int = 5) -> int:
    """Return the pixels of an image, the median of a few; unreadable ones are skipped."""
    if source.images is not None:
        return int(np.prod(source.images.shape[1:3]))
    areas = []
    for place in np.linspace(0, len(source) - 1, min(most, len(source))).astype(int).tolist():
        with suppress(InputError):
            areas.append(np.prod(read_pixels(source, place).shape[-2:]))
    return int(np.median(areas)) if areas else 0


def protocol_line(plan: Plan, config: TrainConfig, size: str, sweep: bool) -> str:
    """Say in a line what the protocol is here."""
    rate = "by a sweep" if sweep else f"{config.optimizer.learning_rate:g}"
    if plan.protocol == "paper" and not sweep:
        rate += " without the paper's sweep"
    shown = f"batch {config.batch_size}, learning rate {rate}, {size} px"
    changed = f"; changed: {', '.join(plan.departures)}" if plan.departures else ""
    if plan.protocol == "paper":
        return (
            f"protocol paper, {plan.rule.origin}: {config.duration} steps, warm-up {config.schedule.warmup}, "
            f"{shown}{changed}"
        )
    length = (
        config.duration if plan.has_duration else f"{plan.minutes:g} min or {QUICK_EPOCHS} epochs at most"
    )
    head = "a head on frozen features, then " if plan.head_first else ""
    dev = plan.whole.dev
    chosen = "" if dev is None else f"; the best on {dev.data_name} is kept"
    return f"protocol quick: {head}steps of all weights ({shown}) for {length}{chosen}{changed}"
