"""Optimisers: which parameters are trained, at which learning rate, and with how much decay."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vitkit.config import Bounds, NotNegative, Positive, Rate, check_bounds
from vitkit.errors import InputError, did_you_mean
from vitkit.models.model import HEAD
from vitkit.training.adafactor import Adafactor, Group, MomentumDtype, MomentumOptimizer, dtype_of, local

# Settings that only some optimisers read. Those that an optimiser doesn't read are refused.
READS: dict[str, tuple[str, ...]] = {
    "adam": ("betas",),
    "adamw": ("betas", "momentum_dtype"),
    "sgd": ("momentum", "momentum_dtype"),
    "adafactor": ("momentum", "momentum_dtype"),
}
# Prefixes of the parameter names of a model's embedding.
EMBEDDING = (
    *("patch_embed.", "cls_token", "reg_token", "pos_embed"),  # ViT and hybrids
    "stem.",  # BiT
    *("tokenizer.", "classifier.class_emb", "classifier.positional_emb"),  # Compact Transformers
)
BLOCK = re.compile(r"(classifier\.)?blocks\.\d+\.|stages\.\d+\.blocks\.\d+\.")


@dataclass(frozen=True)
class OptimizerConfig:
    """Settings of the optimiser."""

    name: Literal["adam", "adamw", "sgd", "adafactor"] = "adamw"
    "Update rule. The papers' Adam is 'adamw', whose decay is decoupled; 'adam' adds weight_decay times the weights to the gradient."
    learning_rate: Positive = 1e-3
    "Peak learning rate."
    weight_decay: NotNegative = 0.0
    "Each step reduces decayed weights by this share times the scheduled learning rate (the convention of torch.optim.AdamW)."
    head_weight_decay: NotNegative | None = None
    "Weight decay of the classification layer. Default: weight_decay."
    decay: Literal["kernels", "matrices", "all"] = "kernels"
    "What decays: kernels of dense layers and convolutions (kernels); also tokens and position tables, that is all with two or more dimensions, as in timm (matrices); or everything (all)."
    betas: tuple[Rate, Rate] = (0.9, 0.999)
    "Adam's decay rates of the first and second moments."
    momentum: Rate = 0.9
    "Momentum of sgd (a sum) and adafactor (an average); 0 for none."
    momentum_dtype: MomentumDtype = "float32"
    "Type in which momentum is stored; Scaling ViT and the official fine-tuning use bfloat16."
    layer_decay: Annotated[float, Bounds(above=0, at_most=1)] = 1.0
    "Factor on the learning rate from each block to the one before it. The head has the full rate, the embedding the lowest."
    freeze: tuple[str, ...] = ()
    "Names of parameters not to train; * matches any text, as in 'blocks.*' or '*.bias'."
    clip_norm: Positive | None = None
    "Largest global norm of the gradient; larger ones are scaled down to it."

    def __post_init__(self) -> None:
        if self.name not in READS:
            raise InputError(f"optimizer is {self.name!r}; expected one of {', '.join(READS)}")
        for name in ("betas", "momentum", "momentum_dtype"):
            if name not in READS[self.name] and getattr(self, name) != getattr(OptimizerConfig, name):
                raise InputError(f"{name} does not apply to optimizer {self.name!r}: remove it")
        if self.momentum_dtype != OptimizerConfig.momentum_dtype and not self.momentum:
            raise InputError("momentum_dtype does not apply without momentum: remove it")
        if self.decay != OptimizerConfig.decay and not (self.weight_decay or self.head_weight_decay):
            raise InputError("decay does not apply without weight_decay: remove it")
        check_bounds(self)


def build_optimizer(
    model: nn.Module, config: OptimizerConfig, extra_parameters: Iterable[tuple[str, nn.Parameter]] = ()
) -> Optimizer:
    """Return the optimiser for a model and for an objective's own named parameters.

    `model` is the bare model, not a DDP or compiled wrapper. Call freeze_parameters first. Its parameters may already
    be sharded by FSDP2.
    """
    groups = parameter_groups(model, config, extra_parameters)
    lr = config.learning_rate
    first = groups[0]["params"][0]
    together: dict[str, object] = dict(foreach=True) if first.device.type in ("cuda", "cpu") else {}
    fused: dict[str, Any] = dict(fused=True) if first.is_cuda else together
    momentum: dict[str, Any] = dict(momentum=config.momentum, momentum_dtype=config.momentum_dtype)
    in_float32 = config.momentum_dtype == "float32"
    optimizer: Optimizer
    if config.name == "adam":
        optimizer = torch.optim.Adam(groups, lr, config.betas, **fused)
    elif config.name == "adamw" and in_float32:
        optimizer = torch.optim.AdamW(groups, lr, config.betas, **fused)
    elif config.name == "adamw":
        optimizer = AdamW(groups, lr, config.betas, config.momentum_dtype)
    elif config.name == "adafactor":
        optimizer = Adafactor(groups, lr, **momentum)
    elif in_float32 and not any(group["weight_decay"] for group in groups):
        # PyTorch's fused SGD, unlike its Adam, doesn't support shards.
        optimizer = torch.optim.SGD(
            groups, lr, config.momentum, **(together if hasattr(first, "to_local") else fused)
        )
    else:
        optimizer = SGD(groups, lr, **momentum)
    set_learning_rate(optimizer, lr)
    return optimizer


def set_learning_rate(optimizer: Optimizer, learning_rate: float) -> None:
    """Set the learning rate of every group, multiplied by the group's `lr_scale`."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["lr_scale"]


@torch.no_grad()
def clip_gradients(optimizer: Optimizer, clip_norm: float | None) -> Tensor:
    """Clip gradients to the global norm `clip_norm`, if given; return the norm before clipping, on its device."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    foreach = parameters[0].device.type in ("cuda", "cpu") or None  # not PyTorch's default for shards
    norm = nn.utils.get_total_norm(gradients, foreach=foreach)
    if hasattr(norm, "full_tensor"):
        norm = norm.full_tensor()
    if clip_norm is not None:
        torch._foreach_mul_([local(gradient) for gradient in gradients], (clip_norm / norm).clamp_(max=1.0))
    return norm


def freeze_parameters(model: nn.Module, patterns: Iterable[str]) -> None:
    """Freeze the parameters whose names match a pattern. Call this before DDP or FSDP wraps the model."""
    parameters = dict(model.named_parameters())
    for pattern in patterns:
        names = [name for name in parameters if fnmatch.fnmatchcase(name, pattern)]
        if not names:
            parts = {name[: dot.start()] + ".*" for name in parameters for dot in re.finditer(r"\.", name)}
            near = did_you_mean(pattern, [*sorted(parts), *parameters])
            raise InputError(f"freeze: no parameter of the model matches {pattern!r}{near}")
        for name in names:
            parameters[name].requires_grad_(False)


def parameter_groups(
    model: nn.Module, config: OptimizerConfig, extra_parameters: Iterable[tuple[str, nn.Parameter]] = ()
) -> list[Group]:
    """Return the parameters to train, grouped by `lr_scale` and `weight_decay`."""
    parameters = dict(model.named_parameters())
    if config.head_weight_decay is not None and not any(name.startswith(HEAD) for name in parameters):
        raise InputError("optimizer.head_weight_decay needs a head, and this run trains none: set it to null")
    scales = learning_rate_scales(parameters, config.layer_decay)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}

    def put(name: str, parameter: nn.Parameter, scale: float, weight_decay: float) -> None:
        if parameter.requires_grad:
            weight_decay = weight_decay if decays(name, parameter, config.decay) else 0.0
            groups.setdefault((scale, weight_decay), []).append(parameter)

    for name, parameter in parameters.items():
        in_head = name.startswith(HEAD) and config.head_weight_decay is not None
        weight_decay = config.head_weight_decay if in_head else config.weight_decay
        assert weight_decay is not None
        put(name, parameter, scales[name], weight_decay)
    for name, parameter in extra_parameters:
        put(name, parameter, 1.0, config.weight_decay)
    if not groups:
        raise InputError("all parameters are frozen: freeze fewer of them")
    return [
        dict(params=members, lr_scale=scale, weight_decay=weight_decay)
        for (scale, weight_decay), members in groups.items()
    ]


def decays(name: str, parameter: Tensor, rule: str) -> bool:
    """Return whether a parameter decays; only kernels are named `weight` and have two or more dimensions."""
    if rule == "all":
        return True
    return parameter.ndim >= 2 and (rule == "matrices" or name.split(".")[-1] == "weight")


def learning_rate_scales(names: Collection[str], layer_decay: float) -> dict[str, float]:
    """Return each parameter's factor on the learning rate: layer_decay to the power of its distance from the head.

    Layers are the embedding, the encoder's blocks (a ResNet's units), and everything after them.
    """
    # As in BEiT's and MAE's fine-tuning, from ELECTRA (Clark et al. 2020): early layers change the least.
    own = {name: name.removeprefix("module.") for name in names}  # a module of the user's own
    blocks = {name: block[0] for name in names if (block := BLOCK.match(own[name]))}
    if layer_decay != 1 and not blocks:
        raise InputError(
            "layer_decay needs blocks, and this model has none that vitkit recognises: remove it"
        )
    order = {block: number for number, block in enumerate(dict.fromkeys(blocks.values()), start=1)}
    last = len(order) + 1

    def layer(name: str) -> int:
        if name in blocks:
            return order[blocks[name]]
        return 0 if own[name].startswith(EMBEDDING) else last

    return {name: layer_decay ** (last - layer(name)) for name in names}


class SGD(MomentumOptimizer):
    """SGD with decoupled weight decay, times the learning rate, and momentum stored in a given dtype."""

    def update(self, group: Group, parameters: list[Tensor]) -> None:
        updates = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
        if group["momentum"]:
            # A sum, as in torch.optim.SGD and optax's trace, not an average as in Adam: at 0.9 the two differ tenfold.
            stored = [local(self._momentum(parameter, group)) for parameter in parameters]
            moments = [buffer.float() for buffer in stored]  # no copy if they are float32
            torch._foreach_mul_(moments, group["momentum"])
            torch._foreach_add_(moments, updates)
            if group["momentum_dtype"] != "float32":
                torch._foreach_copy_(stored, moments)
            updates = moments
        values = [local(parameter) for parameter in parameters]
        if group["weight_decay"]:
            torch._foreach_mul_(values, 1.0 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(values, updates, alpha=-group["lr"])

    def _momentum(self, parameter: Tensor, group: Group) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter, dtype=dtype_of(group))
        return state["momentum_buffer"]


class AdamW(MomentumOptimizer):
    """torch.optim.AdamW with its first moment stored in a given dtype; the update uses it before rounding."""

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[Group],
        lr: float,
        betas: tuple[Rate, Rate] = (0.9, 0.999),
        momentum_dtype: MomentumDtype = "bfloat16",
        weight_decay: NotNegative = 0.0,
    ) -> None:
        defaults = dict(lr=lr, betas=betas, momentum_dtype=momentum_dtype, weight_decay=weight_decay)
        Optimizer.__init__(self, params, defaults)

    def update(self, group: Group, parameters: list[Tensor]) -> None:
        lr, (beta1, beta2) = group["lr"], group["betas"]
        states = [self._state(parameter, group) for parameter in parameters]
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, 1.0)
        gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]

        stored = [local(state["momentum_buffer"]) for state in states]
        moments = [buffer.float() for buffer in stored]
        torch._foreach_lerp_(moments, gradients, 1.0 - beta1)
        if group["momentum_dtype"] != "float32":
            torch._foreach_copy_(stored, moments)
        squares = [local(state["square"]) for state in states]
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1.0 - beta2)

        # Kingma & Ba 2015, algorithm 1: both moments start at zero, and dividing by 1 - beta^t corrects that bias. Epsilon
        # is added afterwards, outside the root.
        scales = torch._foreach_sqrt(squares)
        torch._foreach_div_(scales, [math.sqrt(1.0 - beta2 ** float(step)) for step in steps])
        torch._foreach_add_(scales, 1e-8)
        values = [local(parameter) for parameter in parameters]
        # Decoupled (Loshchilov & Hutter 2019): the decay is not divided by the second moment.
        torch._foreach_mul_(values, 1.0 - lr * group["weight_decay"])
        torch._foreach_addcdiv_(
            values, moments, scales, scalars=[-lr / (1.0 - beta1 ** float(step)) for step in steps]
        )

    def _state(self, parameter: Tensor, group: Group) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["momentum_buffer"] = torch.zeros_like(parameter, dtype=dtype_of(group))
            state["square"] = torch.zeros_like(parameter)
        return state


def make_memory(optimizer: Optimizer) -> None:
    """Create the optimiser's state with a step that changes nothing, so that a checkpoint can be loaded into it."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    decays = [group["weight_decay"] for group in optimizer.param_groups]
    set_learning_rate(optimizer, 0.0)
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, decay in zip(optimizer.param_groups, decays, strict=True):
        group["weight_decay"] = decay


def memory_by_name(optimizer: Optimizer, module: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Return the optimiser's state by the parameter names of a module."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return {
        names[id(parameter)]: {key: value for key, value in state.items() if isinstance(value, Tensor)}
        for parameter, state in optimizer.state.items()
    }
