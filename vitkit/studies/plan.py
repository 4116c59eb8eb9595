"""`vit study plan`: every run of a study with its cost, checked against its data before anything is spent."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitkit.config import Changes, to_dict
from vitkit.costs import cost_of, training_exaflops
from vitkit.data.pipeline import parse_pipeline
from vitkit.data.sources.source import Source
from vitkit.data.spec import as_spec
from vitkit.errors import InputError
from vitkit.models.configs import CompactConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig
from vitkit.models.model import check_rgb
from vitkit.models.names import model_config
from vitkit.notes import Note, say
from vitkit.predictor import choose_device
from vitkit.results import Result
from vitkit.runs import CONFIG, named_path
from vitkit.runs.folder import check_settings
from vitkit.studies.config import Study, StudyRun, read_study
from vitkit.studies.measures import Measures, Sources, Trained, Work
from vitkit.studies.pace import ANY, Paces, estimated_pace
from vitkit.studies.records import check_weights
from vitkit.studies.sharing import known_sharing
from vitkit.training.build import Periods, check_family, check_size, resolve_periods
from vitkit.training.config import TrainConfig
from vitkit.training.run import completed
from vitkit.training.schedules import build_schedule
from vitkit.weights.load import find_model, load_model

LAW_POINTS = 3
"Different computes that a law needs at least."


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
    devices: int
    "That share the runs."
    workers: int
    "Runs at once on each, as `vit study run` found by measuring; before that, 1."
    runs: tuple[PlannedRun, ...]
    exaflops: float
    seconds: float
    "Estimated time until all runs are done."
    is_measured: bool
    "Whether the models were timed here; otherwise the time follows from a matrix product."
    absent: tuple[str, ...]
    "Data that isn't here."
    notes: tuple[str, ...]

    _leads = ("study", "device", "exaflops", "seconds", "is_measured")
    _tables = ("runs",)


def plan_study(
    study: str | os.PathLike[str],
    changes: Changes = (),
    *,
    measure: bool = False,
    run: str | os.PathLike[str] | None = None,
    device: str = "auto",
    progress: bool = True,
) -> StudyPlan:
    """Return the runs of a study with their exaFLOPs and estimated time on this device; nothing is trained.

    study: name or file. changes: settings of the study itself, as in `["data_images=1000000", "grid.seed=[0]"]`.
    measure: time each model here for a few seconds, unless that was done; the study's folder keeps the times, and later
    plans and `run_study` use them.
    run: the study's folder, by default runs/NAME of the study.
    """
    found, on = read_study(study, changes), choose_device(device)
    costs = Costs(found, on.type)
    planned = [costs.of(each) for each in found.runs]
    folder = named_path(found.name if run is None else run)
    paces = Paces(on, folder)
    if measure:
        for each, cost in zip(found.runs, planned, strict=True):
            if paces.of(each.config, cost.model) is None:
                if progress:
                    say(Note(f"timing the model of {each.name}", "progress"))
                paces.measure(each.config, cost.model, costs.sources.open(each.config.data.train))
    known = [paces.of(each.config, cost.model) for each, cost in zip(found.runs, planned, strict=True)]
    is_measured = None not in known
    usual = ANY if is_measured else estimated_pace(on)
    runs = tuple(
        cost.planned(each, (pace or usual).seconds(cost.work))
        for each, cost, pace in zip(found.runs, planned, known, strict=True)
    )
    devices = torch.cuda.device_count() if on.type == "cuda" else 1
    workers, gain = known_sharing(folder)
    total = sum(each.seconds for each in runs) / (devices * gain)
    return StudyPlan(
        found.name,
        found.about,
        torch.cuda.get_device_name(on) if on.type == "cuda" else on.type,
        devices,
        workers,
        runs,
        sum(each.exaflops for each in runs),
        max(total, *(each.seconds for each in runs)),
        is_measured,
        costs.sources.absent,
        law_warnings(found, found.runs, planned),
    )


def check_runs(
    study: Study, runs: Sequence[StudyRun], folder: Path, device: torch.device
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Refuse what can be known to fail before anything is spent; return what each run takes, in one unit, and warnings."""
    costs = Costs(study, device.type)
    planned = [costs.of(run) for run in runs]
    if absent := costs.sources.absent:
        raise InputError(f"{absent[0]!r} isn't here; `vit study plan` counts the cost without it")
    for run in runs:
        path = folder / run.name
        if (path / CONFIG).exists():
            advice = f"choose another --run, or remove {path} to train it again"
            check_settings(path, to_dict(run.config), complete=completed, advice=advice)
        check_weights(path, study.config.measure)
    paces = Paces(device, folder)
    known = [paces.of(run.config, cost.model) for run, cost in zip(runs, planned, strict=True)]
    are_measured = None not in known
    seconds = {
        run.name: (pace if pace and are_measured else ANY).seconds(cost.work)
        for run, pace, cost in zip(runs, known, planned, strict=True)
    }
    return seconds, law_warnings(study, runs, planned)


@dataclass(frozen=True)
class RunCost:
    """What a run takes."""

    model: ModelConfig
    images: int
    steps: int
    work: Work

    def planned(self, run: StudyRun, seconds: float) -> PlannedRun:
        """Return it in numbers, with its time."""
        config, cost = run.config, cost_of(self.model)
        return PlannedRun(
            run.name,
            dict(run.labels),
            family_of(self.model),
            str(config.model["name"]),
            self.images,
            self.steps,
            config.batch_size,
            cost.parameters,
            cost.macs,
            self.exaflops(run),
            seconds,
        )

    def exaflops(self, run: StudyRun) -> float:
        """Return the compute of training."""
        return training_exaflops(cost_of(self.model).macs, self.steps * run.config.batch_size)


class Costs:
    """What the runs of a study cost; each DATA is opened once."""

    def __init__(self, study: Study, device: str) -> None:
        self.study, self.sources = study, Sources()
        self._measures = Measures(self.sources, device)

    def of(self, run: StudyRun) -> RunCost:
        """Return what a run takes, or refuse what it would refuse when it starts."""
        config = run.config
        try:
            source, images = self._training_data(config)
            stated = self.study.config.number_of("data_classes", config.data.train) or 1000
            model = model_of(config, stated if source is None else source.num_classes)
            periods = check_run(config, model, source, images)
            trained = Trained(config, model, None if source is None else source.class_names)
            work = self._training(config, model, images, periods)
            for measure in self.study.config.measure:
                work += self._measures.work(measure, trained)
        except InputError as error:
            raise InputError(f"run {run.name}: {error}") from None
        return RunCost(model, images, periods.total, work)

    def _training(self, config: TrainConfig, model: ModelConfig, images: int, periods: Periods) -> Work:
        macs, data = cost_of(model).macs, config.data.evaluate
        held = None if data is None else self.sources.open(data, to_measure=True)
        count = 0 if held is None else len(held)
        passed = count * max(1, periods.total // periods.evaluate) * (1 if config.average is None else 2)
        trained = periods.total * config.batch_size
        kept = 0 if config.data.cache == "none" else images + count
        return Work(6.0 * macs * trained, 2.0 * macs * passed, 1, kept)

    def _training_data(self, config: TrainConfig) -> tuple[Source | None, int]:
        """Return the training data and the number of its images, which the study says if it isn't here."""
        data = config.data.train
        source = self.sources.open(data, labelled=config.objective.name == "supervised")
        if source is not None:
            return source, len(source)
        spec, known = as_spec(data), self.study.config.number_of("data_images", data)
        if spec.shots is None and (spec.stop or "").isdecimal() and (spec.start or "0").isdecimal():
            return None, int(spec.stop or 0) - int(spec.start or 0)
        if known is None:
            raise InputError(f"'{data}' isn't here; to plan without it, give data_images=NUMBER")
        return None, known


def law_warnings(study: Study, runs: Sequence[StudyRun], costs: Sequence[RunCost]) -> tuple[str, ...]:
    """Return a warning for each group that has too few different computes for a law, if the study draws laws."""
    computes: dict[str, set[float]] = {}
    for run, cost in zip(runs, costs, strict=True):
        for group in run.groups or (family_of(cost.model),):
            computes.setdefault(group, set()).add(cost.exaflops(run))
    return tuple(
        f"{group} will have no law: a law needs {LAW_POINTS} different computes or more, and there "
        f"{'is' if len(found) == 1 else 'are'} {len(found)}; add sizes or durations"
        for group, found in computes.items()
        if "laws" in study.config.figures and len(found) < LAW_POINTS
    )


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
