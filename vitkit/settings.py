"""The settings that functions take as keyword arguments, for editors and type checkers.

Written by `make settings` from the config dataclasses, which say what each means and check it.
"""

# fmt: off
from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, TypedDict


class ModelSettings(TypedDict, total=False):
    """Of a model; each family has some of them."""

    image_size: int | tuple[int, int]
    "Height and width of the input in pixels; one number means a square."
    channels: int
    "Image channels."
    num_classes: int
    "Width of the classification head; with 0 there is no head and the model returns its features."
    width: int
    "Size of a token."
    depth: int
    "Number of encoder blocks."
    heads: int
    "Attention heads per block."
    mlp_width: int
    "Hidden size of each block's MLP."
    patch: int
    "Side of a patch in pixels."
    attention: Literal["full", "axial", "local", "sparse", "linformer", "reformer"]
    "Which tokens a patch attends to: all (full); its row, then its column, in a block with two attentions and two MLPs (axial); a square around it (local); its neighbours in raster order or every n-th patch, by head (sparse); learned mixtures of all patches (linformer); patches in the same hash bucket (reformer)."
    attention_window: int | None
    "Side of the square for attention 'local', in patches; an odd number, 7 by default."
    attention_stride: int | None
    "For attention 'sparse', how far neighbours reach and the distance of every n-th patch. Default: the grid's width."
    attention_rank: int | None
    "Number of mixtures for attention 'linformer', at most one per patch. Default: 64, or fewer if there are fewer patches."
    attention_hashes: int | None
    "Rounds of hashing for attention 'reformer', 2 by default."
    attention_chunk: int | None
    "Patches per chunk of the sorted hashes for attention 'reformer', 32 by default."
    positions: Literal["none", "learned", "learned_2d", "sincos_2d", "relative", "sine"]
    "Position embedding: none, one learned vector per token, learned vectors per grid row and grid column (half the width each), fixed 2-D sines and cosines, or 1-D relative attention."
    positions_at: Literal["stem", "every_layer", "every_layer_shared"]
    "Where positions are added: once at the stem, before every block, or before every block with shared weights."
    position_std: float | None
    "Standard deviation of the initial learned positions. The default is vit_jax's; none means 1 / sqrt(width), as in big_vision."
    prefix_positions: bool
    "Whether class and register tokens have learned positions too (vit_jax, timm) or not (big_vision)."
    pool: Literal["token", "mean", "map", "seqpool", "none"]
    "How tokens become features: class token, mean of patches, attention pooling (MAP), SeqPool, or none, which returns all tokens."
    class_token: bool | None
    "Whether there is a class token. By default, there is one only if the pool is 'token'."
    registers: int
    "Number of learned register tokens after the class token. The head doesn't read them."
    final_norm: Literal["tokens", "pooled"]
    "Whether the last LayerNorm runs on all tokens before pooling or on the pooled features (timm's fc_norm)."
    pre_logits: int
    "Width of the tanh layer before the head; 0 for no such layer."
    head_bias: float
    "Initial bias of the (zero-initialised) head."
    dropout: float
    "Dropout after positions, attention projection and both MLP layers."
    attention_dropout: float
    "Dropout on attention weights."
    stochastic_depth: float
    "Probability of skipping the last block's branches. It grows linearly from 0 at the first block."
    patch_dropout: float
    "Share of patch tokens dropped at each training step."
    layer_scale: float | None
    "Initial value of a learned per-channel scale on every branch; none for no scale."
    gelu: Literal["tanh", "erf"]
    "GELU form: tanh in Google's code, erf in timm, transformers and torchvision."
    norm_epsilon: float
    "Epsilon of every LayerNorm."
    resample: Literal["bilinear_corners", "bicubic", "bicubic_plain", "bilinear"]
    "How learned positions are resampled to another grid: Google's bilinear with aligned corners, timm's antialiased bicubic, plain bicubic, or bilinear."
    backbone_units: Sequence[int]
    "Residual units per stage of the ResNet; an empty list keeps only its stem."
    backbone_width: int
    "Channels of the ResNet's stem."
    stem: Literal["7x7", "3x3"]
    "The ResNet's first convolution: 7x7 with stride 2, then max-pooling, or 3x3 with stride 1 and no pooling, for images of about 32 pixels."
    group_norm_epsilon: float
    "Epsilon of every GroupNorm."
    standardization: Literal["std", "variance"]
    "Weight standardisation divides by sqrt(variance + epsilon), as timm does, or by (std + epsilon), as vit_jax does."
    standardization_epsilon: float
    "Epsilon of the weight standardisation."
    units: Sequence[int]
    "Residual units per stage."
    width_factor: int
    "Multiplies every channel count."
    tokenizer: Literal["patches", "convolutions"]
    "How images become tokens: one strided convolution, or blocks of convolution, ReLU and max-pooling."
    kernel: int
    "Side of a patch, or of the convolutions' kernel."
    convolutions: int
    "Number of convolution blocks."


class ModelSection(ModelSettings, total=False):
    """Of the model of a run."""

    name: str | os.PathLike[str]
    "Any MODEL."
    new_head: bool
    "Whether a trained model gets a new head."


class DataSettings(TypedDict, total=False):
    """The data to train and evaluate on."""

    train: os.PathLike[str] | str
    "DATA to train on."
    evaluate: os.PathLike[str] | str | None
    "DATA to evaluate on during training, or none. Classes are matched by name; an objective without labels measures its own loss."
    pipeline: str
    "Augmentation of training images: crops, then batched augmentation, then mixing, such as 'inception_crop(224)|flip|mixup(0.2)'."
    mix_until: int | str | None
    "When the pipeline stops mixing images; none to mix until the end."
    sampling: Literal["shuffle", "balanced"]
    "Order of training images: every image once per epoch (shuffle), or all classes equally often (balanced)."
    group: int
    "Images are mixed within groups of this many neighbours; processes and micro-batches hold whole groups."
    workers: int | None
    "Processes that read and decode images; none for one per core, at most 16."
    cache: Literal["none", "ram", "device"]
    "Whether to keep decoded images: in memory (ram), or on the device, without workers (device; for small images of one size)."
    bad_images: Literal["skip", "error", "any"]
    "What to do about unreadable images: skip them unless there are too many or a class has no others (skip), stop at the first (error), or skip any number (any)."


class OptimizerSettings(TypedDict, total=False):
    """Settings of the optimiser."""

    name: Literal["adam", "adamw", "sgd", "adafactor"]
    "Update rule. The papers' Adam is 'adamw', whose decay is decoupled; 'adam' adds weight_decay times the weights to the gradient."
    learning_rate: float
    "Peak learning rate."
    weight_decay: float
    "Each step reduces decayed weights by this share times the scheduled learning rate (the convention of torch.optim.AdamW)."
    head_weight_decay: float | None
    "Weight decay of the classification layer. Default: weight_decay."
    decay: Literal["kernels", "matrices", "all"]
    "What decays: kernels of dense layers and convolutions (kernels); also tokens and position tables, that is all with two or more dimensions, as in timm (matrices); or everything (all)."
    betas: tuple[float, float]
    "Adam's decay rates of the first and second moments."
    momentum: float
    "Momentum of sgd (a sum) and adafactor (an average); 0 for none."
    momentum_dtype: Literal["float32", "bfloat16"]
    "Type in which momentum is stored; Scaling ViT and the official fine-tuning use bfloat16."
    layer_decay: float
    "Factor on the learning rate from each block to the one before it. The head has the full rate, the embedding the lowest."
    freeze: Sequence[str]
    "Names of parameters not to train; * matches any text, as in 'blocks.*' or '*.bias'."
    clip_norm: float | None
    "Largest global norm of the gradient; larger ones are scaled down to it."


class ScheduleSettings(TypedDict, total=False):
    """How the learning rate changes over the run; its peak is a setting of the optimiser."""

    name: Literal["cosine", "linear", "rsqrt", "step", "constant"]
    "Shape after the warm-up: half a cosine, a straight line, base / sqrt(1 + steps / timescale), tenfold drops (step), or flat (constant)."
    warmup: int | str
    "Length of the linear warm-up."
    warmup_from: float
    "Learning rate at step 0 of the warm-up."
    warmup_inside: bool
    "Whether cosine and linear decay from step 0, so that the warm-up replaces their start, as in timm. By default they decay from the end of the warm-up."
    end: float
    "Final learning rate of cosine and linear."
    cooldown: int | str
    "Length of the last part of the run: rsqrt decays linearly to 0 in it; cosine and linear stay at `end`."
    timescale: int | str
    "Time in which rsqrt decays by a factor of sqrt(2)."
    drops: Sequence[int | str]
    "Steps, counted from 0, after which the schedule 'step' divides the learning rate by 10. Each is the last step before a drop."


class ObjectiveSettings(TypedDict, total=False):
    """What the model learns from images."""

    name: Literal["supervised", "masked_patches", "mae"]
    "supervised: learn the labels. masked_patches and mae need no labels. masked_patches: predict the colours of corrupted patches, as in the ViT paper. mae: predict the pixels of patches that the encoder doesn't see."
    loss: Literal["auto", "softmax", "sigmoid"]
    "softmax: cross-entropy over all classes. sigmoid: binary cross-entropy, summed over classes. auto: sigmoid for multi-label data, else softmax."
    label_smoothing: float
    "Share of each target that is spread evenly over all classes."
    corrupt_share: float
    "masked_patches: share of patches to corrupt. Of these, 80% become the mask embedding, 10% another patch of the image, and 10% are unchanged."
    target: Literal["mean_color", "colors_4x4", "pixels"]
    "masked_patches: what to predict for a corrupted patch: its mean colour (3 bits per channel, 512 classes), 4x4 such colours, or its pixels (squared error)."
    mask_share: float
    "mae: share of patches that the encoder doesn't see."
    decoder_width: int
    "mae: width of the decoder's tokens."
    decoder_depth: int
    "mae: number of decoder blocks."
    patch_norm: bool
    "mae: whether to normalise the target pixels within each patch."


class PreprocessingSettings(TypedDict, total=False):
    """The preprocessing of the trained model; settings that are not given are the model's own."""

    crop_fraction: float | None
    "Share of the resized image that the centre crop keeps in evaluation; 0 stretches the whole image instead."
    interpolation: Literal["bilinear", "bicubic"] | None
    "Interpolation of the resize in evaluation."
    mean: Sequence[float] | None
    "Subtracted from each channel, on the scale 0 to 1."
    std: Sequence[float] | None
    "Divides each channel."


class FrozenSettings(TypedDict, total=False):
    """Evaluation of frozen features during training, for any objective."""

    evaluators: Sequence[Literal["fewshot", "probe", "knn"]]
    "Any of: few-shot ridge regression (fewshot), logistic regression on all of train (probe), weighted nearest neighbours (knn)."
    data: os.PathLike[str] | str | None
    "DATA to use: they learn from its train split and are measured on its test split, else val. Default: the training data."
    shots: int
    "Images per class that fewshot learns from."
    neighbours: int
    "Number of neighbours for knn."
    every: int | str
    "Time between these evaluations; there is always one at the end."


class TrainSettings(TypedDict, total=False):
    """Of a training run, besides its model and data."""

    name: str
    "Name of the recipe."
    duration: int | str
    "How long to train: a number of steps, or epochs, such as '300 epochs'."
    batch_size: int
    "Images per step, over all processes."
    optimizer: OptimizerSettings
    "The optimiser."
    schedule: ScheduleSettings
    "The learning-rate schedule."
    objective: ObjectiveSettings | str
    "What the model learns from images."
    preprocessing: PreprocessingSettings
    "The preprocessing of the trained model."
    frozen: FrozenSettings
    "Evaluation of frozen features during training."
    average: float | None
    "Decay of the moving average (EMA) of the weights, or none. Both are evaluated; model/ holds the average."
    select: Literal["best", "last"]
    "Which weights model/ holds: the best ones by evaluation, or the last ones, so that the evaluation data selects nothing. Without labels, always the last."
    precision: Literal["auto", "float32", "bfloat16"]
    "Type of activations: auto is bfloat16 on a GPU, float32 elsewhere. Weights are always float32."
    compile: bool | Literal["graphs"]
    "Whether PyTorch compiles the training step: takes half a minute or more at the start, then steps are faster. graphs also replays both passes as one CUDA graph, for small models on a GPU."
    activation_checkpointing: bool
    "Recompute each block in the backward pass: a third more compute, but much less memory."
    micro_batch: int | Literal["auto"] | None
    "Images per forward pass on each process; gradients are accumulated over the step. auto finds the most that fit; none takes all at once."
    parallel: Literal["ddp", "fsdp"]
    "How several processes share the model: each has a copy (ddp), or a part of every weight (fsdp; for L and larger)."
    seed: int
    "Seed of all randomness."
    log_every: int | str | None
    "Time between lines of metrics. Default: 50 steps, or a twentieth of a shorter run."
    evaluate_every: int | str
    "Time between evaluations; there is always one at the end."
    checkpoint_every: int | str
    "Time between checkpoints; there is always one at the end."
    keep_checkpoints: int
    "Number of checkpoints to keep."
    track: Sequence[Literal["tensorboard", "wandb"]]
    "Where else to log metrics: tensorboard, wandb (pip install \"vitkit[track]\")."


class _Sections(TypedDict, total=False):
    """Sections whose names are arguments of `train`."""

    model: ModelSection
    data: DataSettings


class TaskSettings(TrainSettings, _Sections, total=False):
    """Of a fine-tuning whose protocol is fixed."""

    image_size: int | tuple[int, int] | None
    "Side of the images in pixels, or HEIGHTxWIDTH; by default the paper's for this data in the model's proportions, or with quick the weights' own."
    head_first: bool | None
    "Whether a linear head is fitted on frozen features before all weights learn; quick does, the paper doesn't."


class FinetuneSettings(TaskSettings, total=False):
    """Of a fine-tuning."""

    protocol: Literal["auto", "paper", "quick"]
    "The paper's (SGD, batch 512, its steps and resolution), or quick: a head on features, then as many steps as fit minutes; auto is paper with a GPU, else quick."
    minutes: float | None
    "Minutes for a quick run, including its final measurement. Default: 10. Each further seed adds its own steps and measurement."
