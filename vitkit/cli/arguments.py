"""How verbs listen: arguments that several of them share."""

from __future__ import annotations

import re

from vitkit.errors import InputError


def parse_size(text: str) -> tuple[int, int]:
    """Return (height, width) of 384 or 384x512."""
    match = re.fullmatch(r"(\d{1,6})(?:x(\d{1,6}))?", text)
    if not match:
        raise InputError(
            f"--image-size is {text!r}; expected pixels such as 384, or height x width as in 384x512"
        )
    return int(match[1]), int(match[2] or match[1])
