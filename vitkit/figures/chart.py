"""Lines and points with their spread, fitted curves, and levels: one chart as SVG styled by its page, as PNG, or as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from vitkit.figures.numbers import compact, flops
from vitkit.figures.palette import THEME, plain_axes
from vitkit.figures.vector import drawing, themed_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = tuple(name for name in THEME if name.startswith("run-"))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LETTERS = 108
"Of all columns of a legend."
MOST_NAMES = 24
"Named points that a chart has room for."
WIDE = 300.0
"From this ratio of the largest to the smallest x, only powers of ten have a label."
Unit = Literal["number", "share", "exaflops"]


@dataclass(frozen=True)
class Spot:
    """One point: the mean of several runs, or one."""

    x: float
    y: float
    spread: float | None = None
    "Standard deviation of y."
    runs: int = 1
    name: str = ""


@dataclass(frozen=True)
class Series:
    """Points of one colour."""

    name: str
    spots: tuple[Spot, ...]
    look: Literal["line", "points", "curve", "level", "published"] = "line"
    "Joined by lines, points alone, a smooth curve without markers, a dashed level, or published points, which are hollow."
    color: int | None = None
    "Place in the palette; none for a colour of its own."


@dataclass(frozen=True)
class Chart:
    """Series over common axes."""

    file: str
    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    x_unit: Unit = "number"
    y_unit: Unit = "share"
    is_log_y: bool = False
    notes: tuple[str, ...] = ()
    "What a reader should know of it, such as why a law is missing."


def svg(chart: Chart) -> str:
    """Return the chart as SVG that uses the fonts and colours of the page around it, which has its title."""
    with drawing(salt=chart.file):
        return themed_svg(_figure(chart, ""), chart.title)


def png(chart: Chart) -> bytes:
    """Return the chart as a picture on white."""
    buffer = io.BytesIO()
    with drawing():
        _figure(chart, chart.title).savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()


def svg_file(text: str) -> str:
    """Return an SVG of a page as a file of its own, in the light colours."""
    for name, (light, _) in THEME.items():
        text = text.replace(f"var(--{name})", light)
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return text.replace("<svg ", f"<svg {spaces} ", 1) + "\n"


def as_csv(chart: Chart) -> str:
    """Return all points of the chart, with the very numbers that are drawn."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["series", "look", "name", chart.x, chart.y, "standard deviation", "runs"])
    for series in chart.series:
        for spot in series.spots:
            spread = "" if spot.spread is None else repr(spot.spread)
            table.writerow(
                [series.name, series.look, spot.name, repr(spot.x), repr(spot.y), spread, spot.runs]
            )
    return text.getvalue()


def _figure(chart: Chart, title: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 4.6), layout="constrained")
    axes = figure.add_subplot()
    named = sum(bool(spot.name) for series in chart.series for spot in series.spots)
    colors = _colors(chart.series)
    for series, color in zip(chart.series, colors, strict=True):
        _draw(axes, series, color, has_names=named <= MOST_NAMES)
    _dress(axes, chart, title)
    handles, names = axes.get_legend_handles_labels()
    plain: list[Any] = [handle[0] if isinstance(handle, tuple) else handle for handle in handles]
    figure.legend(
        plain,  # without error bars
        names,
        loc="outside lower left",
        ncols=max(1, min(4, LETTERS // (max(map(len, names), default=1) + 6))),
        frameon=False,
        fontsize=8.5,
        labelcolor=THEME["ink"][0],
    )
    return figure


def _colors(series: Sequence[Series]) -> list[int]:
    """Return the colour of each series: its own, or the next one that none asked for."""
    taken = {one.color for one in series}
    free = iter(place for place in range(1000) if place not in taken)
    return [next(free) if one.color is None else one.color for one in series]


def _draw(axes: Axes, series: Series, place: int, has_names: bool) -> None:
    color, marker = THEME[COLORS[place % len(COLORS)]][0], MARKERS[place % len(MARKERS)]
    spots = sorted(series.spots, key=lambda spot: spot.x)
    x, y = [spot.x for spot in spots], [spot.y for spot in spots]
    if series.look == "level":
        axes.axhline(y[0], color=color, linewidth=1, linestyle=(0, (4, 3)), label=series.name)
        return
    if series.look == "curve":
        axes.plot(x, y, color=color, linewidth=1.4, label=series.name)
        spread = [spot.spread or 0.0 for spot in spots]
        if any(spread):
            low, high = (
                [a - b for a, b in zip(y, spread, strict=True)],
                [a + b for a, b in zip(y, spread, strict=True)],
            )
            axes.fill_between(x, low, high, color=color, alpha=0.13, linewidth=0)
        return
    is_published = series.look == "published"
    axes.errorbar(
        x,
        y,
        [spot.spread or 0.0 for spot in spots] if any(spot.spread for spot in spots) else None,
        color=color,
        marker=marker,
        markersize=5.5,
        markerfacecolor=THEME["paper"][0] if is_published else color,
        linewidth=1.5 if series.look == "line" else 0,
        elinewidth=1.2,
        capsize=2.5,
        alpha=0.75 if is_published else 1,
        label=series.name,
        zorder=3,
    )
    for number, spot in enumerate(spots if has_names else ()):
        offset = (5, 5) if number % 2 == 0 else (5, -11)  # neighbours' names don't touch
        axes.annotate(
            spot.name,
            (spot.x, spot.y),
            xytext=offset,
            textcoords="offset points",
            fontsize=7.5,
            color=THEME["ink"][0],
        )


def _dress(axes: Axes, chart: Chart, title: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    plain_axes(axes, title)
    axes.set_xscale("log")
    places = [spot.x for series in chart.series for spot in series.spots if spot.x > 0] or [1.0]
    is_wide = max(places) / min(places) > WIDE
    axes.xaxis.set_major_locator(LogLocator(subs=(1,) if is_wide else (1, 2, 5), numticks=12))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(lambda value, _: _written(value, chart.x_unit))
    if chart.is_log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(lambda value, _: _written(value, chart.y_unit))
    axes.grid(True, axis="x", color=THEME["line"][0], linewidth=0.8)
    axes.margins(0.09, 0.1)
    muted = THEME["muted"][0]
    axes.set_xlabel(chart.x, fontsize=8.5, color=muted)
    axes.set_ylabel(chart.y, fontsize=8.5, color=muted)


def _written(value: float, unit: Unit) -> str:
    if unit == "share":
        return f"{100 * value:g}%"
    return flops(value).replace("FLOPs", "") if unit == "exaflops" else compact(value).replace(" ", "")
