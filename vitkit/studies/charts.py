"""What a study's figures and tables show: series of means over seeds, laws fitted to them, and the paper's own points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from vitkit.errors import InputError
from vitkit.figures.chart import Chart, Series, Spot, Unit
from vitkit.figures.numbers import percent
from vitkit.results import Result
from vitkit.studies import paper
from vitkit.studies.config import Figure, StudyConfig, file_word
from vitkit.studies.laws import Interval, PowerLaw, frontier
from vitkit.studies.results import Mean, StudyRow, means_of

COMPUTE, IMAGES, PARAMETERS = "pre-training compute (FLOPs)", "pre-training images", "parameters"
EVERY = "all"
"The name of the frontier over all groups."
LEVELS = 3
"Errors to which figures count the images seen."
FIT_POINTS = 60
# What is fixed in turn until the points determine a law, and how that is said.
FORMS: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, ""),
    ({"d": 0.0}, "d is fixed to 0, since these points do not determine it"),
    ({"c": 0.0, "d": 0.0}, "c and d are fixed to 0, since these points do not determine them"),
)


@dataclass(frozen=True)
class FittedLaw(Result):
    """A power law of error, fitted to the Pareto-optimal runs of a group."""

    of: str
    "compute, parameters or images."
    group: str
    runs: int
    "On the frontier."
    a: float
    b: float
    c: float
    d: float
    intervals: dict[str, Interval]
    "95% intervals of what was fitted."
    fixed: str
    "What was fixed, in words."
    at: float
    "Where the error is predicted: by default at twice the largest x of the fit."
    predicted: float
    low: float
    high: float
    "95% interval of a new run."

    _leads = ("of", "group", "a", "b", "c", "d", "at", "predicted")


@dataclass(frozen=True)
class StudyTable:
    """A table of one measure."""

    file: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def draw(
    config: StudyConfig,
    rows: Sequence[StudyRow],
    measure: str,
    with_paper: bool = False,
    at: float | None = None,
) -> tuple[list[Chart], list[FittedLaw]]:
    """Return the figures that a study asks for, with what is finished, and the laws in them.

    at: compute in exaFLOPs at which its laws predict the error, by default twice the largest.
    """
    means, laws = means_of(rows, measure), list[FittedLaw]()
    charts = list[Chart]()
    for figure in config.figures:
        if figure == "laws":
            found = law_charts(means, measure, at)
            charts += [chart for chart, _ in found]
            laws += [law for _, own in found for law in own]
        else:
            charts.append(_DRAWN[figure](means, measure))
    if with_paper:
        charts = [_with_paper(chart, measure, config) for chart in charts]
    return charts, laws


def data_chart(means: Sequence[Mean], measure: str) -> Chart:
    """Return accuracy against pre-training images, a line for each group that the study names, else for each model."""
    varying = _axes_of(means, lambda mean: mean.row.images)
    lines: dict[str, list[Spot]] = {}
    for mean in means:
        labels = [label for axis, label in mean.labels.items() if axis not in varying]
        names = mean.row.groups if mean.row.is_grouped else (", ".join(labels) or mean.row.model,)
        for name in names:
            lines.setdefault(name, []).append(_spot(mean, mean.row.images))
    title = f"{measure} against pre-training images"
    series = tuple(Series(name, tuple(spots)) for name, spots in lines.items())
    return Chart("data", title, IMAGES, measure, series)


def compute_chart(means: Sequence[Mean], measure: str) -> Chart:
    """Return accuracy against compute, a colour for each group."""
    series = tuple(
        Series(group, tuple(_spot(mean, mean.row.exaflops, mean.name) for mean in own), "points")
        for group, own in _by_group(means).items()
    )
    return Chart("compute", f"{measure} against compute", COMPUTE, measure, series, "exaflops")


def shape_chart(means: Sequence[Mean], measure: str) -> Chart:
    """Return accuracy against compute, a line for each group, in which one setting of the shape grows."""
    series = tuple(
        Series(group, tuple(_spot(mean, mean.row.exaflops, mean.name) for mean in own))
        for group, own in _by_group(means).items()
    )
    return Chart("shape", f"{measure} as one setting grows", COMPUTE, measure, series, "exaflops")


def images_chart(means: Sequence[Mean], measure: str) -> Chart:
    """Return images seen to a given error against parameters, a line for each error.

    Of each model, runs on the most images count. Between two durations, images seen are interpolated on log scales.
    """
    sizes: dict[tuple[str, int], list[Mean]] = {}
    for mean in means:
        sizes.setdefault((mean.row.groups[0], mean.row.parameters), []).append(mean)
    for key, runs in sizes.items():
        most = max(mean.row.images for mean in runs)
        sizes[key] = [mean for mean in runs if mean.row.images == most]
    series = list[Series]()
    errors = [1 - mean.accuracy for runs in sizes.values() for mean in runs if mean.accuracy < 1]
    levels = (
        sorted({float(f"{level:.2g}") for level in np.quantile(errors, [0.25, 0.5, 0.75])}) if errors else []
    )
    for level in levels[:LEVELS]:
        for group in dict.fromkeys(group for group, _ in sizes):
            spots = []
            for (own, parameters), runs in sizes.items():
                seen = _seen_at([(mean.row.seen, 1 - mean.accuracy) for mean in runs], level)
                if own == group and seen is not None:
                    spots.append(Spot(parameters, seen))
            if spots:
                series.append(Series(f"{group}, error {percent(level)}", tuple(spots)))
    notes = () if series else ("No two durations of a model are on both sides of a common error.",)
    title = f"Images seen to a given error, {measure}"
    return Chart(
        "images", title, PARAMETERS, "images seen", tuple(series), y_unit="number", is_log_y=True, notes=notes
    )


def law_charts(means: Sequence[Mean], measure: str, at: float | None) -> list[tuple[Chart, list[FittedLaw]]]:
    """Return error against compute, parameters and images, each with the laws of its frontiers."""
    kinds: tuple[tuple[str, str, Callable[[StudyRow], float]], ...] = (
        ("compute", COMPUTE, lambda row: row.exaflops),
        ("parameters", PARAMETERS, lambda row: float(row.parameters)),
        ("images", IMAGES, lambda row: float(row.images)),
    )
    return [
        _law_chart(means, measure, of, words, place, at if of == "compute" else None)
        for of, words, place in kinds
        if of == "compute" or len({place(mean.row) for mean in means}) > 1
    ]


def _law_chart(
    means: Sequence[Mean],
    measure: str,
    of: str,
    words: str,
    place: Callable[[StudyRow], float],
    at: float | None,
) -> tuple[Chart, list[FittedLaw]]:
    groups = _by_group(means)
    if len(groups) > 1:
        groups[EVERY] = list(means)
    series, laws, notes = list[Series](), list[FittedLaw](), list[str]()
    for color, (group, own) in enumerate(groups.items()):
        own = [mean for mean in own if mean.accuracy < 1]
        if group != EVERY:
            spots = tuple(
                replace(_spot(mean, place(mean.row), mean.name), y=1 - mean.accuracy) for mean in own
            )
            if spots:
                series.append(Series(group, spots, "points", color))
        x = np.array([place(mean.row) for mean in own])
        y = np.array([1 - mean.accuracy for mean in own])
        try:
            law, fixed, best = fit_law(x, y)
        except InputError as error:
            notes.append(f"{group}: no law: {error}.")
            continue
        found = _fitted(law, fixed, of, group, x[best], at)
        laws.append(found)
        ends = np.geomspace(x[best].min(), max(found.at, x[best].max()), FIT_POINTS)
        curve = tuple(Spot(float(a), float(b)) for a, b in zip(ends, law.predict(ends), strict=True))
        series.append(Series(f"{group}: {law}", curve, "curve", color))
        if found.c > 0:
            level = Spot(float(ends[0]), found.c)
            series.append(Series(f"{group} saturates at {percent(found.c)}", (level,), "level", color))
        if fixed:
            notes.append(f"{group}: {fixed}.")
    unit: Unit = "exaflops" if of == "compute" else "number"
    title = f"Error ({measure}) against {of}, with laws of the best runs"
    chart = Chart(
        f"laws-{of}",
        title,
        words,
        f"error ({measure})",
        tuple(series),
        unit,
        is_log_y=True,
        notes=tuple(notes),
    )
    return chart, laws


def fit_law(x: np.ndarray, error: np.ndarray) -> tuple[PowerLaw, str, np.ndarray]:
    """Return the law of the Pareto-optimal runs, what was fixed for it, and their places.

    Parameters that the points don't determine are fixed in turn; InputError if even a straight line isn't determined.
    """
    best = frontier(x, error)
    for form, words in FORMS:
        try:
            return PowerLaw(**form).fit(x[best], error[best]), words, best
        except InputError as refusal:
            reason = refusal
    raise reason


def _fitted(law: PowerLaw, fixed: str, of: str, group: str, x: np.ndarray, at: float | None) -> FittedLaw:
    place = float(2 * x.max()) if at is None else at
    found = law.predict([place], interval=True)
    values = (law.a_, law.b_, law.c_, law.d_)
    predicted = tuple(float(part[0]) for part in found)
    return FittedLaw(of, group, len(x), *values, law.intervals_, fixed, place, *predicted)


def table_of(
    axes: tuple[str, ...], means: Sequence[Mean], measure: str, with_paper: bool = False
) -> StudyTable:
    """Return one measure by one or two axes: its mean and spread over all runs there."""
    down, across = axes[0], axes[1] if len(axes) > 1 else None
    rows = list(dict.fromkeys(mean.labels[down] for mean in means if down in mean.labels))
    columns = list(dict.fromkeys(mean.labels[across] for mean in means)) if across else [measure]
    cells = []
    for row in rows:
        own = [mean for mean in means if mean.labels.get(down) == row]
        line = [row]
        for column in columns:
            same = [mean for mean in own if across is None or mean.labels[across] == column]
            published = paper.cell(row, column, measure) if with_paper and across else None
            line.append(_cell(same) + (f" (paper {percent(published)})" if published is not None else ""))
        cells.append(tuple(line))
    title = f"{measure} by {down}" + (f" and {across}" if across else "")
    return StudyTable("table-" + "-".join(map(file_word, axes)), title, (down, *columns), tuple(cells))


def _cell(means: Sequence[Mean]) -> str:
    """Return a mean over what other axes vary too, with the spread where there is one setting alone."""
    if not means:
        return ""
    accuracy = sum(mean.accuracy for mean in means) / len(means)
    spread = means[0].spread if len(means) == 1 else None
    return percent(accuracy) + ("" if spread is None else f" ± {percent(spread)}")


def _spot(mean: Mean, x: float, name: str = "") -> Spot:
    return Spot(float(x), mean.accuracy, mean.spread, mean.runs, name)


def _by_group(means: Sequence[Mean]) -> dict[str, list[Mean]]:
    found: dict[str, list[Mean]] = {}
    for mean in means:
        for group in mean.row.groups:
            found.setdefault(group, []).append(mean)
    return found


def _axes_of(means: Sequence[Mean], value: Callable[[Mean], object]) -> set[str]:
    """Return the axes whose labels each stand for one value, where there are several values."""
    found = set()
    for axis in dict.fromkeys(axis for mean in means for axis in mean.labels):
        by_label: dict[str, set[object]] = {}
        for mean in means:
            by_label.setdefault(mean.labels.get(axis, ""), set()).add(value(mean))
        if len(set().union(*by_label.values())) > 1 and all(len(values) == 1 for values in by_label.values()):
            found.add(axis)
    return found


def _seen_at(points: Sequence[tuple[int, float]], level: float) -> float | None:
    """Return the images at which a model's error first falls to a level; None if no two of its runs enclose it."""
    ordered = sorted(points)
    for (left, above), (right, below) in pairwise(ordered):
        if above >= level >= below > 0 and above > below:
            share = math.log(above / level) / math.log(above / below)
            return float(math.exp(math.log(left) + share * math.log(right / left)))
    return None


def _with_paper(chart: Chart, measure: str, config: StudyConfig) -> Chart:
    """Return a figure with the ViT paper's own points, where the paper has some of what was measured."""
    column = paper.column_of(measure)
    if column is None:
        return chart
    found: dict[str, tuple[Spot, ...]] = {}
    if chart.file in ("compute", "laws-compute"):
        is_error = chart.file != "compute"
        for family, points in paper.compute_points(column).items():
            found[family] = tuple(
                Spot(x, 1 - y if is_error else y, name="" if is_error else name) for x, y, name in points
            )
        words = f"table 6 of the ViT paper, {column}"
    elif chart.file == "data":
        is_fewshot = any(entry.by == "fewshot" for entry in config.measure if entry.name == measure)
        for model, places in paper.data_points(column, is_fewshot).items():
            found[model] = tuple(Spot(x, y) for x, y in places)
        words = ("figure 4, read off the plot" if is_fewshot else f"table 5, {column}") + ", of the ViT paper"
    if not found:
        return chart
    added = (Series(f"{name}, paper", spots, "published") for name, spots in found.items())
    return replace(chart, series=(*chart.series, *added), notes=(*chart.notes, f"Hollow: {words}."))


_DRAWN: dict[Figure, Callable[[Sequence[Mean], str], Chart]] = {
    "data": data_chart,
    "compute": compute_chart,
    "shape": shape_chart,
    "images": images_chart,
}
