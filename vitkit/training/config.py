"""What a run is: one frozen config, from a recipe and `key=value`, each setting with its meaning beneath it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from vitkit.config import Count, CountOrZero, Share, check_bounds
from vitkit.data.fetch import BadImages, Cache
from vitkit.data.order import Sampling
from vitkit.data.pipeline import parse_pipeline
from vitkit.errors import InputError
from vitkit.objectives import ObjectiveConfig
from vitkit.training.optimizers import OptimizerConfig
from vitkit.training.schedules import Duration, ScheduleConfig

Tracker = Literal["tensorboard", "wandb"]


@dataclass(frozen=True)
class DataConfig:
    """Images to learn from and to measure on."""

    train: str
    "DATA to train on."
    evaluate: str | None = None
    "DATA to measure on while training, its classes matched by name; an objective without labels measures its own loss; none measures nothing."
    pipeline: str = ""
    "What happens to training images: crops, then batched augmentation, then mixing, such as 'inception_crop(224)|flip|mixup(0.2)'."
    mix_until: Duration | None = None
    "When the pipeline's mixing stops; none mixes to the end."
    sampling: Sampling = "shuffle"
    "Order of training images: every image once an epoch, or all classes alike often."
    group: Count = 8
    "Images are mixed inside groups of this many neighbours; processes and micro-batches hold whole groups."
    workers: CountOrZero | None = None
    "Processes that read and decode images; none takes one per core, at most 16."
    cache: Cache = "none"
    "Whether decoded images are kept: in memory (ram), or, small and of one size, on the device, without workers (device)."
    bad_images: BadImages = "error"
    "What an unreadable image does: stop the run, or be left out and counted."

    def __post_init__(self) -> None:
        check_bounds(self)
        mixes = bool(parse_pipeline(self.pipeline).mix)
        if self.mix_until is not None and not mixes:
            raise InputError("mix_until has no meaning for a pipeline that doesn't mix images: leave it out")


@dataclass(frozen=True)
class PreprocessingConfig:
    """How the trained model wants its images; what is left open is the model's own."""

    crop_fraction: float | None = None
    "Share of the resized image that evaluation's centre crop keeps; 0 squashes the whole image instead."
    interpolation: Literal["bilinear", "bicubic"] | None = None
    "Interpolation of evaluation's resize."
    mean: tuple[float, ...] | None = None
    "Subtracted from each channel, on the scale 0 to 1."
    std: tuple[float, ...] | None = None
    "Divides each channel."


@dataclass(frozen=True)
class FrozenConfig:
    """What is measured of frozen features while the model trains, whatever the objective."""

    evaluators: tuple[Literal["fewshot", "probe", "knn"], ...] = ()
    "Few-shot ridge regression, logistic regression on all of train, weighted nearest neighbours; any of them."
    data: str | None = None
    "DATA whose train split they learn from and whose test split, else val, they are measured on; left open, the data trained on."
    shots: Count = 10
    "Images of each class that fewshot learns from."
    neighbours: Count = 20
    "How many neighbours knn asks."
    every: Duration = "20%"
    "Steps between such measurements; the end is always measured."

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True)
class TrainConfig:
    """A training run."""

    name: str
    "Name of the recipe."
    model: dict[str, Any]
    "The model: its name (any MODEL; trained weights are the start), and settings of its own."
    data: DataConfig
    "Images to learn from and to measure on."
    duration: Duration
    "How long to train: steps, or such as '300 epochs'."
    batch_size: Count
    "Images per step, over all processes."
    optimizer: OptimizerConfig
    "What a step does with gradients."
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    "The learning rate over the steps."
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    "What a step learns from its images."
    preprocessing: PreprocessingConfig = field(default_factory=PreprocessingConfig)
    "How the trained model wants its images."
    frozen: FrozenConfig = field(default_factory=FrozenConfig)
    "What is measured of frozen features while the model trains."
    average: Share | None = None
    "Decay of a running average of the weights, measured beside them and kept in their place; none keeps no average."
    select: Literal["best", "last"] = "best"
    "Which weights model/ holds: those that measured best, or the last ones (so that nothing is chosen by the data measured on); without labels always the last."
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    "Activations: auto is bfloat16 on a GPU, float32 elsewhere. Weights are float32 always."
    compile: bool | Literal["graphs"] = False
    "Whether PyTorch compiles the training step: half a minute or more at the start, faster steps; graphs also replays both passes as one CUDA graph, for small models on a GPU."
    activation_checkpointing: bool = False
    "Recompute each block in the backward pass: a third more compute for much less memory."
    micro_batch: Count | Literal["auto"] | None = None
    "Images per forward pass and process, gradients added up over the step; auto finds the most that fit, none takes all at once."
    parallel: Literal["ddp", "fsdp"] = "ddp"
    "How several processes share the model: a copy each, or a part of every weight each (L and larger)."
    seed: CountOrZero = 0
    "All randomness follows from it."
    log_every: Duration | None = None
    "Steps between lines of metrics; left open, 50, or a twentieth of a shorter run."
    evaluate_every: Duration = "10%"
    "Steps between measurements; the end is always measured."
    checkpoint_every: Duration = "5%"
    "Steps between checkpoints; the end is always saved."
    keep_checkpoints: Count = 2
    "How many of the last checkpoints are kept."
    track: tuple[Tracker, ...] = ()
    'Where else metrics go: tensorboard, wandb (pip install "vitkit[track]").'

    def __post_init__(self) -> None:
        if not isinstance(self.model.get("name"), str):
            raise InputError("model needs a name, as in model.name=B/16")
        check_bounds(self)
        if self.compile == "graphs" and self.micro_batch is not None:
            raise InputError("compile=graphs runs whole batches: leave micro_batch out, or take compile=true")
