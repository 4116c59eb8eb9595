"""Candidates: a model and a way to run it, opened alike in this process and in the one that measures memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from vitkit.costs import cost_of, merged_macs
from vitkit.models.configs import ModelConfig, OwnConfig, Size
from vitkit.models.model import Model
from vitkit.models.own import OWN
from vitkit.models.record import Record
from vitkit.predictor import AnyModel, Predictor, load, wrap
from vitkit.timing.peers import PEERS, TORCHVISION
from vitkit.timing.ways import Way

# What exported folders call the runtimes.
RUNTIMES = {"onnx": "onnxruntime", "openvino": "openvino"}


@dataclass(frozen=True)
class CandidatePlan:
    """What another process needs to open a candidate."""

    way: Way
    path: str
    "A MODEL string, or what was written for a peer."
    is_written: bool
    "Whether it was written for a peer."
    image_size: tuple[int, int]


class Network(Model):
    """Whatever returns logits, as a Model that takes and returns float32."""

    def __init__(self, config: ModelConfig, call: Callable[[Tensor], Tensor], way: Way) -> None:
        super().__init__()
        self.config, self.way, self.call = config, way, call
        self.module = call if isinstance(call, nn.Module) else None
        self.is_cast = self.module is not None and not isinstance(self.module, Model)

    def prepare(self, largest: Mapping[str, float] | None = None) -> Network:
        """Compute as the way says from now on: its precision, its merging, compiled. largest: the scales of float8."""
        if self.module is not None:
            if isinstance(self.module, Model):
                self.module.set_merge(self.way.merge)
                self.module.set_precision(self.way.precision, largest)
            else:
                self.module.to(self.way.dtype)
            if self.way.is_compiled:
                self.call = torch.compile(self.module, dynamic=False)
        return self

    def forward(self, images: Tensor, record: Record | None = None) -> Tensor:
        return self.call(images.to(self.way.dtype) if self.is_cast else images).float()


@dataclass(frozen=True, eq=False)
class Candidate:
    """A model, opened in one way."""

    source: Predictor
    "The model as it was loaded, in float32, or an exported graph."
    network: Network
    precision: str
    "That of the way, or of an exported graph."
    plan: CandidatePlan | None
    "None if no other process can open it."

    @property
    def model(self) -> str:
        return self.source.spec.removeprefix(OWN)

    @property
    def way(self) -> Way:
        return self.network.way

    @property
    def is_graph(self) -> bool:
        """Whether it runs in a runtime, which can't train."""
        return self.network.module is None

    @property
    def name(self) -> str:
        """The candidate in notes and pictures: 'B/16 in timm, compiled'."""
        return f"{self.model} in {self.way.words}"

    @property
    def parameters(self) -> int:
        return cost_of(self.network.config).parameters

    @property
    def macs(self) -> int:
        return merged_macs(self.network.config, self.way.merge)


def open_model(model: AnyModel, device: str, image_size: Size | None = None) -> Predictor:
    """Return a model as `load` does, or one of torchvision's for comparison."""
    if isinstance(model, str) and model in TORCHVISION:
        import torchvision

        module = torchvision.models.get_model(model).eval().to(device)
        return wrap(module, image_size or TORCHVISION[model], name=model)
    # The one door: an exported folder becomes a Predictor whose model is a graph in its runtime.
    return load(model, device=device, image_size=image_size)


def is_exported(predictor: Predictor) -> bool:
    """Return whether a model is a graph in a runtime: it has no weights that could be cast, compiled or trained."""
    return next(predictor.model.parameters(), None) is None


def own_candidate(
    predictor: Predictor,
    way: Way,
    path: str | None,
    train: bool = False,
    largest: Mapping[str, float] | None = None,
) -> Candidate:
    """Return a loaded model in one way; the loaded model stays as it is. largest: the scales of float8."""
    model, config, precision = predictor.model, predictor.model.config, way.precision
    if is_exported(predictor):
        folder = getattr(model, "folder", None)
        library = RUNTIMES.get(getattr(folder, "runtime", ""), "vitkit")
        way, precision = replace(way, library=library), getattr(folder, "precision", precision)
        network = Network(config, lambda images: model(images), way)
    else:
        if path in TORCHVISION:
            way = replace(way, library="torchvision")
        is_changed = train or way.precision != "float32" or way.merge
        network = Network(config, copy.deepcopy(model) if is_changed else model, way)
        if not train:
            network.prepare(largest)
    return Candidate(
        predictor, network, precision, None if path is None else CandidatePlan(way, path, False, config.size)
    )


def peer_candidate(predictor: Predictor, way: Way, path: Path, train: bool = False) -> Candidate:
    """Return what was written for a peer, opened there."""
    config = predictor.model.config
    network = peer_network(config, way, path, train)
    return Candidate(predictor, network, way.precision, CandidatePlan(way, str(path), True, config.size))


def peer_network(config: ModelConfig, way: Way, path: Path, train: bool = False) -> Network:
    opened = PEERS[way.library].open(path, way)
    if isinstance(opened, nn.Module):
        opened = opened.eval().to(way.device)
    network = Network(config, opened, way)
    return network if train else network.prepare()


def open_plan(plan: CandidatePlan, train: bool = False) -> Network:
    """Return the network of a plan, in the process that measures memory."""
    if plan.is_written:
        # Memory doesn't depend on the config, which the peer's files don't have.
        return peer_network(OwnConfig(plan.image_size, 3, 0), plan.way, Path(plan.path), train)
    return own_candidate(
        open_model(plan.path, plan.way.device, plan.image_size), plan.way, plan.path, train
    ).network
