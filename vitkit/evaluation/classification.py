"""How well a model classifies: every image of a source exactly once, over any number of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from vitkit.data.fetch import BadImages
from vitkit.data.loader import EvaluationLoader
from vitkit.data.operations import normalize
from vitkit.data.pipeline import evaluation_pipeline
from vitkit.data.sources.source import Source
from vitkit.errors import InputError
from vitkit.evaluation.metrics import mean_average_precision
from vitkit.models.configs import Preprocessing
from vitkit.models.losses import cross_entropy, one_hot
from vitkit.models.model import Model
from vitkit.models.precision import run_in
from vitkit.world import World


class Classification:
    """Loss and accuracy; for images with several labels, loss and mean average precision."""

    def __init__(
        self,
        source: Source,
        preprocessing: Preprocessing,
        *,
        batch_size: int,
        world: World,
        workers: int | None = None,
        sigmoid: bool = False,
        bad_images: BadImages | None = None,
    ) -> None:
        """sigmoid: whether the loss judges classes one by one, as in training.

        bad_images: what `run` does with images that can't be read; with several labels each, they are errors.
        """
        self.source, self.preprocessing, self.world, self.sigmoid = source, preprocessing, world, sigmoid
        self.has_several_labels = source.has_several_labels
        self.loader = EvaluationLoader(
            source,
            evaluation_pipeline(preprocessing),
            batch_size=batch_size,
            rank=world.rank,
            ranks=world.ranks,
            device=world.device,
            workers=workers,
            bad_images=None if self.has_several_labels else bad_images,
        )
        self.most_batches = -(-len(source) // (world.ranks * batch_size))

    def run(self, model: Model, dtype: torch.dtype = torch.float32) -> dict[str, float]:
        """Return the metrics of a model, the same on every process."""
        if self.has_several_labels:
            scores, several = self.logits(model, dtype), self.source.labels
            targets = torch.tensor(several, dtype=torch.float32)
            losses = cross_entropy(torch.from_numpy(scores), targets, self.sigmoid)
            precision = mean_average_precision(scores, several)
            return {"loss": float(losses.double().mean()), "mean_average_precision": precision}
        sums = torch.zeros(3, dtype=torch.float64)
        for logits, labels in self.outputs(model, dtype):
            losses = cross_entropy(logits, one_hot(labels, logits.shape[1]), self.sigmoid)
            right = int((logits.argmax(1) == labels).sum())
            total = float(losses.cpu().double().sum())  # MPS has no double precision
            sums += torch.tensor([total, right, len(labels)], dtype=torch.float64)
        loss, right, count = self.world.sum(sums).tolist()
        if not count:
            raise InputError(f"no image of {self.source.name}:{self.source.split} can be read")
        return {"loss": loss / count, "accuracy": right / count}

    def logits(
        self,
        model: Model,
        dtype: torch.dtype = torch.float32,
        progress: Callable[[int, int], None] | None = None,
    ) -> np.ndarray:
        """Return the logits of every image in the source's order, float32 (images, classes), on every process."""
        share = torch.empty(self.loader.stop - self.loader.first, model.config.num_classes)
        done = 0
        for logits, _ in self.outputs(model, dtype):
            share[done : done + len(logits)] = logits
            done += len(logits)
            if progress:
                progress(done, len(share))
        return self.world.gather(share).numpy()

    def outputs(self, model: Model, dtype: torch.dtype = torch.float32) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield logits (images, classes) and labels of this process's share, batch by batch."""
        mean, std, was_training = self.preprocessing.mean, self.preprocessing.std, model.training
        done = 0
        model.eval()
        try:
            with torch.no_grad():
                for batch in self.loader:
                    yield run_in(dtype, model, normalize(batch["image"], mean, std)).float(), batch["label"]
                    done += 1
                for _ in range(self.most_batches - done):  # a sharded model runs on all processes or none
                    blank = torch.zeros(1, len(mean), *self.preprocessing.size, device=self.world.device)
                    run_in(dtype, model, blank)
        finally:
            model.train(was_training)
