"""`vit study plan`: every run of a study with its cost, checked against its data before anything is spent."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from vitkit.config import Changes
from vitkit.costs import cost_of, training_exaflops
from vitkit.data.open import open_data
from vitkit.data.pipeline import parse_pipeline
from vitkit.data.sources.source import Absent, Source
from vitkit.data.spec import as_spec
from vitkit.errors import InputError
from vitkit.models.configs import CompactConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig
from vitkit.models.model import check_rgb
from vitkit.models.names import model_config
from vitkit.predictor import choose_device
from vitkit.results import Result
from vitkit.studies.config import MeasureConfig, Study, StudyRun, read_study
from vitkit.training.build import Periods, check_family, check_size, resolve_periods
from vitkit.training.config import TrainConfig
from vitkit.training.estimate import SHARE, matrix_rate
from vitkit.training.schedules import build_schedule
from vitkit.weights.load import find_model, load_model


@dataclass(frozen=True)
class PlannedRun(Result):
    """One run of a study before it starts."""

    name: str
    labels: dict[str, str]
    family: str
    model: str
    images: int
    "Training images."
    steps: int
    batch_size: int
    parameters: int
    macs: int
    "Of one forward pass of one image."
    exaflops: float
    seconds: float
    "Estimated, with what is measured of it."


@dataclass(frozen=True)
class StudyPlan(Result):
    """What `vit study plan --json` prints."""

    study: str
    about: str
    device: str
    runs: tuple[PlannedRun, ...]
    exaflops: float
    seconds: float
    "Estimated time of all runs, one after another."
    is_measured: bool
    "Whether the models were timed here; otherwise the time follows from a matrix product."
    absent: tuple[str, ...]
    "Data that isn't here."

    _leads = ("study", "device", "exaflops", "seconds", "is_measured")
    _tables = ("runs",)


def plan_study(study: str | os.PathLike[str], changes: Changes = (), *, device: str = "auto") -> StudyPlan:
    """Return the runs of a study with their exaFLOPs and estimated time on this device; nothing is trained.

    study: name or file. changes: settings of the study itself, as in `["data_images=1000000", "grid.seed=[0]"]`.
    """
    found, on = read_study(study, changes), choose_device(device)
    costs = Costs(found)
    rate = matrix_rate(on, torch.bfloat16 if on.type == "cuda" else torch.float32) * SHARE
    runs = tuple(costs.plan(run, lambda flops: flops / rate) for run in found.runs)
    name = torch.cuda.get_device_name(on) if on.type == "cuda" else on.type
    return StudyPlan(
        found.name,
        found.about,
        name,
        runs,
        sum(run.exaflops for run in runs),
        sum(run.seconds for run in runs),
        False,
        costs.absent,
    )


class Costs:
    """What the runs of a study cost; each DATA is opened once."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._sources: dict[str, Source | None] = {}
        self._sizes: dict[str, int] = {}

    @property
    def absent(self) -> tuple[str, ...]:
        """Data that was looked for and isn't here."""
        return tuple(data for data, source in self._sources.items() if source is None)

    def plan(self, run: StudyRun, seconds: Callable[[float], float]) -> PlannedRun:
        """Return a run with its cost; `seconds` turns floating-point operations into time."""
        config = run.config
        try:
            source, images = self._training_data(config)
            stated = self.study.config.number_of("data_classes", config.data.train) or 1000
            model = model_of(config, stated if source is None else source.num_classes)
            periods = check_run(config, model, source, images)
        except InputError as error:
            raise InputError(f"run {run.name}: {error}") from None
        cost = cost_of(model)
        trained = periods.total * config.batch_size
        tuned, passed = self._measured(config, periods)
        flops = 2.0 * cost.macs * (3 * (trained + tuned) + passed)
        return PlannedRun(
            run.name,
            dict(run.labels),
            family_of(model),
            str(config.model["name"]),
            images,
            periods.total,
            config.batch_size,
            cost.parameters,
            cost.macs,
            training_exaflops(cost.macs, trained),
            seconds(flops),
        )

    def open(self, data: str) -> Source | None:
        """Return a DATA, opened once; None if it isn't here."""
        if data not in self._sources:
            self._sources[data] = _find(data)
        return self._sources[data]

    def _training_data(self, config: TrainConfig) -> tuple[Source | None, int]:
        """Return the training data and the number of its images, which the study says if it isn't here."""
        data = config.data.train
        source = self.open(data)
        if source is not None:
            return source, len(source)
        spec, known = as_spec(data), self.study.config.number_of("data_images", data)
        if spec.shots is None and (spec.stop or "").isdecimal() and (spec.start or "0").isdecimal():
            return None, int(spec.stop or 0) - int(spec.start or 0)
        if known is None:
            raise InputError(f"'{data}' isn't here; to plan without it, give data_images=NUMBER")
        return None, known

    def _measured(self, config: TrainConfig, periods: Periods) -> tuple[int, int]:
        """Return how many images measuring learns from and how many it looks at, as far as its data is here."""
        held = self._length(config.data.evaluate)
        tuned, passed = 0, held * max(1, periods.total // periods.evaluate)
        for measure in self.study.config.measure:
            test = self._length(measure.evaluate or measure.data, "measure")
            train = 0 if measure.by == "test" else self._length(measure.data)
            if measure.by == "finetune":
                tuned += measure.seeds * _tuning_images(measure, train)
                passed += measure.seeds * test
            else:
                passed += test + train
        return tuned, passed

    def _length(self, data: str | None, default: str = "train") -> int:
        if data is None:
            return 0
        if default == "train":
            source = self.open(data)
            return 0 if source is None else len(source)
        if data not in self._sizes:
            found = _find(data, default)
            self._sizes[data] = 0 if found is None else len(found)
        return self._sizes[data]


def _tuning_images(measure: MeasureConfig, train: int) -> int:
    """Return how many images a fine-tuning learns from, by its settings' steps, else ten epochs as a guess."""
    duration, batch = measure.settings.get("duration"), measure.settings.get("batch_size", 512)
    if isinstance(duration, int) and isinstance(batch, int):
        return duration * batch
    return 10 * train


def _find(data: str, default: str = "train") -> Source | None:
    spec = as_spec(data)
    if spec.is_path and not any(path.exists() for path in spec.paths):
        return None
    try:
        return open_data(data, default="measure" if default == "measure" else "train")
    except Absent:
        return None


def model_of(config: TrainConfig, num_classes: int) -> ModelConfig:
    """Return the config of the model that a run trains, without building it."""
    settings = {name: value for name, value in config.model.items() if name not in ("name", "new_head")}
    classes = num_classes if config.objective.name == "supervised" else 0
    if settings.setdefault("num_classes", classes) != classes:
        raise InputError(f"num_classes in model differs from the data's {classes} classes: remove it")
    if (size := parse_pipeline(config.data.pipeline).size) is not None:
        settings.setdefault("image_size", size)
    name = str(config.model["name"])
    if find_model(name).path is None:
        return model_config(name, **settings)
    loaded = load_model(name).model.config
    return replace(loaded, num_classes=classes, image_size=settings.get("image_size", loaded.size))


def check_run(config: TrainConfig, model: ModelConfig, source: Source | None, images: int) -> Periods:
    """Refuse what a run would refuse when it starts; return its durations."""
    check_family(config)
    check_rgb(model, str(config.model["name"]))
    pipeline = parse_pipeline(config.data.pipeline)
    if source is not None or pipeline.size is not None:
        check_size(pipeline, source, model)
    periods = resolve_periods(config, images)
    build_schedule(config.schedule, config.optimizer.learning_rate, periods.total, periods.per_epoch)
    return periods


def family_of(config: ModelConfig) -> str:
    """Return the name of a model's family, as the papers' figures have it."""
    if isinstance(config, HybridConfig):
        return "Hybrid"
    if isinstance(config, ResNetConfig):
        return "ResNet"
    if isinstance(config, CompactConfig):
        if config.tokenizer == "convolutions":
            return "CCT"
        return "CVT" if config.pool == "seqpool" else "ViT-Lite"
    return "ViT" if isinstance(config, ViTConfig) else type(config).__name__.removesuffix("Config")
