"""The style of all figures: colours for light and dark backgrounds, shared with pages, and plain axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# name -> (light, dark). Figures use the light colours; pages follow the reader's setting.
THEME = {
    "paper": ("#ffffff", "#101317"),
    "raised": ("#f7f8fa", "#181c22"),
    "ink": ("#1b2027", "#e7eaee"),
    "muted": ("#646e7c", "#98a3b1"),
    "line": ("#e3e7ec", "#2b323b"),
    "shade": ("#c3cad3", "#3d4754"),
    "good": ("#12804a", "#4cc38a"),
    "busy": ("#1f5fd0", "#6ea8ff"),
    "weak": ("#a15c00", "#f0b35a"),
    "bad": ("#c02a2a", "#ff8080"),
    "bar": ("#d6e4fd", "#23395f"),
    "run-0": ("#2463eb", "#6ba1ff"),
    "run-1": ("#d9730a", "#ffab57"),
    "run-2": ("#0a8f68", "#3fcf9f"),
    "run-3": ("#c7327f", "#ff7fbc"),
    "run-4": ("#7a3fe0", "#b394ff"),
    "run-5": ("#0d8aa8", "#4fd0ea"),
    "run-6": ("#d13438", "#ff8a85"),
    "run-7": ("#6b8f10", "#b5d84a"),
    "run-8": ("#8b5a34", "#d3a17a"),
    "run-9": ("#5b6b82", "#a9b7cb"),
}


def plain_axes(axes: Axes, title: str, title_size: float = 10, label_size: float = 8.5) -> None:
    """Give axes a title and pale horizontal lines, and hide all other decoration."""
    ink, muted, line = (THEME[name][0] for name in ("ink", "muted", "line"))
    axes.set_title(title, loc="left", fontsize=title_size, fontweight="bold", color=ink)
    axes.grid(True, axis="y", color=line, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(line)
    axes.tick_params(which="both", length=0, labelsize=label_size, labelcolor=muted)
