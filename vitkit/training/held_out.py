"""The loss of an objective without labels on images that it doesn't learn from, with the same choices every time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitkit.data.draws import Draw
from vitkit.data.fetch import BadImages
from vitkit.data.sources.source import Source
from vitkit.evaluation.passes import SourcePass
from vitkit.models.configs import Preprocessing
from vitkit.models.model import Model
from vitkit.objectives.objective import Objective
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
        self.objective, self.source, self.seed = objective, source, seed
        self.names = [name for name in objective.metric_names if name != "gradient_norm"]
        self.images = SourcePass(
            source,
            preprocessing,
            world=world,
            batch_size=batch_size,
            workers=workers,
            bad_images=bad_images,
        )

    @property
    def bad(self) -> dict[str, str]:
        """This process's images that could not be read, with what is wrong with each."""
        return self.images.bad

    def run(self, model: Model, dtype: torch.dtype = torch.float32) -> dict[str, float]:
        """Return the metrics, the same on every process; model and dtype are the objective's own."""
        return dict(zip(self.names, self.images.means(self.objective, self.measure), strict=True))

    def measure(self, images: Tensor, indices: np.ndarray) -> Tensor:
        """Return the means over some images, once for each; `forward` itself: a last, smaller batch isn't worth compiling."""
        batch = self.objective.prepare({"image": images}, Draw(self.seed, 0, indices, "held out"))
        loss, metrics = self.objective.forward(batch)
        values = {"loss": loss, **metrics}
        row = torch.tensor([float(values[name]) for name in self.names], dtype=torch.float64)
        return row.expand(len(images), -1)
