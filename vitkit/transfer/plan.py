"""What a fine-tuning will do, settled and checked before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitkit.config import from_dict, merge
from vitkit.data.decode import read_pixels
from vitkit.data.open import open_data
from vitkit.data.sources.source import Source
from vitkit.data.spec import DataSpec, as_spec
from vitkit.data.splits import listed
from vitkit.errors import InputError
from vitkit.predictor import choose_device
from vitkit.train.config import TrainConfig
from vitkit.train.microbatch import sizes
from vitkit.transfer.config import TransferConfig, part_changes
from vitkit.transfer.protocols import (
    PAPER,
    QUICK_EPOCHS,
    Rule,
    fitting_size,
    hyper_rule,
    paper_settings,
    quick_settings,
)
from vitkit.weights.load import LoadedModel, load_model

MINUTES = 10.0
CPU_MICRO_BATCH = 32


@dataclass(frozen=True)
class Part:
    """Images to learn from, and those to choose by, if any."""

    train: str
    dev: str | None


@dataclass(frozen=True)
class Plan:
    """A model, data and protocol, as settings of training runs."""

    model: str
    protocol: str
    transfer: TransferConfig
    rule: Rule
    settings: dict[str, Any]
    changes: list[str]
    whole: Part
    "The last run: all of train; a quick one keeps what it chooses by apart."
    tuning: Part | None
    "What a sweep learns from and measures on: train cut in two; None where it can't be cut."
    test: str
    num_images: int
    notes: tuple[str, ...]

    @property
    def head_first(self) -> bool:
        given = self.transfer.head_first
        return self.protocol == "quick" if given is None else given

    @property
    def minutes(self) -> float:
        return self.transfer.minutes or MINUTES

    def config(self, part: Part, changes: Sequence[str] = (), **settings: Any) -> TrainConfig:
        """Return a run of this plan; the user's changes come before those given here."""
        data = {**self.settings["data"], "train": part.train, "evaluate": part.dev or self.test}
        changes = [*self.changes, *changes]
        merged = merge({**self.settings, "data": data, **settings}, changes)
        merged["data"]["evaluate"] = data[
            "evaluate"
        ]  # what data.evaluate=... names is reported on at the end
        return from_dict(TrainConfig, merged, "the settings")

    @property
    def has_duration(self) -> bool:
        return "duration" in merge(self.settings, self.changes)


def make_plan(model: str, data: str, changes: Sequence[str], device: str) -> Plan:
    """Return what to run; what can't work is refused here."""
    transfer, rest = part_changes(changes)
    on = choose_device(device)
    protocol = transfer.protocol
    if protocol == "auto":
        protocol = "paper" if on.type == "cuda" else "quick"
    if transfer.minutes is not None and protocol != "quick":
        raise InputError("minutes is a setting of protocol=quick; with protocol=paper, give duration=STEPS")
    loaded = load_model(model)
    spec, source, test, measured = open_both(data, merge({}, rest).get("data", {}).get("evaluate"))
    rule = named_rule(spec) or hyper_rule(len(source), typical_area(source))
    size = transfer.image_size
    if size is None:
        own = loaded.model.config.size[0]
        size = own if protocol == "quick" else fitting_size(loaded.model.config, rule.image_size)
    settings = paper_settings(rule, size) if protocol == "paper" else quick_settings(len(source), size)
    settings |= {"name": "finetune", "model": {"name": model, **without_regularisation(loaded)}}
    settings["micro_batch"] = "auto"
    batch_size = merge(settings, rest)["batch_size"]
    if on.type != "cuda" and isinstance(batch_size, int):
        settings["micro_batch"] = next(size for size in sizes(batch_size, 1) if size <= CPU_MICRO_BATCH)
    tuning = cut(spec, rule.dev_percent)
    whole = Part(str(spec), None)
    if protocol == "quick":
        whole = with_val(spec, test) or tuning or whole
    lines = [*source.notes, *measured.notes, *loaded.notes, *unlearned(source, measured, test)]
    lines.append(
        f"{loaded.name} on {spec}: {len(source):,} images, {source.num_classes:,} classes; "
        f"reported on {test}, {len(measured):,} images"
    )
    plan = Plan(
        model, protocol, transfer, rule, settings, rest, whole, tuning, test, len(source), (*lines, "")
    )
    config = plan.config(whole, duration=1) if not plan.has_duration else plan.config(whole)
    return replace(plan, notes=(*lines, describe(plan, config, size)))


def open_both(data: str, evaluate: str | None) -> tuple[DataSpec, Source, str, Source]:
    """Return what is learned from and what is reported on, opened; they must be different images of the same classes."""
    spec = as_spec(data)
    source = open_data(spec, default="train")
    spec = replace(spec, split=spec.split or source.split)
    if evaluate is None:
        whole = replace(spec, split=None, start=None, stop=None, shots=None, seed=None)
        measured = open_data(whole, default="measure", classes=source.class_names)
        evaluate = str(replace(whole, split=measured.split))
    else:
        measured = open_data(evaluate, default="measure", classes=source.class_names)
    if evaluate == str(spec):
        raise InputError(
            f"{data} would be learned from and reported on: name another split, or data.evaluate=DATA"
        )
    if source.has_several_labels != measured.has_several_labels:
        raise InputError(f"{data} and {evaluate} differ in whether images have several labels")
    return spec, source, evaluate, measured


def unlearned(source: Source, measured: Source, test: str) -> list[str]:
    """Return a warning where images are reported on whose classes have none to learn from."""
    if source.has_several_labels:
        return []
    learned, asked = (np.bincount(part.labels, minlength=source.num_classes) for part in (source, measured))
    missing = [
        name for name, has, wants in zip(source.class_names, learned, asked, strict=True) if wants and not has
    ]
    if not missing:
        return []
    return [f"warning: {listed(missing)} in {test} have no image to learn from, and will be taken for others"]


def named_rule(spec: DataSpec) -> Rule | None:
    """Return the paper's own rule for a data set that has its name, or that is in a folder of that name."""
    return None if spec.source.startswith("vtab/") else PAPER.get(Path(spec.source).name)


def cut(spec: DataSpec, percent: int) -> Part | None:
    """Return train cut in two, every class by its share; None where the data is a slice or shots already."""
    if spec.start is not None or spec.stop is not None or spec.shots is not None:
        return None
    at = f"{100 - percent}%"
    return Part(str(replace(spec, stop=at, seed=0)), str(replace(spec, start=at, seed=0)))


def with_val(spec: DataSpec, test: str) -> Part | None:
    """Return train with the data's own val split, unless there is none or it is what is reported on."""
    val = replace(spec, split="val", start=None, stop=None, shots=None, seed=None)
    if spec.split != "train" or str(val) == test:
        return None
    try:
        open_data(val)
    except InputError:
        return None
    return Part(str(spec), str(val))


def typical_area(source: Source, most: int = 5) -> int:
    """Return the pixels of an image, the median of a few."""
    if source.images is not None:
        return int(np.prod(source.images.shape[1:3]))
    places = np.linspace(0, len(source) - 1, min(most, len(source))).astype(int)
    return int(np.median([np.prod(read_pixels(source, int(place)).shape[-2:]) for place in places]))


def without_regularisation(loaded: LoadedModel) -> dict[str, float]:
    """Return what turns off a transformer's dropout and stochastic depth, which fine-tuning does without."""
    if type(loaded.model.config).__name__ not in ("ViTConfig", "HybridConfig"):
        return {}
    names = ("dropout", "attention_dropout", "stochastic_depth", "patch_dropout")
    return {name: 0.0 for name in names if getattr(loaded.model.config, name, 0.0)}


def describe(plan: Plan, config: TrainConfig, size: int) -> str:
    """Say in a line what the protocol is here."""
    rate, batch = config.optimizer.learning_rate, config.batch_size
    shown = f"batch {batch}, learning rate {rate:g}, {size} px"
    if plan.protocol == "paper":
        return (
            f"protocol paper: {config.duration} steps, warm-up {config.schedule.warmup}, {shown}; "
            f"steps, warm-up and size by {plan.rule.origin}"
        )
    length = config.duration if plan.has_duration else f"what fits {plan.minutes:g} minutes"
    chosen = f"; the better of both on {plan.whole.dev} is kept" if plan.whole.dev else ""
    return (
        f"protocol quick: a head on frozen features, then steps of all weights ({shown}) for {length}, at most "
        f"{QUICK_EPOCHS} epochs{chosen}"
    )
