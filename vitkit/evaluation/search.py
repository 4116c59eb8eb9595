"""`vitkit.search` and `vitkit.find_duplicates`: the images of a file of embeddings that are most alike."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from vitkit.config import Bounds
from vitkit.data.images import find_images, read_image
from vitkit.data.sources.source import what_is_wrong
from vitkit.data.threads import Unreadable
from vitkit.data.unreadable import skipped_notes
from vitkit.display import png_files
from vitkit.errors import InputError
from vitkit.evaluation.approximate import Index
from vitkit.evaluation.embeddings import Embeddings, open_embeddings
from vitkit.evaluation.groups import Groups, similar_pairs
from vitkit.figures.sheets import TILE, Captioned, captioned_sheet, fit_tile, sheet_path
from vitkit.files import written_whole
from vitkit.notes import worded
from vitkit.predictor import AnyModel, choose_device
from vitkit.progress import Progress, showing
from vitkit.results import Result

K = 10
AT_LEAST = 0.9
"Cosine similarity from which images count as near-duplicates."
SHEET_ROWS, SHEET_COLUMNS = 20, 10
"Queries or groups on a sheet, and images that were found for each."
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@dataclass(frozen=True)
class Neighbour(Result):
    """An image of the file, and how similar it is."""

    image: str
    label: str
    row: int
    "Its place in the file of embeddings."
    similarity: float
    "Cosine similarity, at most 1."


@dataclass(frozen=True)
class SearchedImage(Result):
    """A query with the images nearest to it, nearest first, or with the reason why it can't be read."""

    image: str
    nearest: tuple[Neighbour, ...] | None = field(default=None, metadata={"optional": True})
    error: str | None = field(default=None, metadata={"optional": True})

    _tables = ("nearest",)


@dataclass(frozen=True)
class SearchResult(Result):
    """What `search` found."""

    features: str
    model: str
    images: int
    "That were compared with each query."
    queries: tuple[SearchedImage, ...]
    sheet: str | None = field(default=None, metadata={"optional": True})
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    _leads = ("queries", "features", "images")

    def _pictures(self) -> list[tuple[str, bytes]]:
        return png_files([self.sheet] if self.sheet else [])


@dataclass(frozen=True)
class DuplicateGroup(Result):
    """Images that are near-duplicates of each other, directly or through others of the group."""

    images: tuple[Neighbour, ...]
    "Each with its greatest similarity to another image of the group."
    has_several_labels: bool


@dataclass(frozen=True)
class DuplicatesResult(Result):
    """What `find_duplicates` found."""

    features: str
    model: str
    images: int
    at_least: float
    pairs: int
    "How many pairs are as similar as that, as far as they were found."
    duplicates: int
    "How many images would go if one of each group were kept."
    groups: tuple[DuplicateGroup, ...]
    "The largest first."
    sheet: str | None = field(default=None, metadata={"optional": True})
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    _leads = ("duplicates", "images", "groups")

    def _pictures(self) -> list[tuple[str, bytes]]:
        return png_files([self.sheet] if self.sheet else [])


def search(
    features: str | os.PathLike[str] | Embeddings,
    queries: Paths,
    *,
    k: int = K,
    model: AnyModel | None = None,
    approximate: bool = False,
    device: str = "auto",
    batch_size: int = 32,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: bool | Progress | None = True,
) -> SearchResult:
    """Return the k images in a file of embeddings that are nearest to each query.

    queries: image files, or folders of them. approximate: use an index instead of comparing all images; it is built once,
    needs faiss and may miss some images. model: the same model at its current place, if it was moved; other weights or
    another preprocessing are refused. out: a PNG with each query next to the images that were found. progress: False shows
    none; a function is called with the number of queries embedded, and with their total.
    """
    began = time.perf_counter()
    Bounds(at_least=1).check("k", k)
    sheet = None if out is None else sheet_path(out, force)
    found = features if isinstance(features, Embeddings) else open_embeddings(features)
    files = find_images(queries)
    predictor = found.check(model, device)
    vectors, errors = list[np.ndarray](), dict[int, str]()
    with showing(progress, "searching") as tell:
        for number, row in enumerate(predictor.embed_files(files, batch_size)):
            if isinstance(row, InputError):
                errors[number] = what_is_wrong(row)
            else:
                vectors.append(row)
            if tell:
                tell(number + 1, len(files))
    near = None
    if vectors and approximate:
        near = _index(found, progress).nearest(np.stack(vectors), k)
    elif vectors:
        near = found.nearest(np.stack(vectors), k, predictor.device)
    rows = iter(() if near is None else zip(near.similarities.tolist(), near.numbers.tolist(), strict=True))
    searched = [
        SearchedImage(os.fspath(file), error=errors[number])
        if number in errors
        else SearchedImage(os.fspath(file), tuple(_neighbours(found, *next(rows))))
        for number, file in enumerate(files)
    ]
    if sheet is not None:
        readable = [query for query in searched if query.nearest]
        title = f"the nearest of {len(found):,} images of {found.origin.data}"
        _draw(sheet, title, len(readable), [_query_row(found, query) for query in readable[:SHEET_ROWS]])
    skipped = skipped_notes(Unreadable(str(files[number]), why) for number, why in errors.items())
    return SearchResult(
        features=str(found.path),
        model=predictor.spec,
        images=len(found),
        queries=tuple(searched),
        sheet=None if sheet is None else str(sheet),
        notes=tuple(map(worded, (*predictor.notes, *skipped))),
        seconds=time.perf_counter() - began,
    )


def find_duplicates(
    features: str | os.PathLike[str] | Embeddings,
    *,
    at_least: float = AT_LEAST,
    approximate: bool = False,
    device: str = "auto",
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: bool | Progress | None = True,
) -> DuplicatesResult:
    """Return groups of near-duplicates among the images in a file of embeddings; each image is compared with all others.

    at_least: cosine similarity from which two images are in one group. approximate: compare each image only with its 32
    nearest in an index, which is built once, needs faiss and may miss some images. out: a PNG of the largest groups.
    progress: False shows none; a function is called with the number of images compared, and with their total.
    """
    began = time.perf_counter()
    Bounds(above=0, at_most=1).check("at_least", at_least)
    sheet = None if out is None else sheet_path(out, force)
    found = features if isinstance(features, Embeddings) else open_embeddings(features)
    groups, chosen = Groups(len(found)), choose_device(device)
    index = _index(found, progress) if approximate else None
    with showing(progress, "comparing") as tell:
        if index is None:
            rows = torch.cat([torch.empty(0, found.width, device=chosen), *found.unit_blocks(chosen)])
            every = similar_pairs(rows, at_least, tell)
        else:
            every = iter([index.similar_pairs(at_least, tell)])
        for pairs in every:
            groups.add(pairs)
    made = []
    for members in groups.members():
        best = groups.best[members]
        images = tuple(_neighbours(found, best.clip(max=1).tolist(), members.tolist()))
        made.append(DuplicateGroup(images, len({image.label for image in images}) > 1))
    if sheet is not None:
        title = f"near-duplicates among {len(found):,} images of {found.origin.data}"
        shown = [group.images[: SHEET_COLUMNS + 1] for group in made[:SHEET_ROWS]]
        _draw(sheet, title, len(made), [[_tile(found, image) for image in images] for images in shown])
    return DuplicatesResult(
        features=str(found.path),
        model=found.origin.model,
        images=len(found),
        at_least=at_least,
        pairs=groups.pairs,
        duplicates=sum(len(group.images) - 1 for group in made),
        groups=tuple(made),
        sheet=None if sheet is None else str(sheet),
        seconds=time.perf_counter() - began,
    )


def _index(found: Embeddings, progress: bool | Progress | None) -> Index:
    with showing(progress, "building the index") as tell:
        return Index(found, tell)


def _neighbours(found: Embeddings, similarities: Sequence[float], rows: Sequence[int]) -> Iterator[Neighbour]:
    for similarity, row in zip(similarities, rows, strict=True):
        yield Neighbour(found.images[row], found.labels[row], row, similarity)


def _query_row(found: Embeddings, query: SearchedImage) -> list[Captioned]:
    pixels = np.asarray(read_image(Path(query.image)))
    first = Captioned(fit_tile(pixels, TILE), "query", os.path.basename(query.image))
    return [first, *(_tile(found, image) for image in (query.nearest or ())[:SHEET_COLUMNS])]


def _tile(found: Embeddings, image: Neighbour) -> Captioned:
    """Return a small picture of an image; none where it can't be read any more."""
    try:
        tile = fit_tile(np.asarray(found.read(image.row)), TILE)
    except InputError:
        tile = None
    return Captioned(tile, f"{image.similarity:.3f}", image.label or os.path.basename(image.image))


def _draw(path: Path, title: str, count: int, rows: Sequence[Sequence[Captioned]]) -> None:
    if count > len(rows):
        title += f", {len(rows)} of {count:,} shown"
    with written_whole(path) as part:
        captioned_sheet(title, rows).save(part, "PNG")
