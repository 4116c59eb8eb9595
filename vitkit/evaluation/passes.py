"""One pass of a model over a source: every image once, in order, on any number of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitkit.data.loader import EvaluationLoader
from vitkit.data.operations import normalize
from vitkit.data.pipeline import Pipeline, evaluation_pipeline
from vitkit.data.sources.source import Source
from vitkit.data.threads import Unreadable
from vitkit.data.unreadable import BadImageRule, BadImages
from vitkit.errors import InputError
from vitkit.models.configs import Preprocessing
from vitkit.models.model import Model, run_in
from vitkit.models.record import Record
from vitkit.progress import Progress
from vitkit.world import World

Function = Callable[[Tensor, np.ndarray], Tensor]
"From images, uint8 (images, channels, height, width), and their indices in the source to one row for each image."


class Rows(NamedTuple):
    """What a model made of the images that could be read."""

    indices: np.ndarray
    "Places of these images in the source, in order, int64 (images,)."
    values: np.ndarray
    "float32 (images, width)"


class SourcePass:
    """A pass over a source, which processes share; it can be repeated.

    Unreadable images are skipped, and all results are of the others; by `bad_images`, too many of them are an error.
    """

    def __init__(
        self,
        source: Source,
        preprocessing: Preprocessing,
        *,
        world: World,
        batch_size: int = 64,
        workers: int | None = None,
        bad_images: BadImages | BadImageRule = "skip",
        pipeline: Pipeline | None = None,
    ) -> None:
        """pipeline: how images are resized and cropped, where that is another than the preprocessing's way."""
        self.source, self.preprocessing, self.world = source, preprocessing, world
        self.loader = EvaluationLoader(
            source,
            evaluation_pipeline(preprocessing) if pipeline is None else pipeline,
            batch_size=batch_size,
            rank=world.rank,
            ranks=world.ranks,
            device=world.device,
            workers=workers,
            bad_images=bad_images,
        )
        self.bad: dict[int, Unreadable] = {}
        "Unreadable images of all processes, by index in the source; known at the end of a pass."

    def batches(
        self, module: nn.Module, function: Function, progress: Progress | None = None
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Yield indices and rows of this process's images; `module` is in evaluation mode meanwhile.

        Of several processes each calls `function` equally often, if need be with a blank image, whose row is cut off: a
        sharded model gathers its weights from all of them in each pass. progress: told how many of this process's images
        are done, and of how many.
        """
        loader, ranks, was_training = self.loader, self.world.ranks, module.training
        calls = -(-len(self.source) // (ranks * loader.batch_size))
        module.eval()
        try:
            with torch.no_grad():
                for batch in loader:
                    indices = batch["index"].cpu().numpy()
                    rows = self._call(function, batch["image"], indices)
                    calls -= 1
                    if progress is not None:
                        progress(int(indices[-1]) + 1 - loader.first, loader.stop - loader.first)
                    yield indices, rows
                shape = (1, len(self.preprocessing.mean), *self.preprocessing.size)
                blank, nowhere = torch.zeros(shape, dtype=torch.uint8, device=loader.device), np.zeros(1, int)
                for _ in range(calls if ranks > 1 else 0):
                    yield nowhere[:0], self._call(function, blank, nowhere)[:0]
        finally:
            module.train(was_training)

    def rows(self, module: nn.Module, function: Function, progress: Progress | None = None) -> Rows:
        """Return the rows of all images, on every process."""
        found, values, done = np.empty(self.loader.stop - self.loader.first, np.int64), torch.empty(0), 0
        for indices, part in self.batches(module, function, progress):
            if not len(values):
                values = torch.empty(len(found), *part.shape[1:])
            found[done : done + len(part)] = indices
            values[done : done + len(part)] = part
            done += len(part)
        self._share_bad()
        everywhere = self.world.gather(torch.from_numpy(found[:done]))
        self._check_any(len(everywhere))
        return Rows(everywhere.numpy(), self.world.gather(values[:done]).numpy())

    def means(self, module: nn.Module, function: Function) -> list[float]:
        """Return each column's mean over all images, on every process."""
        count, sums = 0, torch.zeros((), dtype=torch.float64)
        for indices, part in self.batches(module, function):
            count += len(indices)
            sums = sums + part.cpu().double().sum(0)  # MPS has no double precision
        self._share_bad()
        total = self.world.sum(torch.cat([sums.reshape(-1), torch.tensor([count], dtype=torch.float64)]))
        self._check_any(int(total[-1]))
        return (total[:-1] / total[-1]).tolist()

    def logits(
        self, model: Model, dtype: torch.dtype = torch.float32, progress: Progress | None = None
    ) -> Rows:
        """Return the logits of all images, (images, classes)."""
        return self.rows(model, lambda images, _: self.compute(model, images, dtype), progress)

    def features(
        self, model: Model, dtype: torch.dtype = torch.float32, progress: Progress | None = None
    ) -> Rows:
        """Return the features of all images, what the head reads: (images, width)."""
        return self.rows(model, self.features_of(model, dtype), progress)

    def features_of(self, model: Model, dtype: torch.dtype = torch.float32) -> Function:
        """Return the function from images to features, for `batches`."""

        def function(images: Tensor, _: np.ndarray) -> Tensor:
            record = Record("features")
            # By forward, not features: a sharded model gathers its weights there.
            self.compute(model, images, dtype, record)
            if record.features.ndim != 2:
                raise InputError(
                    "the model has no pool: it has features for each token, not for the image; vit finetune takes "
                    "model.pool=mean"
                )
            rows = record.features.float()
            if not rows.isfinite().all():
                raise InputError("the model gives features that are not finite: its weights are broken")
            return rows

        return function

    def compute(
        self, model: Model, images: Tensor, dtype: torch.dtype = torch.float32, record: Record | None = None
    ) -> Tensor:
        """Return the logits of images as they come from the source, float32."""
        inputs = normalize(images, self.preprocessing.mean, self.preprocessing.std)
        return run_in(dtype, model, inputs, record).float()

    def _call(self, function: Function, images: Tensor, indices: np.ndarray) -> Tensor:
        try:
            return function(images, indices)
        except torch.OutOfMemoryError as error:
            size = self.loader.batch_size
            raise InputError(f"out of memory with batch size {size}: give a smaller one") from error

    def _share_bad(self) -> None:
        """Tell every process of the unreadable images of all, and let each judge alike."""
        if self.world.any(len(self.loader.bad) > 0):
            self.bad = self.world.collect(self.loader.bad)
            self.loader.judge(self.bad)

    def _check_any(self, count: int) -> None:
        if not count:
            raise InputError(f"{self.source.name}:{self.source.split} has no images")


SourcePasses = Callable[[Source], SourcePass]
"Makes the pass over a source: a partial of SourcePass that has all but the source."
