"""Frozen features: what a model's head reads of every image, computed once, kept on disk, read in blocks."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitkit.data.cache import cache_folder
from vitkit.data.fetch import BadImages
from vitkit.data.open import Data, open_data
from vitkit.data.pipeline import Pipeline
from vitkit.data.sources.source import Source, fingerprint, shared_images
from vitkit.data.splits import Default
from vitkit.data.threads import Progress
from vitkit.errors import InputError
from vitkit.evaluation.passes import Rows, SourcePass
from vitkit.files import written_whole
from vitkit.models.configs import Preprocessing, Size
from vitkit.models.model import HEAD, Model, check_rgb
from vitkit.notes import Note
from vitkit.predictor import Predictor, load
from vitkit.results import Result
from vitkit.world import World

DIGEST_BYTES = 16
_READ_BYTES = 2**24


@dataclass(frozen=True)
class Features:
    """What a model makes of a source's images."""

    x: np.ndarray
    "float32 (images, width); mapped from the cache's file, so that it may be larger than memory."
    labels: np.ndarray
    class_names: tuple[str, ...]
    source: Source
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """Images to learn from and images to measure on, with the same classes."""

    train: Source
    test: Source


def frozen_features(
    predictor: Predictor,
    data: Data,
    *,
    default: Default = "train",
    classes: tuple[str, ...] | None = None,
    batch_size: int = 64,
    progress: Progress | None = None,
    cache: bool = True,
    pipeline: Pipeline | None = None,
) -> Features:
    """Return the features of the images of DATA, from the cache if they are there."""
    source = open_data(data, default=default, classes=classes)
    notes = list(source.notes)
    path = cache_folder() / "features" / f"{_key(predictor, source, pipeline)}.npy"

    def found(x: np.ndarray) -> Features:
        return Features(x, source.labels, source.class_names, source, tuple(notes))

    if cache:
        try:
            return found(_read(path, len(source)))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            notes.append(Note(f"{path} can't be used ({error}): features were computed anew", "warning"))
    world = World(0, 1, predictor.device)
    images = SourcePass(
        source, predictor.preprocessing, world=world, batch_size=batch_size, pipeline=pipeline
    )
    passed = images.batches(predictor.model, images.features_of(predictor.model), progress)
    batches = (rows.cpu() for _, rows in passed)
    first = next(batches)
    needed = len(source) * first.shape[1] * first.element_size()
    if cache and _has_room(path.parent, needed):
        _write(path, len(source), first, batches)
        return found(_read(path, len(source)))
    if cache:
        text = f"features are not kept: no room for {needed / 1e6:,.0f} MB in {path.parent}"
        notes.append(Note(text, "warning"))
    return found(torch.cat([first, *batches]).numpy())


def open_pair(data: Data, evaluate: Data | None) -> Pair:
    """Return the data to learn from and that to measure on; what can't be measured is an error before any work."""
    train = open_data(data, default="train")
    if evaluate is None:
        if train.spec is None:
            raise InputError(f"{train.data_name}: name the images to measure on (evaluate= in Python)")
        evaluate = train.spec.whole
    test = open_data(evaluate, default="measure", classes=train.class_names)
    names = (train.data_name, test.data_name)
    if shared := shared_images(train, test):
        raise InputError(
            f"{names[0]} holds {shared:,} of the images that would be measured ({names[1]}): "
            "name others with --evaluate (evaluate= in Python)"
        )
    for name, source in zip(names, (train, test), strict=True):
        if source.has_several_labels:
            raise InputError(f"{name} has several labels an image; frozen features are measured with one")
    unlearned = np.setdiff1d(test.labels, train.labels)
    if len(unlearned):
        raise InputError(
            f"{names[0]} has no image of {len(unlearned)} classes that {names[1]} measures, "
            f"such as {train.class_names[unlearned[0]]!r}: learn from data with all classes"
        )
    if len(np.unique(train.labels)) < 2:
        raise InputError(f"{names[0]} has images of one class alone; expected two or more")
    return Pair(train, test)


def load_frozen(model: str | os.PathLike[str] | Predictor, device: str, image_size: Size | None) -> Predictor:
    """Return a model; an untrained one has the same random weights each time."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise InputError("frozen features are measured in one process: start without torchrun")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        predictor = load(model, device=device, image_size=image_size)
    check_rgb(predictor.model.config, predictor.spec)
    return predictor


@dataclass(frozen=True)
class FrozenResult(Result):
    """How every result on frozen features begins."""

    model: str
    train: str
    test: str
    num_classes: int
    num_train: int
    num_test: int
    image_size: tuple[int, int]
    protocol: str


@dataclass(frozen=True)
class StrengthRow(Result):
    """The accuracy with a strength of regularisation."""

    l2: float
    accuracy: float


def head_of_result(predictor: Predictor, pair: Pair, protocol: str) -> FrozenResult:
    """Return what was measured, and how."""
    return FrozenResult(
        model=predictor.spec,
        train=pair.train.data_name,
        test=pair.test.data_name,
        num_classes=len(np.unique(pair.train.labels)),
        num_train=len(pair.train),
        num_test=len(pair.test),
        image_size=predictor.preprocessing.size,
        protocol=protocol,
    )


class FrozenEvaluator:
    """What few-shot, probe and nearest neighbours share in a training loop: features of both sources, one number."""

    name: str

    def __init__(
        self,
        train_source: Source,
        test_source: Source,
        preprocessing: Preprocessing,
        *,
        world: World,
        batch_size: int = 64,
        workers: int | None = None,
        bad_images: BadImages | None = None,
    ) -> None:
        for source in (train_source, test_source):
            if source.has_several_labels:
                raise InputError(
                    f"{source.name} has several labels an image; {self.name} is measured with one"
                )
        self.world = world
        self.train, self.test = (
            SourcePass(
                source,
                preprocessing,
                world=world,
                batch_size=batch_size,
                workers=workers,
                bad_images=bad_images,
            )
            for source in (train_source, test_source)
        )

    @property
    def bad(self) -> dict[str, str]:
        """This process's images that could not be read, with what is wrong with each."""
        return self.train.bad | self.test.bad

    def run(self, model: Model, dtype: torch.dtype = torch.float32) -> dict[str, float]:
        """Return the accuracy, the same on every process."""
        train, test = (images.features(model, dtype) for images in (self.train, self.test))
        accuracy = self.measure(train, test) if self.world.is_first else 0.0
        return {self.name: self.world.sum(torch.tensor(accuracy, dtype=torch.float64)).item()}

    def measure(self, train: Rows, test: Rows) -> float:
        """Return the accuracy on the features of `test` after learning from those of `train`."""
        raise NotImplementedError


def row_blocks(
    x: np.ndarray, size: int, rows: np.ndarray | None = None
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield places and float64 copies of `size` rows at a time: of all, or of those that `rows` numbers."""
    count = len(x) if rows is None else len(rows)
    for start in range(0, count, size):
        places = slice(start, min(start + size, count))
        yield places, np.array(x[places if rows is None else rows[places]], np.float64)


def mean_and_std(x: np.ndarray, size: int, rows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return each column's mean and population standard deviation, block by block in float64."""
    count = len(x) if rows is None else len(rows)
    mean = sum(block.sum(0) for _, block in row_blocks(x, size, rows)) / count
    if not np.isfinite(mean).all():
        raise InputError("features are not finite")
    square = sum(np.square(block - mean).sum(0) for _, block in row_blocks(x, size, rows)) / count
    return mean, np.sqrt(square)


def check_rows(x: Any, y: Any = None, width: int | None = None) -> np.ndarray:
    """Return features as an array (images, width), or say what is wrong with them or their labels."""
    x = np.asanyarray(x)
    if x.ndim != 2 or not len(x):
        raise InputError(f"features have shape {x.shape}; expected (images, width)")
    if width is not None and x.shape[1] != width:
        raise InputError(f"features are {x.shape[1]} wide; those that were learned from are {width}")
    if y is not None and np.shape(y) != (len(x),):
        raise InputError(f"labels have shape {np.shape(y)}; expected one for each of {len(x):,} images")
    return x


def check_classes(y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes, in order, and each label's place among them."""
    classes, places = np.unique(np.asarray(y), return_inverse=True)
    if len(classes) < 2:
        raise InputError("all images have one class; expected two or more")
    return classes, places


def _key(predictor: Predictor, source: Source, pipeline: Pipeline | None = None) -> str:
    """Return a text that changes when the weights, the preprocessing or an image does."""
    digest = hashlib.blake2b(digest_size=16)
    config = dataclasses.asdict(predictor.model.config)
    del config["num_classes"]
    digest.update(repr(("float32", config, predictor.preprocessing)).encode())
    if pipeline is not None:
        digest.update(str(pipeline).encode())
    for name, tensor in predictor.model.state_dict().items():
        if not name.startswith(HEAD):  # features don't depend on it
            digest.update(repr((name, tensor.dtype, tuple(tensor.shape))).encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    digest.update(fingerprint(source, labelled=False).encode())
    return digest.hexdigest()


def _has_room(folder: Path, needed: int) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > needed + 2**20
    except OSError:
        return False


def _write(path: Path, count: int, first: Tensor, others: Iterator[Tensor]) -> None:
    """Write a .npy file batch by batch, with a digest of it after its end, where NumPy doesn't look."""
    header = io.BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (count, first.shape[1])}
    np.lib.format.write_array_header_1_0(header, shape)
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    with written_whole(path) as part, open(part, "wb") as file:

        def put(data: bytes) -> None:
            digest.update(data)
            file.write(data)

        put(header.getvalue())
        put(first.numpy().tobytes())
        for rows in others:
            put(rows.numpy().tobytes())
        file.write(digest.digest())


def _read(path: Path, count: int) -> np.ndarray:
    """Map a file of features into memory; ValueError for one that isn't as it was written."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    with open(path, "rb") as file:
        left = os.fstat(file.fileno()).st_size - DIGEST_BYTES
        while left > 0:
            data = file.read(min(left, _READ_BYTES))
            if not data:
                raise ValueError("it became shorter")
            digest.update(data)
            left -= len(data)
        if file.read() != digest.digest():
            raise ValueError("its checksum is wrong")
    x: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    if x.dtype != np.float32 or x.ndim != 2 or len(x) != count:
        raise ValueError(f"it holds {x.dtype} of shape {x.shape}")
    return x


def mean_and_spread(values: list[float]) -> tuple[float, float | None]:
    """Return the mean, and the sample standard deviation where there are two values or more."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
