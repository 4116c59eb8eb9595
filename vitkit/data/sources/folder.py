"""Folders of images: a folder for each class, in a folder for each split, or in none."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitkit.data.images import EXTENSIONS
from vitkit.data.sources.labels import clean, name_classes, number_labels, say_classes
from vitkit.data.sources.source import Files, Source
from vitkit.data.spec import DataSpec
from vitkit.data.splits import MADE, WORDS, Default, choose_split, counted, listed, make_split
from vitkit.errors import InputError
from vitkit.notes import Note

LAYOUT = "expected FOLDER/CLASS/image.jpg, or FOLDER/train/CLASS/image.jpg with val or test beside train"


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
    splits, left_out = find_splits(root, labelled)
    if not splits and (inner := _only_folder(root)) and find_splits(inner, labelled)[0]:
        raise InputError(f"{root} holds its splits one folder deeper: open {inner}")
    own = _own_split(root, spec.split, default) if not splits else None
    if own:
        split, notes = own, [Note(f"{name}: all of it is {own!r}, by its name", "data")]
    else:
        split, notes = choose_split(list(splits or MADE), spec.split, default, name)
    if left_out:
        notes.append(Note(f"{name}: skipped {listed(left_out)}, next to the folders of its splits", "data"))
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
    paths = [path for found in scans.values() for path in found.paths]
    labels = [label for found in scans.values() for label in found.classes]
    class_names = name_classes(labels) if not labelled else _class_names(scans, splits, classes)
    origin = splits.get("train", root)
    numbers = number_labels(labels, class_names, lambda index: paths[index], origin)
    if labelled:
        notes.append(say_classes(name, class_names))
    source = Files(name, split, class_names, numbers, paths, notes)
    source.faults = tuple(
        f"{folders[part]}: classes without images: {listed(found.empty)}; add images, or remove the folders"
        for part, found in scans.items()
        if found.empty and part in ("train", "all")
    )
    return source if splits or own else make_split(source, split, root)


def list_folder_splits(root: str) -> list[str]:
    """Return the splits that a folder has by the names of its folders, or by its own; none where they are made."""
    splits, _ = find_splits(root)
    own = WORDS.get(os.path.basename(os.path.abspath(root)).lower())
    return list(splits) or ([own] if own else [])


def _own_split(root: str, asked: str | None, default: Default) -> str | None:
    """Return the split that a folder is by its own name, which is not cut once more: imagenet/val."""
    named = WORDS.get(os.path.basename(os.path.abspath(root)).lower())
    if asked is not None:
        return named if named == WORDS.get(asked, asked) else None
    return named if (named == "train") == (default == "train") else None


def find_splits(root: str, labelled: bool = True) -> tuple[dict[str, str], list[str]]:
    """Return the folder of each split, and the names of other folders beside them.

    A folder named like a split is one when it holds folders, and for val and test images too; otherwise it is a class.
    Where labels aren't needed and all folders are named like splits, it is enough that it holds images.
    """
    found: dict[str, str] = {}
    left_out, flat = [], []
    entries = [entry for entry in _list(root) if _is_folder(entry)]
    may_be_flat = not labelled and all(entry.name.lower() in WORDS for entry in entries)
    for entry in entries:
        split = WORDS.get(entry.name.lower())
        inside = _list(entry.path) if split else []
        folders = [child.path for child in inside if _is_folder(child)]
        if may_be_flat and _holds_image(entry.path):
            folders.append(entry.path)
        if split is None or not folders:
            left_out.append(entry.name)
            if split and _holds_image(entry.path):
                flat.append(entry.path)
        elif split in found:
            raise InputError(f"{found[split]} and {entry.path} are the same split: keep one of them")
        elif split == "train" or any(map(_holds_image, folders)) or scan(entry.path).paths:
            found[split] = entry.path
        else:
            left_out.append(f"{entry.name} (no images)")
    if found and flat:
        raise InputError(f"{flat[0]} holds images but no class folders; {LAYOUT}")
    return {split: found[split] for split in MADE if split in found}, left_out if found else []


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
            raise InputError(f"the folder name {name!r} in {root} is no valid text: rename it") from None
    return found


def _only_folder(root: str) -> str | None:
    folders = [entry.path for entry in _list(root) if _is_folder(entry)]
    return folders[0] if len(folders) == 1 else None


def _check(found: Scan, root: str, labelled: bool) -> None:
    if found.paths:
        return
    if found.loose:
        raise InputError(f"{root} holds {counted(len(found.loose), 'image')} but no class folders; {LAYOUT}")
    held = f": only {_suffixes(found)}" if found.others else ""
    packed = ", or .tar files: gunzip makes them of .tar.gz" if found.others[".gz"] else ""
    layout = LAYOUT if labelled else "expected images"
    raise InputError(f"no images in {root}{held}; {layout}{packed}")


def _notes(found: Scan, root: str) -> Iterator[Note]:
    if found.loose:
        yield Note(f"{root}: left out, in no class folder: {counted(len(found.loose), 'image')}", "data")
    if found.others:
        files = counted(found.others.total(), "file")
        yield Note(f"{root}: left out {files}, not images: {_suffixes(found)}", "data")


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
            visible = [entry for entry in entries if not entry.name.startswith(".")]
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
