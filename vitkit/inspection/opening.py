"""Which images are inspected: files, folders, or data."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from vitkit.data.images import EXTENSIONS, find_images
from vitkit.data.open import BUILT_IN, open_data
from vitkit.data.sources.source import Files, Source
from vitkit.data.sources.vision import DATA_SETS
from vitkit.data.spec import DataSpec
from vitkit.errors import InputError

Images = str | os.PathLike[str] | DataSpec | Source | Iterable[str | os.PathLike[str]]
TABLES = (".csv", ".parquet", ".tar")


def open_images(images: Images, leave_out: Iterable[Path] = ()) -> Source:
    """Return the images of files, folders or a DATA string: what exists and isn't a table or shards is photos.

    leave_out: files that are no photos wherever they lie, an earlier inspection's.
    """
    if isinstance(images, Source):
        return images
    if isinstance(images, DataSpec):
        return open_data(images, default="measure", labelled=False)
    if isinstance(images, str | os.PathLike) or not isinstance(images, Iterable):
        images = [images]
    given = list(images)
    for one in given:
        if not isinstance(one, str | os.PathLike):
            raise InputError(f"an image is given as a {type(one).__name__}; expected paths, or a DATA string")
    if not given:
        raise InputError("no images to inspect: give one at least, or leave them out")
    if len(given) == 1 and _is_data(os.fspath(given[0])):
        is_there = os.path.exists(os.path.expanduser(given[0]))
        return open_data(Path(given[0]) if is_there else given[0], default="measure", labelled=False)
    for text in (os.fspath(path) for path in given):
        is_named = ":" in text or text in (*BUILT_IN, *DATA_SETS)
        if is_named and not os.path.exists(os.path.expanduser(text)) and _is_data(text):
            raise InputError(
                f"{text} is data, and data is inspected alone: leave out the others, or give files"
            )
    left_out = {path.resolve() for path in leave_out}
    for path in given:
        if Path(path).expanduser().resolve() in left_out:
            raise InputError(f"{path} is a picture of the inspection that is there: give the photo itself")
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
