"""Batches by step: batch n is a function of the seed and n, whatever the workers, the ranks or what ran before."""

from __future__ import annotations

import atexit
import signal
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from vitkit.config import Bounds, check_choice
from vitkit.data.crops import is_full_precision
from vitkit.data.draws import Draw
from vitkit.data.fetch import Cache, Fetched, Fetcher, MemoryFetcher, cached, check_sizes
from vitkit.data.operations import send
from vitkit.data.order import Order, Sampling
from vitkit.data.pipeline import UNDRAWN, Pipeline, batch_steps, mix_steps, parse_pipeline
from vitkit.data.sources.source import Source
from vitkit.data.threads import Unreadable
from vitkit.data.unreadable import BadImageRule, BadImages, Skipped
from vitkit.errors import InputError
from vitkit.machine import num_cores
from vitkit.models.configs import as_size
from vitkit.world import World

Batch = dict[str, Tensor]
CHUNK = 32  # images that a worker prepares at a time
AHEAD = 4  # chunks that each worker prepares ahead
# Images from memory that are augmented at once, fewer where they are larger: small batches would wait for
# kernel launches.
TOGETHER, TOGETHER_PIXELS = 4096, 4096 * 32 * 32


class Loader:
    """Training batches {"image": uint8, "label"} on the device, addressable by step.

    Labels are int64 (images,), or float (images, classes) where images are mixed or data is multi-label.
    `batch_size` is global: each of `ranks` processes gets its share of every batch. Images are mixed inside
    groups of `group` neighbours, so that any share that holds whole groups gives the same pixels; from step
    `mix_until` on they are not.

    Another image takes the place of an unreadable one; by `bad_images`, too many of these are an error. A process finds
    those among its own images; with several ranks, training shares them (`share_bad`).
    """

    def __init__(
        self,
        source: Source,
        pipeline: Pipeline | str,
        *,
        batch_size: int,
        seed: int = 0,
        sampling: Sampling = "shuffle",
        group: int = 8,
        mix_until: int | None = None,
        rank: int = 0,
        ranks: int = 1,
        device: torch.device | str = "cpu",
        workers: int | None = None,
        start_method: str | None = None,
        cache: Cache = "none",
        bad_images: BadImages | BadImageRule = "skip",
    ) -> None:
        _check(batch_size, rank, ranks, workers)
        check_choice("sampling", sampling, Sampling)
        check_choice("cache", cache, Cache)
        Bounds(at_least=0).check("seed", seed)
        pipeline = _parsed(pipeline)
        if pipeline.mix and group < 2:
            raise InputError(f"group is {group}; images are mixed in groups of 2 or more")
        self.source = cached(source, cache)
        self.pipeline, self.batch_size, self.seed, self.group = pipeline, batch_size, seed, group
        self.mix_until = mix_until
        self.first, self.count = _share(batch_size, rank, ranks, group if pipeline.mix else 1)
        self.device = _device(device)
        self.workers, self.start_method = _workers(workers), start_method
        self.order = Order(self.source.labels, self.source.num_classes, seed, sampling)
        self.labels = torch.from_numpy(self.source.labels).to(self.device)
        self.fetcher = Fetcher(self.source, pipeline.image, seed, self.order)
        self.memory: MemoryFetcher | None = None
        if self.source.images is not None:
            self.memory = MemoryFetcher(self.source, pipeline.image, self.device)
        # Products in less than float32 are switched off while crops are resized, for all threads alike.
        self.prepares_ahead = self.device.type == "cuda" and is_full_precision(self.device)
        self.waited_seconds = 0.0
        "How long the caller has waited for data so far."
        self.ranks = ranks
        self.skipped = Skipped(self.source, _rule(bad_images))
        self.new_bad: dict[int, Unreadable] = {}
        "Unreadable images of this process's share that the other processes have not been told of."
        self._batch_steps, self._mix_steps = batch_steps(), mix_steps()

    @property
    def bad(self) -> dict[int, Unreadable]:
        """Unreadable images that were skipped so far, by index in the source."""
        return self.skipped.found

    def share_bad(self, world: World) -> None:
        """Tell every process of the unreadable images that each has met since, and let all judge alike."""
        if self.ranks > 1:
            found, self.new_bad = world.collect(self.new_bad), {}
            self.skipped.add(found)

    @property
    def steps_per_epoch(self) -> int:
        """How many steps it takes to see as many images as there are; the last may reach into the next epoch."""
        return -(-len(self.source) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        raise InputError(
            "a loader has no last batch: use loader.steps(start, stop), "
            f"one epoch is loader.steps(0, loader.steps_per_epoch), here {self.steps_per_epoch:,} steps"
        )

    def __getitem__(self, step: int) -> Batch:
        """Return the batch of one step, prepared here and now."""
        _check_steps(step, step)
        return self._prepare(range(step, step + 1))[0]

    def steps(self, start: int, stop: int) -> Iterator[Batch]:
        """Yield the batches of steps start to stop - 1, the next ones prepared by workers meanwhile."""
        _check_steps(start, stop)
        for batches in self._prepared(start, stop) if self.memory is not None else self._fetched(start, stop):
            yield from batches

    def _prepared(self, start: int, stop: int) -> Iterator[list[Batch]]:
        """Yield the batches of some steps at a time, of images in memory."""
        together = self._together()
        parts = (range(first, min(first + together, stop)) for first in range(start, stop, together))
        # A GPU is kept busy by another thread, which queues the next batches while the caller works on these.
        prepared = (
            ahead(self._prepare, parts, self.device) if self.prepares_ahead else map(self._prepare, parts)
        )
        while True:
            began = time.perf_counter()
            batches = next(prepared, None)
            self.waited_seconds += time.perf_counter() - began
            if batches is None:
                return
            yield batches

    def _fetched(self, start: int, stop: int) -> Iterator[list[Batch]]:
        """Yield the batches step by step, of images that workers fetch."""
        chunks = Chunks(start * self.batch_size + self.first, self.batch_size, self.count, stop - start)
        with closing(run_workers(self, chunks)) as fetched:
            for step in range(start, stop):
                began = time.perf_counter()
                joined = _join([next(fetched) for _ in range(chunks.per_batch)])
                with _threads_beside(self.workers, self.device):
                    batches = self._finish(range(step, step + 1), chunks.batch(step - start), joined)
                self.waited_seconds += time.perf_counter() - began
                yield batches

    def take_memory(self) -> None:
        """Take the memory of preparing ahead, next to whatever holds memory now."""
        if self.prepares_ahead and self.memory is not None:
            self._prepare(range(self._together()))

    def _together(self) -> int:
        """How many steps of images in memory are prepared at once."""
        assert self.memory is not None
        sizes = [as_size(dict(step.arguments)["size"]) for step in self.pipeline.image]
        largest = max(height * width for height, width in (*sizes, self.memory.images.shape[-2:]))
        return max(1, min(TOGETHER, TOGETHER_PIXELS // largest) // self.count)

    def _prepare(self, steps: range) -> list[Batch]:
        """Return the batches of some steps, prepared in this process."""
        starts = np.array(steps, np.int64)[:, None] * self.batch_size + self.first
        positions = (starts + np.arange(self.count)).reshape(-1)
        indices = self.order[positions]
        if self.memory is None:
            return self._finish(steps, positions, self.fetcher(indices, positions))
        indices, bad = self.memory.readable(indices, positions, self.order)
        images = self.memory(indices, Draw(self.seed, steps.start, positions))
        return self._finish(steps, positions, Fetched(images, indices, bad))

    def _finish(self, steps: range, positions: np.ndarray, fetched: Fetched) -> list[Batch]:
        """Augment all images at once, which changes none of them, and mix within each step, on the device."""
        if self.ranks == 1 or self.skipped.rule.choice == "error":
            self.skipped.add(fetched.bad)
        else:
            self.new_bad |= fetched.bad
        images = fetched.images.to(self.device, non_blocking=True)
        draw = Draw(self.seed, steps.start, positions)
        for place, item in enumerate(self.pipeline.batch):
            function = self._batch_steps[item.name]
            images = function(images, draw.child(f"{place}/{item.name}"), **dict(item.arguments))
        [places] = send(self.device, fetched.indices)
        labels = self.labels[places]
        if self.source.is_multi_label:
            labels = labels.float()
        elif self.pipeline.mix:
            labels = torch.nn.functional.one_hot(labels, self.source.num_classes).float()
        parts = zip(
            steps,
            positions.reshape(len(steps), -1),
            images.split(self.count),
            labels.split(self.count),
            strict=True,
        )
        return [self._mix(Draw(self.seed, step, own), *rest) for step, own, *rest in parts]

    def _mix(self, draw: Draw, images: Tensor, labels: Tensor) -> Batch:
        mixes = self.mix_until is None or draw.step < self.mix_until
        for place, item in enumerate(self.pipeline.mix if mixes else ()):
            function = self._mix_steps[item.name]
            part = draw.child(f"mix/{place}/{item.name}")
            images, labels = function(images, labels, part, group=self.group, **dict(item.arguments))
        return {"image": images, "label": labels}


class EvaluationLoader:
    """Every image of a source exactly once, in order, over any number of ranks; the last batch may be smaller.

    Unreadable images are skipped, and empty batches are not yielded; `bad` names them, and `judge` raises an error where
    they are too many. With `bad_images="error"` the first is an error at once.
    """

    def __init__(
        self,
        source: Source,
        pipeline: Pipeline | str,
        *,
        batch_size: int,
        rank: int = 0,
        ranks: int = 1,
        device: torch.device | str = "cpu",
        workers: int | None = None,
        start_method: str | None = None,
        bad_images: BadImages | BadImageRule = "skip",
    ) -> None:
        pipeline = _parsed(pipeline)
        steps = (*pipeline.image, *pipeline.batch, *pipeline.mix)
        if random := [step.name for step in steps if step.name not in UNDRAWN]:
            raise InputError(
                f"evaluation only takes the steps {', '.join(UNDRAWN)}, not {random[0]}; the pipeline is "
                f"{str(pipeline)!r}"
            )
        _check(batch_size, rank, ranks, workers)
        self.source, self.batch_size, self.device = source, batch_size, _device(device)
        self.first, self.stop = rank * len(source) // ranks, (rank + 1) * len(source) // ranks
        self.workers, self.start_method = _workers(workers), start_method
        self.order = None
        self.fetcher = Fetcher(source, pipeline.image, 0)
        self.rule = _rule(bad_images)
        self.bad: dict[int, Unreadable] = {}
        "Unreadable images of this process's share that were skipped so far, by index in the source."
        self.memory: MemoryFetcher | None = None
        if source.images is not None:
            self.memory = MemoryFetcher(source, pipeline.image, self.device)

    def __len__(self) -> int:
        """The number of batches on this rank."""
        return -(-(self.stop - self.first) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        chunks = Chunks(self.first, self.batch_size, self.batch_size, len(self), self.stop)
        with closing(run_workers(self, chunks)) as fetched:
            for number in range(len(self)):
                indices = chunks.batch(number)
                if self.memory is not None:
                    indices, bad = self.memory.readable(indices, indices)
                    part = Fetched(self.memory(indices, Draw(0, 0, indices)), indices, bad)
                else:
                    part = _join([next(fetched) for _ in range(0, len(indices), CHUNK)])
                images, indices = part.images, part.indices
                self.bad |= part.bad
                if self.rule.choice == "error":
                    self.judge(self.bad)
                if not len(indices):
                    continue
                labels = torch.from_numpy(self.source.labels[indices])
                batch = {"image": images, "label": labels, "index": torch.from_numpy(indices)}
                yield {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}

    def judge(self, bad: Mapping[int, Unreadable]) -> None:
        """Raise an InputError where unreadable images of the whole source are too many."""
        Skipped(self.source, self.rule).add(bad)


@dataclass(frozen=True)
class Chunks:
    """A rank's batches cut into chunks for workers: the global positions of each, by arithmetic."""

    first: int
    "Position of the rank's first image."
    stride: int
    "Positions from one batch to the next."
    count: int
    "The rank's images in a batch."
    num_batches: int
    stop: int | None = None
    "Positions from here on don't exist."

    @property
    def per_batch(self) -> int:
        return -(-self.count // CHUNK)

    def __len__(self) -> int:
        if self.stop is None or not self.num_batches:
            return self.num_batches * self.per_batch
        return (self.num_batches - 1) * self.per_batch + -(-len(self.batch(self.num_batches - 1)) // CHUNK)

    def __getitem__(self, number: int) -> np.ndarray:
        batch, part = divmod(number, self.per_batch)
        return self.batch(batch)[part * CHUNK : (part + 1) * CHUNK]

    def batch(self, number: int) -> np.ndarray:
        start = self.first + number * self.stride
        stop = start + self.count if self.stop is None else min(start + self.count, self.stop)
        return np.arange(start, stop, dtype=np.int64)


class _ChunksData(Dataset[Fetched | InputError]):
    """Chunks by number for torch's DataLoader; an error travels as a value, so that it arrives as it was."""

    def __init__(self, fetcher: Fetcher, order: Order | None, chunks: Chunks) -> None:
        self.fetcher, self.order, self.chunks = fetcher, order, chunks

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, number: int) -> Fetched | InputError:
        positions = self.chunks[number]
        try:
            return self.fetcher(positions if self.order is None else self.order[positions], positions)
        except InputError as error:
            return error


class _Mark:
    """Notes in shared memory which image a worker is on."""

    def __init__(self, marks: Tensor) -> None:
        self.marks, self.worker = marks, 0

    def start(self, worker: int) -> None:
        # A scheduler signals every process of a job: the one that trains decides when to stop, workers end with it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        torch.set_num_threads(1)
        self.worker = worker
        info = get_worker_info()
        assert info is not None and isinstance(info.dataset, _ChunksData)
        info.dataset.fetcher.mark = self

    def __call__(self, index: int) -> None:
        self.marks[self.worker] = index


def run_workers(loader: Loader | EvaluationLoader, chunks: Chunks) -> Generator[Fetched]:
    """Yield the chunks in order, prepared by worker processes; a worker that dies is reported with its image."""
    workers = loader.workers
    marks = torch.full((max(1, workers),), -1, dtype=torch.int64).share_memory_()
    data: DataLoader[Any] = DataLoader(
        _ChunksData(loader.fetcher, loader.order, chunks),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=AHEAD if workers else None,
        pin_memory=loader.device.type == "cuda",
        worker_init_fn=_Mark(marks).start,
        multiprocessing_context=loader.start_method if workers else None,
        generator=torch.Generator(),  # seeds that nothing reads; the global generator stays as it is
    )
    shape: tuple[int, ...] = ()
    items = iter(data)
    end = partial(_end_workers, weakref.ref(items))
    # Before multiprocessing asks workers to end by SIGTERM, which they ignore, and waits for them.
    atexit.register(end)
    try:
        for item in items:
            if isinstance(item, InputError):
                raise item
            if len(item.indices):
                shape = shape or item.images.shape
                check_sizes((shape, item.images.shape))
            yield item
    except RuntimeError as error:
        if "exited unexpectedly" not in str(error):  # torch's words, held by tests that kill workers
            raise
        held = [loader.source.where(index) for index in marks.tolist() if index >= 0]
        raise InputError(
            f"a data worker died; the workers were on: {', '.join(held) or 'nothing yet'}"
        ) from error
    finally:
        end()
        atexit.unregister(end)


def _end_workers(items: weakref.ref[Any]) -> None:
    """End the workers of a DataLoader's iterator, which it does when it is deleted; a second time changes nothing."""
    end = getattr(items(), "__del__", None)  # without workers it has none
    if end is not None:
        end()


def ahead(
    function: Callable[[range], list[Batch]], items: Iterable[range], device: torch.device
) -> Iterator[list[Batch]]:
    """Map like `map`, one item ahead, in a thread of its own."""
    with ThreadPoolExecutor(1) as thread:
        if device.type == "cuda":  # each thread has its own device and stream
            thread.submit(torch.cuda.set_stream, torch.cuda.current_stream(device)).result()
        last = None
        for item in items:
            coming = thread.submit(function, item)
            if last is not None:
                yield last.result()
            last = coming
        if last is not None:
            yield last.result()


@contextmanager
def _threads_beside(workers: int, device: torch.device) -> Iterator[None]:
    """Leave the cores that workers use to them: threads that wait for a core spin and slow everything down."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or not workers:
        yield
        return
    torch.set_num_threads(max(1, threads - workers))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _join(parts: list[Fetched]) -> Fetched:
    if len(parts) == 1:
        return parts[0]
    bad = {index: entry for part in parts for index, entry in part.bad.items()}
    full = [part for part in parts if len(part.indices)] or parts[:1]
    return Fetched(
        torch.cat([part.images for part in full]), np.concatenate([part.indices for part in full]), bad
    )


def _rule(bad_images: BadImages | BadImageRule) -> BadImageRule:
    return bad_images if isinstance(bad_images, BadImageRule) else BadImageRule(bad_images)


def _check_steps(start: int, stop: int) -> None:
    if not 0 <= start <= stop:
        raise InputError(f"steps count up from 0; got {start} to {stop}")


def _check(batch_size: int, rank: int, ranks: int, workers: int | None) -> None:
    Bounds(at_least=1).check("batch_size", batch_size)
    if not 0 <= rank < ranks:
        raise InputError(f"rank is {rank} of {ranks} ranks; expected 0 to {ranks - 1}")
    Bounds(at_least=0).check("workers", workers)


def _device(device: torch.device | str) -> torch.device:
    try:
        device = torch.device(device)
    except RuntimeError:
        raise InputError(f"device is {device!r}; expected cpu, cuda or mps") from None
    if device.type == "cuda" and device.index is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())  # in other threads it may be another
    return device


def _parsed(pipeline: Pipeline | str) -> Pipeline:
    return parse_pipeline(pipeline) if isinstance(pipeline, str) else pipeline


def _share(batch_size: int, rank: int, ranks: int, group: int) -> tuple[int, int]:
    """Return where a rank's images start in a batch and how many they are: whole groups for every rank."""
    if batch_size % (ranks * group):
        words = (
            f"groups of {group}, which mix among themselves: change batch_size or group (data.group in a run)"
            if group > 1
            else "images"
        )
        whose = f" for each of {ranks} ranks" if ranks > 1 else ""
        raise InputError(f"a batch of {batch_size} can't be cut{whose} into whole {words}")
    count = batch_size // ranks
    return rank * count, count


def _workers(workers: int | None) -> int:
    if workers is not None:
        return workers
    cores = num_cores()
    return min(cores, 16)
