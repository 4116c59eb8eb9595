"""HTML from parts: text is escaped unless it is Html already."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable


class Html(str):
    """Text that is HTML already; any other text is escaped where it joins a page."""

    __slots__ = ()


def element(tag: str, *content: str, **attributes: str) -> Html:
    """Return one element; `class_` gives its class, `aria_label` its aria-label, others go by their own names."""
    words = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for name, value in attributes.items()
        if value
    )
    return Html(f"<{tag}{words}>{join(content)}</{tag}>")


def join(content: Iterable[str]) -> Html:
    """Return parts one after the other, escaped where they are not Html."""
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in content))


def embedded(picture: bytes, alt: str, style: str = "") -> Html:
    """Return a PNG or WebP file as a part of the page itself."""
    from PIL import Image

    with Image.open(io.BytesIO(picture), formats=["PNG", "WEBP"]) as opened:
        (width, height), form = opened.size, str(opened.format).lower()
    source = f"data:image/{form};base64,{base64.b64encode(picture).decode()}"
    look = f' style="{html.escape(style)}"' if style else ""
    return Html(f'<img src="{source}" width="{width}" height="{height}" alt="{html.escape(alt)}"{look}>')
