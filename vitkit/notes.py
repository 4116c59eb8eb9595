"""Notes: what a command says besides its result. Each has a kind, so that nothing is filtered by its wording."""

from __future__ import annotations

import re
from typing import Literal

Kind = Literal["info", "data", "model", "untrained", "protocol", "estimate", "advice", "progress", "warning"]
# C0, DEL and C1, which move the cursor or change the terminal, and marks that reverse the order of text.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Note(str):
    """A line for people, with a kind for programs.

    data, model: about what was opened or loaded. untrained: the weights are random. protocol: which settings were
    chosen. estimate: time or cost. advice: how to be faster or better. progress: how far the work is.
    """

    kind: Kind

    def __new__(cls, text: str, kind: Kind = "info") -> Note:
        note = super().__new__(cls, text)
        note.kind = kind
        return note


def kind_of(line: str) -> Kind:
    """Return a line's kind; a plain string is information."""
    return line.kind if isinstance(line, Note) else "info"


def visible(text: str, keep: str = "\n\t") -> str:
    """Return a text with its control characters escaped, as in \\x1b: names of classes and files may hold any."""

    def escape(match: re.Match[str]) -> str:
        return match[0] if match[0] in keep else match[0].encode("unicode_escape").decode()

    return CONTROL.sub(escape, text)
