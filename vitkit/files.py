"""Files that are written whole or not at all, what tells one from another, and whether a process holds one."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vitkit.errors import InputError


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a hidden file to write to, which becomes `path` at the end; after an error nothing is left of it."""
    part = path.with_name(
        f".{path.name}.{secrets.token_hex(4)}.part"
    )  # another process may write to `path` too
    try:
        yield part
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
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


def digest(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
