"""Atomic and durable writes of files and folders, overwrite checks, digests, and locks."""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import os
import secrets
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from vitkit.errors import CannotRead, InputError

LOCK_SECONDS = 0.5
# Endings that a folder for output doesn't have: one was meant to be a file.
FILE_ENDINGS = (".html", ".json", ".png")


def is_local(text: str) -> bool:
    """Return whether a MODEL or DATA string is a path, not a name."""
    return text.startswith((".", "/", "~"))


def local_path(path: str | os.PathLike[str]) -> str:
    """Return a path as written in MODEL and DATA strings: a relative one starts with './'."""
    text = os.fspath(path)
    return text if is_local(text) else f"./{text}"


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a hidden file to write to, which becomes `path` at the end; it is removed after an error."""
    # A random name, since another process may write to `path` too.
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        sync(part)
        os.replace(part, path)
        sync(path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with suppress(OSError):  # keep the original error
            part.unlink()


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file atomically, text as UTF-8; create its folder if it is missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from None
    with written_whole(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def json_text(document: object) -> str:
    """Return a document as the text that JSON files hold."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def write_json(path: Path, document: object) -> None:
    """Write a JSON file atomically."""
    write_file(path, json_text(document))


@contextmanager
def folder_written_whole(path: Path) -> Iterator[Path]:
    """Yield a hidden folder to fill, which replaces `path` at the end; it is removed after an error.

    If the file system can swap names, a reader always finds the old folder or the new one. If `path` is a link, its
    target is replaced.
    """
    place = path.resolve()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        yield part
        part.chmod(0o755)
        sync(*(entry for entry in part.rglob("*") if not entry.is_symlink()), part)
        if not (place.exists() and _exchange(part, place)):
            _replace_folder(part, place)
        sync(place.parent)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def check_output(
    target: Path, names: Iterable[str] | None = None, *, force: bool, alone: bool = False
) -> list[Path]:
    """Refuse, before anything is computed, what can't be written or replaced; return the files that will be replaced.

    This is all of `--force` for commands that write files (eval, report, inspect, data, convert): without it, no file is
    overwritten; with it, only files of the names that the command writes. A folder is never replaced by a file.

    names: files in `target`, which is then a folder. Others stay in it.
    alone: nothing else may be in the folder, because it is replaced whole or its names are not known yet.
    """
    paths = [target] if names is None else [target / name for name in names]
    if names is not None and (
        target.suffix.lower() in FILE_ENDINGS or (target.exists() and not target.is_dir())
    ):
        raise InputError(f"{target} names a file; expected a folder to write")
    for path in paths:
        if path.is_dir():
            raise InputError(f"{path} is a folder; expected a file to write")
    found = [path for path in paths if path.exists()]
    if found and not force:
        raise InputError(f"{target if alone else found[0]} exists; --force overwrites it")
    others = (
        sorted(path.name for path in target.iterdir() if path not in paths)
        if alone and target.is_dir()
        else []
    )
    if others:
        raise InputError(f"{target} holds {others[0]!r}, which vitkit didn't write; choose another folder")
    return found


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} can't be written: {error.strerror or error}")


def _exchange(one: Path, other: Path) -> bool:
    """Swap two paths atomically; return False if the system or the file system can't."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of <linux/fs.h>
    if rename is None:
        return False
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def _replace_folder(part: Path, place: Path) -> None:
    """Replace a folder with two renames, between which neither is in place; if the second fails, undo the first."""
    old = part.with_name(f"{part.name}.old")
    has_old = place.exists()
    if has_old:
        place.rename(old)
    try:
        part.rename(place)
    except OSError:
        if has_old:
            old.rename(place)
        raise
    shutil.rmtree(old, ignore_errors=True)


def sync(*paths: Path) -> None:
    """Flush files and folders to disk, so that they survive a power cut."""
    for path in paths:
        is_folder = path.is_dir()
        if is_folder and not hasattr(os, "O_DIRECTORY"):  # Windows can't open folders
            continue
        descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_regular(path: str | os.PathLike[str]) -> None:
    """Refuse a pipe or a device, which may never end, before it is opened. A missing file fails when it is opened."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise CannotRead(os.fspath(path), "it is a pipe or a device, not a file")


def read_file(path: str | os.PathLike[str], what: str = "") -> bytes:
    """Return the bytes of a file; a pipe or a device, which may never end, is refused.

    what: what the file is, for errors.
    """
    check_regular(path)
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise CannotRead(f"{what} {os.fspath(path)}".strip(), error.strerror or str(error)) from None
    except ValueError:
        raise CannotRead(repr(os.fspath(path)), "its name has a NUL character") from None


def read_text(path: str | os.PathLike[str], what: str = "") -> str:
    """Return a text in UTF-8, with or without a byte order mark, its lines ended by LF."""
    try:
        return io.TextIOWrapper(io.BytesIO(read_file(path, what)), encoding="utf-8-sig").read()
    except UnicodeDecodeError:
        raise CannotRead(f"{what} {os.fspath(path)}".strip(), "it is not UTF-8 text") from None


def digest(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def take_lock(path: Path, *, is_shared: bool = False) -> IO[str]:
    """Lock a file to show that this process uses its folder, and return it open; shared locks don't exclude each other."""
    try:
        import fcntl
    except ImportError:  # Windows
        return open(path, "a+", encoding="utf-8")
    patience = time.monotonic() + LOCK_SECONDS  # `is_locked` holds the lock for a moment
    while True:
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 (it stays open)
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            if time.monotonic() < patience:
                time.sleep(LOCK_SECONDS / 10)
                continue
            raise InputError(
                f"{path.parent} is in use by {holder}; wait for it, stop it, or choose another folder"
            ) from None
        except OSError:  # a file system without locks
            return file
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                break
        file.close()  # the previous holder removed the file, so this lock excludes nobody
    # A forked worker may outlive this process and would keep the lock.
    os.register_at_fork(after_in_child=file.close)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file


def is_alone(file: IO[str]) -> bool:
    """Make this process's shared lock exclusive, and return whether that worked; True if locks aren't supported."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        pass
    return True


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock on a file; True if that can't be determined."""
    try:
        import fcntl

        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except (ImportError, OSError):
        return True
    return False
