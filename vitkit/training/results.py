"""The results of a run: metrics, evaluations, and model folders, which are verified and repaired on resume."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from vitkit.data.sources.source import Source
from vitkit.data.splits import counted
from vitkit.data.threads import Unreadable, opened_data
from vitkit.errors import InputError
from vitkit.evaluation.held_out import Classification
from vitkit.files import digest
from vitkit.notes import Note
from vitkit.progress import Listener
from vitkit.results import as_json
from vitkit.runs import Evaluated, KeptModel, RunFolder, cut_metrics, read_metrics
from vitkit.training.build import RunParts, is_trained
from vitkit.training.checkpoints import on_first_rank
from vitkit.training.config import TrainConfig
from vitkit.training.distributed import whole
from vitkit.training.estimate import Estimate
from vitkit.training.graphs import WARM
from vitkit.training.log import Journal, Stopwatch, Totals
from vitkit.training.pictures import Pictures, cut_pictures
from vitkit.weights.folder import Origin, Stored, fill_folder, replacing
from vitkit.weights.load import read_model
from vitkit.world import World, wait

# Metrics that select the best weights. An evaluation has one of them.
BEST = ("accuracy", "mean_average_precision")
# The files that identify a model folder's content.
FILES = ("config.json", "model.safetensors")


class Results:
    """Measures time and writes results. Every process calls it; the first one writes."""

    def __init__(
        self,
        config: TrainConfig,
        parts: RunParts,
        path: Path,
        folder: RunFolder | None,
        listener: Listener,
        world: World,
        cost: Estimate,
    ) -> None:
        self.config, self.parts, self.path, self.folder = config, parts, path, folder
        self.listener, self.world, self.cost = listener, world, cost
        self.journal = Journal(folder, listener, config.track)
        self.models = KeptModels(config, parts, path, folder, world)
        self.best: Evaluated | None = None
        "The best evaluation: that of the weights in model/, if these are selected by it."
        self.evaluation: Mapping[str, Any] = {}
        "The line of the last evaluation."
        self.started = self.done = 0
        self.watch = Stopwatch(
            parts.loader.batch_size,
            waited=lambda: parts.loader.waited_seconds,
            compilations=compilations if config.compile else lambda: 0,
            warm_up=WARM + 1 if config.compile == "graphs" else int(config.compile),
        )
        self.pictures = Pictures(config, parts, path, listener, world) if not parts.class_names else None
        self.dtype = parts.objective.dtype  # FSDP2 casts by itself

    def start(self, step: int, state: Mapping[str, Any]) -> None:
        """Resume from a checkpoint's step: drop lines of later steps, and write damaged models again."""
        self.started = self.done = step
        if self.folder:
            cut_metrics(self.path, step)
            cut_pictures(self.path, step)
            self.best = self._best_until_now(state)
            self.folder.update(status="running", step=step, steps=self.parts.periods.total, message="")
        for name in on_first_rank(lambda: self._damaged(state)):
            self.models.write(name, step, averaged=name == "model" and self.parts.average is not None)
        if self.folder:
            self.folder.update(best=None if self.best is None else self.best.to_json())
        self.journal.open(step)
        self.watch.start(step, state.get("seconds", 0.0))
        self.listener.start(step, self.parts.periods.total)
        if self.pictures and not step:
            self.pictures.draw(step)  # predictions of the untrained model

    def state(self) -> dict[str, object]:
        """Return what a checkpoint holds in addition to tensors. Metrics up to this step are synced to disk first."""
        if self.folder:
            self.folder.sync()
        return {
            "step": self.done,
            "seconds": self.watch.seconds,
            "best": None if self.best is None else self.best.to_json(),
            "models": self.folder.record["models"] if self.folder else {},
        }

    def stepped(self, done: int) -> None:
        """Count a step; the time of compiling steps is recorded separately."""
        self.done = done
        if (seconds := self.watch.stepped(partial(wait, self.world.device))) and self.folder:
            environment = self.folder.record["environment"]
            total = environment.get("compile_seconds", 0.0) + seconds
            self.folder.update(environment={**environment, "compile_seconds": total})
        self.listener.stepped(done)

    def log(self, done: int, totals: Totals) -> None:
        """Write a line of training metrics."""
        means = totals.take()
        pace = self.watch.line(done)
        line: dict[str, object] = {
            "step": done,
            "epoch": done / self.parts.periods.per_epoch,
            **means,
            "learning_rate": self.parts.schedule(done - 1),
            **pace,
            "seconds": self.watch.seconds,
        }
        if self.world.device.type == "cuda" and pace:
            line["peak_share"] = pace["images_per_second"] * self.cost.flops_per_image / self.cost.rate
        self.journal.write(line)
        self.watch.skip_to_now(done)
        if self.folder:
            self.folder.update(step=done, seconds=self.watch.seconds)

    def evaluate(self, done: int) -> None:
        """Evaluate the weights, and the averaged ones if there are any; keep the best model."""
        evaluator, average, split = self.parts.evaluator, self.parts.average, self.parts.evaluated
        if self.pictures:
            self.pictures.draw(done)
            self.watch.skip_to_now(done)
        if evaluator is None:
            return
        line: dict[str, Any] = {"step": done, "epoch": done / self.parts.periods.per_epoch}
        chosen = split
        for name, value in evaluator.run(self.parts.model, self.dtype).items():
            line[f"{split}/{name}"] = value
        if average and isinstance(evaluator, Classification):  # an objective's own weights are not averaged
            chosen = f"{split}_ema"
            with average.applied():
                for name, value in evaluator.run(self.parts.model, self.dtype).items():
                    line[f"{chosen}/{name}"] = value
        self.evaluation = line
        metric = next((f"{chosen}/{name}" for name in BEST if f"{chosen}/{name}" in line), None)
        is_best = metric is not None and self._is_best(line[metric])
        if metric is not None and is_best:
            self.best = Evaluated(metric, line[metric], done)
            if self.config.select == "best":
                self._write("model", done, averaged=average is not None)
        self.journal.write({**line, "seconds": self.watch.seconds})
        if self.folder and self.best and is_best:
            self.folder.update(best=self.best.to_json())
        self.watch.skip_to_now(done)

    def measure_features(self, done: int) -> None:
        """Evaluate the frozen features of the weights that model/ will hold, if requested."""
        if not self.parts.frozen:
            return
        line: dict[str, object] = {"step": done, "epoch": done / self.parts.periods.per_epoch}
        average = self.parts.average
        with average.applied() if average else nullcontext():
            for evaluator in self.parts.frozen:
                for name, value in evaluator.run(self.parts.model, self.dtype).items():
                    line[f"{name}/accuracy"] = value
        self.journal.write({**line, "seconds": self.watch.seconds})
        self.watch.skip_to_now(done)

    def saved(self, done: int) -> None:
        """Record the step of a checkpoint."""
        if self.folder:
            unreadable = as_json(self.parts.unreadable)
            self.folder.update(step=done, seconds=self.watch.seconds, unreadable=unreadable)
        self.watch.skip_to_now(done)

    def finish(self, is_done: bool) -> None:
        """Write the current weights, also for a stopped run, and the run's status."""
        if self.folder and not is_done:  # first, because the process may be killed soon
            self.folder.update(status="stopped", step=self.done, seconds=self.watch.seconds)
        has_trained = self.done > self.started
        if not self._selects_best:
            averaged = self.parts.average is not None
            self._write("model", self.done, averaged, unless_held=not has_trained)
        self._write("model-last", self.done, averaged=False, unless_held=not has_trained)
        if self.folder and is_done:
            self.folder.update(status="done", step=self.done, seconds=self.watch.seconds)
        self.listener.stop()

    def _write(self, name: str, step: int, averaged: bool, unless_held: bool = False) -> None:
        """Write a model folder; its card has the evaluation of this step, if there is one."""
        result, measured = "", self.parts.inputs.measured
        split = f"{self.parts.evaluated}_ema" if averaged else self.parts.evaluated
        if self.evaluation.get("step") == step and measured is not None:
            for metric in BEST:
                if (value := self.evaluation.get(f"{split}/{metric}")) is not None:
                    images = len(measured) - skipped_of(measured, self.parts.unreadable)
                    result = result_in_words(metric, value, measured, images)
        self.models.write(name, step, averaged, unless_held, result)

    @property
    def _selects_best(self) -> bool:
        return self.config.select == "best" and isinstance(self.parts.evaluator, Classification)

    def _damaged(self, state: Mapping[str, Any]) -> list[str]:
        """Return the model folders to write again from the checkpoint, and add a note for each."""
        found = []
        for name in ("model", "model-last"):
            is_best = name == "model" and self._selects_best
            held = self.models.held(name, state)
            if held and is_best and 0 <= held.step <= self.done:  # after a repair these may not be the best
                self.best = self._best_until_now(state, held.step)
            if held or not (self.models.was_written(name, state) or (is_best and self.best)):
                continue
            found.append(name)
            text = f"{self.path / name} is missing or damaged: "
            if is_best and self.best and self.best.step != self.done:
                text += f"the best weights, of step {self.best.step:,}, are lost; it now holds those of step {self.done:,}"
                self.best = self._best_until_now({}, self.done)
            else:
                text += "written again from the checkpoint"
            self.listener.note(Note(text, "warning"))
        return found

    def _best_until_now(self, state: Mapping[str, Any], step: int | None = None) -> Evaluated | None:
        """Return the best evaluation, or that of a step: from the checkpoint, else from the metrics."""
        known = Evaluated(**state["best"]) if state.get("best") else None
        if known and step in (None, known.step):
            return known
        if "best" in state and step is None:
            return None
        chosen = f"{self.parts.evaluated}_ema" if self.parts.average else self.parts.evaluated
        found = [
            Evaluated(f"{chosen}/{name}", line[f"{chosen}/{name}"], line["step"])
            for line in read_metrics(self.path)
            for name in BEST
            if line.get(f"{chosen}/{name}") is not None and step in (None, line["step"])
        ]
        return max(found, key=lambda best: (best.value, best.step), default=None)

    def _is_best(self, value: float) -> bool:
        """Return whether no earlier evaluation was better, as known to the first process.

        Of equals, the later is better: on few images accuracy soon reaches its maximum while the loss still falls.
        """
        return self.world.any(self.folder is not None and (self.best is None or value >= self.best.value))


class KeptModels:
    """Writes model folders and keeps track of their content. Every process calls it; the first one writes.

    run.json lists the digests of the last two writes of each folder, newest first: if the process is killed after the
    record is written but before the folders are swapped, the older one is still in place. A checkpoint has a copy of
    the list.
    """

    def __init__(
        self, config: TrainConfig, parts: RunParts, path: Path, folder: RunFolder | None, world: World
    ) -> None:
        self.parts, self.path, self.folder, self.world = parts, path, folder, world
        self.start = str(config.model["name"]) if is_trained(config, parts.inputs) else ""

    def write(
        self, name: str, step: int, averaged: bool, unless_held: bool = False, result: str = ""
    ) -> None:
        """Write the current weights. Every process takes part, since weights may be sharded.

        unless_held: don't write a folder that already holds them. result: their evaluation in words, for the model card.
        """
        if unless_held and on_first_rank(lambda: (held := self.held(name)) is not None and held.step == step):
            return
        model, average = self.parts.model, self.parts.average
        weights: dict[str, Tensor] = {}
        with average.applied() if average and averaged else nullcontext():
            for key, tensor in model.state_dict().items():
                gathered = whole(tensor)
                if self.world.is_first:
                    weights[key] = gathered.cpu().clone()
        if self.folder is None:
            return
        known = self.folder.record["models"]
        with replacing(self.path / name, force=True) as new:
            multi_label = self.parts.source.is_multi_label and getattr(self.parts.objective, "sigmoid", False)
            source, command = self.parts.source, self.folder.record["command"]
            readable = len(source) - skipped_of(source, self.parts.unreadable)
            origin = Origin(self.start, source.data_name, readable, result, command)
            stored = Stored(
                model.config, self.parts.preprocessing, self.parts.class_names, multi_label, origin=origin
            )
            fill_folder(new, stored, weights)
            entry = asdict(KeptModel(step, folder_digest(new)))
            self.folder.update(models={**known, name: [entry, *known.get(name, [])[:1]]})

    def held(self, name: str, state: Mapping[str, Any] = MappingProxyType({})) -> KeptModel | None:
        """Return what a folder holds, if it is intact: its digest is known, or (for an older run) it is readable.

        state: the state of the checkpoint from which the run resumes.
        """
        known = self._known(name, state)
        try:
            found = folder_digest(self.path / name)
            if not known:
                read_model(self.path / name)
                return KeptModel(-1, found)
        except (OSError, InputError):
            return None
        return next((entry for entry in known if entry.sha256 == found), None)

    def was_written(self, name: str, state: Mapping[str, Any]) -> bool:
        """Return whether a folder should exist."""
        return bool(self._known(name, state))

    def _known(self, name: str, state: Mapping[str, Any]) -> list[KeptModel]:
        assert self.folder is not None
        lists = (models.get(name, []) for models in (self.folder.record["models"], state.get("models", {})))
        return [KeptModel(**entry) for entries in lists for entry in entries]


def result_in_words(metric: str, value: float, measured: Source, images: int) -> str:
    """Return a metric in words, with the number of images that it was measured on."""
    return f"{metric.replace('_', ' ')} {value:.2%} on {measured.data_name}, {counted(images, 'image')}"


def skipped_of(source: Source, unreadable: Collection[Unreadable]) -> int:
    """Return how many of these unreadable images a source has."""
    images = {entry.image for entry in unreadable if entry.data == opened_data(source)}
    return sum(source.where(index) in images for index in range(len(source))) if images else 0


def folder_digest(folder: Path) -> str:
    """Return a checksum of the config and weights of a model folder."""
    return hashlib.sha256("".join(digest(folder / name) for name in FILES).encode()).hexdigest()


def compilations() -> int:
    """Return how many graphs torch.compile has compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
