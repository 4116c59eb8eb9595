"""What is timed: a forward pass, or a training step with forward pass, backward pass and update."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.models.configs import Preprocessing
from vitkit.models.model import Model
from vitkit.objectives.supervised import Supervised
from vitkit.timing.candidates import Network
from vitkit.training.optimizers import OptimizerConfig, build_optimizer, clip_gradients
from vitkit.world import wait

Step = Callable[[], object]
CLIP = 1.0


def inference_step(network: Network, images: Tensor) -> Step:
    """Return a forward pass that waits until it is done."""
    device = images.device

    @torch.inference_mode()
    def step() -> None:
        network(images)
        wait(device)

    return step


def training_step(network: Network, images: Tensor, labels: Tensor) -> Step:
    """Return a training step on uint8 images: cross-entropy, gradients clipped to norm 1, AdamW."""
    assert network.module is not None
    if isinstance(network.module, Model):
        return _our_step(network, network.module, images, labels)
    return _peer_step(network, network.module, images, labels)


def _our_step(network: Network, model: Model, images: Tensor, labels: Tensor) -> Step:
    """The step of `vit train`."""
    way, batch = network.way, {"image": images, "label": labels}
    preprocessing = Preprocessing(model.config.size)
    objective = Supervised(model, preprocessing, sigmoid=False, label_smoothing=0.0).to(images.device)
    objective.train()
    objective.dtype = way.dtype
    if way.is_compiled:
        objective.compile(dynamic=False)
    optimizer = build_optimizer(model, OptimizerConfig(weight_decay=0.1))

    def step() -> None:
        loss, _ = objective(batch)
        loss.backward()
        clip_gradients(optimizer, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait(images.device)

    return step


def _peer_step(network: Network, module: torch.nn.Module, images: Tensor, labels: Tensor) -> Step:
    """The same step as other libraries' trainers take it: autocast, and PyTorch's fused AdamW."""
    way = network.way
    module.train()
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3, weight_decay=0.1, fused=True)

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(way.device, torch.bfloat16, enabled=way.dtype == torch.bfloat16):
            logits = module((images.float() - 127.5) / 127.5)
        return F.cross_entropy(logits.float(), labels)

    compute = torch.compile(loss_of, dynamic=False) if way.is_compiled else loss_of

    def step() -> None:
        compute(images, labels).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), CLIP, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait(images.device)

    return step


def make_step(network: Network, batch_size: int, num_classes: int, train: bool) -> Step:
    """Return the step of a network on random images of its size."""
    config, device = network.config, network.way.device
    shape = (batch_size, config.channels, *config.size)
    if not train:
        return inference_step(network, torch.rand(shape).to(device))
    labels = torch.randint(0, num_classes, (batch_size,)).to(device)
    return training_step(network, torch.randint(0, 256, shape, dtype=torch.uint8).to(device), labels)
