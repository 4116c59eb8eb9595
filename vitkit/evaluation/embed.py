"""`vitkit.embed`: a model's features of every image of a data set, in one parquet file; the same command resumes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from vitkit.config import Bounds
from vitkit.data.open import Data, open_data
from vitkit.data.sources.source import Source, Subset, fingerprint
from vitkit.data.spec import DataSpec, as_spec
from vitkit.data.threads import Unreadable
from vitkit.data.unreadable import BadImageRule, BadImages, Skipped, skipped_notes
from vitkit.errors import InputError
from vitkit.evaluation.embeddings import (
    Origin,
    make_table,
    open_embeddings,
    read_metadata,
    read_origin,
    read_table,
    write_tables,
)
from vitkit.evaluation.features import features_digest, load_for_features
from vitkit.evaluation.passes import SourcePass
from vitkit.files import check_output
from vitkit.models.configs import Size
from vitkit.notes import worded
from vitkit.predictor import AnyModel, Predictor, choose_device, named_model
from vitkit.progress import Progress, showing, telling
from vitkit.results import Result
from vitkit.runs.folder import RunFolder
from vitkit.runs.records import KINDS
from vitkit.world import World, join_world

ENDING = ".parquet"
PART = 1024
"Images of a part, about: what an interruption loses at most."


@dataclass(frozen=True)
class EmbedResult(Result):
    """What a file of features holds."""

    model: str
    data: str
    out: str
    images: int
    width: int
    image_size: tuple[int, int]
    resumed_images: int
    "That an earlier, interrupted run had embedded."
    unreadable: tuple[Unreadable, ...]
    "Images that were skipped."
    notes: tuple[str, ...]
    seconds: float

    _leads = ("images", "width", "out", "model", "data")


class Span(NamedTuple):
    """Images of a part, by their places in the source."""

    start: int
    stop: int

    @property
    def name(self) -> str:
        return f"{self.start:010d}-{self.stop:010d}{ENDING}"


def embed(
    model: AnyModel,
    data: Data,
    out: str | os.PathLike[str],
    *,
    device: str = "auto",
    batch_size: int = 64,
    image_size: Size | None = None,
    bad_images: BadImages = "skip",
    force: bool = False,
    progress: bool | Progress | None = True,
    announce: Callable[[str], None] | None = None,
) -> EmbedResult:
    """Write a model's features of every image of DATA, or of the split that it names, to a parquet file.

    The same call again resumes. Under torchrun, the processes share the images: each writes parts of its own, the first
    joins them, and each returns the result.

    bad_images: "skip" skips unreadable images, unless they are too many or all of a class; "error" stops at the first,
    "any" skips any number. force: overwrite a file, or start over. progress: False shows none; a function is called with
    the number of images done, and with their total. announce: called with each note at once; the result has the notes
    too.
    """
    began, path = time.perf_counter(), Path(out).expanduser()
    if path.suffix != ENDING:
        raise InputError(f"{out} is no name for a file of features: expected one that ends in {ENDING}")
    check_output(path, force=True)
    Bounds(at_least=1).check("batch_size", batch_size)
    rule, parts = BadImageRule(bad_images, "option"), path.with_name(f"{path.name}.parts")
    model, given = named_model(model)
    is_loaded = isinstance(model, Predictor) and device == "auto"
    chosen = model.device if is_loaded else choose_device(device, model)  # type: ignore[union-attr]
    with join_world(chosen) as world:
        predictor = load_for_features(model, world.device.type, image_size)
        source = _open(data)
        notes = (*predictor.notes, *source.notes)
        tell_notes = telling(progress, announce) if world.is_first else lambda line: None
        for line in notes:
            tell_notes(line)
        weights, images = features_digest(predictor), fingerprint(source)
        origin = Origin(given, weights, predictor.preprocessing, source.data_name, images)
        known = None if force else _finished(path, origin, parts)
        resumed = 0 if known is None else len(source)
        if known is None:
            with ExitStack() as stack:
                if world.is_first:
                    settings = {"weights": weights, "images": images}
                    folder = stack.enter_context(RunFolder(parts, settings, kind="embed", force=force))
                    folder.clear()
                done = world.collect({0: _spans(parts)} if world.is_first else {})[0]
                resumed = sum(span.stop - span.start for span in done)
                todo = _missing(done, len(source), batch_size * max(1, PART // batch_size))
                first, last = (len(todo) * rank // world.ranks for rank in (world.rank, world.rank + 1))
                with showing(progress if world.is_first else None, "embedding") as tell:
                    _write_parts(
                        predictor, source, todo[first:last], parts, rule, batch_size, world.device, tell
                    )
                world.barrier()
                bad = world.collect(_unreadable(parts) if world.is_first else {})
                Skipped(source, rule).add(bad)
                if world.is_first:
                    origin = replace(origin, unreadable=tuple(bad[index] for index in sorted(bad)))
                    tables = (read_table(parts / span.name) for span in _spans(parts))
                    write_tables(path, filter(len, tables), asdict(origin))
                    folder.update(status="done")
            world.barrier()
        if world.is_first:
            _remove(parts)
        opened = open_embeddings(path)
    unreadable = opened.origin.unreadable
    skipped = skipped_notes(unreadable)
    for line in skipped:
        tell_notes(line)
    return EmbedResult(
        model=given,
        data=source.data_name,
        out=str(path),
        images=len(opened),
        width=opened.width,
        image_size=predictor.preprocessing.size,
        resumed_images=resumed,
        unreadable=unreadable,
        notes=tuple(map(worded, (*notes, *skipped))),
        seconds=time.perf_counter() - began,
    )


def _open(data: Data) -> Source:
    """Return every image of the data if it names no split; images need no labels."""
    if isinstance(data, str | os.PathLike | DataSpec) and (spec := as_spec(data)).split is None:
        data = replace(spec, split="all")
    source = open_data(data, labelled=False)
    if not len(source):
        raise InputError(f"{source.data_name} has no images")
    return source


def _finished(path: Path, origin: Origin, parts: Path) -> Origin | None:
    """Return how a file came about that has these features already; None if they are to be computed."""
    if not path.exists():
        return None
    try:
        found = read_origin(path)
    except InputError:
        raise InputError(f"{path} exists; --force overwrites it") from None
    if (found.weights, found.images) == (origin.weights, origin.images):
        return found
    if parts.exists():  # an earlier call was to overwrite it, and was interrupted
        return None
    raise InputError(
        f"{path} exists and holds other features, of {found.data} by {found.model}; --force overwrites it"
    )


def _spans(folder: Path) -> list[Span]:
    """Return the parts in a folder, in order."""
    names = sorted(path.stem for path in folder.glob(f"[0-9]*{ENDING}"))
    return [Span(*map(int, name.split("-"))) for name in names]


def _missing(done: Sequence[Span], count: int, size: int) -> list[Span]:
    """Return what no part has of so many images, in parts of a size.

    A part starts at a multiple of the batch size, so that batches, and with them the last bit of each number, are the
    same however often the work was interrupted and however many processes share it.
    """
    edges = [0, *(edge for span in done for edge in span), count]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    return [
        Span(start, min(start + size, stop)) for first, stop in gaps for start in range(first, stop, size)
    ]


def _write_parts(
    predictor: Predictor,
    source: Source,
    spans: Sequence[Span],
    folder: Path,
    rule: BadImageRule,
    batch_size: int,
    device: torch.device,
    tell: Progress | None,
) -> None:
    """Compute the features of some images and write each part as soon as it is complete."""
    if not spans:
        return
    places = np.concatenate([np.arange(*span) for span in spans])
    ends = np.cumsum([span.stop - span.start for span in spans])
    images = SourcePass(
        source if len(places) == len(source) else Subset(source, places),
        predictor.preprocessing,
        world=World(0, 1, device),
        batch_size=batch_size,
        bad_images=rule,
    )
    held: list[tuple[np.ndarray, np.ndarray]] = []
    number, empty = 0, np.empty((0, 1), np.float32)

    def flush() -> None:
        nonlocal number
        first, last = ends[number] - (spans[number].stop - spans[number].start), ends[number]
        bad = {int(places[at]): entry for at, entry in images.loader.bad.items() if first <= at < last}
        at = np.concatenate([np.empty(0, np.int64), *(at for at, _ in held)])
        features = np.concatenate([rows for _, rows in held]) if held else empty
        table = make_table(places[at], source, features)
        write_tables(folder / spans[number].name, [table], {"unreadable": bad})
        held.clear()
        number += 1

    for at, rows in images.batches(predictor.model, images.features_of(predictor.model), tell):
        owners = np.searchsorted(ends, at, side="right")
        for owner in np.unique(owners):
            while number < owner:
                flush()
            held.append((at[owners == owner], rows[torch.from_numpy(owners == owner)].cpu().numpy()))
        while number < len(spans) and ends[number] <= at[-1] + 1:
            flush()
    while number < len(spans):
        flush()


def _unreadable(folder: Path) -> dict[int, Unreadable]:
    """Return the unreadable images of all parts, by their places in the source."""
    found: dict[int, Unreadable] = {}
    for span in _spans(folder):
        for index, entry in read_metadata(folder / span.name)["unreadable"].items():
            found[int(index)] = Unreadable(**entry)
    return found


def _remove(folder: Path) -> None:
    """Remove the parts of a file that is finished."""
    if folder.is_dir():
        for path in (folder / KINDS["embed"].record, *(folder / span.name for span in _spans(folder))):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # something else came into it
            folder.rmdir()
