"""The config of a run, built from a recipe and `key=value`; each setting has its meaning below it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from vitkit.config import Count, CountOrZero, Share, check_bounds
from vitkit.data.fetch import Cache
from vitkit.data.order import Sampling
from vitkit.data.pipeline import parse_pipeline
from vitkit.data.unreadable import BadImages
from vitkit.errors import InputError
from vitkit.objectives import ObjectiveConfig
from vitkit.training.optimizers import OptimizerConfig
from vitkit.training.schedules import Duration, ScheduleConfig

Tracker = Literal["tensorboard", "wandb"]


@dataclass(frozen=True)
class DataConfig:
    """The data to train and evaluate on."""

    train: str
    "DATA to train on."
    evaluate: str | None = None
    "DATA to evaluate on during training, or none. Classes are matched by name; an objective without labels measures its own loss."
    pipeline: str = ""
    "Augmentation of training images: crops, then batched augmentation, then mixing, such as 'inception_crop(224)|flip|mixup(0.2)'."
    mix_until: Duration | None = None
    "When the pipeline stops mixing images; none to mix until the end."
    sampling: Sampling = "shuffle"
    "Order of training images: every image once per epoch (shuffle), or all classes equally often (balanced)."
    group: Count = 8
    "Images are mixed within groups of this many neighbours; processes and micro-batches hold whole groups."
    workers: CountOrZero | None = None
    "Processes that read and decode images; none for one per core, at most 16."
    cache: Cache = "none"
    "Whether to keep decoded images: in memory (ram), or on the device, without workers (device; for small images of one size)."
    bad_images: BadImages = "skip"
    "What to do about unreadable images: skip them unless there are too many or a class has no others (skip), stop at the first (error), or skip any number (any)."

    def __post_init__(self) -> None:
        check_bounds(self)
        mixes = bool(parse_pipeline(self.pipeline).mix)
        if self.mix_until is not None and not mixes:
            raise InputError("mix_until does not apply to a pipeline that doesn't mix images: remove it")


@dataclass(frozen=True)
class PreprocessingConfig:
    """The preprocessing of the trained model; settings that are not given are the model's own."""

    crop_fraction: float | None = None
    "Share of the resized image that the centre crop keeps in evaluation; 0 stretches the whole image instead."
    interpolation: Literal["bilinear", "bicubic"] | None = None
    "Interpolation of the resize in evaluation."
    mean: tuple[float, ...] | None = None
    "Subtracted from each channel, on the scale 0 to 1."
    std: tuple[float, ...] | None = None
    "Divides each channel."


@dataclass(frozen=True)
class FrozenConfig:
    """Evaluation of frozen features during training, for any objective."""

    evaluators: tuple[Literal["fewshot", "probe", "knn"], ...] = ()
    "Any of: few-shot ridge regression (fewshot), logistic regression on all of train (probe), weighted nearest neighbours (knn)."
    data: str | None = None
    "DATA to use: they learn from its train split and are measured on its test split, else val. Default: the training data."
    shots: Count = 10
    "Images per class that fewshot learns from."
    neighbours: Count = 20
    "Number of neighbours for knn."
    every: Duration = "20%"
    "Time between these evaluations; there is always one at the end."

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True)
class TrainConfig:
    """A training run."""

    name: str
    "Name of the recipe."
    model: dict[str, Any]
    "The model: its name (any MODEL; training starts from its weights, if it has any), and its settings."
    data: DataConfig
    "The data to train and evaluate on."
    duration: Duration
    "How long to train: a number of steps, or epochs, such as '300 epochs'."
    batch_size: Count
    "Images per step, over all processes."
    optimizer: OptimizerConfig
    "The optimiser."
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    "The learning-rate schedule."
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    "What the model learns from images."
    preprocessing: PreprocessingConfig = field(default_factory=PreprocessingConfig)
    "The preprocessing of the trained model."
    frozen: FrozenConfig = field(default_factory=FrozenConfig)
    "Evaluation of frozen features during training."
    average: Share | None = None
    "Decay of the moving average (EMA) of the weights, or none. Both are evaluated; model/ holds the average."
    select: Literal["best", "last"] = "best"
    "Which weights model/ holds: the best ones by evaluation, or the last ones, so that the evaluation data selects nothing. Without labels, always the last."
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    "Type of activations: auto is bfloat16 on a GPU, float32 elsewhere. Weights are always float32."
    compile: bool | Literal["graphs"] = False
    "Whether PyTorch compiles the training step: takes half a minute or more at the start, then steps are faster. graphs also replays both passes as one CUDA graph, for small models on a GPU."
    activation_checkpointing: bool = False
    "Recompute each block in the backward pass: a third more compute, but much less memory."
    micro_batch: Count | Literal["auto"] | None = None
    "Images per forward pass on each process; gradients are accumulated over the step. auto finds the most that fit; none takes all at once."
    parallel: Literal["ddp", "fsdp"] = "ddp"
    "How several processes share the model: each has a copy (ddp), or a part of every weight (fsdp; for L and larger)."
    seed: CountOrZero = 0
    "Seed of all randomness."
    log_every: Duration | None = None
    "Time between lines of metrics. Default: 50 steps, or a twentieth of a shorter run."
    evaluate_every: Duration = "10%"
    "Time between evaluations; there is always one at the end."
    checkpoint_every: Duration = "5%"
    "Time between checkpoints; there is always one at the end."
    keep_checkpoints: Count = 2
    "Number of checkpoints to keep."
    track: tuple[Tracker, ...] = ()
    'Where else to log metrics: tensorboard, wandb (pip install "vitkit[track]").'

    def __post_init__(self) -> None:
        if not isinstance(self.model.get("name"), str):
            raise InputError("model needs a name, as in model.name=B/16")
        check_bounds(self)
        if self.compile == "graphs" and self.micro_batch is not None:
            raise InputError("compile=graphs runs whole batches: remove micro_batch, or use compile=true")
