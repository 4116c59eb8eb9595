"""A model behind the batcher: pictures' bytes in, classes, features and attention out, each within its bound."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitkit.data.images import prepare
from vitkit.errors import InputError
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

ATTENTION_SLACK = 4
"The bound of an attention map is that of all images, and so many times what it takes itself."


@dataclass(frozen=True)
class Look:
    """Which attention to draw: None is the rollout through all layers, or the mean of a layer's heads."""

    layer: int | None = None
    head: int | None = None


@dataclass(frozen=True)
class Work:
    """A picture, and what is asked of it: its outputs, or a drawing of attention."""

    data: bytes
    look: Look | None = None


@dataclass(frozen=True)
class Outputs:
    """What the model says of a picture."""

    logits: Tensor | None
    features: Tensor | None


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
    ) -> None:
        """latency: seconds from a request's last byte to its answer. batch_size: the most images in a batch.

        threads: how many decode pictures of one batch.
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
        run = ThreadPoolExecutor(1, "measure")  # PyTorch's threads belong to the thread that uses them
        try:
            times = run.submit(
                measure_batches,
                lambda size: self._compute_all([Work(sample)] * size),
                batch_size,
                latency * (1 - RESERVE) / 2,
            ).result()
            self._decode_times = run.submit(time_decoding, self._prepare).result()
            self.attention_seconds = 0.0
            if self.attention:
                look = Work(sample, Look())
                self._compute_all([look])
                self.attention_seconds = run.submit(_seconds, lambda: self._compute_all([look])).result()
        finally:
            run.shutdown()
        self._sample_seconds = self._decode_times.predict(read_header(sample, 1 << 62))
        self.batcher: Batcher[Work, Outputs | bytes | InputError] = Batcher(
            self._compute, times, latency, max_waiting
        )

    @property
    def can_classify(self) -> bool:
        """Whether the model has a head."""
        return bool(self._class_names)

    def header(self, data: bytes) -> Header:
        """Return what a picture's first bytes say; raise InputError for what will not be decoded."""
        return read_header(data, self.max_pixels)

    def submit(
        self, pictures: Sequence[bytes], headers: Sequence[Header], arrived: float, look: Look | None = None
    ) -> Future[list[Outputs | bytes | InputError]]:
        """Return the future answers for pictures, each an InputError if it can't be read; or raise Refused at once."""
        extras = [self._extra(header) for header in headers]
        if look is not None:
            extras = [extra + self.attention_seconds for extra in extras]
        future = self.batcher.submit(
            [Work(data, look) for data in pictures], extras, arrived, self.bound(look)
        )
        self.metrics.set("vit_waiting_images", self.batcher.num_waiting)
        return future

    def bound(self, look: Look | None) -> float:
        """Return seconds from a request's last byte to its answer."""
        slack = 0.0 if look is None else ATTENTION_SLACK * self.attention_seconds
        return self.batcher.latency + slack

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

    def _compute(self, batch: Sequence[Work]) -> list[Outputs | bytes | InputError]:
        start = time.perf_counter()
        results = self._compute_all(batch)
        self.metrics.add("vit_compute_seconds_total", amount=time.perf_counter() - start)
        self.metrics.observe("vit_batch_images", len(batch))
        self.metrics.set("vit_waiting_images", self.batcher.num_waiting)
        return results

    def _compute_all(self, batch: Sequence[Work]) -> list[Outputs | bytes | InputError]:
        each = map if self._pool is None or len(batch) == 1 else self._pool.map
        prepared: list[Tensor | InputError] = [*each(self._try_prepare, batch)]
        plain = [
            image
            for image, work in zip(prepared, batch, strict=True)
            if work.look is None and isinstance(image, Tensor)
        ]
        rows = iter(self._outputs(torch.stack(plain)) if plain else ())
        results: list[Outputs | bytes | InputError] = []
        for image, work in zip(prepared, batch, strict=True):
            if isinstance(image, InputError):
                results.append(image)
            elif work.look is None:
                results.append(next(rows))
            else:
                results.append(self._draw(work.data, image, work.look))
        return results

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
