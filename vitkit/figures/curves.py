"""Curves over steps and epochs, one panel per metric: as SVG styled by its page, or all panels as one PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vitkit.figures import numbers
from vitkit.figures.palette import THEME, plain_axes
from vitkit.figures.vector import drawing, themed_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 200
"Most points of a curve without markers; if there are more, each point drawn is the mean of several."
MOST_MARKERS = 40
LOG_FROM = 20.0
"From this ratio of the highest to the lowest value, the axis of loss or gradient is logarithmic."

# matplotlib's marker -> its SVG in a legend key, which is 26 by 10
MARKERS = {
    "o": '<circle cx="13" cy="5" r="3"/>',
    "s": '<rect x="10.2" y="2.2" width="5.6" height="5.6"/>',
    "^": '<path d="M13 1.4L16.4 8H9.6z"/>',
    "D": '<path d="M13 1.2L16.8 5L13 8.8L9.2 5z"/>',
}


@dataclass(frozen=True)
class Look:
    """How a curve is drawn: a colour of the theme, a marker for an evaluated split, dashes for averaged weights."""

    color: str
    marker: str = ""
    is_average: bool = False
    is_faint: bool = False


@dataclass(frozen=True, eq=False)
class Curve:
    """One line of a panel."""

    look: Look
    steps: np.ndarray  # (points,)
    values: np.ndarray  # (points,)


@dataclass(frozen=True, eq=False)
class Panel:
    """Curves of one metric under a title."""

    name: str
    "What is drawn, in words. The title also says if the axis is logarithmic."
    measure: str
    "The metric's name, which sets how values are written: percent, learning rate, or number."
    curves: Sequence[Curve]
    steps_per_epoch: float | None = None
    "If known, epochs are shown above the panel."
    has_bands: bool = True
    "Whether to draw the range of the values that each point of a thinned curve averages."

    @property
    def is_log(self) -> bool:
        if self.measure not in ("loss", "gradient_norm"):
            return False
        low = min(curve.values.min() for curve in self.curves)
        high = max(curve.values.max() for curve in self.curves)
        return bool(low > 0 and high / low >= LOG_FROM)

    @property
    def title(self) -> str:
        return f"{self.name}, log scale" if self.is_log else self.name


def svg(panel: Panel) -> str:
    """Return one panel as SVG that uses the fonts and colours of the page around it."""
    from matplotlib.figure import Figure

    with drawing(salt=f"{panel.measure} {panel.name}"):
        figure = Figure(figsize=(4.4, 2.9), layout="constrained")
        _draw(figure.add_subplot(), panel)
        return themed_svg(figure, f"{panel.title} over steps")


def png(panels: Sequence[Panel], legend: Sequence[tuple[str, Look]]) -> bytes:
    """Return all panels as one picture, with the legend of curves above."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.lines import Line2D

    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    names = [_plain(name) for name, _ in legend]
    with drawing():
        spacing = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
        figure = Figure(figsize=(5.6 * columns, 3.5 * rows + 0.5), dpi=150, layout=spacing)
        for place, panel in enumerate(panels):
            _draw(figure.add_subplot(rows, columns, place + 1), panel)
        figure.legend(
            [Line2D([], [], **_style(look)) for _, look in legend],
            names,
            loc="outside upper left",
            ncols=max(1, min(6, 60 * columns // (max(map(len, names)) + 8))),
            frameon=False,
            fontsize=9,
            labelcolor=THEME["ink"][0],
        )
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def svg_key(look: Look) -> str:
    """Return a short piece of a curve as SVG, to put before its name."""
    color = f"var(--{look.color})"
    dash = ' stroke-dasharray="5 3"' if look.is_average else ""
    faint = ' opacity=".5"' if look.is_faint else ""
    line = f'<path d="M0 5H26" stroke-width="2"{dash}{faint}/>'
    fill = "var(--paper)" if look.is_average else color
    marker = f'<g fill="{fill}" stroke-width="1.5">{MARKERS[look.marker]}</g>' if look.marker else ""
    return f'<svg class="key" width="26" height="10" aria-hidden="true" fill="none" stroke="{color}">{line}{marker}</svg>'


def _style(look: Look) -> dict[str, Any]:
    color = THEME[look.color][0]
    return {
        "color": color,
        "linewidth": 1.6 if look.marker else 1.3,
        "linestyle": (0, (4, 2)) if look.is_average else "-",
        "marker": look.marker or None,
        "markersize": 4,
        "markeredgewidth": 1.1,
        "markerfacecolor": THEME["paper"][0] if look.is_average else color,
        "alpha": 0.45 if look.is_faint else 1,
    }


def _draw(axes: Axes, panel: Panel) -> None:
    for curve in panel.curves:
        size = 1 if curve.look.marker else -(-len(curve.steps) // MOST_POINTS)
        steps, values = (_chunks(array, size) for array in (curve.steps, curve.values))
        style = _style(curve.look)
        if len(values) == 1:
            style["marker"] = curve.look.marker or "o"
        elif len(values) > MOST_MARKERS:
            style["marker"] = None
        means = np.nanmean(values, 1)
        axes.plot(np.nanmax(steps, 1), means, zorder=3 if curve.look.marker else 2, **style)
        if size > 1 and panel.has_bands:
            low, high = np.nanmin(values, 1), np.nanmax(values, 1)
            axes.fill_between(np.nanmax(steps, 1), low, high, color=style["color"], alpha=0.13, linewidth=0)
    if panel.is_log:
        axes.set_yscale("log")
    places = {step for curve in panel.curves for step in curve.steps.tolist()}
    _dress(axes, panel.title, panel.measure, panel.steps_per_epoch if len(places) > 1 else None)
    if len(places) == 1:
        axes.set_xlim(min(places) - 1, min(places) + 1)


def _dress(axes: Axes, title: str, measure: str, steps_per_epoch: float | None) -> None:
    """Set titles, ticks and lines of a panel."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    plain_axes(axes, title)
    axes.margins(x=0.03)

    def show(value: float, _: object) -> str:
        if numbers.is_share(measure):
            return f"{value * 100:.4g}%"
        return f"{value:.3g}" if measure == "learning_rate" else numbers.decimal(value)

    y_format = FuncFormatter(show)
    if axes.get_yscale() == "log":
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(y_format)
    tell_steps = FuncFormatter(lambda value, _: numbers.compact(value).replace(" ", ""))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(tell_steps)
    axes.tick_params(which="both", pad=4)
    muted = THEME["muted"][0]
    axes.set_xlabel("step", fontsize=8.5, color=muted)
    if steps_per_epoch:
        to_epochs, to_steps = (
            partial(np.multiply, factor) for factor in (1 / steps_per_epoch, steps_per_epoch)
        )
        epochs = axes.secondary_xaxis("top", functions=(to_epochs, to_steps))
        epochs.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        epochs.xaxis.set_major_formatter(tell_steps)
        epochs.spines["top"].set_visible(False)
        epochs.tick_params(length=0, labelsize=8.5, labelcolor=muted, pad=1)
        axes.set_xlabel("step, epoch above", fontsize=8.5, color=muted)


def _chunks(values: np.ndarray, size: int) -> np.ndarray:
    """Return (chunks, size); the last chunk is padded with NaN."""
    padding = -len(values) % size
    return np.concatenate([values, np.full(padding, np.nan)]).reshape(-1, size)


def _plain(name: str) -> str:
    """Return a name that a picture can show: unencodable characters are escaped, and a long name is shortened."""
    name = " ".join(name.encode("utf-8", "backslashreplace").decode().split())
    return name if len(name) <= 60 else f"{name[:40]}…{name[-19:]}"
