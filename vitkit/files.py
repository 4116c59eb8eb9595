"""Files and folders that are written whole or not at all and outlast a power cut, their digests, and locks."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
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
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # what is told is why it couldn't be written
            part.unlink()


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file whole, text as UTF-8; its folder is made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    with written_whole(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


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
