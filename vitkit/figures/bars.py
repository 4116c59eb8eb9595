"""A bar chart of accuracies by group and by task, with published results as marks, as PNG."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vitkit.figures.palette import THEME, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours of groups in order of appearance, and the colour of bars without a group.
COLORS = ("run-2", "run-1", "run-0", "run-4", "run-5")
NO_GROUP = "run-9"
MARKERS = ("D", "o", "^", "s", "v")
LOW = 0.07
"Bars below this value are too low for a number inside them."


@dataclass(frozen=True)
class Bar:
    """One accuracy from 0 to 1, with the published results for it."""

    name: str
    group: str
    value: float
    std: float | None = None
    published: Sequence[float | None] = field(default_factory=tuple)


def bars(
    title: str, groups: Sequence[Bar], tasks: Sequence[Bar], published: Sequence[str] = (), caption: str = ""
) -> bytes:
    """Return a picture with two panels, means of groups and tasks; `published` names the marks, in order."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    names = list(dict.fromkeys(bar.group for bar in tasks))
    colors = {name: THEME[COLORS[place % len(COLORS)]][0] for place, name in enumerate(names)}
    ink, muted = THEME["ink"][0], THEME["muted"][0]
    with matplotlib.rc_context({"text.parse_math": False}):
        widths = [1.5 * max(2, len(groups)), max(3, len(tasks))]  # group names are not rotated
        figure = Figure(figsize=(max(6.5, 2.5 + 0.48 * sum(widths)), 4.6), dpi=150, layout="constrained")
        axes = figure.subplots(1, 2, sharey=True, width_ratios=widths)
        for panel, words, items in zip(axes, ("Means", "Tasks"), (groups, tasks), strict=True):
            _draw(panel, words, items, colors)
        # Wrap the title at the largest width that fits.
        heading = figure.suptitle("", x=0.01, ha="left", fontsize=11, fontweight="bold", color=ink)
        for width in range(int(figure.get_figwidth() * 14), 10, -2):
            heading.set_text("\n".join(textwrap.wrap(title, width)))
            if heading.get_window_extent().x1 < 0.99 * figure.bbox.x1:
                break
        if published:
            marks = [
                Line2D([], [], linestyle="", marker=MARKERS[place % len(MARKERS)], **_mark())
                for place in range(len(published))
            ]
            figure.legend(
                marks,
                published,
                loc="outside lower left",
                ncols=min(3, len(published)),
                frameon=False,
                fontsize=8.5,
                labelcolor=muted,
            )
        if caption:
            axes[1].text(
                1,
                1.01,
                caption,
                transform=axes[1].transAxes,
                ha="right",
                va="bottom",
                fontsize=8.5,
                color=muted,
            )
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _draw(axes: Axes, title: str, items: Sequence[Bar], colors: dict[str, str]) -> None:
    ink = THEME["ink"][0]
    places = range(len(items))
    heights = [100 * bar.value for bar in items]
    axes.bar(
        places, heights, 0.72, color=[colors.get(bar.group, THEME[NO_GROUP][0]) for bar in items], alpha=0.85
    )
    for place, bar in enumerate(items):
        if bar.std is not None:
            axes.errorbar(place, 100 * bar.value, 100 * bar.std, color=ink, linewidth=1, capsize=2)
        for number, value in enumerate(bar.published):
            if value is not None:
                axes.plot(place, 100 * value, marker=MARKERS[number % len(MARKERS)], **_mark())
        color = ink if bar.value < LOW else THEME["paper"][0]
        axes.text(place, 1.5, f"{100 * bar.value:.1f}", ha="center", fontsize=7.5, color=color)
    plain_axes(axes, title)
    axes.set_ylim(0, 100)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}%")
    axes.margins(x=0.02)
    is_long = len(items) > 6
    labels: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if is_long else {}
    axes.set_xticks(places, [bar.name for bar in items], **labels)


def _mark() -> dict[str, Any]:
    return {
        "color": THEME["ink"][0],
        "markersize": 4.5,
        "markerfacecolor": THEME["paper"][0],
        "markeredgewidth": 1.1,
        "clip_on": False,
        "zorder": 3,
    }
