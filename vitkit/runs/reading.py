"""Reading run folders: status, metrics, best evaluation and results, as plain data.

metrics.jsonl is read nowhere else.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vitkit.errors import InputError, did_you_mean
from vitkit.files import digest, is_locked, read_file, write_file
from vitkit.results import Result, from_json
from vitkit.runs.records import (
    CONFIG,
    KINDS,
    LOCK,
    METRICS,
    RECORD,
    ROOT,
    Evaluated,
    read_config,
    read_object,
    read_record,
)

FINETUNE = KINDS["finetune"].record
EVALUATION, RESULTS = "evaluation", "results.json"
"Where `vit finetune` measures its model, as `vit eval --out` does."
DEEPEST = len(Path("SUITE/vtab/tuning/TASK/RATE/seed-0/run").parts)
"Folders between a list of runs and the innermost run that a command makes."


@dataclass(frozen=True)
class Run:
    """What one run folder says. Lines hold finite numbers only, in order of steps."""

    path: Path
    name: str
    state: dict[str, Any]
    config: dict[str, object]
    training: list[dict[str, float]]
    evaluations: list[dict[str, float]]
    home: Path
    "Where model/ and evaluation/ are: the run itself, or the fine-tuning that it is of."

    @property
    def step(self) -> int:
        """The last step in the metrics."""
        return int(max(line["step"] for line in self.training + self.evaluations))

    @property
    def metrics(self) -> list[str]:
        """Names of what was evaluated, such as 'val_ema/accuracy', in order of appearance."""
        return list(dict.fromkeys(key for line in self.evaluations for key in line if "/" in key))

    @property
    def finals(self) -> dict[str, float]:
        """The last value of each evaluated metric, and the last loss of training; without evaluations its accuracy too."""
        evaluated = {
            key: [line[key] for line in self.evaluations if key in line][-1]
            for key in sorted(self.metrics, key=lambda key: key.split("/", 1)[1])
        }
        last = self.training[-1] if self.training else {}
        shown = [] if evaluated else [key for key in last if key.endswith("accuracy")]
        for key in (*shown, "loss"):
            if key in last:
                evaluated.setdefault(f"train/{key}", last[key])
        return evaluated

    @property
    def best(self) -> Evaluated | None:
        """The best evaluation, where the record has all of it."""
        best = mapping(self.state.get("best"))
        value, step = finite(best.get("value")), finite(best.get("step"))
        if value is None or step is None or not text(best.get("metric")):
            return None
        return Evaluated(best["metric"], value, int(step))

    @property
    def model(self) -> Path | None:
        """The model folder, once there is one."""
        folder = self.home / "model"
        return folder if (folder / "config.json").is_file() else None

    @cached_property
    def results(self) -> dict[str, object]:
        """What was measured of the model, as `vit eval` writes it; {} where it wasn't."""
        return read_results(self.home)


def read_results(folder: Path) -> dict[str, object]:
    """Read what was measured of the model in a folder; {} where nothing was, or of others than the model has now."""
    results, model = read_object(folder / EVALUATION / RESULTS), folder / "model"
    known, weights = text(results.get("weights_sha256")), model / "model.safetensors"
    if known and weights.is_file() and digest(weights) != known:
        return {}
    size, own = results.get("image_size"), read_size(model)
    return {} if size and own and size != own else results


def read_size(model: Path) -> list[int] | None:
    """Return height and width of the images that a model folder is for, where it says so."""
    try:
        config = read_object(model / "config.json")
    except InputError:  # told where the model is drawn
        return None
    size = mapping(mapping(config.get("vitkit")).get("preprocessing")).get("image_size")
    return size if isinstance(size, list) else None


class NoMetrics(InputError):
    """A run that has nothing to draw yet, or never will."""


def read_runs(path: Path) -> tuple[list[Run], list[NoMetrics]]:
    """Read the run in a folder, or those of a fine-tuning, one for each seed; and why some are skipped."""
    if not (path / FINETUNE).is_file():
        return _read_each([path])
    seeds = sorted(path.glob("seed-*/run"), key=lambda run: (len(run.parent.name), run))
    runs, left_out = _read_each([seed for seed in seeds if _is_run(seed)])
    record = read_object(path / FINETUNE)
    is_done = record.get("status") == "done"
    if not runs and not left_out:
        if is_done:
            raise InputError(
                f"{path} kept a head fitted on features, and no step was trained: there are no curves to draw; its "
                f"results are in {path / EVALUATION}, and vit inspect shows its model"
            )
        waiting = f"{path} is a fine-tuning whose runs have no metrics: wait for their first line"
        return [], [NoMetrics(waiting)]
    name, has_several = path.resolve().name, len(runs) + len(left_out) > 1
    request = mapping(record.get("settings") or record.get("request"))
    for place, run in enumerate(runs):
        seed, config = run.path.parent.name, run.config
        if start := text(
            request.get("model")
        ):  # not the fitted head inside the folder, from which its steps start
            config = {**config, "model": {**mapping(config.get("model")), "name": start}}
        runs[place] = replace(run, name=f"{name} {seed}" if has_several else name, config=config)
        if is_done and seed == "seed-0":  # whose model and evaluation are the fine-tuning's
            runs[place] = replace(runs[place], home=path)
    return runs, left_out


def _read_each(folders: Iterable[Path]) -> tuple[list[Run], list[NoMetrics]]:
    runs, left_out = list[Run](), list[NoMetrics]()
    for folder in folders:
        try:
            runs.append(read_run(folder))
        except NoMetrics as error:
            left_out.append(error)
    return runs, left_out


def _is_run(path: Path) -> bool:
    return any((path / name).exists() for name in (CONFIG, RECORD, METRICS))


def read_run(path: Path) -> Run:
    """Read a run folder; an incomplete last line of metrics is skipped."""
    if not path.is_dir():
        near = did_you_mean(str(path), map(str, _runs_near(path)))
        raise InputError(f"no folder {str(path)!r}{near or '; expected a run, such as runs/NAME'}")
    if not _is_run(path):
        near = did_you_mean(str(path), map(str, _runs_in(path)))
        raise InputError(f"{path} is not a run: it has neither {RECORD} nor {METRICS}{near}")
    state, config = read_object(path / RECORD), read_config(path) if (path / CONFIG).exists() else {}
    if state.get("status") == "running" and not is_locked(path / LOCK):
        state["status"] = "interrupted"
    training, evaluations = _parted(read_metrics(path))
    if not training and not evaluations:
        when = f"before its first line; vit train {shlex.quote(str(path))} resumes it"
        reasons = {
            "failed": f"it failed: {state.get('message')}",
            "stopped": f"it was stopped {when}",
            "interrupted": f"it was interrupted {when}",
        }
        reason = reasons.get(str(state.get("status")), "wait for its first line")
        raise NoMetrics(f"{path} has no metrics: {reason}")
    name = str(state.get("name") or path.resolve().name)
    return Run(path, name, state, config, training, evaluations, path)


def finite(value: object) -> float | None:
    """Return a number as it is, None for anything else and for NaN and infinities."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) <= sys.float_info.max else None


def text(value: Any) -> str | None:
    """Return a text that says something, None for anything else."""
    return value if isinstance(value, str) and value else None


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping as it is, an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def _runs_near(path: Path) -> Iterator[Path]:
    """Yield runs that may have been meant by a path that isn't there."""
    yield from _runs_in(path.parent)
    if len(path.parts) == 1:
        yield from _runs_in(Path(ROOT))


def _runs_in(folder: Path) -> list[Path]:
    return sorted({state.parent for name in (RECORD, FINETUNE) for state in folder.glob(f"*/{name}")})


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl; an incomplete last one is skipped."""
    return [line for _, line in _metrics(Path(folder))]


def cut_metrics(folder: str | Path, step: int) -> None:
    """Cut metrics.jsonl back to what was known at a step, as a run does that resumes from there."""
    path = Path(folder, METRICS)
    kept = b"".join(text for text, line in _metrics(Path(folder)) if line["step"] <= step)
    if path.exists() and path.read_bytes() != kept:
        write_file(path, kept)


def _metrics(folder: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each whole line of metrics.jsonl as it stands and as it reads."""
    path = folder / METRICS
    lines = read_file(path).splitlines(keepends=True) if os.path.lexists(path) else []
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
            is_whole = isinstance(line["step"], int) and text.endswith(b"\n")
        except (ValueError, KeyError, TypeError, RecursionError):
            is_whole = False
        if is_whole:
            yield text, line
        elif number < len(lines):  # the last may be being written, or the run was killed there
            raise InputError(
                f"{path}, line {number} is damaged: expected a JSON object with a step; remove it"
            )


def _parted(lines: Iterable[Mapping[str, Any]]) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Return training and evaluation lines in order of steps, finite numbers only; of several for one step the last
    holds.
    """
    parts: tuple[dict[int, dict[str, float]], ...] = ({}, {})
    for line in lines:
        kept = parts[any("/" in name for name in line)].setdefault(line["step"], {})
        kept |= {name: value for name, value in line.items() if finite(value) is not None}
    training, evaluations = ([part[step] for step in sorted(part)] for part in parts)
    return training, evaluations


@dataclass(frozen=True)
class Reported(Result):
    """What a command measured of its finished model, on images that were neither learned from nor chosen by."""

    metric: str
    value: float
    data: str


@dataclass(frozen=True)
class RunRow(Result):
    """A run in a list of them; what isn't known is None. A fine-tuning is one row, with the steps of its last run."""

    name: str
    status: str
    "As its record says; 'interrupted' where no process is at work any more, 'unreadable' where the record is damaged."
    step: int | None = None
    steps: int | None = None
    best: Evaluated | None = None
    "While it trained."
    results: tuple[Reported, ...] = ()
    "Of a fine-tuning, of VTAB's tasks together, of each data set of a suite."
    loss: Evaluated | None = None
    "The last, of training where none was evaluated."
    images_per_second: float | None = None
    "Median over the training lines."
    seconds: float | None = None
    updated: str | None = None
    message: str = ""
    path: str = ""


def list_runs(root: str | Path = ROOT) -> list[RunRow]:
    """Return what the run folders in `root` say of themselves, the last updated first; `root` may be one too."""
    folder = Path(root)
    if not folder.is_dir():
        if folder == Path(ROOT):
            return []
        raise InputError(f"{root} is not a folder; expected one that holds runs, such as {ROOT}")
    try:
        folders = list(_find_runs(folder))
    except OSError as error:
        raise InputError(f"{root} can't be read: {error.strerror or error}") from None
    rows = [_row(path, folder) for path in sorted(folders)]
    return sorted(rows, key=lambda row: row.updated or "", reverse=True)


def _find_runs(folder: Path, depth: int = DEEPEST, is_root: bool = True) -> Iterator[Path]:
    """Yield the runs in a folder and in those that hold several; what a command makes of several runs is one, and its
    parts are listed where it is the root.
    """
    is_whole = _is_run(folder) or _kind_of_several(folder) is not None
    if is_whole:
        yield folder
    if depth and not _is_run(folder) and (is_root or not is_whole):
        try:
            paths = [path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir()]
        except OSError:  # a folder that this user may not read
            return
        for path in paths:
            yield from _find_runs(path, depth - 1, is_root=False)


def _kind_of_several(folder: Path) -> str | None:
    """Return which command that does several runs filled a folder, if one did."""
    return next(
        (kind for kind in ("suite", "vtab", "finetune") if (folder / KINDS[kind].record).is_file()), None
    )


def _row(folder: Path, root: Path) -> RunRow:
    name = str(folder.relative_to(root)) if folder != root else folder.resolve().name
    row = RunRow(name, "unreadable", path=str(folder))
    if not _is_run(folder) and (kind := _kind_of_several(folder)):
        return _row_of_several(row, kind, folder)
    try:
        record = read_record(folder)
        shown = ("status", "step", "steps", "seconds", "updated", "message")
        row = replace(row, **{field: record[field] for field in shown})
        if record["best"] is not None:
            row = replace(row, best=from_json(Evaluated, record["best"], folder / RECORD))
        training, evaluations = _parted(read_metrics(folder))
    except InputError as error:
        return replace(row, message=str(error))
    if row.status == "running" and not is_locked(folder / LOCK):
        row = replace(row, status="interrupted")
    trained = ({"step": line["step"], "train/loss": line["loss"]} for line in training if "loss" in line)
    loss = _last_loss(evaluations, row.best) or _last_loss(trained, None)
    return replace(row, loss=loss, images_per_second=speed(training))


def _row_of_several(row: RunRow, kind: str, folder: Path) -> RunRow:
    """Return the row of a fine-tuning, a VTAB run or a suite: its own status and results, and where it stands."""
    try:
        record = read_record(folder, kind)
    except InputError as error:
        return replace(row, message=str(error))
    inner = [_row(path, folder) for path in _find_runs(folder) if path != folder]
    if kind == "finetune" and inner:
        last = max(inner, key=lambda one: one.updated or "")
        row = replace(
            row,
            **{name: getattr(last, name) for name in ("step", "steps", "best", "loss", "images_per_second")},
        )
    status = record["status"]
    if status == "running" and not is_locked(folder / LOCK):
        status = "interrupted"
    seconds = finite(record.get("seconds")) or sum(one.seconds or 0.0 for one in inner)
    updated = text(record.get("updated")) or max((one.updated or "" for one in inner), default="") or None
    return replace(
        row,
        status=status,
        results=tuple(_reported(record, kind)),
        seconds=seconds,
        updated=updated,
        message=text(record.get("message")) or "",
    )


def _reported(record: Mapping[str, Any], kind: str) -> Iterator[Reported]:
    """Yield the results in a record, in this version's or an earlier one's."""
    if kind == "finetune":
        metric = text(record.get("metric")) or "accuracy"
        found = {str(record.get("measured_on")): (metric, record.get(metric))}
    elif kind == "vtab":
        overall = mapping(record.get("overall"))
        found = {str(overall.get("name")): ("accuracy", overall.get("accuracy"))}
    else:
        rows = mapping(record.get("results"))
        found = {name: ("accuracy", mapping(row).get("accuracy")) for name, row in rows.items()}
    for data, (metric, value) in found.items():
        if (number := finite(value)) is not None:
            yield Reported(metric, number, data)


def speed(training: Iterable[Mapping[str, float | None]]) -> float | None:
    """Return the median of images per second over training lines; None where none says it."""
    rates = [rate for line in training if (rate := line.get("images_per_second"))]
    return statistics.median(rates) if rates else None


def _last_loss(evaluations: Iterable[Mapping[str, float]], best: Evaluated | None) -> Evaluated | None:
    """Return the last evaluated loss, of the weights by which the best were chosen if there are several."""
    split = best.metric.split("/")[0] if best else ""
    found = [
        Evaluated(name, line[name], int(line["step"]))
        for line in evaluations
        for name in sorted(line, key=lambda name: name.startswith(f"{split}/"))
        if name.endswith("/loss")
    ]
    return found[-1] if found else None
