"""`vit study show`: figures and tables of what is finished in a study, as files and as one HTML page."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitkit.config import Bounds, Changes
from vitkit.errors import InputError, did_you_mean
from vitkit.figures import numbers
from vitkit.figures.chart import Chart, as_csv, png, svg, svg_file
from vitkit.files import check_output, json_text, write_file
from vitkit.markup import Html
from vitkit.page import NOTHING, element, facts, figure, fold, page, section, table
from vitkit.results import Result
from vitkit.runs import named_path
from vitkit.studies.charts import EVERY, FittedLaw, StudyTable, draw, table_of
from vitkit.studies.config import Study, read_study
from vitkit.studies.predictions import Prediction, compare, keep_predictions, read_predictions
from vitkit.studies.records import RunState
from vitkit.studies.results import StudyRow, collect, means_of, measures_of

PAGE, RUNS, RESULTS = "index.html", "runs.csv", "results.json"
FEW = 12
"Runs that the page shows without being asked to."
SHOWN = "report"
"The folder in the study's own where pictures and the page are written."


@dataclass(frozen=True)
class StudyReport(Result):
    """What `vit study show --json` prints."""

    study: str
    html: str
    files: tuple[str, ...]
    measure: str
    "What figures and tables are of."
    runs: tuple[StudyRow, ...]
    "That are finished."
    laws: tuple[FittedLaw, ...]
    predictions: tuple[Prediction, ...]
    "Made with `at`, now or before, each with the run that came later."
    notes: tuple[str, ...]
    "Groups without a law, and why."
    unfinished: tuple[RunState, ...]
    exaflops: float
    device_hours: float

    _leads = ("study", "measure", "html", "exaflops", "device_hours")
    _tables = ("runs", "laws", "predictions")


def show_study(
    study: str | os.PathLike[str],
    changes: Changes = (),
    *,
    measure: str | None = None,
    paper: bool = False,
    at: float | None = None,
    run: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> StudyReport:
    """Draw the finished runs of a study: figures as PNG, SVG and CSV, tables, and one page with all of them.

    study, changes, run: as for `run_study`. Neither the data nor the models need to be there.
    measure: name of the measure to draw, by default the study's first. paper: add the ViT paper's own points.
    at: exaFLOPs at which the laws predict the error; by default twice the largest of the fit. The study's folder keeps
    these predictions, and compares them with a run that comes later.
    out: folder to write, by default `report` in the study's folder.
    """
    Bounds(above=0).check("at", at)
    found = read_study(study, changes)
    folder = named_path(found.name if run is None else run)
    rows, unfinished = collect(found, folder)
    if not rows:
        raise InputError(
            f"no run of {found.name} is finished in {folder}; start it with: vit study run {study}"
        )
    chosen = _choose(measure, measures_of(rows))
    charts, laws = draw(found.config, rows, chosen, paper, at)
    means = means_of(rows, chosen)
    predictions = read_predictions(folder)
    tables = [table_of(axes, means, chosen, paper) for axes in found.config.tables]
    target = folder / SHOWN if out is None else Path(out).expanduser()
    names = [PAGE, RESULTS, RUNS, *(f"{made.file}.csv" for made in tables)]
    names += [f"{chart.file}.{ending}" for chart in charts for ending in ("png", "svg", "csv")]
    check_output(target, names, force=force)
    if at is not None:
        predictions = keep_predictions(folder, laws, chosen, rows)
    contents: dict[str, str | bytes] = {}
    drawn = [svg(chart) for chart in charts]
    for chart, picture in zip(charts, drawn, strict=True):
        contents |= {
            f"{chart.file}.png": png(chart),
            f"{chart.file}.svg": svg_file(picture),
            f"{chart.file}.csv": as_csv(chart),
        }
    for made in tables:
        contents[f"{made.file}.csv"] = _csv(made.columns, made.rows)
    columns, lines = _lines(rows)
    contents[RUNS] = _csv(columns, lines)
    result = StudyReport(
        found.name,
        str(target / PAGE),
        tuple(str(target / name) for name in names),
        chosen,
        tuple(rows),
        tuple(laws),
        compare(predictions, means, chosen),
        tuple(
            line
            for chart in charts
            if chart.file == "laws-compute"
            for line in chart.notes
            if ": no law:" in line
        ),
        tuple(unfinished),
        sum(row.exaflops for row in rows),
        sum(row.device_hours for row in rows),
    )
    contents[RESULTS] = json_text(result.to_json())
    contents[PAGE] = _page(found, result, charts, drawn, tables)
    for name, content in contents.items():
        write_file(target / name, content)
    return result


def _choose(measure: str | None, known: Sequence[str]) -> str:
    if measure is None:
        return known[0]
    if measure not in known:
        hint = did_you_mean(measure, known) or f"; expected one of {', '.join(known)}"
        raise InputError(f"nothing finished was measured as {measure!r}{hint}")
    return measure


def _lines(rows: Sequence[StudyRow]) -> tuple[list[str], list[list[str]]]:
    """Return a line for each run, with what it cost and all that was measured of it."""
    axes = list(dict.fromkeys(axis for row in rows for axis in row.labels))
    measures = measures_of(rows)
    others = [
        "model",
        "parameters",
        "images",
        "images seen",
        "exaFLOPs",
        "device-hours",
        "images/s",
        "GPU busy",
    ]
    others += [f"{name}{part}" for name in measures for part in ("", " standard deviation")]
    columns = ["run", *(f"{axis} label" if axis in ("run", *others) else axis for axis in axes), *others]
    lines = []
    for row in rows:
        line = [row.name, *(row.labels.get(axis, "") for axis in axes), row.model, str(row.parameters)]
        line += [str(row.images), str(row.seen), repr(row.exaflops), repr(row.device_hours)]
        line.append("" if row.images_per_second is None else f"{row.images_per_second:.1f}")
        line.append("" if row.gpu_busy is None else f"{row.gpu_busy:.4f}")
        for name in measures:
            one = row.accuracy(name)
            line += ["" if one is None else repr(one.accuracy)]
            line += ["" if one is None or one.std is None else repr(one.std)]
        lines.append(line)
    return columns, lines


def _csv(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue()


def _page(
    study: Study,
    report: StudyReport,
    charts: Sequence[Chart],
    drawn: Sequence[str],
    tables: Sequence[StudyTable],
) -> str:
    """Return the page: what was spent, each figure, laws, tables, and every run."""
    total = len(report.runs) + len(report.unfinished)
    tiles = [
        ("finished runs", f"{len(report.runs):,} of {total:,}"),
        ("measured", report.measure),
        ("compute", numbers.flops(report.exaflops)),
        ("device-hours", numbers.decimal(report.device_hours)),
    ]
    parts: list[Html] = [facts(tiles, num_leads=1)]
    for chart, picture in zip(charts, drawn, strict=True):
        notes = [element("p", note, class_="note") for note in chart.notes]
        shown = [figure(Html(picture), chart.title, kind="wide")] if chart.series else []
        parts.append(section(chart.title, *shown, *notes))
    if report.laws:
        parts.append(section("Power laws", _laws(report.laws)))
    if report.predictions:
        parts.append(section("Predictions", _predictions(report.predictions)))
    for made in tables:
        parts.append(
            section(made.title, table(made.columns, made.rows, label=made.title, right=made.columns[1:]))
        )
    every = fold(f"{len(report.runs):,} finished runs", _runs(report.runs), is_open=len(report.runs) <= FEW)
    parts.append(section("Runs", every))
    if report.unfinished:
        columns = ["run", "status", "step", "message"]
        rows = [
            [
                state.name,
                state.status,
                f"{state.step:,} / {state.steps:,}" if state.steps else "",
                state.message,
            ]
            for state in report.unfinished
        ]
        whole = table(columns, rows, label="unfinished runs", wrap=True)
        parts.append(section("Not finished", fold(f"{len(rows):,} runs", whole)))
    return page(f"Study {study.name}", *parts, about=study.about)


def _laws(laws: Sequence[FittedLaw]) -> Html:
    columns = ["runs", "against", "on frontier", "a", "b", "c", "d", "at", "predicted error", "fixed"]
    rows = []
    for law in laws:
        values = {name: getattr(law, name) for name in ("a", "b", "c", "d")}
        cells = [_with_interval(value, law.intervals.get(name)) for name, value in values.items()]
        place = numbers.flops(law.at) if law.of == "compute" else numbers.compact(law.at)
        predicted = (
            f"{numbers.percent(law.predicted)} ({numbers.percent(law.low)} to {numbers.percent(law.high)})"
        )
        group = "all runs" if law.group == EVERY else law.group
        rows.append([group, law.of, f"{law.runs:,}", *cells, place, predicted, law.fixed])
    words = "E = a (C + d)^-b + c, with C in exaFLOPs, parameters or images; in brackets, 95% intervals by bootstrap."
    return element(
        "div",
        table(columns, rows, label="power laws", right=columns[2:9]),
        element("p", words, class_="note"),
    )


def _predictions(predictions: Sequence[Prediction]) -> Html:
    columns = ["runs", "at", "predicted error", "95% interval", "run", "error", "inside"]
    rows = []
    for one in predictions:
        inside = {None: "not run yet", True: "yes", False: "no"}[one.is_inside]
        error = NOTHING if one.error is None else numbers.percent(one.error)
        ends = f"{numbers.percent(one.low)} to {numbers.percent(one.high)}"
        group = "all runs" if one.group == EVERY else one.group
        rows.append(
            [group, numbers.flops(one.at), numbers.percent(one.predicted), ends, one.run, error, inside]
        )
    words = "Made before the run with vit study show --at, from the runs that were finished then."
    return element("div", table(columns, rows, label="predictions"), element("p", words, class_="note"))


def _with_interval(value: float, ends: tuple[float, float] | None) -> str:
    return f"{value:.3g}" if ends is None else f"{value:.3g} ({ends[0]:.2g} to {ends[1]:.2g})"


def _runs(rows: Sequence[StudyRow]) -> Html:
    measures = measures_of(rows)
    numbers_of = ["parameters", "images", "seen", "compute", "hours", "images/s", "GPU busy", *measures]
    lines = []
    for row in rows:
        pace = row.images_per_second
        line = [
            row.name,
            row.model,
            numbers.compact(row.parameters),
            f"{row.images:,}",
            numbers.compact(row.seen),
        ]
        line += [numbers.flops(row.exaflops), numbers.decimal(row.device_hours)]
        line.append(NOTHING if pace is None else f"{pace:,.0f}")
        line.append(NOTHING if row.gpu_busy is None else f"{row.gpu_busy:.0%}")
        for name in measures:
            one = row.accuracy(name)
            spread = "" if one is None or one.std is None else f" ± {numbers.percent(one.std)}"
            line.append(NOTHING if one is None else f"{numbers.percent(one.accuracy)}{spread}")
        lines.append(line)
    return table(["run", "model", *numbers_of], lines, label="runs", right=numbers_of)
