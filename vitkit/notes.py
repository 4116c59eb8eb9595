"""Notes: what a command reports in addition to its result. Each has a kind, so nothing depends on its wording."""

from __future__ import annotations

import os
import re
import sys
from typing import Literal

Kind = Literal[
    "info", "summary", "data", "model", "untrained", "protocol", "estimate", "advice", "progress", "warning"
]
DETAILS: frozenset[Kind] = frozenset({"data", "model", "protocol", "estimate", "advice"})
"Kinds of notes that are printed only with --verbose."
# C0, DEL and C1, which move the cursor or change the terminal, and marks that reverse the order of text.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Note(str):
    """A line for people, with a kind for programs.

    summary: the one line that says what will be done. data, model: about what was opened or loaded. untrained: the
    weights are random. protocol: which settings were chosen. estimate: time or cost. advice: how to be faster or
    better. progress: how much is done. warning: what a user may not have intended; `worded` adds the word "warning".
    """

    kind: Kind

    def __new__(cls, text: str, kind: Kind = "info") -> Note:
        note = super().__new__(cls, text)
        note.kind = kind
        return note


def kind_of(line: str) -> Kind:
    """Return a line's kind; a plain string is information."""
    return line.kind if isinstance(line, Note) else "info"


def worded(line: str) -> str:
    """Return a line to print: a warning starts with "warning: "."""
    return f"warning: {line}" if kind_of(line) == "warning" else str(line)


def is_shown(line: str, verbose: bool) -> bool:
    """Return whether a note is printed."""
    return verbose or kind_of(line) not in DETAILS


def visible(text: str, keep: str = "\n\t") -> str:
    """Return a text with its control characters escaped, as in \\x1b: names of classes and files may contain any."""

    def escape(match: re.Match[str]) -> str:
        return match[0] if match[0] in keep else match[0].encode("unicode_escape").decode()

    return CONTROL.sub(escape, text)


def say(line: str) -> None:
    """Print a line to standard error; if that is closed or full, work continues without it."""
    try:
        sys.stderr.write(f"{visible(worded(line))}\n")
    except OSError:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (until the process ends)
