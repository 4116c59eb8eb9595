"""The loss of an objective without labels on images that it doesn't learn from, with the same choices every time."""

from __future__ import annotations

import numpy as np
import torch

from vitkit.data.draws import Draw
from vitkit.data.fetch import BadImages
from vitkit.data.loader import EvaluationLoader
from vitkit.data.pipeline import evaluation_pipeline
from vitkit.data.sources.source import Source
from vitkit.errors import InputError
from vitkit.models.configs import Preprocessing
from vitkit.models.model import Model
from vitkit.objectives.objective import Batch, Objective
from vitkit.world import World


class HeldOut:
    """What the objective's own metrics are on every image of a source, each once."""

    def __init__(
        self,
        objective: Objective,
        source: Source,
        preprocessing: Preprocessing,
        *,
        batch_size: int,
        world: World,
        seed: int,
        workers: int | None = None,
        bad_images: BadImages | None = None,
    ) -> None:
        self.objective, self.source, self.world, self.seed = objective, source, world, seed
        self.loader = EvaluationLoader(
            source,
            evaluation_pipeline(preprocessing),
            batch_size=batch_size,
            rank=world.rank,
            ranks=world.ranks,
            device=world.device,
            workers=workers,
            bad_images=bad_images,
        )
        self.most_batches = -(-len(source) // (world.ranks * batch_size))
        self.blank = torch.zeros(
            1, len(preprocessing.mean), *preprocessing.size, dtype=torch.uint8, device=world.device
        )

    def run(self, model: Model, dtype: torch.dtype = torch.float32) -> dict[str, float]:
        """Return the metrics, the same on every process; model and dtype are the objective's own."""
        names = [name for name in self.objective.metric_names if name != "gradient_norm"]
        sums, done = torch.zeros(len(names) + 1, dtype=torch.float64), 0
        self.objective.eval()
        try:
            with torch.no_grad():
                for batch in self.loader:
                    indices = batch["index"].cpu().numpy()
                    values = self.measure({"image": batch["image"]}, indices)
                    row = [*(values[name] for name in names), 1.0]
                    sums += len(indices) * torch.tensor(row, dtype=torch.float64)
                    done += 1
                for _ in range(self.most_batches - done):  # a sharded model runs on all processes
                    self.measure({"image": self.blank}, np.zeros(1, np.int64))
        finally:
            self.objective.train()
        *totals, count = self.world.sum(sums).tolist()
        if not count:
            raise InputError(f"no image of {self.source.name}:{self.source.split} can be read")
        return {name: total / count for name, total in zip(names, totals, strict=True)}

    def measure(self, batch: Batch, indices: np.ndarray) -> dict[str, float]:
        """Return the means over some images; `forward` itself, since a last, smaller batch isn't worth compiling."""
        loss, metrics = self.objective.forward(
            self.objective.prepare(batch, Draw(self.seed, 0, indices, "held out"))
        )
        return {name: float(value) for name, value in {"loss": loss, **metrics}.items()}
