"""Files of a report: written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from vitkit.errors import InputError


def write_file(path: Path, content: bytes) -> None:
    """Write a file, aside and then renamed; its folder is made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(number, "wb") as file:
                file.write(content)
            os.chmod(part, 0o644)
            os.replace(part, path)
        except BaseException:
            os.unlink(part)
            raise
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
