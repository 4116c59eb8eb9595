"""The report on one or several runs: a page and a picture."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from vitkit import __version__
from vitkit.display import png_files
from vitkit.errors import InputError
from vitkit.figures import numbers
from vitkit.figures.curves import Look, Panel, png, svg
from vitkit.files import check_output, write_file
from vitkit.models.names import changed_shape
from vitkit.page import NOTHING, Html, breakable, element, facts, fold, join, page, section, table
from vitkit.progress import Progress, showing
from vitkit.reports import curves
from vitkit.reports.outcomes import (
    Accuracy,
    MeasuredModel,
    accuracy_in_words,
    best_of,
    finetuning_sections,
    read_measured,
    result_sections,
    tested_accuracy,
)
from vitkit.results import Result
from vitkit.runs.folder import flatten
from vitkit.runs.reading import (
    EVALUATION,
    RESULTS,
    NoMetrics,
    Run,
    finite,
    mapping,
    read_object,
    read_runs,
    speed,
    text,
)

PAGE, PICTURE = "index.html", "curves.png"
MOST_OPEN = 12
"Rows of evaluations that are shown without asking."
MOST_ROWS = 200
STATUS = {"done": "good", "running": "busy", "stopped": "weak", "failed": "bad"}


@dataclass(frozen=True)
class RunSummary(Result):
    """What is known of a run; what isn't is None."""

    name: str
    path: str
    status: str | None
    model: str | None
    data: str | None
    step: int
    steps: float | None
    epoch: float | None
    best: Accuracy | None
    final: Mapping[str, float]
    "The last value of each metric."
    measured: MeasuredModel | None
    "What `vit eval` measured of its model."
    seconds: float | None
    images_per_second: float | None
    parameters: float | None
    exaflops: float | None
    device: str | None
    message: str | None


@dataclass(frozen=True)
class Report(Result):
    """Where a report is, what is known of its runs, and what it leaves out, each with the reason."""

    html: str
    png: str
    runs: list[RunSummary]
    left_out: list[str]

    _leads = ("html", "png", "left_out")
    _tables = ("runs",)

    def _pictures(self) -> list[tuple[str, bytes]]:
        return png_files([self.png])


def report(
    runs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    out: str | os.PathLike[str] | None = None,
    inspect: bool = False,
    device: str = "auto",
    force: bool = False,
    progress: bool | Progress | None = True,
) -> Report:
    """Draw curves, results and models of runs as a self-contained page and a PNG, and return where they are.

    runs: one or more folders of runs or fine-tunings; every seed of a fine-tuning is a run.
    out: folder to write; by default RUN/report for one folder and ./report for several.
    inspect: also draw where the models look, on a few of the images that they were measured on.
    progress: for inspection. False shows none; for each run, a function is called with the number of passes over images
    done, and with their total.
    """
    runs = [runs] if isinstance(runs, str | os.PathLike) else runs
    paths = [Path(run).expanduser() for run in runs]
    if not paths:
        raise InputError("no run was given; expected one or more folders such as runs/NAME")
    for place, path in enumerate(paths):
        if path.resolve() in [other.resolve() for other in paths[:place]]:
            raise InputError(f"{path} was given twice; name each run once")
    if len(paths) > curves.MOST_RUNS:
        raise _too_many(len(paths))
    runs_there, left_out = _read_all(paths)
    found = _with_own_names(runs_there)
    if len(found) > curves.MOST_RUNS:
        raise _too_many(len(found))
    folder = (
        Path(out).expanduser() if out is not None else (paths[0] if len(paths) == 1 else Path()) / "report"
    )
    check_output(folder, (PAGE, PICTURE), force=force)
    targets = folder / PAGE, folder / PICTURE
    panels = curves.panels(found)
    if not panels:
        raise InputError(
            f"{paths[0]} has no curve to draw: expected finite numbers, such as a loss, in its metrics"
        )
    inside: list[Html] = []
    if any(run.model for run in found):
        from vitkit.reports.models import model_sections  # torch, which runs without a model do without

        with showing(progress if inspect else None, "inspecting (image passes)") as tell:
            inside, undrawn = model_sections(found, inspect=inspect, device=device, progress=tell)
        left_out += undrawn
    elif inspect:
        raise InputError(f"{paths[0]} has no model to inspect yet: leave out --inspect")
    left_out += [
        f"{run.home / EVALUATION} is of other weights or images than {run.home / 'model'} has now: repeat vit eval"
        for run in found
        if not run.results and read_object(run.home / EVALUATION / RESULTS)
    ]
    text = _page(found, panels, inside)
    contents = (text.encode("utf-8", "backslashreplace"), png(panels, curves.legend(found)))
    for target, content in zip(targets, contents, strict=True):
        write_file(target, content)
    return Report(str(targets[0]), str(targets[1]), [summarize_run(run) for run in found], left_out)


def _read_all(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Return all runs, and why some are left out; there must be one at least."""
    found: list[Run] = []
    left_out: list[NoMetrics] = []
    for path in paths:
        runs, without = read_runs(path)
        found, left_out = found + runs, left_out + without
    if not found:
        raise left_out[0]
    return found, list(map(str, left_out))


def _too_many(count: int) -> InputError:
    return InputError(f"{count} runs were given; a report shows at most {curves.MOST_RUNS}: give fewer")


def summarize_run(run: Run) -> RunSummary:
    """Return what is known of a run."""
    state, cost = run.state, mapping(run.state.get("cost"))
    last = max(run.training + run.evaluations, key=lambda line: line["step"])
    return RunSummary(
        name=run.name,
        path=str(run.path),
        status=text(state.get("status")),
        model=_model_name(run.config),
        data=_data(run.config),
        step=run.step,
        steps=finite(state.get("steps")),
        epoch=last.get("epoch"),
        best=best_of(run),
        final=run.finals,
        measured=read_measured(run.results),
        seconds=finite(state.get("seconds")) or last.get("seconds"),
        images_per_second=speed(run.training),
        parameters=finite(cost.get("parameters")),
        exaflops=finite(cost.get("exaflops")),
        device=text(mapping(state.get("environment")).get("device")),
        message=text(state.get("message")),
    )


def _page(runs: Sequence[Run], panels: Sequence[Panel], inside: Sequence[Html]) -> str:
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    drawn = (element("figure", Html(svg(panel))) for panel in panels)
    remark = curves.remark(runs)
    # What a fine-tuning came to stands above what its last run did on the way.
    results = [part for run in runs for part in finetuning_sections(run, len(runs) == 1)]
    return page(
        title,
        *_alerts(runs),
        *(_difference_parts(runs) if len(runs) > 1 else []),
        *results,
        *_summary_parts(runs, has_results=bool(results)),
        section(
            "Curves",
            curves.legend_list(runs),
            element("div", *drawn, class_="curves"),
            *([element("p", remark, class_="note")] if remark else []),
        ),
        *_evaluation_parts(runs),
        *result_sections(runs),
        *inside,
        *(_config_parts(runs[0]) if len(runs) == 1 else []),
        *_command_parts(runs),
        about=_about(runs),
        foot=f"vitkit {__version__}",
    )


def _about(runs: Sequence[Run]) -> str:
    if len(runs) > 1:
        return "Training runs side by side"
    state = runs[0].state
    words = [f"{verb} {_time(state[name])}" for verb, name in _MOMENTS if text(state.get(name))]
    return ", ".join(["Training run", *words])


_MOMENTS = (("started", "started"), ("last written", "updated"))


def _time(moment: str) -> str:
    """'2026-03-01T12:34:56.7+00:00' -> '2026-03-01 12:34'"""
    return moment[:16].replace("T", " ")


def _alerts(runs: Sequence[Run]) -> list[Html]:
    """Return what made runs fail."""
    failed = [
        (run.name, text(run.state.get("message"))) for run in runs if run.state.get("status") == "failed"
    ]
    return [
        element("p", f"{name}: {message}" if len(runs) > 1 else message, class_="alert")
        for name, message in failed
        if message
    ]


def _summary_parts(runs: Sequence[Run], has_results: bool) -> list[Html]:
    found = [summarize_run(run) for run in runs]
    metrics = list(dict.fromkeys(name for summary in found for name in summary.final))
    rows = [
        _facts(summary, _model_and_changes(run.config), metrics)
        for summary, run in zip(found, runs, strict=True)
    ]
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    if len(runs) > 1:
        lines = [[name, *(row[name] or NOTHING for row in rows)] for name in names]
        return [section("Summary", table(["", *_heads(runs)], lines, label="Summary"))]
    known = facts(
        [(name, rows[0][name]) for name in names], num_leads=1 if "Best" in names and not has_results else 0
    )
    return [section("Its run", known)] if has_results else [known]


def _heads(runs: Sequence[Run]) -> list[str]:
    """Return the names of runs, each with its colour."""
    return [join([curves.key(Look(f"run-{place}")), run.name]) for place, run in enumerate(runs)]


def _facts(found: RunSummary, model: str | None, metrics: Sequence[str]) -> dict[str, str]:
    """Return what is known of a run as names and words, '' for what isn't; metrics: whose last values to give."""
    is_whole = not found.steps or found.steps == found.step
    status = found.status and element(
        "span", found.status, class_=f"status {STATUS.get(found.status, 'weak')}"
    )

    def write(value: float | None, words: Callable[[float], str]) -> str:
        return "" if value is None else words(value)

    return {
        "Best": accuracy_in_words(found.best) if found.best else "",
        **{
            f"Final {numbers.metric_name(name)}": write(found.final.get(name), partial(numbers.metric, name))
            for name in metrics
        },
        "Status": status or "",
        "Steps": f"{found.step:,}" if is_whole else f"{found.step:,} of {found.steps:,}",
        "Epochs": write(found.epoch, lambda epoch: numbers.decimal(round(epoch, 2))),
        "Training time": write(found.seconds, numbers.duration),
        "Images/s, median": write(found.images_per_second, numbers.decimal),
        "Parameters": write(found.parameters, numbers.compact),
        "Training compute": write(found.exaflops, numbers.flops),
        "Model": model or "",
        "Data": breakable(found.data or ""),
        "Device": found.device or "",
    }


def _evaluation_parts(runs: Sequence[Run]) -> list[Html]:
    tables = []
    for run in runs:
        if run.evaluations:
            shown = _evaluation_table(run)
            count = len(run.evaluations)
            if len(runs) == 1 and count <= MOST_OPEN:
                tables.append(shown)
            else:
                words = f"{count:,} evaluations" if count > 1 else "1 evaluation"
                tables.append(fold(words if len(runs) == 1 else f"{run.name}: {words}", shown))
            if count > MOST_ROWS:
                tables.append(element("p", f"{MOST_ROWS} of {count:,} rows, evenly spread.", class_="note"))
    return [section("Evaluations", *tables)] if tables else []


def _evaluation_table(run: Run) -> Html:
    best = run.best
    lines = run.evaluations
    if len(lines) > MOST_ROWS:
        kept = {place * (len(lines) - 1) // (MOST_ROWS - 1) for place in range(MOST_ROWS)}
        lines = [
            line for place, line in enumerate(lines) if place in kept or (best and line["step"] == best.step)
        ]
    columns = {
        "epoch": "Epoch",
        **{name: numbers.metric_name(name).capitalize() for name in run.metrics},
        "seconds": "Time",
    }
    columns = {name: title for name, title in columns.items() if any(name in line for line in lines)}

    def cell(line: Mapping[str, float], name: str) -> str:
        if name not in line:
            return NOTHING
        if name == "seconds":
            return numbers.duration(line[name])
        return numbers.decimal(round(line[name], 2)) if name == "epoch" else numbers.metric(name, line[name])

    rows = [[f"{line['step']:,.0f}", *(cell(line, name) for name in columns)] for line in lines]
    steps = [line["step"] for line in lines]
    titles = ["Step", *columns.values()]
    place = steps.index(best.step) if best and best.step in steps else None
    return table(titles, rows, label=f"Evaluations of {run.name}", right=titles, best=place)


def _config_parts(run: Run) -> list[Html]:
    if not run.config:
        return []
    settings = yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True, width=100)
    parts = [fold("Settings", element("pre", settings))]
    if environment := mapping(run.state.get("environment")):
        rows = [[name, _setting(value)] for name, value in flatten(environment).items()]
        parts.append(fold("Environment", table(["Name", "Value"], rows, label="Environment", wrap=True)))
    return [section("Config", *parts)]


def _difference_parts(runs: Sequence[Run]) -> list[Html]:
    """Return what differs between runs, under what each came to, and what is the same, folded."""
    different, same = compare([run.config for run in runs])
    tested = [tested_accuracy(run) for run in runs]
    found = [known or best_of(run) for known, run in zip(tested, runs, strict=True)]
    word = "Result" if any(tested) else "Best"
    results = [[word, *(accuracy_in_words(one) if one else NOTHING for one in found)]] if any(found) else []
    rows: list[list[str]] = [[breakable(name), *map(_setting, values)] for name, values in different.items()]
    parts = [element("p", "All runs have the same settings.", class_="note")]
    if rows:
        columns = ["", *_heads(runs)]
        parts = [
            table(
                columns, results + rows[:MOST_OPEN], label="What differs", wrap=True, is_headed=bool(results)
            )
        ]
        if more := rows[MOST_OPEN:]:
            words = (
                f"{len(more)} more settings that differ" if len(more) > 1 else "1 more setting that differs"
            )
            parts.append(fold(words, table(columns, more, label=words, wrap=True)))
    if same:
        words = f"{len(same)} settings that are the same" if len(same) > 1 else "1 setting that is the same"
        lines = [[breakable(name), _setting(value)] for name, value in same.items()]
        parts.append(fold(words, table(["Setting", "Value"], lines, label=words, wrap=True)))
    return [section("What differs", *parts)]


def compare(configs: Sequence[Mapping[str, Any]]) -> tuple[dict[str, list[Any]], dict[str, object]]:
    """Return the dotted settings that differ, with the value in each config ('' where absent), and the equal ones.

    What a run's objective doesn't read is absent too.
    """
    flat = [flatten(config) for config in configs]
    if len({config.get("objective.name") for config in flat}) > 1:
        flat = [_without_unread(config) for config in flat]
    names = dict.fromkeys(name for config in flat for name in config)
    values = {name: [config.get(name, "") for config in flat] for name in names}
    different = {name: row for name, row in values.items() if len({_setting(value) for value in row}) > 1}
    return different, {name: row[0] for name, row in values.items() if name not in different}


def _without_unread(flat: Mapping[str, Any]) -> dict[str, object]:
    """Return dotted settings without those that other objectives read, which have no meaning for this one."""
    from vitkit.objectives import READS  # torch, which runs of one objective do without

    read = READS.get(str(flat.get("objective.name")))
    others = {f"objective.{name}" for names in READS.values() for name in names if read and name not in read}
    return {name: value for name, value in flat.items() if name not in others}


def _setting(value: Any) -> Html:
    """Return a setting as YAML writes it."""
    if isinstance(value, str):
        return breakable(value or NOTHING)
    return breakable(json.dumps(value, ensure_ascii=False, default=str))


def _command_parts(runs: Sequence[Run]) -> list[Html]:
    shown: list[Html] = []
    for run in runs:
        command = run.state.get("command")
        if isinstance(command, list):
            command = shlex.join(map(str, command))
        if text(command):
            shown += [element("h3", run.name)] if len(runs) > 1 else []
            shown.append(element("pre", str(command)))
    return [section("Run again", *shown)] if shown else []


def _model_name(config: Mapping[str, Any]) -> str | None:
    model = config.get("model")
    return text(model) or text(mapping(model).get("name"))


def _model_and_changes(config: Mapping[str, Any]) -> str | None:
    """Return the model's name, and what makes its shape another than the name's."""
    name = _model_name(config)
    if name is None:
        return None
    changed = changed_shape(name, mapping(config.get("model")))
    shown = breakable(name)
    return join([shown, " ", element("small", f"changed: {', '.join(changed)}")]) if changed else shown


def _data(config: Mapping[str, Any]) -> str | None:
    data = config.get("data")
    return text(data) or text(mapping(data).get("train"))


def _with_own_names(runs: list[Run]) -> list[Run]:
    """Name runs by their folders where two have one name."""
    names = [run.name for run in runs]
    return [replace(run, name=str(run.path)) if names.count(run.name) > 1 else run for run in runs]
