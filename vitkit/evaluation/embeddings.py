"""A file of embeddings: what a model makes of every image of a data set, and the search for the images nearest to others.

It is a parquet file with a row for each image, in the order of the data: index, image, label and features. Its metadata
says by which weights and which preprocessing the features came about, so that others are refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitkit.config import Bounds
from vitkit.data.images import read_image
from vitkit.data.open import open_data
from vitkit.data.sources.source import Source
from vitkit.data.threads import Unreadable
from vitkit.errors import InputError, first_line
from vitkit.evaluation.features import features_digest, load_for_features
from vitkit.evaluation.neighbours import Nearest, nearest, unit_rows
from vitkit.files import check_regular, written_whole
from vitkit.models.configs import Preprocessing
from vitkit.models.own import OWN
from vitkit.predictor import AnyModel, Predictor
from vitkit.results import as_json
from vitkit.weights.folder import preprocessing_in_words

if TYPE_CHECKING:
    import pyarrow
    from pyarrow.parquet import ParquetFile

FORMAT = "vitkit features 1"
ROW_GROUP = 16_384
"Rows that are read and compared at once."
QUERIES = 1024
"Queries that are compared at once."
KEPT_BYTES = 1 << 31
"Larger files are read again for each search."
_KEY = b"vitkit"
# Parquet's own names of columns that hold lists.
_LEAVES = {"features": "features.list.element"}


@dataclass(frozen=True)
class Origin:
    """How features came about: the metadata of their file."""

    model: str
    "The MODEL string that was given."
    weights: str
    "A digest of the weights and of how images are prepared for them."
    preprocessing: Preprocessing
    data: str
    "The DATA string, with its split."
    images: str
    "A digest of the images, as far as they are known without reading them, and of their labels."
    unreadable: tuple[Unreadable, ...] = ()
    "Images that were skipped."


class Column(Sequence[str]):
    """A column of texts; several texts in one row are joined."""

    def __init__(self, values: pyarrow.ChunkedArray) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        value = self._values[index].as_py()
        return value if isinstance(value, str) else ", ".join(value)


class Embeddings:
    """The embeddings of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _open(path) as file:
            self.origin = _origin(path, _metadata(path, file))
            self.width: int = file.schema_arrow.field("features").type.list_size
            self._length: int = file.metadata.num_rows
            columns = _read(path, lambda: file.read(columns=["index", "image", "label"]))
        self.images, self.labels = Column(columns["image"]), Column(columns["label"])
        self.indices: np.ndarray = columns["index"].to_numpy()
        self._kept: list[Tensor] | None = None
        self._source: Source | None = None

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return (
            f"Embeddings({str(self.path)!r}, {len(self):,} images of {self.origin.data}, {self.origin.model})"
        )

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the features in blocks, float32 (images, width)."""
        with _open(self.path) as file:
            for number in range(file.num_row_groups):
                read = partial(file.read_row_group, number, columns=["features"])
                yield _matrix(_read(self.path, read)["features"], self.width)

    def features(self) -> np.ndarray:
        """Return all features, float32 (images, width)."""
        return np.concatenate([*self.blocks(), np.empty((0, self.width), np.float32)])

    def unit_blocks(self, device: str | torch.device = "cpu") -> Iterator[Tensor]:
        """Yield the features scaled to length one; the CPU keeps them where they are not too many."""
        if self._kept is not None:
            yield from (block.to(device) for block in self._kept)
            return
        kept: list[Tensor] | None = [] if 4 * self.width * len(self) <= KEPT_BYTES else None
        for rows in self.blocks():
            block = unit_rows(rows)
            if kept is not None:
                kept.append(block)
            yield block.to(device)
        self._kept = kept

    def nearest(self, vectors: np.ndarray, k: int = 10, device: str | torch.device = "cpu") -> Nearest:
        """Return the k images that are nearest to each vector, by cosine similarity; all images are compared.

        vectors: features by the same weights and preprocessing, (queries, width); `check` says whether a model has them.
        """
        Bounds(at_least=1).check("k", k)
        vectors = np.asarray(vectors, np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != self.width:
            raise InputError(
                f"queries have shape {vectors.shape}; expected (queries, {self.width}) for {self.path}"
            )
        parts = [
            nearest(unit_rows(vectors[start : start + QUERIES], device=device), self.unit_blocks(device), k)
            for start in range(0, len(vectors), QUERIES)
        ]
        if not parts:
            return Nearest(torch.empty(0, 0), torch.empty(0, 0, dtype=torch.int64))
        similarities, numbers = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
        return Nearest(similarities.clamp(-1, 1), numbers)

    def check(self, model: AnyModel | None = None, device: str = "auto") -> Predictor:
        """Return the model that made the features; an InputError if another is given, or one that prepares images differently.

        model: where it is now, if not where it was. One that isn't loaded yet takes images of the size that it took then.
        """
        if model is None:
            model = self.origin.model
            if model.startswith(OWN):
                raise InputError(f"{self.path} was made with a module of your own: give it as model=")
        is_loaded = isinstance(model, Predictor | nn.Module)
        predictor = load_for_features(model, device, None if is_loaded else self.origin.preprocessing.size)
        ours, theirs = predictor.preprocessing, self.origin.preprocessing
        advice = f"use {self.origin.model}, or run vit embed again"
        if ours != theirs:
            raise InputError(
                f"{self.path} was made with another preprocessing ({preprocessing_in_words(theirs)}) than that of "
                f"{predictor.spec} ({preprocessing_in_words(ours)}): {advice}"
            )
        if features_digest(predictor) != self.origin.weights:
            raise InputError(
                f"{self.path} was made with other weights than those of {predictor.spec}: {advice}"
            )
        return predictor

    def read(self, number: int) -> Image.Image:
        """Return an image as RGB: from its file, or else from the data that was embedded."""
        name = self.images[number]
        for path in (Path(name), self.path.parent / name):
            if path.is_file():
                return read_image(path)
        if self._source is None:
            self._source = open_data(self.origin.data, labelled=False)
        place = int(self.indices[number])
        if place >= len(self._source) or self._source.where(place) != name:
            raise InputError(f"{name} is not where it was when {self.path} was made")
        return Image.fromarray(self._source[place][0].permute(1, 2, 0).numpy())


def open_embeddings(path: str | os.PathLike[str]) -> Embeddings:
    """Open a file that `embed` wrote."""
    return Embeddings(Path(path).expanduser())


def make_table(indices: np.ndarray, source: Source, features: np.ndarray) -> pyarrow.Table:
    """Return the rows of some images of a source, in arrow's form."""
    import pyarrow as arrow

    names, labels = source.class_names, source.labels[indices]
    words: list[Any] = [names[label] for label in labels.tolist()] if labels.ndim == 1 else []
    if labels.ndim == 2:
        words = [[names[place] for place in np.flatnonzero(row)] for row in labels]
    width = features.shape[1]
    values = arrow.array(np.ascontiguousarray(features, np.float32).reshape(-1))
    schema = _schema(width, source.is_multi_label)
    columns = [
        arrow.array(indices, arrow.int64()),
        arrow.array([source.where(index) for index in indices.tolist()], arrow.string()),
        arrow.array(words, schema.field("label").type),
        arrow.FixedSizeListArray.from_arrays(values, type=schema.field("features").type),
    ]
    return arrow.Table.from_arrays(columns, schema=schema)


def write_tables(path: Path, tables: Iterable[pyarrow.Table], metadata: Mapping[str, Any]) -> None:
    """Write tables of rows into one file, whole, with metadata."""
    from pyarrow.parquet import ParquetWriter

    tables = iter(tables)
    first = next(tables)
    text = json.dumps({"format": FORMAT, **as_json(metadata)}, allow_nan=False)
    # Numbers of features can't be compressed.
    compression = {"index": "ZSTD", "image": "ZSTD", "label": "ZSTD", "features": "NONE"}
    with (
        written_whole(path) as part,
        ParquetWriter(
            part,
            first.schema.with_metadata({_KEY: text}),
            compression={_LEAVES.get(name, name): kind for name, kind in compression.items()},
            use_dictionary=False,
            write_statistics=False,
        ) as writer,
    ):
        for table in _regrouped(chain([first], tables)):
            writer.write_table(table.replace_schema_metadata({_KEY: text}), row_group_size=ROW_GROUP)


def read_table(path: Path) -> pyarrow.Table:
    """Return the rows of a small file."""
    with _open(path) as file:
        return _read(path, file.read).replace_schema_metadata(None)


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of a file."""
    with _open(path) as file:
        return _metadata(path, file)


def _regrouped(tables: Iterable[pyarrow.Table]) -> Iterator[pyarrow.Table]:
    """Yield the rows of tables, so many at a time as a file has in a group."""
    import pyarrow as arrow

    held: list[pyarrow.Table] = []
    for table in tables:
        held.append(table)
        while sum(map(len, held)) >= ROW_GROUP:
            joined = arrow.concat_tables(held)
            yield joined.slice(0, ROW_GROUP)
            held = [joined.slice(ROW_GROUP)]
    yield arrow.concat_tables(held)


def _schema(width: int, several: bool) -> pyarrow.Schema:
    import pyarrow as arrow

    def always(name: str, kind: Any) -> pyarrow.Field:
        return arrow.field(name, kind, nullable=False)

    text = arrow.string()
    return arrow.schema(
        [
            always("index", arrow.int64()),
            always("image", text),
            always("label", arrow.list_(always("element", text)) if several else text),
            always("features", arrow.list_(always("element", arrow.float32()), width)),
        ]
    )


def _matrix(column: pyarrow.ChunkedArray, width: int) -> np.ndarray:
    """Return a column of features as float32 (images, width)."""
    parts = [chunk.flatten().to_numpy() for chunk in column.chunks]
    joined = parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, np.float32)])
    return np.asarray(joined.reshape(-1, width))


def _open(path: Path) -> ParquetFile:
    from pyarrow.parquet import ParquetFile

    check_regular(path)
    return _read(path, lambda: ParquetFile(path, memory_map=True))


def _read(path: Path, request: Callable[[], Any]) -> Any:
    try:
        return request()
    except FileNotFoundError:
        raise InputError(f"no such file: {path}; `vit embed MODEL DATA --out {path}` makes one") from None
    except Exception as error:  # a damaged file may raise anything in Arrow
        raise InputError(f"cannot read {path}: {first_line(error).rstrip('.')}") from error


def _metadata(path: Path, file: ParquetFile) -> dict[str, Any]:
    """Return the metadata of a file of ours."""
    schema = file.schema_arrow
    try:
        found: dict[str, Any] = json.loads((schema.metadata or {})[_KEY])
        kind = schema.field("features").type
        if found["format"] != FORMAT or not kind.list_size or str(kind.value_type) != "float":
            raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(f"{path} is not a file of features that vit embed wrote") from None
    return found


def read_origin(path: Path) -> Origin:
    """Return how the features of a file came about."""
    with _open(path) as file:
        return _origin(path, _metadata(path, file))


def _origin(path: Path, found: Mapping[str, Any]) -> Origin:
    try:
        how: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in found["preprocessing"].items()
        }
        return Origin(
            **{name: str(found[name]) for name in ("model", "weights", "data", "images")},
            preprocessing=Preprocessing(**how),
            unreadable=tuple(Unreadable(**entry) for entry in found["unreadable"]),
        )
    except (KeyError, TypeError, AttributeError, InputError) as error:
        raise InputError(f"{path} has damaged metadata: {first_line(error)}") from None
