"""Files and folders that are written whole or not at all and outlast a power cut, their digests, and locks."""

from __future__ import annotations

import ctypes
import hashlib
import os
import secrets
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from vitkit.errors import InputError

LOCK_SECONDS = 0.5


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a hidden file to write to, which becomes `path` at the end; after an error nothing is left of it."""
    part = path.with_name(
        f".{path.name}.{secrets.token_hex(4)}.part"
    )  # another process may write to `path` too
    try:
        yield part
        sync(part)
        os.replace(part, path)
        sync(path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with suppress(OSError):  # what is told is why it couldn't be written
            part.unlink()


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file whole, text as UTF-8; its folder is made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from None
    with written_whole(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def folder_written_whole(path: Path) -> Iterator[Path]:
    """Yield a hidden folder to fill, which takes the place of `path` at the end; after an error nothing is left of it.

    A reader finds the old folder or the new one at every moment. A link stays, and what it points to is replaced.
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


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} can't be written: {error.strerror or error}")


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where the system or the file system can't."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of <linux/fs.h>
    if rename is None:
        return False
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def _replace_folder(part: Path, place: Path) -> None:
    """Rename a folder over another in two steps, between which there is none; if the second fails, undo the first."""
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
    """Make the content of files, and the names in folders, outlast a power cut."""
    for path in paths:
        is_folder = path.is_dir()
        if is_folder and not hasattr(os, "O_DIRECTORY"):  # Windows opens no folder
            continue
        descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_regular(path: str | os.PathLike[str]) -> None:
    """Refuse a pipe or a device, which may have no end, before it is opened; what is missing fails when opened."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError(f"cannot read {os.fspath(path)}: it is a pipe or a device, not a file")


def digest(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def take_lock(path: Path, *, is_shared: bool = False) -> IO[str]:
    """Return the open file whose lock says that this process is at work where it lies; shared locks allow each other."""
    try:
        import fcntl
    except ImportError:  # Windows
        return open(path, "a+", encoding="utf-8")
    patience = time.monotonic() + LOCK_SECONDS  # whoever asks `is_locked` holds the lock for a moment
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
        file.close()  # whoever held it removed the file: this lock keeps nobody out
    # A forked worker may outlive this process, and would keep the lock.
    os.register_at_fork(after_in_child=file.close)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file


def is_alone(file: IO[str]) -> bool:
    """Say whether nobody shares a lock that this process took, and keep it so; where that can't be known, nobody."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        pass
    return True


def is_locked(path: Path) -> bool:
    """Say whether a process holds the lock on a file; where that can't be known, one does."""
    try:
        import fcntl

        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except (ImportError, OSError):
        return True
    return False
