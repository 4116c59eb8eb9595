"""The error for all bad input from users: what was given, what was expected, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input. The command line prints its one-line message and exits with status 2."""


class CannotRead(InputError):
    """A file or an image that can't be read, and the reason."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)  # as they are, so that it can be sent to another process
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot read {self.args[0]}: {self.reason}"


def first_line(error: Exception) -> str:
    """Return the first line of what an error says, or its type if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def did_you_mean(word: str, options: Iterable[str], prefix: str = "") -> str:
    """Return '; did you mean ...?' with the closest options, each after a prefix, or an empty string.

    The ./ of a path doesn't count.
    """
    by_lower: dict[str, str] = {}
    for option in options:
        by_lower.setdefault(option.removeprefix("./").lower(), option)
    near = difflib.get_close_matches(word.removeprefix("./").lower(), by_lower, n=3, cutoff=0.6)
    if not near:
        return ""
    return f"; did you mean {' or '.join(repr(prefix + by_lower[name]) for name in near)}?"
