"""Folders of images: a folder for each class, in a folder for each split, or in none."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from vitkit.data.images import EXTENSIONS, is_hidden
from vitkit.data.sources.labels import clean, name_classes, number_labels, say_classes
from vitkit.data.sources.source import Files, Source
from vitkit.data.spec import DataSpec
from vitkit.data.splits import MADE, WORDS, Default, choose_split, counted, listed, make_split
from vitkit.errors import InputError
from vitkit.notes import Note

LAYOUT = "expected FOLDER/CLASS/image.jpg, or FOLDER/train/CLASS/image.jpg with val or test next to train"
TABLE = "labels.csv"
"What messages call a table of labels for images without class folders."
_WORDNET = re.compile(r"n[0-9]{8}_")
_VALIDATION = re.compile(r"ILSVRC2012_val_[0-9]{8}\.", re.IGNORECASE)


@dataclass
class Scan:
    """What a folder tree holds."""

    paths: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    "The class of each path: the folder it is in, relative to the root, such as 'dogs/poodle'."
    empty: list[str] = field(default_factory=list)
    "Folders with neither images nor folders."
    loose: list[str] = field(default_factory=list)
    "Images in the root itself, which have no class."
    others: Counter[str] = field(default_factory=Counter)
    "Suffix -> number of files that are no images."


class Splits(NamedTuple):
    """What the names of folders say of splits."""

    folders: dict[str, str]
    "Split -> folder, in the order of train, val, test."
    others: list[str]
    "Names of other folders next to them."
    unusable: dict[str, str]
    "Split -> folder without images, or without class folders where labels are needed."


def open_folder(
    root: str,
    spec: DataSpec,
    default: Default,
    classes: Sequence[str] | None = None,
    labelled: bool = True,
) -> Source:
    """Return the images of a folder. With `classes` given, train isn't looked at for the names of other splits.

    Where labels aren't needed, images in no class folder are of a class without a name; all others stay in the class and
    the split that they are in anyway.
    """
    name = spec.source
    named = find_splits(root, labelled)
    splits = named.folders
    if not splits and (inner := _only_folder(root)) and find_splits(inner, labelled).folders:
        raise InputError(f"{root} holds its splits one folder deeper: open {inner}")
    own = _own_split(root, spec.split, default) if not splits else None
    if own:
        split, notes = own, [Note(f"{name}: using all of it as {own!r}, because of its name", "data")]
    else:
        asked = WORDS.get(spec.split or default)
        if asked in named.unusable:
            _check(scan(named.unusable[asked]), named.unusable[asked], labelled)
        try:
            split, notes = choose_split(list(splits or MADE), spec.split, default, name)
        except InputError as error:
            if not named.unusable:
                raise
            raise InputError(f"{error} ({_without_images(named)})") from None
    if named.others:
        notes.append(
            Note(f"{name}: skipped {listed(named.others)}, next to the folders of its splits", "data")
        )
    if named.unusable:
        notes.append(Note(f"{name}: skipped {_without_images(named)}", "data"))
    folders = {"all": root}
    if splits:
        folders = splits if split == "all" else {split: splits[split]}
    scans = {part: scan(folder) for part, folder in folders.items()}
    for part, found in scans.items():
        if not labelled:
            found.classes = [*[""] * len(found.loose), *found.classes]
            found.paths, found.loose, found.empty = [*found.loose, *found.paths], [], []
        _check(found, folders[part], labelled)
        notes += _notes(found, folders[part])
        if labelled and (part in ("train", "all") or "train" not in splits):
            notes += _oddities(found, folders[part])
    paths = [path for found in scans.values() for path in found.paths]
    labels = [label for found in scans.values() for label in found.classes]
    class_names = name_classes(labels) if not labelled else _class_names(scans, splits, classes)
    origin = splits.get("train", root)
    numbers = number_labels(labels, class_names, lambda index: paths[index], origin)
    if labelled:
        notes.append(say_classes(name, class_names))
    source = Files(name, split, class_names, numbers, paths, notes)
    return source if splits or own else make_split(source, split, root)


def list_folder_splits(root: str) -> list[str]:
    """Return the splits that a folder has by the names of its folders, or by its own; none where they are made."""
    splits = find_splits(root).folders
    own = WORDS.get(os.path.basename(os.path.abspath(root)).lower())
    return list(splits) or ([own] if own else [])


def _own_split(root: str, asked: str | None, default: Default) -> str | None:
    """Return the split that a folder is by its own name, which is not cut once more: imagenet/val."""
    named = WORDS.get(os.path.basename(os.path.abspath(root)).lower())
    if asked is not None:
        return named if named == WORDS.get(asked, asked) else None
    return named if (named == "train") == (default == "train") else None


def find_splits(root: str, labelled: bool = True) -> Splits:
    """Return the folder of each split, and what lies next to them.

    A folder named like a split is one when it holds folders, and images at any depth; where no folder does, they are
    classes. Where labels aren't needed and all folders are named like splits, it is enough that it holds images.
    """
    found: dict[str, str] = {}
    others: list[str] = []
    unusable: dict[str, str] = {}
    entries = [entry for entry in _list(root) if _is_folder(entry)]
    may_be_flat = not labelled and all(entry.name.lower() in WORDS for entry in entries)
    for entry in entries:
        split = WORDS.get(entry.name.lower())
        if split is None:
            others.append(entry.name)
            continue
        folders = [child.path for child in _list(entry.path) if _is_folder(child)]
        if may_be_flat and _holds_image(entry.path):
            folders.append(entry.path)
        if not (any(map(_holds_image, folders)) or (folders and scan(entry.path).paths)):
            unusable.setdefault(split, entry.path)
        elif split in found:
            raise InputError(f"{found[split]} and {entry.path} are the same split: keep one of them")
        else:
            found[split] = entry.path
    if not found:
        return Splits({}, [], {})
    unusable = {split: folder for split, folder in unusable.items() if split not in found}
    return Splits({split: found[split] for split in MADE if split in found}, others, unusable)


def scan(root: str) -> Scan:
    """Return the images below a folder with their classes, in order of folders and names, without hidden ones.

    Links to folders are followed, but for one that leads to a folder above itself. A link to nothing is an image that
    can't be read.
    """
    found = Scan()
    real = Path(root).resolve()
    todo = [(root, "", tuple(map(_identity, map(os.stat, (real, *real.parents)))))]
    while todo:
        folder, name, above = todo.pop()
        images = 0
        folders: list[tuple[str, str, tuple[tuple[int, int], ...]]] = []
        for entry in _list(folder):
            if _is_folder(entry):
                identity = _identity(entry.stat())
                if identity not in above:
                    child = clean(f"{name}/{entry.name}" if name else entry.name)
                    folders.append((entry.path, child, (*above, identity)))
            elif not (_is_image(entry.name) and _is_file(entry)):
                found.others[os.path.splitext(entry.name)[1].lower() or "no suffix"] += 1
            elif name:
                images += 1
                found.paths.append(entry.path)
                found.classes.append(name)
            else:
                found.loose.append(entry.path)
        if name and not images and not folders:
            found.empty.append(name)
        todo += reversed(folders)
    for name in sorted(set(found.classes)):
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InputError(f"the folder name {name!r} in {root} is not valid UTF-8: rename it") from None
    return found


def _only_folder(root: str) -> str | None:
    folders = [entry.path for entry in _list(root) if _is_folder(entry)]
    return folders[0] if len(folders) == 1 else None


def _check(found: Scan, root: str, labelled: bool) -> None:
    if found.paths:
        return
    if found.loose:
        held = f"{root} holds {counted(len(found.loose), 'image')} but no class folders; {LAYOUT}"
        raise InputError(held + (_how_to_label(root, found.loose) if labelled else ""))
    held = f": only {_suffixes(found)}" if found.others else ""
    packed = ", or .tar files: gunzip makes them of .tar.gz" if found.others[".gz"] else ""
    layout = LAYOUT if labelled else "expected images"
    raise InputError(f"no images in {root}{held}; {layout}{packed}")


def _how_to_label(root: str, images: Sequence[str]) -> str:
    """Say how images that are in no class folder get labels: by a table, which names of ImageNet's files can make."""
    names, table = list(map(os.path.basename, images)), os.path.join(root, TABLE)
    tables = [entry.path for entry in _list(root) if entry.name.lower().endswith(".csv")]
    if tables:
        return f"; if {tables[0]} labels them, open that"
    if all(map(_WORDNET.match, names)):
        folder, file = shlex.quote(root), shlex.quote(table)
        command = rf"(echo image,label; ls {folder} | sed -nE 's/^(n[0-9]{{8}})_.*/&,\1/p') > {file}"
        return f"; or label them by the WordNet ids in their names: {command}; then open '{table}:all'"
    if all(map(_VALIDATION.match, names)):
        return (
            "; names of ImageNet's validation images hold no label: list them with their WordNet ids in "
            f"{table}, columns image,label, and open that; vit eval --real real.json needs no labels"
        )
    return f"; or list them in {table}, columns image,label, and open that"


def _without_images(named: Splits) -> str:
    return f"{listed(list(named.unusable.values()))}: no images in class folders"


def _notes(found: Scan, root: str) -> Iterator[Note]:
    if found.loose:
        yield Note(f"{root}: skipped {counted(len(found.loose), 'image')} in no class folder", "warning")
    if found.others:
        files = counted(found.others.total(), "file")
        yield Note(f"{root}: skipped {files}, not images: {_suffixes(found)}", "data")


def _oddities(found: Scan, root: str) -> Iterator[Note]:
    """Say which folders are not the classes that they may have been meant to be."""
    if found.empty:
        folders = counted(len(found.empty), "class folder")
        yield Note(f"{root}: skipped {folders} without images: {listed(found.empty)}", "data")
    folders_of = {name: os.path.dirname(path) for name, path in zip(found.classes, found.paths, strict=True)}
    inside = {name: outer for name in folders_of if (outer := _class_around(name, folders_of))}
    if not inside:
        return
    name, outer = next(iter(inside.items()))
    if len(inside) == 1:
        text = f"'{folders_of[name]}' is inside the class '{outer}' and became a class of its own ('{name}'); move its"
    else:
        some = listed([f"'{folders_of[name]}'" for name in inside], 3)
        text = (
            f"{len(inside):,} folders are inside a class and became classes of their own ({some}); move their"
        )
    yield Note(f"{text} images up if that was not intended", "warning")


def _class_around(name: str, classes: Container[str]) -> str | None:
    """Return the class that a class lies in, by the names of their folders."""
    while "/" in name:
        name = name.rpartition("/")[0]
        if name in classes:
            return name
    return None


def _class_names(
    scans: dict[str, Scan], splits: dict[str, str], classes: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the classes of the data: those of train, where there is one, for every split."""
    if "train" in scans:
        return name_classes(scans["train"].classes)
    if "train" in splits and classes is None:
        return name_classes(scan(splits["train"]).classes)
    return name_classes([name for found in scans.values() for name in found.classes])


def _list(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if not is_hidden(entry.name)]
    except OSError as error:
        raise InputError(f"cannot list {folder}: {error.strerror}") from None
    return sorted(visible, key=lambda entry: entry.name)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Return whether this is a file or a link to nothing, but no pipe, which would wait for ever."""
    if entry.is_symlink():
        return os.path.isfile(entry.path) or not os.path.exists(entry.path)
    return entry.is_file()


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in EXTENSIONS


def _holds_image(folder: str) -> bool:
    return any(_is_image(entry.name) for entry in _list(folder))


def _suffixes(found: Scan) -> str:
    return listed([f"{count:,} {suffix}" for suffix, count in found.others.most_common()])
