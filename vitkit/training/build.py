"""Build the parts of a run from its config: data, model, objective, optimiser, loader, evaluator."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from vitkit.config import check_settings, override
from vitkit.data.fetch import cached
from vitkit.data.loader import Loader
from vitkit.data.open import open_data
from vitkit.data.pipeline import Pipeline, parse_pipeline
from vitkit.data.sources.source import Source, match_classes
from vitkit.data.spec import DataSpec, as_spec
from vitkit.data.threads import Unreadable
from vitkit.data.unreadable import BadImageRule
from vitkit.errors import InputError
from vitkit.evaluation.held_out import Classification, HeldOut, OwnMetrics
from vitkit.evaluation.passes import SourcePass, SourcePasses
from vitkit.models import build as build_module
from vitkit.models.configs import ATTENTION_SETTINGS, ModelConfig, OwnConfig, Preprocessing, Size, ViTConfig
from vitkit.models.model import Model, check_rgb
from vitkit.models.names import default_preprocessing, model_config
from vitkit.notes import Note
from vitkit.objectives import build_objective
from vitkit.objectives.objective import Objective
from vitkit.objectives.patches import check_patches
from vitkit.objectives.supervised import Supervised
from vitkit.training.average import Average
from vitkit.training.config import TrainConfig
from vitkit.training.distributed import blocks, replicate, shard
from vitkit.training.graphs import Passes, Recorded, both_passes
from vitkit.training.optimizers import build_optimizer, freeze_parameters
from vitkit.training.schedules import Duration, build_schedule, parse_duration
from vitkit.weights.load import LoadedModel, find_model, load_model, resample_to
from vitkit.world import World

if TYPE_CHECKING:
    from vitkit.evaluation.frozen import FrozenEvaluator

EVALUATION_BATCH = 512


SAME_WEIGHTS = {"full", "local", "sparse"}
"Kinds of attention that can start from each other's weights."


@dataclass(frozen=True)
class Periods:
    """The run's durations in steps."""

    total: int
    log: int
    evaluate: int
    checkpoint: int
    frozen: int
    per_epoch: float


@dataclass(frozen=True)
class Inputs:
    """Sources and a model that the caller has already opened; None to open what the config names."""

    train: Source | None = None
    measured: Source | None = None
    start: LoadedModel | None = None
    "Never changed: training works on a copy."


@dataclass
class RunParts:
    """The parts of a run."""

    inputs: Inputs
    "The opened sources, to be reused."
    periods: Periods
    source: Source
    class_names: tuple[str, ...]
    "Names of the head's classes; empty for an objective without labels, which has no head."
    preprocessing: Preprocessing
    model: Model
    objective: Objective
    forward: nn.Module
    "The objective as called in a step: replicated over processes, compiled."
    passes: Passes
    "Computes a batch's gradients, times a share, and its metrics."
    optimizer: Optimizer
    schedule: Callable[[int], float]
    average: Average | None
    loader: Loader
    evaluator: HeldOut | None
    evaluated: str
    "Name of the evaluated split; dev if it is a part of the training split."
    frozen: tuple[FrozenEvaluator, ...]
    "Evaluators of frozen features."
    notes: tuple[Note, ...]

    @property
    def unreadable(self) -> tuple[Unreadable, ...]:
        """Images skipped so far: of the training data, then of the evaluation data."""
        found = [*self.loader.skipped.entries]
        for evaluator in (self.evaluator, *self.frozen):
            found += [] if evaluator is None else evaluator.unreadable
        return tuple(dict.fromkeys(found))


def build(
    config: TrainConfig,
    world: World,
    inputs: Inputs = Inputs(),  # noqa: B008 (frozen)
    num_images: int | None = None,
) -> RunParts:
    """Return all parts of a run, the same on every process.

    num_images: number of images when the run started, for counting epochs. Default: the current number.
    Notes are only about what is opened here: the caller has already shown those of the sources and model passed in.
    """
    is_labelled = config.objective.name == "supervised"
    if inputs.start is None:
        # Before data is opened, and before the settings of the recipe's model reach another family.
        check_family(config)
    source = inputs.train
    if source is None:
        source = open_data(config.data.train, default="train", labelled=is_labelled)
    periods = resolve_periods(config, num_images or len(source))
    pipeline = parse_pipeline(config.data.pipeline)
    class_names = source.class_names if is_labelled else ()
    model, preprocessing, notes = build_model(config, class_names, inputs.start)
    if pipeline.mix and not is_labelled:
        pipeline = dataclasses.replace(pipeline, mix=())
        notes += (Note(f"images are not mixed: {config.objective.name} learns from unmixed images", "data"),)
    if not is_labelled and is_trained(config, inputs):
        text = (
            f"only the encoder is loaded: the mask token and other parts of {config.objective.name} are new"
        )
        notes += (Note(text, "model"),)
    check_rgb(model.config, config.model["name"])
    check_size(pipeline, source, model.config)
    measured = _open_measured(config, source, inputs.measured)
    model.activation_checkpointing = config.activation_checkpointing
    freeze_parameters(model, config.optimizer.freeze)
    objective = build_objective(config.objective, model, preprocessing, source.is_multi_label)
    objective.to(world.device).train()
    forward = share(config, objective, world)
    own = [(name, p) for name, p in objective.named_parameters() if not name.startswith("model.")]
    rule = BadImageRule(config.data.bad_images, "setting")
    micro = config.micro_batch if isinstance(config.micro_batch, int) else EVALUATION_BATCH
    loader = Loader(
        source,
        pipeline,
        batch_size=config.batch_size,
        seed=config.seed,
        sampling=config.data.sampling,
        group=config.data.group,
        mix_until=_mix_until(config, periods),
        rank=world.rank,
        ranks=world.ranks,
        device=world.device,
        workers=config.data.workers,
        cache=config.data.cache,
        bad_images=rule,
    )
    passes = partial(
        SourcePass,
        preprocessing=preprocessing,
        world=world,
        batch_size=min(micro, loader.count, EVALUATION_BATCH),
        workers=config.data.workers,
        bad_images=rule,
    )
    evaluator: HeldOut | None = None
    if measured is not None and isinstance(objective, Supervised):
        evaluator = Classification(passes(measured), sigmoid=objective.sigmoid)
    elif measured is not None:
        evaluator = OwnMetrics(objective, passes(measured), config.seed)
    return RunParts(
        dataclasses.replace(inputs, train=source, measured=measured),
        periods,
        source,
        class_names,
        preprocessing,
        model,
        objective,
        forward,
        Recorded(forward) if config.compile == "graphs" else partial(both_passes, forward),
        build_optimizer(model, config.optimizer, own),
        build_schedule(config.schedule, config.optimizer.learning_rate, periods.total, periods.per_epoch),
        None if config.average is None else Average(model, config.average),
        loader,
        evaluator,
        "" if measured is None else "dev" if measured.split == source.split else measured.split,
        build_frozen(config, source, passes),
        (
            *(source.notes if inputs.train is None else ()),
            *notes,
            *(measured.notes if measured is not None and inputs.measured is None else ()),
        ),
    )


def is_trained(config: TrainConfig, inputs: Inputs) -> bool:
    """Return whether a run starts from trained weights."""
    return inputs.start is not None or find_model(config.model["name"]).path is not None


def check_family(config: TrainConfig) -> None:
    """Refuse an objective that an untrained model's family doesn't support; trained models are checked once loaded."""
    if config.objective.name != "supervised" and find_model(config.model["name"]).path is None:
        check_patches(model_config(config.model["name"]), config.objective.name)


def resolve_periods(config: TrainConfig, num_images: int) -> Periods:
    """Return the durations of a config in steps."""
    per_epoch = num_images / config.batch_size
    total = parse_duration(config.duration, per_epoch, what="duration")
    if total < 1:
        raise InputError(f"duration {config.duration!r} is less than one step; train for at least one")

    def steps(name: str, value: Duration) -> int:
        if not (found := parse_duration(value, per_epoch, total, name)):
            raise InputError(f"{name} must be at least one step, not {value!r}")
        return found

    return Periods(
        total,
        log=min(50, -(-total // 20)) if config.log_every is None else steps("log_every", config.log_every),
        evaluate=steps("evaluate_every", config.evaluate_every),
        checkpoint=steps("checkpoint_every", config.checkpoint_every),
        frozen=steps("frozen.every", config.frozen.every),
        per_epoch=per_epoch,
    )


def build_model(
    config: TrainConfig, class_names: tuple[str, ...], start: LoadedModel | None = None
) -> tuple[Model, Preprocessing, tuple[Note, ...]]:
    """Return the model to train with a head for these classes, its preprocessing, and notes on its origin.

    A trained model keeps its head if it has exactly these classes, unless new_head is true. `start` is not changed.
    """
    settings = {name: value for name, value in config.model.items() if name != "name"}
    size = settings.pop("image_size", None)
    if size is None:
        size = parse_pipeline(config.data.pipeline).size
    else:
        size = check_settings(ModelConfig, {"image_size": size}, "model")["image_size"]
    if settings.pop("num_classes", len(class_names)) != len(class_names):
        raise InputError(
            f"num_classes in model differs from the data's {len(class_names)} classes: remove it"
        )
    name, new_head = config.model["name"], settings.pop("new_head", False)
    if not isinstance(new_head, bool):
        raise InputError(f"new_head in model is {new_head!r}; expected true or false")
    torch.manual_seed(config.seed)
    if start is None and find_model(name).path is None:
        sized = {} if size is None else {"image_size": size}
        wanted = model_config(name, **{**settings, **sized, "num_classes": len(class_names)})
        return build_module(wanted), given_preprocessing(config, default_preprocessing(wanted)), ()
    loaded = load_model(name, image_size=size) if start is None else _copied(start, size)
    preprocessing = given_preprocessing(config, loaded.preprocessing)
    model = _with_settings(loaded.model, settings, name)
    lines = [f"starts from {name}", *loaded.notes_with(preprocessing)]
    if new_head or not has_classes(loaded, class_names):
        model.reset_head(len(class_names), settings.get("head_bias", 0.0))
        is_new = not isinstance(model.config, OwnConfig) or model.config.new_head
        lines += [f"the head is new, for {len(class_names)} classes"] if class_names and is_new else []
    notes = tuple(line if isinstance(line, Note) else Note(line, "model") for line in lines)
    return model, preprocessing, notes


def has_classes(loaded: LoadedModel, class_names: tuple[str, ...]) -> bool:
    """Return whether a model's head has these classes; for a module passed without names, whether it has as many."""
    if loaded.class_names is None and loaded.is_passed:
        return loaded.model.config.num_classes == len(class_names)
    return loaded.class_names == class_names


def _copied(start: LoadedModel, size: Size | None) -> LoadedModel:
    """Return a copy of `start` to train, for images of this size, without its notes, which were already shown."""
    own = dataclasses.replace(start, model=copy.deepcopy(start.model).cpu(), notes=())
    if size is not None:
        resample_to(own, size)
    return own


def _with_settings(model: Model, settings: dict[str, object], name: str) -> Model:
    """Return a trained model with other settings, such as dropout, that must not change the shapes of its weights."""
    old = model.config
    if isinstance(old, ViTConfig) and settings.get("attention", old.attention) != old.attention:
        # Those of the old kind of attention don't apply to the new one.
        settings = dict.fromkeys(ATTENTION_SETTINGS) | settings
    wanted = override(old, settings, "model")
    if wanted == old:
        return model
    kinds = [getattr(config, "attention", "full") for config in (old, wanted)]
    if kinds[0] != kinds[1] and not {*kinds} <= SAME_WEIGHTS:
        raise InputError(
            f"attention {kinds[1]!r} has other weights than {kinds[0]!r}, so training can't start from {name}: "
            f"change only between {', '.join(sorted(SAME_WEIGHTS))}, or train from scratch"
        )
    changed = build_module(wanted)
    try:
        changed.load_state_dict(model.state_dict())
    except RuntimeError as error:
        reason = str(error).split("\n\t")[-1].strip()
        raise InputError(f"model settings don't fit the weights of {name}: {reason}") from None
    return changed


def check_size(pipeline: Pipeline, source: Source | None, model: ModelConfig) -> None:
    """Raise InputError if the pipeline's images don't have the model's size, before anything is computed."""
    size = pipeline.size
    if size is None and source is not None and source.images is not None and not pipeline.image:
        size = (source.images.shape[1], source.images.shape[2])
    if size is None:
        raise InputError(
            "the pipeline doesn't set the size of images: start it with a crop or resize, such as "
            f"resize({model.size[0]})"
        )
    if size != model.size:
        have, want = (f"{height}x{width}" for height, width in (size, model.size))
        raise InputError(f"the pipeline gives images of {have}, but the model takes {want}: make them equal")


def build_frozen(config: TrainConfig, source: Source, passes: SourcePasses) -> tuple[FrozenEvaluator, ...]:
    """Return the evaluators of frozen features, with their data opened and checked."""
    if not (names := config.frozen.evaluators):
        return ()
    from vitkit.evaluation.fewshot import FewShotEvaluator
    from vitkit.evaluation.knn import KNNEvaluator
    from vitkit.evaluation.probe import ProbeEvaluator

    is_labelled = config.objective.name == "supervised"
    try:
        train = source
        if config.frozen.data or not is_labelled:
            train = open_data(config.frozen.data or config.data.train, default="train")
    except InputError as error:
        if config.frozen.data:
            raise
        advice = "frozen.evaluators need labels: name data that has them with frozen.data=DATA"
        raise InputError(f"{error}; {advice}") from None
    test_data = config.frozen.data or config.data.evaluate or config.data.train
    test = open_data(_other_split(test_data), default="measure", classes=train.class_names)
    makers: dict[str, Callable[[], FrozenEvaluator]] = {
        "fewshot": lambda: FewShotEvaluator(train, test, passes, shots=config.frozen.shots),
        "probe": lambda: ProbeEvaluator(train, test, passes),
        "knn": lambda: KNNEvaluator(train, test, passes, k=config.frozen.neighbours),
    }
    return tuple(makers[name]() for name in names)


def _other_split(data: str) -> DataSpec:
    """Return DATA without its train split, slice and shots, so that its evaluation split is used."""
    spec = as_spec(data)
    if spec.split not in (None, "train"):
        return spec
    return spec.whole


def share(config: TrainConfig, objective: Objective, world: World) -> nn.Module:
    """Return the objective as all processes run it: with its precision set, sharded or replicated, compiled."""
    is_sharded = config.parallel == "fsdp" and torch.distributed.is_initialized()
    if config.compile == "graphs" and (world.ranks > 1 or is_sharded or world.device.type != "cuda"):
        raise InputError("compile=graphs needs a single process with a CUDA GPU; use compile=true")
    dtype = compute_dtype(config, world.device)
    forward: nn.Module = objective
    if is_sharded:
        if config.compile:
            for block in blocks(objective.model):
                block.compile(dynamic=False)
        shard(objective, dtype)
        return objective
    objective.dtype = dtype
    if world.ranks > 1:
        forward = replicate(objective, world)
    if config.compile:
        forward.compile(dynamic=False)
    return forward


def compute_dtype(config: TrainConfig, device: torch.device) -> torch.dtype:
    """Return the dtype of activations."""
    if config.precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if config.precision == "bfloat16" else torch.float32


def _open_measured(config: TrainConfig, source: Source, given: Source | None) -> Source | None:
    if config.data.evaluate is None:
        return None
    is_labelled = config.objective.name == "supervised"
    classes = source.class_names if is_labelled else None
    measured = given
    if measured is None:
        measured = open_data(config.data.evaluate, default="measure", classes=classes, labelled=is_labelled)
    elif classes is not None and measured.class_names != classes:
        measured = match_classes(measured, classes)
    measured = cached(measured, config.data.cache)
    if is_labelled and measured.is_multi_label != source.is_multi_label:
        raise InputError(
            f"{config.data.evaluate} and {config.data.train} differ: one is multi-label, the other has one label per image"
        )
    return measured


def _mix_until(config: TrainConfig, periods: Periods) -> int | None:
    if config.data.mix_until is None:
        return None
    return parse_duration(config.data.mix_until, periods.per_epoch, periods.total, "mix_until")


def given_preprocessing(config: TrainConfig, base: Preprocessing) -> Preprocessing:
    """Return a model's preprocessing with the config's settings applied."""
    given: dict[str, Any] = {
        field.name: value
        for field in dataclasses.fields(config.preprocessing)
        if (value := getattr(config.preprocessing, field.name)) is not None
    }
    if given.get("crop_fraction") == 0:
        given["crop_fraction"] = None
    return dataclasses.replace(base, **given)
