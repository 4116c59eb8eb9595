"""Curves of runs: which measures are drawn together, and how runs, splits and averaged weights are told apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vitkit.figures import numbers
from vitkit.figures.curves import MARKERS, MOST_POINTS, Curve, Look, Panel, svg_key
from vitkit.figures.palette import THEME
from vitkit.page import Html, element, join
from vitkit.runs.reading import Run, mapping

MOST_RUNS = sum(name.startswith("run-") for name in THEME)
"Runs that can be told apart by colour."
TITLES = {"images_per_second": "Images/s"}
MOST_BANDS = 3
"Runs up to which the range of a thinned curve is drawn."
FEWEST_CLOSE = 4
"Evaluations in the second half of training that make its close-up worth drawing."


def panels(runs: Sequence[Run]) -> list[Panel]:
    """Return what can be drawn of these runs, loss first, speed last; a long climb of accuracy has a close-up."""
    evaluated = dict.fromkeys(key.split("/", 1)[1] for run in runs for key in run.metrics)
    trained = (key for run in runs for line in run.training for key in line if numbers.is_accuracy(key))
    order = dict.fromkeys(
        ["loss", "accuracy", *trained, *evaluated, "learning_rate", "gradient_norm", "images_per_second"]
    )
    steps_per_epoch = _steps_per_epoch(runs)
    found = []

    def add(name: str, measure: str, curves: list[Curve]) -> None:
        if curves:
            has_bands = len(runs) <= MOST_BANDS
            found.append(Panel(name, measure, curves, steps_per_epoch, has_bands))

    kinds = dict.fromkeys(map(kind_of_loss, runs))
    for measure in order:
        title = TITLES.get(measure) or numbers.metric_name(measure).capitalize()
        if measure == "loss" and len(kinds) > 1:  # losses of different kinds can't be compared
            for kind in kinds:
                add(f"{title}: {numbers.metric_name(kind)}", measure, list(_curves(runs, measure, kind)))
            continue
        curves = list(_curves(runs, measure))
        add(title, measure, curves)
        if measure == "accuracy" and curves:
            half = max(curve.steps[-1] for curve in curves) / 2
            close = list(_curves(runs, measure, from_step=half))
            if any(len(curve.steps) >= FEWEST_CLOSE for curve in close):
                add(f"{title}, second half", measure, close)
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
            # By default multi-label data trains with the sigmoid, and has another measure.
            is_sigmoid = objective.get("loss") == "sigmoid" or any(
                key.endswith("/mean_average_precision") for key in run.metrics
            )
            return "cross-entropy of each class" if is_sigmoid else "cross-entropy"


def _curves(runs: Sequence[Run], measure: str, kind: str = "", from_step: float = 0) -> Iterator[Curve]:
    """Yield training, then each evaluated split, raw and averaged.

    kind: draws only runs with this kind of loss. from_step: draws only evaluations, from that step on.
    """
    for place, run in enumerate(runs):
        if kind and kind != kind_of_loss(run):
            continue
        sources = [] if from_step else [("train", measure, run.training)]
        sources += [
            (key.split("/", 1)[0], key, run.evaluations)
            for key in run.metrics
            if key.split("/", 1)[1] == measure
        ]
        for name, key, lines in sources:
            points = [
                (line["step"], line[key]) for line in lines if key in line and line["step"] >= from_step
            ]
            if points:
                steps, values = np.array(points, float).T
                yield Curve(_look(runs, place, name, measure), steps, values)


def legend(runs: Sequence[Run]) -> list[tuple[str, Look]]:
    """Return what colours, markers and dashes mean, runs first."""
    return [*_run_entries(runs), *_split_entries(runs)]


def legend_list(runs: Sequence[Run]) -> Html:
    """Return the legend for a page: a list of runs, a quieter one of splits below."""
    parts: list[Html] = []
    for entries, quiet in ((_run_entries(runs), ""), (_split_entries(runs), " quiet")):
        items = (element("li", key(look), name) for name, look in entries)
        if entries:
            parts.append(element("ul", *items, class_=f"legend{quiet if parts else ''}"))
    return join(parts)


def key(look: Look) -> Html:
    """Return a short piece of a curve, to stand before its name."""
    return Html(svg_key(look))


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
