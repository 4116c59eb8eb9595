"""What runs came to: the accuracy of a model, its worst classes, the pictures of its mistakes, a fine-tuning's sweep."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitkit.figures import numbers
from vitkit.figures.framed import webp
from vitkit.figures.mistakes import confusion_svg, cut_tiles
from vitkit.page import NOTHING, Html, breakable, element, facts, figure, fold, join, section, table
from vitkit.results import Result
from vitkit.runs.reading import (
    EVALUATION,
    FINETUNE,
    RECORD,
    Run,
    finite,
    mapping,
    read_object,
    read_results,
    read_run,
    read_size,
    text,
)

MEASURES = {
    "accuracy": "Accuracy",
    "top_5_accuracy": "Top-5 accuracy",
    "balanced_accuracy": "Balanced accuracy",
    "mean_average_precision": "Mean average precision",
    "calibration_error": "Calibration error",
    "loss": "Loss",
}
MISTAKES, CONFUSION = "The mistakes that the model was surest of", "Confusion matrix"
SCORES = {"recall": "Accuracy", "average_precision": "Average precision"}
"What a class is judged by, of which `vit eval` gives one."
MOST_CLASSES = 8


@dataclass(frozen=True)
class Accuracy(Result):
    """A metric of a model: of a step of its run, or measured on data."""

    metric: str
    value: float
    step: int | None = None
    measured_on: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what is known: a step or data."""
        return {key: value for key, value in super().to_json().items() if value is not None}


@dataclass(frozen=True)
class MeasuredModel(Result):
    """The numbers over all images that `vit eval` wrote, by their names."""

    data: str | None
    images: float | None
    metrics: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        return {"data": self.data, "images": self.images, **self.metrics}


def accuracy_of(model: str | os.PathLike[str], size: tuple[int, int] | None = None) -> Accuracy | None:
    """Return what is known of the accuracy of a MODEL that is a run or its model folder.

    size: of the images that it is to be of, if not the model's own.
    """
    name = os.fspath(model)
    is_last = name.endswith("@last")
    path = Path(name.removesuffix("@last")).expanduser()
    if path.name in ("model", "model-last"):
        is_last, path = path.name == "model-last", path.parent
    own = read_size(path / ("model-last" if is_last else "model"))
    if size and own and list(size) != own:
        return None
    if not is_last and (found := read_measured(read_results(path))):
        metric, value = next(iter(found.metrics.items()))
        return Accuracy(metric, value, measured_on=found.data)
    if not (path / RECORD).is_file():
        return None
    run = read_run(path)
    best = best_of(run)
    if best is None or (not is_last and run.config.get("select") != "last"):
        return best
    metric = best.metric
    if is_last:  # these weights are not averaged
        metric = metric.replace("_ema/", "/")
    lines = [line for line in run.evaluations if metric in line]
    return Accuracy(metric, lines[-1][metric], int(lines[-1]["step"])) if lines else None


def best_of(run: Run) -> Accuracy | None:
    """Return the best evaluation of a run."""
    best = run.best
    return None if best is None else Accuracy(best.metric, best.value, best.step)


def tested_accuracy(run: Run) -> Accuracy | None:
    """Return what a fine-tuning reports of the seed that a run is of; None of other runs."""
    seed, folder = run.path.parent.name.removeprefix("seed-"), run.path.parent.parent
    known = read_object(folder / FINETUNE) if seed.isdecimal() else {}
    metric, values = text(known.get("metric")), known.get("values")
    if metric is None or not isinstance(values, list) or int(seed) >= len(values):
        return None
    value = finite(values[int(seed)])
    return None if value is None else Accuracy(metric, value, measured_on=text(known.get("measured_on")))


def accuracy_in_words(found: Accuracy) -> Html:
    """Return a number and what it is of."""
    where = f"on {found.measured_on}" if found.measured_on else ""
    if found.step is not None:
        where = f"at step {found.step:,}"
    words = f"{numbers.metric_name(found.metric)} {where}".strip()
    return join([numbers.metric(found.metric, found.value), " ", element("small", words)])


def read_measured(results: Mapping[str, Any]) -> MeasuredModel | None:
    """Return the numbers over all images of what `vit eval` wrote, the one that counts first; None without any."""
    found = {name: results[name] for name in MEASURES if finite(results.get(name)) is not None}
    return MeasuredModel(text(results.get("data")), finite(results.get("images")), found) if found else None


def result_sections(runs: Sequence[Run]) -> list[Html]:
    """Return what runs without labels paint, and what was measured of each model."""
    parts = [part for run in runs for part in _painted(run, len(runs) == 1)]
    for run in runs:
        if measured := read_measured(run.results):
            title = "Measured" if len(runs) == 1 else f"Measured: {run.name}"
            parts.append(section(title, *_measured_parts(run, measured)))
    return parts


def _measured_parts(run: Run, measured: MeasuredModel) -> list[Html]:
    entries = [(MEASURES[name], numbers.metric(name, value)) for name, value in measured.metrics.items()]
    if measured.images is not None:
        entries.append(("Images", f"{measured.images:,.0f}"))
    if measured.data:
        entries.append(("Data", breakable(measured.data)))
    parts = [facts(entries, num_leads=1)]
    if shown := _mistakes(run):
        parts.append(fold(MISTAKES, shown, is_open=True))
    if shown := _confusion(run):
        parts.append(fold(CONFUSION, shown))
    for key, words in SCORES.items():
        if rows := _worst(run.results, key):
            columns = ["Class", "Images", words]
            parts.append(
                fold("Worst classes", table(columns, rows, label="Worst classes", right=columns[1:]))
            )
    return parts


def _mistakes(run: Run) -> Html | None:
    """Return the wrong images, each above what it is and what it was predicted as; None where there is no picture."""
    sheet = _read_png(run.home / EVALUATION / "mistakes.png")
    if not sheet:
        return None
    listed = run.results.get("mistakes")
    known = [mapping(entry) for entry in listed] if isinstance(listed, list) else []
    tiles = cut_tiles(sheet, len(known))
    if not tiles:  # of an earlier version, which listed none, or there is no mistake
        return figure(sheet, MISTAKES, kind="wide")
    shown = [
        figure(webp(tile), str(entry.get("image")), _mistake_words(entry))
        for entry, tile in zip(known, tiles, strict=True)
    ]
    return element("div", *shown, class_="tiles mistakes")


def _mistake_words(entry: Mapping[str, Any]) -> Html:
    probability = finite(entry.get("probability"))
    return join(
        [
            element("span", str(entry.get("class")), class_="good"),
            " predicted as ",
            element("span", str(entry.get("predicted")), class_="bad"),
            f" {probability:.0%}" if probability is not None else "",
            element("small", breakable(str(entry.get("image")))),
        ]
    )


def _confusion(run: Run) -> Html | None:
    """Return the confusion matrix, from its numbers where they are known, else the picture."""
    listed = {name: mapping(row) for name, row in mapping(run.results.get("confusion")).items()}
    counts = [count for row in listed.values() for count in row.values()]
    if counts and all(isinstance(count, int) and count >= 0 for count in counts):
        places = {name: place for place, name in enumerate(listed)}
        matrix = np.zeros((len(listed), len(listed) + 1), np.int64)  # last, other classes
        for name, row in listed.items():
            for predicted, count in row.items():
                matrix[places[name], places.get(predicted, -1)] += count
        matrix = matrix if matrix[:, -1].any() else matrix[:, :-1]
        return figure(Html(confusion_svg(matrix, list(listed), run.name)), CONFUSION, kind="wide")
    picture = _read_png(run.home / EVALUATION / "confusion.png")
    return figure(picture, CONFUSION, kind="wide") if picture else None


def _read_png(path: Path) -> bytes:
    """Return a picture's file; b'' where there is none."""
    content = path.read_bytes() if path.is_file() else b""
    try:
        Image.open(io.BytesIO(content), formats=["PNG"]).close()
    except (OSError, ValueError, SyntaxError):
        return b""
    return content


def _worst(results: Mapping[str, Any], key: str) -> list[list[str]]:
    """Return name, images and score of the classes that fare worst by this score."""
    listed = results.get("per_class")
    found = []
    for row in map(mapping, listed if isinstance(listed, list) else []):
        score, images = finite(row.get(key)), finite(row.get("images"))
        if score is not None and images is not None:
            found.append((score, -images, str(row.get("class"))))
    return [
        [name, f"{-images:,.0f}", numbers.percent(score)]
        for score, images, name in sorted(found)[:MOST_CLASSES]
    ]


def _painted(run: Run, is_alone: bool) -> list[Html]:
    """Return the first and last picture of what a run makes of the patches that it hides."""
    shown = []
    for path in sorted((run.path / "pictures").glob("*.png")):
        if path.stem.isdigit() and (content := _read_png(path)):
            words = f"Step {int(path.stem):,}: an image, what the model sees of it, and what it predicts"
            shown.append(figure(content, words, words, kind="sheet"))
    if not shown:
        return []
    title = "Without labels" if is_alone else f"Without labels: {run.name}"
    return [section(title, element("div", *shown, class_="pair"))]


def finetuning_sections(run: Run, is_alone: bool) -> list[Html]:
    """Return what the fine-tuning came to whose model this run made."""
    known = read_object(run.home / FINETUNE)
    metric = text(known.get("metric"))
    value = finite(known.get(metric)) if metric else None
    if metric is None or value is None:
        return []
    request, values = mapping(known.get("settings") or known.get("request")), known.get("values")
    words = numbers.percent(value)
    if (std := finite(known.get("std"))) is not None and isinstance(values, list):
        words += f" ± {100 * std:.2f}"
    seeds = len(values) if isinstance(values, list) else 1
    where = f"on {known.get('measured_on')}" + (f", {seeds} seeds" if seeds > 1 else "")
    entries: list[tuple[str, str]] = [
        (numbers.metric_name(metric).capitalize(), join([words, " ", element("small", where)]))
    ]
    for name, label in (("model", "Start"), ("data", "Data")):
        entries.append((label, breakable(str(request.get(name, NOTHING)))))
    for name, label in (("protocol", "Protocol"), ("kept", "Kept")):
        entries.append((label, str(known.get(name, NOTHING))))
    if (rate := finite(known.get("learning_rate"))) is not None:
        entries.append(("Learning rate", f"{rate:g}"))
    parts = [facts(entries, num_leads=1)]
    found = known.get("sweep_results")
    rows_tried = map(mapping, found if isinstance(found, list) else [])
    tried = [row for row in rows_tried if finite(row.get("accuracy")) is not None]
    if tried:
        rows = [[f"{row.get('learning_rate')}", numbers.percent(row["accuracy"])] for row in tried]
        best = next((place for place, row in enumerate(tried) if row.get("learning_rate") == rate), None)
        columns = ["Learning rate tried", f"{numbers.metric_name(metric).capitalize()} on the dev split"]
        parts.append(fold("Sweep", table(columns, rows, label="Sweep", right=columns[1:], best=best)))
    return [section("Fine-tuning" if is_alone else f"Fine-tuning: {run.home.resolve().name}", *parts)]
