"""A model behind the batcher: pictures' bytes in, classes, features and attention out, each within its bound."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitkit.data.images import prepare
from vitkit.errors import InputError
from vitkit.evaluation.embeddings import Embeddings
from vitkit.inspection.asking import Undefined, attending
from vitkit.inspection.attention import attention_maps
from vitkit.inspection.drawings import draw_over_photo
from vitkit.inspection.flow import rollout
from vitkit.predictor import Prediction, Predictor
from vitkit.runtimes.model import RuntimeModel
from vitkit.serving.batcher import Batcher
from vitkit.serving.decoding import Header, read_header, time_decoding
from vitkit.serving.metrics import Metrics
from vitkit.serving.schedule import RESERVE
from vitkit.serving.times import measure_batches

TASK_SLACK = 4
"The bound of an attention map or of a search is that of all images, and so many times what it takes itself."


@dataclass(frozen=True)
class Look:
    """Which attention to draw: None is the rollout through all layers, or the mean of a layer's heads."""

    layer: int | None = None
    head: int | None = None


@dataclass(frozen=True)
class Search:
    """How many of the nearest images to find."""

    k: int


Task = Look | Search | None
"What is asked of a picture besides its outputs."


@dataclass(frozen=True)
class Work:
    """A picture, and what is asked of it: its outputs, a drawing of attention, or the images nearest to it."""

    data: bytes
    task: Task = None


@dataclass(frozen=True)
class Outputs:
    """What the model says of a picture."""

    logits: Tensor | None
    features: Tensor | None


@dataclass(frozen=True)
class Found:
    """An image of the features file that is near to a picture."""

    index: int
    name: str
    label: str
    similarity: float


Answer = Outputs | bytes | tuple[Found, ...] | InputError
"What became of a picture."


@dataclass(frozen=True)
class Attention:
    """What attention there is to look at."""

    layers: int
    heads: int


class Engine:
    """A loaded model that answers within a bound."""

    def __init__(
        self,
        predictor: Predictor,
        latency: float,
        batch_size: int = 32,
        threads: int = 1,
        max_pixels: int = 50_000_000,
        max_waiting: int = 1024,
        metrics: Metrics | None = None,
        features: Embeddings | None = None,
    ) -> None:
        """latency: seconds from a request's last byte to its answer. batch_size: the most images in a batch.

        threads: how many decode pictures of one batch. features: the images to search, by the same model.
        """
        self.predictor, self.max_pixels = predictor, max_pixels
        self.metrics = metrics or Metrics()
        self._preprocessing = predictor.preprocessing
        self._class_names = predictor.class_names
        self._pool = ThreadPoolExecutor(threads, "decode") if threads > 1 else None
        self.num_features: int | None = None
        self.is_draining = False  # whether requests are still welcome
        sample = _sample(self._preprocessing.size)
        self._probe(sample)
        self.attention, self.attention_reason = self._find_attention()
        self.features = features
        if features is not None:
            features.check(predictor)
        run = ThreadPoolExecutor(1, "measure")  # PyTorch's threads belong to the thread that uses them
        try:
            times = run.submit(
                measure_batches,
                lambda size: self._compute_all([Work(sample)] * size),
                batch_size,
                latency * (1 - RESERVE) / 2,
            ).result()
            self._decode_times = run.submit(time_decoding, self._prepare).result()
            self._task_seconds: dict[type, float] = {}
            tasks: list[Look | Search] = [Look()] if self.attention else []
            tasks += [] if features is None else [Search(1)]
            for task in tasks:
                work = [Work(sample, task)]
                self._compute_all(work)
                self._task_seconds[type(task)] = run.submit(
                    _seconds, partial(self._compute_all, work)
                ).result()
        finally:
            run.shutdown()
        self._sample_seconds = self._decode_times.predict(read_header(sample, 1 << 62))
        self.batcher: Batcher[Work, Answer] = Batcher(self._compute, times, latency, max_waiting)

    @property
    def can_classify(self) -> bool:
        """Whether the model has a head."""
        return bool(self._class_names)

    def header(self, data: bytes) -> Header:
        """Return what a picture's first bytes say; raise InputError for what will not be decoded."""
        return read_header(data, self.max_pixels)

    def submit(
        self, pictures: Sequence[bytes], headers: Sequence[Header], arrived: float, task: Task = None
    ) -> Future[list[Answer]]:
        """Return the future answers for pictures, each an InputError if it can't be read; or raise Refused at once."""
        more = self._task_seconds.get(type(task), 0.0)
        extras = [self._extra(header) + more for header in headers]
        works = [Work(data, task) for data in pictures]
        future = self.batcher.submit(works, extras, arrived, self.bound(task))
        self.metrics.set("vit_waiting_images", self.batcher.num_waiting)
        return future

    def bound(self, task: Task = None) -> float:
        """Return seconds from a request's last byte to its answer."""
        return self.batcher.latency + TASK_SLACK * self._task_seconds.get(type(task), 0.0)

    def classes(self, outputs: Outputs, top: int) -> list[Prediction]:
        """Return the likeliest classes."""
        assert outputs.logits is not None
        return self.predictor.likeliest(outputs.logits, top)

    def drain(self) -> None:
        """Say that requests are no longer welcome; those that come are still answered."""
        self.is_draining = True

    def close(self, timeout: float | None = None) -> bool:
        """Finish what was accepted, and return whether all of it is done."""
        return self.batcher.close(timeout)

    def _extra(self, header: Header) -> float:
        """Return what a picture takes beyond the one that batches were timed with."""
        return max(0.0, self._decode_times.predict(header) - self._sample_seconds)

    def _probe(self, sample: bytes) -> None:
        """Find out what the model gives; raise InputError for one that can't be served."""
        batch = self._prepare(sample)[None]
        try:
            logits, features = self.predictor.outputs(batch)
            self.num_features = features.shape[-1]
        except InputError:  # a module of the user's own, or a graph of one, may give logits alone
            logits = self.predictor.logits(batch)
        if logits.ndim != 2:
            raise InputError(
                f"{self.predictor.name} has no pool and gives logits for each token, so it can't be served"
            )

    def _find_attention(self) -> tuple[Attention | None, str]:
        if isinstance(self.predictor.model, RuntimeModel):
            return None, "an exported model hides its attention: serve the model folder that it was made from"
        try:
            _, config = attending(self.predictor, "a map of attention")
        except Undefined as error:
            return None, str(error)
        return Attention(config.num_layers, config.heads), ""

    def _prepare(self, data: bytes) -> Tensor:
        return prepare(data, self._preprocessing)

    def _try_prepare(self, work: Work) -> Tensor | InputError:
        try:
            return self._prepare(work.data)
        except InputError as error:
            return error

    def _compute(self, batch: Sequence[Work]) -> list[Answer]:
        start = time.perf_counter()
        results = self._compute_all(batch)
        self.metrics.add("vit_compute_seconds_total", amount=time.perf_counter() - start)
        self.metrics.observe("vit_batch_images", len(batch))
        self.metrics.set("vit_waiting_images", self.batcher.num_waiting)
        return results

    def _compute_all(self, batch: Sequence[Work]) -> list[Answer]:
        each = map if self._pool is None or len(batch) == 1 else self._pool.map
        prepared: list[Tensor | InputError] = [*each(self._try_prepare, batch)]
        passed = [
            image
            for image, work in zip(prepared, batch, strict=True)
            if isinstance(image, Tensor) and not isinstance(work.task, Look)
        ]
        rows = iter(self._outputs(torch.stack(passed)) if passed else ())
        results: list[Answer] = []
        for image, work in zip(prepared, batch, strict=True):
            if isinstance(image, InputError):
                results.append(image)
            elif isinstance(work.task, Look):
                results.append(self._draw(work.data, image, work.task))
            elif isinstance(work.task, Search):
                results.append(self._find(next(rows), work.task))
            else:
                results.append(next(rows))
        return results

    def _find(self, outputs: Outputs, task: Search) -> tuple[Found, ...]:
        assert self.features is not None and outputs.features is not None
        similarities, numbers = self.features.nearest(
            outputs.features[None].numpy(), task.k, self.predictor.device
        )
        return tuple(
            Found(
                number,
                os.path.basename(self.features.images[number]),
                self.features.labels[number],
                similarity,
            )
            for similarity, number in zip(similarities[0].tolist(), numbers[0].tolist(), strict=True)
        )

    def _outputs(self, batch: Tensor) -> list[Outputs]:
        if self.num_features is None:
            return [Outputs(row, None) for row in self.predictor.logits(batch)]
        logits, features = self.predictor.outputs(batch)
        return [
            Outputs(*row)
            for row in zip(logits if self.can_classify else [None] * len(batch), features, strict=True)
        ]

    def _draw(self, data: bytes, image: Tensor, look: Look) -> bytes:
        if look.layer is None:
            heat = rollout(self.predictor, image[None])[0]
        else:
            heads = attention_maps(self.predictor, image[None], [look.layer])[0, 0]
            heat = heads.mean(0) if look.head is None else heads[look.head]
        drawn = draw_over_photo(data, heat, self.predictor.model.config, self._preprocessing)
        file = io.BytesIO()
        drawn.save(file, "PNG", compress_level=1)
        return file.getvalue()


def _sample(size: tuple[int, int]) -> bytes:
    """Return a JPEG of a model's size, as noisy as a photo."""
    height, width = size
    rows, columns = np.mgrid[:height, :width]
    waves = 0.5 + 0.2 * np.sin(rows / 9) + 0.2 * np.cos(columns / 7)
    noise = np.random.default_rng(0).normal(0.0, 0.08, (height, width, 3))
    pixels = (255 * (waves[..., None] + noise).clip(0, 1)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
