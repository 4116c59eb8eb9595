"""Which files a path, a pattern or a URL names: folders of parquet or tar files, `*`, `?`, {000..099} and {a,b}."""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

from vitkit.data.images import EXTENSIONS, is_hidden
from vitkit.data.splits import WORDS
from vitkit.errors import InputError, first_line
from vitkit.files import check_regular

SUFFIXES = (".parquet", ".tar")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
_MOST = 1_000_000


def is_url(text: str) -> bool:
    """Return whether a file is reached through fsspec."""
    return "://" in text


def without_query(url: str) -> str:
    """Return a web address without what follows its path, such as a signature."""
    return url.partition("?")[0] if url.startswith("http") else url


def find_files(source: str) -> list[str]:
    """Return the files that a path, a pattern or a URL names, sorted; an image folder is its own name alone."""
    if is_url(source):
        return find_remote(source)
    path = os.path.expanduser(source)
    if os.path.isdir(path):
        return files_in(path) or [path]
    if os.path.exists(path):
        check_regular(path)
        return [path]
    if not any(mark in path for mark in "*?{"):
        raise InputError(f"no such file or folder: {source}")
    found: list[str] = []
    for pattern in expand_braces(path):
        matches = glob.glob(pattern) if any(mark in pattern for mark in "*?") else [pattern]
        found += sorted(match for match in matches if not os.path.isdir(match))
    for file in found:
        if not os.path.exists(file):
            raise InputError(f"{source} names {file}, which is not there")
        check_regular(file)
    if not found:
        raise InputError(f"no file matches {source}")
    return found


def files_in(folder: str) -> list[str]:
    """Return the parquet or tar files of a folder, or of its folders train, val, test and data.

    Beside folders of images they are what those were unpacked from, and don't count.
    """
    found = _shards_of(folder)
    if found and _has_images_below(folder):
        return []
    if not found:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if entry.is_dir() and entry.name.lower() in (*WORDS, "data"):
                found += _shards_of(entry.path)
    kinds = {os.path.splitext(file)[1] for file in found}
    if len(kinds) > 1:
        raise InputError(f"{folder} holds parquet and tar files: name one kind, such as '{folder}/*.tar'")
    return found


def find_remote(source: str) -> list[str]:
    """Return the tar files that a URL, with patterns, or the URL of a folder names."""
    found: list[str] = []
    for url in expand_braces(source):
        system, path = remote(url)
        if any(mark in url for mark in ("*" if url.startswith("http") else "*?")):
            matches = ask(url, partial(system.glob, path))
            found += [system.unstrip_protocol(match) for match in sorted(matches)]
        elif without_query(url).endswith(SUFFIXES):
            found.append(url)
        else:
            matches = ask(url, partial(system.find, path, maxdepth=2))
            found += [system.unstrip_protocol(match) for match in sorted(matches) if match.endswith(".tar")]
    if not found:
        raise InputError(f"no tar file at {source}")
    return found


def is_offline() -> bool:
    """Say whether downloads are switched off, by the Hugging Face hub's variable, which holds for all of them."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def remote(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, and the path there."""
    import fsspec

    if is_offline() and url.partition("://")[0] not in ("file", "local", "memory"):
        raise InputError(f"{url} is not read, since HF_HUB_OFFLINE is set: unset it")
    return ask(url, lambda: fsspec.core.url_to_fs(url))


def ask(url: str, request: Callable[[], Any]) -> Any:
    """Return what a request gives, or raise InputError: a remote store may fail in any way."""
    try:
        return request()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"cannot read {url}: {first_line(error)}") from error


def expand_braces(text: str) -> list[str]:
    """Return the texts that {000..099} and {a,b} stand for, as in a shell; at most a million."""
    parts = _BRACES.split(text)  # what is outside, what is inside, in turn
    fixed, groups = parts[::2], [_options(inside, text) for inside in parts[1::2]]
    if _BRACES.search("".join(fixed)):
        raise InputError(f"{_short(text)} has braces in braces: write each choice out")
    if math.prod(map(len, groups)) > _MOST:  # before one of them is made
        raise _too_many(text)
    return [
        "".join(chain.from_iterable(zip(fixed, (*chosen, ""), strict=True))) for chosen in product(*groups)
    ]


def _options(inside: str, text: str) -> Sequence[str]:
    if numbers := _RANGE.fullmatch(inside):
        first, last = numbers.groups()
        is_padded = any(len(end) > 1 and end.startswith("0") for end in (first, last))
        width = max(len(first), len(last)) if is_padded else 0
        step = 1 if int(first) <= int(last) else -1
        if abs(int(last) - int(first)) > _MOST:
            raise _too_many(text)
        return [f"{number:0{width}}" for number in range(int(first), int(last) + step, step)]
    if "," in inside:
        return inside.split(",")
    raise InputError(f"braces in {_short(text)} are a range such as {{000..099}} or a choice such as {{a,b}}")


def _too_many(text: str) -> InputError:
    return InputError(f"{_short(text)} names more than a million files")


def _short(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:200]}...")


def _has_images_below(folder: str) -> bool:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not is_hidden(name)]
        if parent != folder and any(os.path.splitext(name)[1].lower() in EXTENSIONS for name in files):
            return True
    return False


def _shards_of(folder: str) -> list[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise InputError(f"cannot list {folder}: {error.strerror}") from None
    shards = [name for name in names if not name.startswith(".") and name.endswith(SUFFIXES)]
    return [str(Path(folder, name)) for name in shards]
