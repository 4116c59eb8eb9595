"""Run all inspections of a model: pictures and numbers, or the reason why one is not defined."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from vitkit.config import Bounds, check_choice
from vitkit.data.images import EXTENSIONS, find_images, prepare
from vitkit.data.open import open_data
from vitkit.data.sources.dataset import MapDataset, is_dataset, open_dataset
from vitkit.data.sources.source import Files, Picture, Source, Subset, spread
from vitkit.data.sources.vision import DATA_SETS
from vitkit.data.spec import BUILT_IN, DataSpec
from vitkit.data.threads import Unreadable, work_through
from vitkit.data.unreadable import BadImageRule, Skipped
from vitkit.errors import InputError, did_you_mean
from vitkit.inspection.asking import Undefined, attending, check_head
from vitkit.inspection.attention import (
    attention_distance,
    attention_maps,
    pooling_map,
    token_colors,
    uniform_distance,
)
from vitkit.inspection.drawings import (
    Drawing,
    draw_distances,
    draw_filters,
    draw_photo,
    draw_positions,
    photo_sheets,
    photo_tiles,
)
from vitkit.inspection.flow import Flow, Fuse, gradient_rollout, rollout
from vitkit.models.configs import TransformerConfig
from vitkit.predictor import Prediction, Predictor
from vitkit.progress import Progress

Images = str | os.PathLike[str] | DataSpec | Source | MapDataset | Iterable[str | os.PathLike[str]]
"Files, folders, or data."
TABLES = (".csv", ".parquet", ".tar")
CHUNK = 16
"Images to prepare at once, if the caller doesn't set the batch size."
AHEAD = 128
"Limit on images that threads prepare ahead of the model: without it, many cores would fill the memory."
TOP = 5
NUM_METHODS = 6
"Passes over each photo: predictions, rollout, its gradient, tokens, pooling, attention."

Computed = TypeVar("Computed")


def open_images(images: Images, leave_out: Iterable[Path] = ()) -> Source:
    """Return the images of files, folders or a DATA string. Existing paths are photos, unless they are tables or shards.

    leave_out: files to skip, such as the pictures of an earlier inspection.
    """
    if isinstance(images, Source):
        return images
    if is_dataset(images):
        return open_dataset(images)
    if isinstance(images, DataSpec):
        return open_data(images, default="measure", labelled=False)
    if isinstance(images, str | os.PathLike) or not isinstance(images, Iterable):
        images = [images]
    given = list(images)
    for one in given:
        if not isinstance(one, str | os.PathLike):
            raise InputError(f"got an image of type {type(one).__name__}; expected paths, or a DATA string")
    if not given:
        raise InputError("no images to inspect: give at least one, or omit the argument")
    if len(given) == 1 and _is_data(os.fspath(given[0])):
        is_there = os.path.exists(os.path.expanduser(given[0]))
        return open_data(Path(given[0]) if is_there else given[0], default="measure", labelled=False)
    for text in (os.fspath(path) for path in given):
        is_named = ":" in text or text in (*BUILT_IN, *DATA_SETS)
        if is_named and not os.path.exists(os.path.expanduser(text)) and _is_data(text):
            raise InputError(
                f"{text} is data, and can't be combined with other arguments: give only it, or only files"
            )
    left_out = {path.resolve() for path in leave_out}
    for path in given:
        if Path(path).expanduser().resolve() in left_out:
            raise InputError(f"{path} is a picture from an earlier inspection: give the photo itself")
    found = find_images([os.path.expanduser(path) for path in given])
    paths = [str(path) for path in found if path.resolve() not in left_out]
    return Files("photos", "all", ("",), np.zeros(len(paths), np.int64), paths)


def _is_data(text: str) -> bool:
    path = os.path.expanduser(text)
    suffix = os.path.splitext(path)[1].lower()
    if os.path.isdir(path):
        try:
            return not find_images(path)
        except InputError:  # parquet files or shards in a folder
            return bool(os.listdir(path))
    if os.path.exists(path):
        return suffix in TABLES
    return suffix not in EXTENSIONS and not path.endswith(("/", os.sep))


class Distances(NamedTuple):
    """Mean attention distances in pixels (layers, heads), the distance for uniform attention, and the number of images."""

    values: np.ndarray
    uniform: float
    images: int


@dataclass(frozen=True)
class Photo:
    """An image, what it is predicted as, and where the model looks."""

    where: str
    name: str
    "Its path within the folder of all photos."
    label: str | None
    top: list[Prediction]
    target: str | None
    "The class of the gradient rollout."
    tiles: list[Drawing]
    sheets: list[Drawing]


@dataclass
class Findings:
    """All results. `undefined` has the reason for each inspection that is not defined."""

    drawings: dict[str, Drawing] = field(default_factory=dict)
    distances: Distances | None = None
    photos: list[Photo] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    undefined: dict[str, Undefined] = field(default_factory=dict)

    def attempt(self, name: str, compute: Callable[[], Computed]) -> Computed | None:
        """Return the result of `compute`; if it is not defined, keep the reason and return None."""
        try:
            return compute()
        except Undefined as error:
            self.undefined[name] = error
            return None


@dataclass(frozen=True)
class RolloutOptions:
    """Options of rollout: how to fuse heads, the weight of the residual, the share to discard, and the class."""

    fuse: Fuse = "mean"
    residual: float = 0.5
    discard: float = 0.0
    target: str | int | None = None

    def __post_init__(self) -> None:
        check_choice("fuse", self.fuse, Fuse)
        Flow(self.residual, self.discard)  # checks both


def examine_weights(predictor: Predictor) -> Findings:
    """Run the inspections that need no images: filters and similarity of positions."""
    found = Findings()
    for name, draw in (("filters", draw_filters), ("positions", draw_positions)):
        if drawing := found.attempt(name, partial(draw, predictor)):
            found.drawings[name] = drawing
    return found


def examine(
    predictor: Predictor,
    source: Source,
    *,
    num_images: int,
    num_photos: int,
    options: RolloutOptions | None = None,
    batch_size: int | None = None,
    rule: BadImageRule | None = None,
    progress: Progress | None = None,
) -> Findings:
    """Run all inspections, with attention distance over up to `num_images` and maps of up to `num_photos`.

    rule: what to do about unreadable images.
    """
    options = options or RolloutOptions()
    Bounds(at_least=1).check("num_images", num_images)
    Bounds(at_least=0).check("num_photos", num_photos)
    Bounds(at_least=1).check("batch_size", batch_size)
    if not len(source):
        raise InputError(f"{source.name}:{source.split} has no images")
    target = _class_number(predictor, options.target)
    found = examine_weights(predictor)
    shown = spread(len(source), min(num_photos, num_images))
    others = np.setdiff1d(spread(len(source), num_images), shown)
    others = others[spread(len(others), num_images - len(shown))]
    used = np.union1d(shown, others)
    if not isinstance(predictor.model.config, TransformerConfig):
        used = shown  # a ResNet has no attention to measure
    done, total = 0, len(used) + NUM_METHODS * len(shown)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress(done, total)

    try:
        skipped = Skipped(_unlabelled(source, used), rule or BadImageRule())
        kept = _measure(predictor, source, used, set(shown.tolist()), batch_size, found, skipped, advance)
        if kept:
            _map_photos(predictor, source, kept, target, options, batch_size, found, advance)
    except torch.OutOfMemoryError as error:
        words = "" if batch_size is None else f" with batch size {batch_size}"
        raise InputError(f"out of memory{words}: give a smaller --batch-size, or --device cpu") from error
    return found


def _unlabelled(source: Source, indices: np.ndarray) -> Source:
    """Return some images of a source, without requirements on their classes."""
    part = Subset(source, indices)
    part.may_lack_classes = True
    return part


def _class_number(predictor: Predictor, target: str | int | None) -> int | None:
    """Return the index of a class given by name or index."""
    if target is None:
        return None
    names = predictor.class_names
    if not names:
        raise InputError(f"{predictor.name} has no classification head: remove the target {target!r}")
    if target in names:
        return names.index(str(target))
    are_numbers = any(name.isdecimal() for name in names)  # then a number is a name
    if not isinstance(target, str) or (target.isdecimal() and not are_numbers):
        if 0 <= int(target) < len(names):
            return int(target)
        raise InputError(f"no class {target}: the model has {len(names)} classes, counted from 0")
    expected = "" if are_numbers else " or a number, counted from 0"
    near = did_you_mean(target, names) or f"; expected a name{expected}"
    raise InputError(f"the model has no class {target!r}{near}")


class ShownImage(NamedTuple):
    """An image to draw: its index in the source, the original picture, and the model's input."""

    place: int
    picture: Picture
    prepared: Tensor


def _measure(
    predictor: Predictor,
    source: Source,
    used: np.ndarray,
    shown: set[int],
    batch_size: int | None,
    found: Findings,
    skipped: Skipped,
    advance: Callable[[int], None],
) -> list[ShownImage]:
    """Average attention distances, a few images at a time, and return the images to draw."""
    config, preprocessing = predictor.model.config, predictor.preprocessing
    has_attention = found.attempt("distance", lambda: attending(predictor, "attention distance")) is not None
    kept: list[ShownImage] = []
    bad: dict[int, Unreadable] = {}
    sums, count = np.zeros(()), 0

    def read(picture: Picture) -> tuple[Picture, Tensor]:
        return picture, prepare(picture, preprocessing)

    parts = (used[start : start + AHEAD] for start in range(0, len(used), AHEAD))
    results = chain.from_iterable(work_through(source, part, read) for part in parts)
    while chunk := list(islice(results, batch_size or CHUNK)):
        tensors = []
        for index, result in chunk:
            if isinstance(result, Unreadable):
                found.unreadable.append(result)
                bad[int(np.searchsorted(used, index))] = result
                if skipped.rule.choice == "error":
                    skipped.add(bad)
                continue
            tensors.append(result[1])
            if index in shown:
                kept.append(ShownImage(index, *result))
        if tensors and has_attention:
            values = attention_distance(predictor, torch.stack(tensors), batch_size=batch_size)
            sums, count = sums + len(tensors) * values, count + len(tensors)
        advance(len(chunk))
    skipped.add(bad)
    if not has_attention:
        return kept
    assert isinstance(config, TransformerConfig)
    if not np.isfinite(sums).all():
        raise InputError(f"{predictor.name} gives attention that is not finite: its weights are broken")
    found.distances = Distances(sums / count, uniform_distance(config.grid, config.stride), count)
    found.drawings["distance"] = draw_distances(*found.distances)
    return kept


def _map_photos(
    predictor: Predictor,
    source: Source,
    kept: list[ShownImage],
    target: int | None,
    options: RolloutOptions,
    batch_size: int | None,
    found: Findings,
    advance: Callable[[int], None],
) -> None:
    """Draw each photo, its predictions, and every map that is defined."""
    images = torch.stack([photo.prepared for photo in kept])
    config = predictor.model.config

    def predict() -> list[list[Prediction]]:
        check_head(predictor, "a prediction")
        return predictor.predict([photo.picture for photo in kept], TOP, batch_size or CHUNK)

    tops = found.attempt("prediction", predict)
    advance(len(kept))
    classes = [top[0].index if target is None else target for top in tops or ()]
    shares = options.residual, options.discard
    methods: dict[str, Callable[[], np.ndarray]] = {
        "rollout": lambda: rollout(predictor, images, options.fuse, *shares, batch_size=batch_size),
        # Without predictions there are no classes; gradient_rollout is then undefined for the same reason.
        "gradient": lambda: gradient_rollout(predictor, images, classes or 0, *shares, batch_size=batch_size),
        "tokens": lambda: token_colors(predictor, images, batch_size=batch_size),
        "pooling": lambda: pooling_map(predictor, images, batch_size=batch_size),
        "attention": lambda: attention_maps(predictor, images, batch_size=batch_size),
    }
    maps: dict[str, np.ndarray] = {}
    for method, compute in methods.items():
        values = found.attempt(method, compute)
        if values is not None:
            maps[method] = values
        advance(len(kept))
    names = _photo_names(source, [photo.place for photo in kept])
    for place, photo in enumerate(kept):
        file = f"photo-{place + 1}"
        target_name = predictor.class_names[classes[place]] if classes else None
        own = {method: values[place] for method, values in maps.items()}
        picture = draw_photo(photo.prepared, config, predictor.preprocessing)
        found.photos.append(
            Photo(
                source.where(photo.place),
                names[place],
                _label(source, photo.place),
                tops[place] if tops else [],
                target_name if "gradient" in maps else None,
                photo_tiles(file, picture, own, target_name, config),
                photo_sheets(file, picture, own, config),
            )
        )


def _photo_names(source: Source, indices: list[int]) -> list[str]:
    """Return paths relative to the common folder of all images, so names don't depend on how many are drawn."""
    places = [source.where(index) for index in indices]
    others = [source.where(int(index)) for index in spread(len(source), 1000)]  # a sample if there are more
    try:
        top = os.path.commonpath([os.path.dirname(os.path.abspath(place)) for place in places + others])
        return [os.path.relpath(place, top) for place in places]
    except ValueError:  # on several drives
        return places


def _label(source: Source, index: int) -> str | None:
    """Return the class in the data's labels; photos have none."""
    if source.class_names == ("",):
        return None
    row = source.labels[index]
    numbers = np.flatnonzero(row).tolist() if source.is_multi_label else [int(row)]
    return ", ".join(source.class_names[number] for number in numbers) or None
