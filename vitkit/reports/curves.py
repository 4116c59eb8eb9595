"""Curves of runs over steps and epochs: each measure a panel, as SVG for the page and all as one PNG."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vitkit.figures import numbers
from vitkit.figures.palette import THEME
from vitkit.reports.folder import Run, mapping
from vitkit.reports.page import Html, element, join

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_RUNS = sum(name.startswith("run-") for name in THEME)
"Runs that can be told apart by colour."
TITLES = {"images_per_second": "Images/s"}
MOST_POINTS = 200
"Points of a training curve; where there are more, each is the mean of several."
MOST_BANDS = 3
"Runs up to which the range of those several is drawn too."
MOST_MARKERS = 40
LOG_FROM = 20.0
"Ratio of the highest to the lowest value from which the axis of loss or gradient is logarithmic."
FEWEST_CLOSE = 4
"Evaluations in the second half of training that make its close-up worth drawing."

# marker of matplotlib -> its SVG within the key of the legend, 26 by 10
MARKERS = {
    "o": '<circle cx="13" cy="5" r="3"/>',
    "s": '<rect x="10.2" y="2.2" width="5.6" height="5.6"/>',
    "^": '<path d="M13 1.4L16.4 8H9.6z"/>',
    "D": '<path d="M13 1.2L16.8 5L13 8.8L9.2 5z"/>',
}


@dataclass(frozen=True)
class Panel:
    """One measure over steps; with a start, a close-up of what was evaluated from there on."""

    measure: str
    start: float = 0
    loss: str = ""
    "The kind of loss, where runs have several, which can't be compared."


@dataclass(frozen=True)
class Look:
    """How a curve is drawn: colour of the theme, marker of an evaluated split, dashes for averaged weights."""

    color: str
    marker: str = ""
    is_average: bool = False
    is_faint: bool = False


@dataclass(frozen=True)
class Curve:
    """One line of a panel."""

    look: Look
    steps: np.ndarray  # (points,)
    values: np.ndarray  # (points,)


def panels(runs: Sequence[Run]) -> list[Panel]:
    """Return what can be drawn of these runs, loss first, speed last; a long climb of accuracy has a close-up."""
    evaluated = dict.fromkeys(key.split("/", 1)[1] for run in runs for key in run.metrics)
    trained = (key for run in runs for line in run.training for key in line if numbers.is_accuracy(key))
    order = dict.fromkeys(
        ["loss", "accuracy", *trained, *evaluated, "learning_rate", "gradient_norm", "images_per_second"]
    )
    kinds = dict.fromkeys(map(kind_of_loss, runs))
    losses = [Panel("loss", loss=kind) for kind in kinds] if len(kinds) > 1 else [Panel("loss")]
    found = []
    for panel in [*losses, *(Panel(measure) for measure in order if measure != "loss")]:
        curves = curves_of(runs, panel)
        if curves:
            found.append(panel)
        close = Panel(panel.measure, max((curve.steps[-1] for curve in curves), default=0) / 2)
        if panel.measure == "accuracy" and any(
            len(curve.steps) >= FEWEST_CLOSE for curve in curves_of(runs, close)
        ):
            found.append(close)
    return found


def kind_of_loss(run: Run) -> str:
    """Say what a run's loss is of."""
    objective = mapping(run.config.get("objective"))
    match objective.get("name"):
        case "masked_patches":
            return f"masked patches, {objective.get('target')}"
        case "mae":
            return f"mae, {'normalised patches' if objective.get('patch_norm') else 'pixels'}"
        case _:
            # Left to the data, several labels have the sigmoid, and another measure.
            is_sigmoid = objective.get("loss") == "sigmoid" or any(
                key.endswith("/mean_average_precision") for key in run.metrics
            )
            return "cross-entropy of each class" if is_sigmoid else "cross-entropy"


def curves_of(runs: Sequence[Run], panel: Panel) -> list[Curve]:
    """Return the curves of a panel: training, then each evaluated split, raw and averaged."""
    found = []
    for place, run in enumerate(runs):
        if panel.loss and panel.loss != kind_of_loss(run):
            continue
        sources = [] if panel.start else [("train", panel.measure, run.training)]
        for key in run.metrics:
            split, measure = key.split("/", 1)
            sources += [(split, key, run.evaluations)] if measure == panel.measure else []
        for name, key, lines in sources:
            points = [
                (line["step"], line[key]) for line in lines if key in line and line["step"] >= panel.start
            ]
            if points:
                steps, values = np.array(points, float).T
                found.append(Curve(_look(runs, place, name, panel.measure), steps, values))
    return found


def svg(runs: Sequence[Run], panel: Panel) -> Html:
    """Return one panel as SVG that takes fonts and colours from the page around it."""
    from matplotlib.figure import Figure

    with _drawing(salt=str(panel)):
        figure = Figure(figsize=(4.4, 2.9), layout="constrained")
        _draw(figure.add_subplot(), runs, panel)
        buffer = io.StringIO()
        nothing = dict.fromkeys(["Creator", "Date", "Format", "Type"])
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    head, body = text.split(">", 1)
    view = re.search(r'viewBox="([^"]+)"', head)
    assert view, head
    body = re.sub(r'(<g) id="[^"]*"', r"\1", re.sub(r"(?s)<!--.*?-->|\n\s*", "", body))
    for name, (light, _) in THEME.items():
        body = body.replace(light, f"var(--{name})")
    title = element("title", f"{_title(runs, panel)} over steps")
    return Html(f'<svg viewBox="{view[1]}" role="img">{title}{body}')


def png(runs: Sequence[Run]) -> bytes:
    """Return all panels as one picture with a legend above."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.lines import Line2D

    shown = panels(runs)
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    entries = [*_run_entries(runs), *_split_entries(runs)]
    names = [_plain(name) for name, _ in entries]
    with _drawing():
        spacing = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
        figure = Figure(figsize=(5.6 * columns, 3.5 * rows + 0.5), dpi=150, layout=spacing)
        for place, panel in enumerate(shown):
            _draw(figure.add_subplot(rows, columns, place + 1), runs, panel)
        figure.legend(
            [Line2D([], [], **_style(look)) for _, look in entries],
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


def legend(runs: Sequence[Run]) -> Html:
    """Return what colours, markers and dashes mean."""
    parts: list[Html] = []
    for entries, quiet in ((_run_entries(runs), ""), (_split_entries(runs), " quiet")):
        items = (element("li", key(look), name) for name, look in entries)
        if entries:
            parts.append(element("ul", *items, class_=f"legend{quiet if parts else ''}"))
    return join(parts)


def key(look: Look) -> Html:
    """Return a short piece of a curve, to stand before its name."""
    color = f"var(--{look.color})"
    dash = ' stroke-dasharray="5 3"' if look.is_average else ""
    faint = ' opacity=".5"' if look.is_faint else ""
    line = f'<path d="M0 5H26" stroke-width="2"{dash}{faint}/>'
    fill = "var(--paper)" if look.is_average else color
    marker = f'<g fill="{fill}" stroke-width="1.5">{MARKERS[look.marker]}</g>' if look.marker else ""
    return Html(
        f'<svg class="key" width="26" height="10" aria-hidden="true" fill="none" stroke="{color}">{line}{marker}</svg>'
    )


def remark(runs: Sequence[Run]) -> str:
    """Say how training curves were thinned, if they were."""
    longest = max(len(run.training) for run in runs)
    if longest <= MOST_POINTS:
        return ""
    each = -(-longest // MOST_POINTS)
    band = "; the pale band spans their lowest to highest" if len(runs) <= MOST_BANDS else ""
    return f"A point of a training curve is the mean of up to {each} logged values{band}."


def _run_entries(runs: Sequence[Run]) -> list[tuple[str, Look]]:
    return [(run.name, Look(f"run-{place}")) for place, run in enumerate(runs)] if len(runs) > 1 else []


def _split_entries(runs: Sequence[Run]) -> list[tuple[str, Look]]:
    """Return the kinds of curves: in their own colours for one run, else in a neutral one."""
    names = dict.fromkeys(key.split("/")[0] for run in runs for key in run.metrics)
    if any(run.training for run in runs):
        names = {"train": None, **names}
    looks = [(name.replace("_", " "), _look(runs, 0, name, "accuracy")) for name in names]
    if len(runs) == 1:
        return looks
    return [(name, Look("muted", look.marker, look.is_average, look.is_faint)) for name, look in looks]


def _look(runs: Sequence[Run], place: int, name: str, measure: str) -> Look:
    """Return the look of a curve: several runs differ by colour, the splits of a single one do."""
    base = name.removesuffix("_ema")
    splits = list(
        dict.fromkeys(key.split("/")[0].removesuffix("_ema") for run in runs for key in run.metrics)
    )
    if name == "train" and name not in splits:
        is_beside = bool(splits) and (measure == "loss" or numbers.is_accuracy(measure))
        return Look(
            f"run-{place}" if len(runs) > 1 or not splits else "run-9", is_faint=len(runs) > 1 and is_beside
        )
    number = splits.index(base)
    color = place if len(runs) > 1 else number % (MOST_RUNS - 1)
    return Look(f"run-{color}", list(MARKERS)[number % len(MARKERS)], name != base)


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


def _draw(axes: Axes, runs: Sequence[Run], panel: Panel) -> None:
    curves = curves_of(runs, panel)
    for curve in curves:
        size = 1 if curve.look.marker else -(-len(curve.steps) // MOST_POINTS)
        steps, values = (_chunks(array, size) for array in (curve.steps, curve.values))
        style = _style(curve.look)
        if len(values) == 1:
            style["marker"] = curve.look.marker or "o"
        elif len(values) > MOST_MARKERS:
            style["marker"] = None
        means = np.nanmean(values, 1)
        axes.plot(np.nanmax(steps, 1), means, zorder=3 if curve.look.marker else 2, **style)
        if size > 1 and len(runs) <= MOST_BANDS:
            low, high = np.nanmin(values, 1), np.nanmax(values, 1)
            axes.fill_between(np.nanmax(steps, 1), low, high, color=style["color"], alpha=0.13, linewidth=0)
    if _is_log(curves, panel):
        axes.set_yscale("log")
    places = {step for curve in curves for step in curve.steps.tolist()}
    _dress(axes, _title(runs, panel), panel.measure, _steps_per_epoch(runs) if len(places) > 1 else None)
    if len(places) == 1:
        axes.set_xlim(min(places) - 1, min(places) + 1)


def _dress(axes: Axes, title: str, measure: str, steps_per_epoch: float | None) -> None:
    """Set titles, ticks and lines of a panel."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    ink, muted, line = (THEME[name][0] for name in ("ink", "muted", "line"))
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=ink)
    axes.grid(True, axis="y", color=line, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(line)
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
    axes.tick_params(which="both", length=0, labelsize=8.5, labelcolor=muted, pad=4)
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


def _title(runs: Sequence[Run], panel: Panel) -> str:
    title = TITLES.get(panel.measure) or numbers.metric_name(panel.measure).capitalize()
    if panel.loss:
        title += f": {numbers.metric_name(panel.loss)}"
    if panel.start:
        return f"{title}, second half"
    return f"{title}, log scale" if _is_log(curves_of(runs, panel), panel) else title


def _is_log(curves: Sequence[Curve], panel: Panel) -> bool:
    if panel.measure not in ("loss", "gradient_norm"):
        return False
    low, high = min(curve.values.min() for curve in curves), max(curve.values.max() for curve in curves)
    return bool(low > 0 and high / low >= LOG_FROM)


def _steps_per_epoch(runs: Sequence[Run]) -> float | None:
    """Return the steps of an epoch where all runs agree on them."""
    ratios = []
    for run in runs:
        lines = [line for line in run.training + run.evaluations if line.get("epoch", 0) > 0 < line["step"]]
        if not lines:
            return None
        last = max(lines, key=lambda line: line["step"])
        ratios.append(last["step"] / last["epoch"])
    return float(np.median(ratios)) if max(ratios) <= 1.01 * min(ratios) else None


def _chunks(values: np.ndarray, size: int) -> np.ndarray:
    """Return (chunks, size); what the last chunk lacks is NaN."""
    padding = -len(values) % size
    return np.concatenate([values, np.full(padding, np.nan)]).reshape(-1, size)


def _plain(name: str) -> str:
    """Return a name that a picture can show: any character can be written, and not too many."""
    name = " ".join(name.encode("utf-8", "backslashreplace").decode().split())
    return name if len(name) <= 60 else f"{name[:40]}…{name[-19:]}"


@contextmanager
def _drawing(salt: str | None = None) -> Iterator[None]:
    """Draw texts as they are, not as formulas or outlines; identifiers in a file come from its salt."""
    import matplotlib

    settings = matplotlib.rc_context({"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": salt})
    with settings, warnings.catch_warnings():
        # What matplotlib's font lacks shows as boxes in the PNG; the page has it right.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        yield
