"""Frozen features: what a model's head reads of every image, computed once for each image and kept on disk."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from vitkit.data.cache import cache_folder
from vitkit.data.open import Data, open_data
from vitkit.data.pipeline import Pipeline
from vitkit.data.sources.source import Source, Subset, image_keys
from vitkit.data.splits import Default
from vitkit.data.threads import Unreadable
from vitkit.data.unreadable import BadImageRule, BadImages, Skipped
from vitkit.errors import InputError
from vitkit.evaluation.passes import SourcePass
from vitkit.evaluation.row_store import RowStore
from vitkit.models.configs import OwnConfig, Size
from vitkit.models.model import HEAD, check_rgb
from vitkit.notes import Note
from vitkit.predictor import AnyModel, Predictor, load
from vitkit.progress import Progress
from vitkit.world import World, check_alone

# Settings of models that only training, or a new head, reads.
_TRAINING_ONLY = (
    *("num_classes", "head_bias", "dropout", "attention_dropout", "stochastic_depth", "patch_dropout"),
)


@dataclass(frozen=True)
class Features:
    """What a model makes of the images of a source that can be read."""

    x: np.ndarray
    "float32 (images, width); where one file of the cache holds it, mapped from there: it may be larger than memory."
    labels: np.ndarray
    "Of these images."
    indices: np.ndarray
    "Their places in the source, in order."
    class_names: tuple[str, ...]
    bad: dict[int, Unreadable]
    "Unreadable images, by place in the source."
    notes: tuple[str, ...]


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
    bad_images: BadImages | BadImageRule = "skip",
    judge: bool = True,
) -> Features:
    """Return the features of the images of DATA; those that the cache has are not computed.

    progress: called with the number of the others that are done, and their total.
    judge: whether too many unreadable images are an error; the caller may know of more images than these.
    """
    rule = bad_images if isinstance(bad_images, BadImageRule) else BadImageRule(bad_images)
    source = open_data(data, default=default, classes=classes)
    notes = list(source.notes)
    cache = cache and _may_be_kept(predictor, source)
    x, has = np.empty((0, 0), np.float32), np.zeros(len(source), bool)
    store = _store(predictor, pipeline)
    keys = image_keys(source) if cache else np.empty((len(source), 2), np.uint64)
    if cache:
        found = store.find(keys)
        x, has = found.x, found.has
        notes += [Note(f"{text}: its features are computed again", "warning") for text in found.damaged]
    missing, bad = np.flatnonzero(~has), dict[int, Unreadable]()
    if len(missing):
        images = SourcePass(
            Subset(source, missing) if has.any() else source,
            predictor.preprocessing,
            world=World(0, 1, predictor.device),
            batch_size=batch_size,
            pipeline=pipeline,
            bad_images=rule,
        )
        passed = images.batches(predictor.model, images.features_of(predictor.model), progress)
        rows: Iterator[tuple[np.ndarray, np.ndarray]] = ((at, part.cpu().numpy()) for at, part in passed)
        if first := next(rows, None):
            rows = chain([first], rows)
            needed = len(missing) * first[1].nbytes // len(first[1])
            if cache and store.has_room(needed):
                store.add(keys[missing], rows)
                found = store.find(keys)
                x, has = found.x, found.has
            else:
                x, has = _joined(x, has, missing, rows)
                if cache:
                    text = (
                        f"features are not kept: no room for {needed / 1e6:,.0f} MB in {store.folder.parent}"
                    )
                    notes.append(Note(text, "warning"))
        bad = {int(missing[place]): entry for place, entry in images.loader.bad.items()}
    if judge:
        Skipped(source, rule).add(bad)
    if len(x) + len(bad) < len(source):
        raise InputError(f"{store.folder} lost features while they were read: run the same command again")
    return Features(x, source.labels[has], np.flatnonzero(has), source.class_names, bad, tuple(notes))


def is_kept(predictor: Predictor, source: Source) -> bool:
    """Say whether a model's features of nearly all images of a source are in the cache."""
    return _may_be_kept(predictor, source) and _store(predictor).has(image_keys(source)).mean() > 0.9


def _may_be_kept(predictor: Predictor, source: Source) -> bool:
    """Say whether features stay as they are: the code of a module of the user's own may change, unseen."""
    return not source.may_change and not isinstance(predictor.model.config, OwnConfig)


def _store(predictor: Predictor, pipeline: Pipeline | None = None) -> RowStore:
    return RowStore(cache_folder() / "features" / features_digest(predictor, pipeline))


def load_frozen(model: AnyModel, device: str, image_size: Size | None) -> Predictor:
    """Return a model whose features one process measures."""
    check_alone("frozen features are measured in one process: start without torchrun")
    return load_for_features(model, device, image_size)


def load_for_features(model: AnyModel, device: str = "auto", image_size: Size | None = None) -> Predictor:
    """Return a model; an untrained one has the same random weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        predictor = load(model, device=device, image_size=image_size)
    check_rgb(predictor.model.config, predictor.spec)
    return predictor


def features_digest(predictor: Predictor, pipeline: Pipeline | None = None) -> str:
    """Return a text that changes when the weights do, or how images are prepared for them."""
    digest = hashlib.blake2b(digest_size=16)
    config = dataclasses.asdict(predictor.model.config)
    read = {name: value for name, value in config.items() if name not in _TRAINING_ONLY}
    computed = (predictor.model.precision, *([predictor.model.merge] if predictor.model.merge else []))
    digest.update(repr((*computed, read, predictor.preprocessing, pipeline and str(pipeline))).encode())
    for name, tensor in predictor.model.state_dict().items():
        if not name.startswith(HEAD):  # features don't depend on it
            digest.update(repr((name, tensor.dtype, tuple(tensor.shape))).encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _joined(
    x: np.ndarray, has: np.ndarray, missing: np.ndarray, rows: Iterator[tuple[np.ndarray, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the cache with those that come for the missing images, in the order of the source."""
    places, values = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    every = np.concatenate([np.flatnonzero(has), missing[places]])
    order = np.argsort(every)
    has = has.copy()
    has[every] = True
    return np.concatenate([x.reshape(-1, values.shape[1]), values])[order], has
