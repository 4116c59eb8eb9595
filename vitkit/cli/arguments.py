"""How verbs listen: arguments that several of them share."""

from __future__ import annotations

from vitkit.config import convert, describe
from vitkit.errors import InputError
from vitkit.models.configs import Size, as_size


def parse_size(text: str) -> tuple[int, int]:
    """Return (height, width) of 384 or 384x512."""
    try:
        return as_size(convert(text, Size))
    except TypeError:
        raise InputError(f"--image-size is {text!r}; expected {describe(Size)}") from None
