"""What a run leaves behind: lines of metrics, measurements, and the model folders."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitkit.evaluation.classification import Classification
from vitkit.models import build as build_module
from vitkit.runs import RunFolder, cut_metrics, read_metrics
from vitkit.training.build import RunParts
from vitkit.training.config import TrainConfig
from vitkit.training.distributed import whole
from vitkit.training.estimate import Estimate
from vitkit.training.graphs import WARM
from vitkit.training.log import Journal, Listener, Totals
from vitkit.training.pictures import Pictures, cut_pictures
from vitkit.weights.convert import save as save_model
from vitkit.world import World

# Metrics by which the best weights are chosen, of which a measurement has one.
BEST = ("accuracy", "mean_average_precision")


class Results:
    """Keeps time and writes results; every process calls it, the first one writes."""

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
        self.earlier, self.done = 0.0, 0
        self.began = self.line_began = time.perf_counter()
        self.line_step, self.line_waited = 0, 0.0
        self.compiling_steps = WARM + 1 if config.compile == "graphs" else int(config.compile)
        self.pictures = Pictures(config, parts, path, listener, world) if not parts.class_names else None
        self.dtype = parts.objective.dtype  # shards (FSDP2) cast by themselves

    @property
    def seconds(self) -> float:
        """Training time so far, over all parts of the run, without compilation."""
        return self.earlier + time.perf_counter() - self.began

    def start(self, step: int, seconds: float) -> None:
        """Go on from a step that took so many seconds; lines of later steps are forgotten."""
        if self.folder:
            cut_metrics(self.path, step)
            cut_pictures(self.path, step)
            self.folder.update(
                status="running", step=step, steps=self.parts.periods.total, message="", best=self._best()
            )
        self.journal.open(step)
        self.earlier, self.began, self.line_began = seconds, time.perf_counter(), time.perf_counter()
        self.line_step = self.done = step
        self.listener.start(step, self.parts.periods.total)
        if self.pictures and not step:
            self.pictures.draw(step)  # what it makes of them untrained

    def stepped(self, done: int) -> None:
        """Count a step; the first ones of a compiled run are compilation, whose time is kept apart."""
        self.done = done
        if self.compiling_steps:
            self.compiling_steps -= 1
            self._wait()
            now = time.perf_counter()
            if self.folder:
                environment = self.folder.record["environment"]
                compiling = environment.get("compile_seconds", 0.0) + now - self.began
                self.folder.update(environment={**environment, "compile_seconds": compiling})
            self.began = self.line_began = now
            self.line_step, self.line_waited = done, self.parts.loader.waited_seconds
        self.listener.stepped(done)

    def log(self, done: int, totals: Totals) -> None:
        """Write a line of training metrics."""
        means = totals.take()
        now, waited, loader = time.perf_counter(), self.parts.loader.waited_seconds, self.parts.loader
        elapsed, steps = max(now - self.line_began, 1e-9), done - self.line_step
        rate = steps * loader.batch_size / elapsed
        line: dict[str, Any] = {
            "step": done,
            "epoch": done / self.parts.periods.per_epoch,
            **means,
            "learning_rate": self.parts.schedule(done - 1),
            "images_per_second": rate,
            "waiting": min(1.0, (waited - self.line_waited) / elapsed),
            "seconds": self.seconds,
        }
        if self.world.device.type == "cuda":
            line["peak_share"] = rate * self.cost.flops_per_image / self.cost.rate
        self.journal.write(line)
        self._begin_line(done)
        if self.folder:
            self.folder.update(step=done, seconds=self.seconds)

    def evaluate(self, done: int) -> None:
        """Measure the weights, and the averaged ones beside them; keep the best model."""
        evaluator, average, split = self.parts.evaluator, self.parts.average, self.parts.evaluated
        if self.pictures:
            self.pictures.draw(done)
            self._begin_line(done)
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
        metric = next((f"{chosen}/{name}" for name in BEST if f"{chosen}/{name}" in line), None)
        is_best = metric is not None and self._is_best(metric, line[metric])
        if is_best and self.config.select == "best":
            self.write_model("model", averaged=average is not None)
        self.journal.write({**line, "seconds": self.seconds})
        if self.folder and metric and is_best:
            self.folder.update(best={"metric": metric, "value": line[metric], "step": done})
        self._begin_line(done)

    def measure_features(self, done: int) -> None:
        """Measure the frozen features of the weights that are kept, if that is asked for."""
        if not self.parts.frozen:
            return
        line: dict[str, Any] = {"step": done, "epoch": done / self.parts.periods.per_epoch}
        average = self.parts.average
        with average.applied() if average else nullcontext():
            for evaluator in self.parts.frozen:
                for name, value in evaluator.run(self.parts.model, self.dtype).items():
                    line[f"{name}/accuracy"] = value
        self.journal.write({**line, "seconds": self.seconds})
        self._begin_line(done)

    def saved(self, done: int) -> None:
        """Say how far a checkpoint reaches."""
        if self.folder:
            self.folder.update(step=done, seconds=self.seconds)

    def finish(self, is_done: bool) -> None:
        """Write the weights as they are now, of a stopped run too, and the run's status."""
        if self.folder and not is_done:  # who stopped it may not wait for long
            self.folder.update(status="stopped", step=self.done, seconds=self.seconds)
        if self.config.select == "last" or not isinstance(self.parts.evaluator, Classification):
            self.write_model("model", averaged=self.parts.average is not None)
        self.write_model("model-last", averaged=False)
        if self.folder and is_done:
            self.folder.update(status="done", step=self.done, seconds=self.seconds)
        self.listener.stop()

    def write_model(self, name: str, averaged: bool) -> None:
        """Write a model folder; each process takes part, since weights may be spread over them."""
        model, average = self.parts.model, self.parts.average
        weights: dict[str, Tensor] = {}
        with average.applied() if average and averaged else nullcontext():
            for key, tensor in model.state_dict().items():
                gathered = whole(tensor)
                if self.world.is_first:
                    weights[key] = gathered.cpu().clone()
        if not self.world.is_first:
            return
        with torch.device("meta"):  # weights that are replaced need not be drawn
            plain = build_module(model.config)
        plain.load_state_dict(weights, assign=True)
        save_model(
            plain,
            self.path / name,
            class_names=self.parts.class_names,
            several_labels=self.parts.source.has_several_labels
            and getattr(self.parts.objective, "sigmoid", False),
            preprocessing=self.parts.preprocessing,
            force=True,
        )

    def _best(self) -> dict[str, Any] | None:
        """Return the best measurement among the lines that are kept."""
        chosen = f"{self.parts.evaluated}_ema" if self.parts.average else self.parts.evaluated
        found = [
            {"metric": f"{chosen}/{name}", "value": line[f"{chosen}/{name}"], "step": line["step"]}
            for line in read_metrics(self.path)
            for name in BEST
            if line.get(f"{chosen}/{name}") is not None
        ]
        return max(found, key=lambda row: (row["value"], row["step"]), default=None)

    def _is_best(self, metric: str, value: float) -> bool:
        """Say whether no earlier measurement was better, by what the metrics say, which a resumed run cuts back.

        Of equals the later is better: on few images accuracy is soon at its top, and the loss still falls.
        """
        if not self.folder:
            return self.world.any(False)
        earlier = [line[metric] for line in read_metrics(self.path) if line.get(metric) is not None]
        return self.world.any(all(value >= other for other in earlier))

    def _begin_line(self, done: int) -> None:
        self.line_began, self.line_step = time.perf_counter(), done
        self.line_waited = self.parts.loader.waited_seconds

    def _wait(self) -> None:
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)
