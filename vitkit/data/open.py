"""The one door to data: a DATA string becomes a source of images."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, get_args

from vitkit.data.images import EXTENSIONS, is_hidden
from vitkit.data.sources.dataset import MapDataset, is_dataset, open_dataset
from vitkit.data.sources.files import find_files, is_url, without_query
from vitkit.data.sources.source import Absent, Source, match_classes, take
from vitkit.data.sources.vision import DATA_SETS
from vitkit.data.spec import BUILT_IN, HUB, TORCH, VTAB, DataSpec, as_spec
from vitkit.data.splits import MADE, Default, choose_split, group_files, listed, made_splits
from vitkit.errors import InputError, did_you_mean
from vitkit.files import local_path, read_file
from vitkit.notes import Note

Data = str | os.PathLike[str] | DataSpec | Source | MapDataset
"What verbs take: a DATA string, a path, a source that is open already, or a map-style data set of PyTorch."
MANIFEST = "pack.json"
"What `vit pack` writes next to its shards."
# Splits that are made of others.
JOINT = {"trainval": ("train", "val"), "train800val200": ("train800", "val200")}
# Items that only some sources read.
ITEMS = {"label": ("shapes",), "size": ("shapes",), "root": DATA_SETS, "download": DATA_SETS}


def open_data(
    data: Data,
    *,
    default: Default = "train",
    classes: Sequence[str] | None = None,
    tolerate: bool = False,
    labelled: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Source:
    """Open the images that a DATA string or a path names, or a PyTorch data set.

    A source is returned as it is, except for `classes`.

    default: which split to use if the data names none: "train", or with "measure" test, else val.
    classes: class names in the order that labels must follow, such as a trained model's.
    tolerate: whether to open data with faults, such as missing files.
    labelled: whether labels are needed; without them, a folder may have images outside class folders.
    progress: called with the number of images done, and with their total, while a PyTorch data set's labels are read.
    """
    if default not in get_args(Default):
        raise InputError(
            f"default is {default!r}; expected 'train' or 'measure'; to choose a split, name it in the data, as in 'digits:val'"
        )
    if isinstance(data, Source):
        source = data
    elif not isinstance(data, str | os.PathLike | DataSpec):
        source = _open_object(data, progress)
    else:
        spec = as_spec(data)
        check_items(spec)
        try:
            source = take(_open(spec, default, classes, labelled), spec)
        except Absent as error:
            raise Absent("; ".join(filter(None, (str(error), _namesake(spec))))) from error
        source.spec = replace(spec, split=source.split)
        source.may_lack_classes = not labelled
        if namesake := _namesake(spec):
            source.notes += (Note(f"{spec.source}: using the data set; {namesake}", "data"),)
    if source.faults and not tolerate:
        raise InputError(source.faults[0])
    return source if classes is None else match_classes(source, classes)


def _open_object(data: object, progress: Callable[[int, int], None] | None = None) -> Source:
    if not is_dataset(data):
        raise InputError(
            f"data is a {type(data).__name__}; expected a DATA string, a path, a source, or a map-style data set of PyTorch"
        )
    return open_dataset(data, progress)


def named_data(data: Data) -> tuple[str | os.PathLike[str] | DataSpec | Source, str]:
    """Return data, of a PyTorch data set as a source, and the DATA string by which configs and results name it."""
    if isinstance(data, os.PathLike):
        return data, local_path(data)
    if isinstance(data, str | DataSpec):
        return data, str(data)
    source = data if isinstance(data, Source) else _open_object(data)
    return source, source.data_name


def list_splits(data: str | os.PathLike[str] | DataSpec) -> list[str]:
    """Return the splits that a DATA has, without opening one: train, val, test, or what the data calls them.

    Slice and shots of the DATA don't matter, nor does the split that it names; 'all' is not listed. Data without splits
    has those that are made of it and hold images. To open a listed split may still fail: its files may be damaged, or a
    data set not be in its folder, which is an `Absent`.
    """
    spec = as_spec(data).whole
    if spec.source.startswith(TORCH):
        return []
    if stated := stated_splits(spec):
        return stated
    if is_url(spec.source):  # to make them, all of it would be read: an error when one is opened
        return list(MADE)
    source = open_data(replace(spec, split="all"), tolerate=True)
    return [split for split, mask in made_splits(source).items() if mask.any()]


def stated_splits(spec: DataSpec) -> list[str]:
    """Return the splits that the names of files, folders or tables say; none where they are made."""
    if spec.source.startswith(HUB):
        from vitkit.data.sources.hub import list_hub_splits

        return list_hub_splits(spec.source)
    if spec.is_path:
        files = find_files(spec.source)
        if os.path.isdir(files[0]):
            from vitkit.data.sources.folder import list_folder_splits

            return list_folder_splits(files[0])
        if files[0].lower().endswith(".csv"):
            from vitkit.data.sources.table import list_table_splits

            return list_table_splits(files[0])
        return list(group_files(files)[0])
    if spec.source in BUILT_IN:
        return list(MADE)
    if spec.source in DATA_SETS:
        return list(DATA_SETS[spec.source].splits)
    if spec.source.startswith(VTAB):
        from vitkit.data.sources.vtab import list_vtab_splits

        return list_vtab_splits(spec)
    raise _unknown(spec.source)


def open_splits(spec: DataSpec, faults: list[str] | None = None) -> list[Source]:
    """Return every split of a DATA but those that others make up, each with the spec's slice and shots.

    faults: collects why splits can't be opened, which is an error otherwise, or where there is no other.
    """
    check_items(spec)
    names = list_splits(spec)
    found: list[Source] = []
    for split in names:
        if split in JOINT and {*JOINT[split]} <= {*names}:
            continue
        try:
            found.append(open_data(replace(spec.whole, split=split), tolerate=True))
        except InputError as error:
            if faults is None:
                raise
            faults.append(str(error))
    if faults and not found:
        raise InputError(faults[0])
    return [take(source, replace(spec, split=source.split)) for source in found]


def _namesake(spec: DataSpec) -> str:
    """Return a line on the file or folder of the same name as a data set, '' where there is none or root= is given."""
    if spec.is_path or spec.root is not None or not os.path.exists(spec.source):
        return ""
    return f"'./{spec.source}' is the {'folder' if os.path.isdir(spec.source) else 'file'} of that name"


def _open(spec: DataSpec, default: Default, classes: Sequence[str] | None, labelled: bool) -> Source:
    if spec.source == "pipe" or spec.source.startswith("pipe:"):
        raise InputError("pipe: runs a shell command and is refused; give the files or their URL")
    if spec.source.startswith(TORCH):
        raise InputError(
            f"{spec.source} is a PyTorch data set, which has no other splits and opens only in Python: pass the data set "
            "itself, and the one to measure on as evaluate="
        )
    if spec.source.startswith(HUB):
        from vitkit.data.sources.hub import open_hub

        return open_hub(spec, default, classes)
    if spec.is_path:
        files = find_files(spec.source)
        source = _open_files(files, spec, default, classes, labelled)
        source.notes += tuple(_incomplete(files))
        return source
    if spec.source in BUILT_IN:
        return _open_built_in(spec, default)
    if spec.source in DATA_SETS:
        from vitkit.data.sources.vision import open_vision

        return open_vision(spec, default)
    if spec.source.startswith(VTAB):
        from vitkit.data.sources.vtab import open_vtab

        return open_vtab(spec, default)
    raise _unknown(spec.source)


def _open_files(
    files: Sequence[str], spec: DataSpec, default: Default, classes: Sequence[str] | None, labelled: bool
) -> Source:
    if os.path.isdir(files[0]):
        from vitkit.data.sources.folder import open_folder

        return open_folder(files[0], spec, default, classes, labelled)
    suffixes = {os.path.splitext(without_query(file))[1].lower() for file in files}
    if len(suffixes) > 1:
        raise InputError(
            f"{spec.source} names files of several kinds, {', '.join(sorted(suffixes))}: name one kind"
        )
    [suffix] = suffixes
    if suffix == ".tar":
        from vitkit.data.sources.shards import open_shards

        return open_shards(files, spec, default, classes)
    if is_url(spec.source):
        raise InputError(f"{spec.source}: only tar shards are read through URLs; copy other data here first")
    if suffix == ".parquet":
        from vitkit.data.sources.parquet import open_parquet

        return open_parquet(files, spec, default)
    if suffix == ".csv" and len(files) == 1:
        from vitkit.data.sources.table import open_table

        return open_table(files[0], spec, default)
    if suffix in (".gz", ".tgz", ".zip", ".bz2", ".xz"):
        raise InputError(
            f"{files[0]} is compressed, and nothing is unpacked here: unpack it first, a .tar.gz with gunzip"
        )
    kind = "an image" if suffix in EXTENSIONS else f"a file of kind {suffix or 'unknown'}"
    raise InputError(
        f"{files[0]} is {kind}; data is a folder of class folders, one .csv, .parquet or .tar files"
    )


def _incomplete(files: Sequence[str]) -> Iterator[Note]:
    """Yield a note for each folder of shards whose packing was stopped, or of which shards are gone."""
    for folder in sorted({os.path.dirname(file) for file in files if os.path.isfile(file)}):
        try:
            manifest = json.loads(read_file(os.path.join(folder, MANIFEST)))
            is_complete, shards = manifest["complete"], sorted(manifest["shards"])
        except (ValueError, TypeError, KeyError):  # not there, or another program's
            continue
        gone = [name for name in shards if not os.path.exists(os.path.join(folder, name))]
        what = f"without {listed(gone)}" if gone else "" if is_complete else "packing was not finished"
        if what:
            yield Note(f"{folder or '.'}: {what}, images are missing; the same `vit pack` resumes", "warning")


def _open_built_in(spec: DataSpec, default: Default) -> Source:
    source: Source
    if spec.source == "digits":
        from vitkit.data.sources import digits

        split, notes = choose_split(_names(digits.SPLITS), spec.split, default, "digits")
        source = digits.Digits(split)
    else:
        from vitkit.data.sources import shapes

        split, notes = choose_split(_names(shapes.SPLITS), spec.split, default, "shapes")
        given: dict[str, Any] = {"label": spec.label, "size": spec.size}
        source = shapes.Shapes(split, **{name: value for name, value in given.items() if value is not None})
    source.notes = (*source.notes, *notes)
    return source


def _names(splits: Iterable[str]) -> list[str]:
    return [name for name in splits if name != "all"]


def check_items(spec: DataSpec) -> None:
    """Refuse items that the source, or the rest of the spec, doesn't read."""
    for item, sources in ITEMS.items():
        value = getattr(spec, item)
        if item == "root" and spec.source.startswith(VTAB):
            continue
        if value is not None and value is not False and spec.source not in sources:
            whose = "torchvision's data sets" if sources is DATA_SETS else " and ".join(sources)
            whose += f" and of {VTAB}TASK" if item == "root" else ""
            raise InputError(f"data spec '{spec}': {item}= is an item of {whose} only")
    if spec.seed is not None and spec.shots is None and spec.start is None and spec.stop is None:
        raise InputError(
            f"data spec '{spec}': seed= needs shots or a slice: "
            "add 5shot or :90%, for example, or leave out seed="
        )


def _unknown(name: str) -> InputError:
    names = (*BUILT_IN, *DATA_SETS)
    folders = [f"./{entry.name}" for entry in os.scandir() if entry.is_dir() and not is_hidden(entry.name)]
    hint = did_you_mean(name, [*folders, *names])
    expected = (
        f"; expected {', '.join(names)}, {VTAB}TASK, hf-hub:ORG/NAME, a URL, or the path of a file or folder"
    )
    return InputError(f"unknown data source {name!r}{hint}" + ("" if hint else expected))
