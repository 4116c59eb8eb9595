"""Notes: what a command says besides its result. Each has a kind, so that nothing is filtered by its wording."""

from __future__ import annotations

from typing import Literal

Kind = Literal["info", "data", "model", "untrained", "protocol", "estimate", "advice", "progress", "warning"]


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
