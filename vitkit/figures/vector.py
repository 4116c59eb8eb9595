"""matplotlib figures as SVG, styled by the fonts and colours of their page."""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vitkit.figures.palette import THEME

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@contextmanager
def drawing(salt: str | None = None) -> Iterator[None]:
    """Draw text literally, not as formulas or outlines; ids in an SVG derive from `salt`."""
    import matplotlib

    settings = matplotlib.rc_context({"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": salt})
    with settings, warnings.catch_warnings():
        # Glyphs that matplotlib's font lacks are boxes in a PNG; a page shows them properly.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        yield


def themed_svg(figure: Figure, title: str, **settings: Any) -> str:
    """Return a figure in the theme's light colours as SVG for a page; settings are passed to savefig."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(["Creator", "Date", "Format", "Type"])
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing, **settings)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    head, body = text.split(">", 1)
    view = re.search(r'viewBox="([^"]+)"', head)
    assert view, head
    # Remove group ids, which would repeat between the figures of a page; ids of clip paths have the salt.
    body = re.sub(r'(<g) id="[^"]*"', r"\1", re.sub(r"(?s)<!--.*?-->|\n\s*", "", body))
    for name, (light, _) in THEME.items():
        body = body.replace(light, f"var(--{name})")
    width, height = (round(float(points) * 4 / 3) for points in view[1].split()[2:])  # pixels
    size = f'viewBox="{view[1]}" width="{width}" height="{height}"'
    return f'<svg {size} role="img"><title>{html.escape(title)}</title>{body}'
