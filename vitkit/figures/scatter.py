"""Named points in groups, such as speed against accuracy, as PNG; speeds and sizes are on log scales."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from vitkit.figures.numbers import compact
from vitkit.figures.palette import THEME, plain_axes
from vitkit.figures.vector import drawing

COLORS = tuple(f"run-{number}" for number in range(10))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class Point:
    """One point. Where no y is above 1, they are shares, drawn in percent."""

    x: float
    y: float
    name: str
    group: str


def scatter(title: str, points: Sequence[Point], x: str, y: str) -> bytes:
    """Return a picture of points, coloured by group, each with its name if they have several."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    groups = list(dict.fromkeys(point.group for point in points))
    is_share = all(point.y <= 1 for point in points)
    ink, muted, line = (THEME[name][0] for name in ("ink", "muted", "line"))
    with drawing():
        figure = Figure(figsize=(8.4, 5), dpi=150, layout="constrained")
        axes = figure.add_subplot()
        for number, group in enumerate(groups):
            own = [point for point in points if point.group == group]
            axes.scatter(
                [point.x for point in own],
                [point.y for point in own],
                s=42,
                color=THEME[COLORS[number % len(COLORS)]][0],
                marker=MARKERS[number % len(MARKERS)],
                label=group,
                zorder=3,
            )
        labelled = points if len({point.name for point in points}) > 1 else []
        for number, point in enumerate(labelled):
            place = (5, 5) if number % 2 == 0 else (5, -11)  # neighbours' names don't touch
            axes.annotate(
                point.name,
                (point.x, point.y),
                xytext=place,
                textcoords="offset points",
                fontsize=7.5,
                color=ink,
            )
        plain_axes(axes, title)
        axes.set_xscale("log")
        if not is_share:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.grid(True, axis="x", color=line, linewidth=0.8)
        axes.margins(0.14, 0.12)
        axes.xaxis.set_major_formatter(lambda value, _: compact(value))
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%" if is_share else compact(value))
        axes.yaxis.set_minor_formatter(lambda value, _: "")
        axes.set_xlabel(x, fontsize=8.5, color=muted)
        axes.set_ylabel(y, fontsize=8.5, color=muted)
        figure.legend(loc="outside lower left", ncols=4, frameon=False, fontsize=8.5, labelcolor=ink)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
