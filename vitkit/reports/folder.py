"""A run folder as plain data: its state, its config, its training and evaluation lines, its measured results."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from vitkit.errors import InputError, did_you_mean
from vitkit.figures.numbers import is_accuracy
from vitkit.files import digest, is_locked

STATE, CONFIG, METRICS, LOCK = "run.json", "config.yaml", "metrics.jsonl", ".lock"
FINETUNE = "finetune.json"
"What tells the folder of a fine-tuning, whose runs are seed-0/run, seed-1/run, ..."
EVALUATION, RESULTS = "evaluation", "results.json"
"Where `vit finetune` measures its model, as `vit eval --out` does."


@dataclass(frozen=True)
class Run:
    """What one run folder says. Lines hold finite numbers only, in order of steps."""

    path: Path
    name: str
    state: dict[str, Any]
    config: dict[str, Any]
    training: list[dict[str, float]]
    evaluations: list[dict[str, float]]
    home: Path
    "Where model/ and evaluation/ are: the run itself, or the fine-tuning that it is of."

    @property
    def step(self) -> int:
        """The last step that the run tells of."""
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
        shown = [] if evaluated else [key for key in last if is_accuracy(key)]
        for key in (*shown, "loss"):
            if key in last:
                evaluated.setdefault(f"train/{key}", last[key])
        return evaluated

    @property
    def best(self) -> dict[str, Any] | None:
        """Metric, value and step of the best evaluation where all are there."""
        best = mapping(self.state.get("best"))
        value, step = finite(best.get("value")), finite(best.get("step"))
        if value is None or step is None or not text(best.get("metric")):
            return None
        return {"metric": best["metric"], "value": value, "step": int(step)}

    @property
    def model(self) -> Path | None:
        """The model folder, once there is one."""
        folder = self.home / "model"
        return folder if (folder / "config.json").is_file() else None

    @cached_property
    def results(self) -> dict[str, Any]:
        """What was measured of the model, as `vit eval` writes it; {} where it wasn't."""
        return read_results(self.home)


def read_results(folder: Path) -> dict[str, Any]:
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
    """Read the run in a folder, or those of a fine-tuning, one for each seed; and why some are left out."""
    if not (path / FINETUNE).is_file():
        return _read_each([path])
    seeds = sorted(path.glob("seed-*/run"), key=lambda run: (len(run.parent.name), run))
    runs, left_out = _read_each([seed for seed in seeds if _is_run(seed)])
    is_done = read_object(path / FINETUNE).get("status") == "done"
    if not runs and not left_out:
        if is_done:
            raise InputError(
                f"{path} kept a head fitted on features, and no step was trained: there are no curves to draw; what it "
                f"reached is in {path / EVALUATION}, and vit inspect shows its model"
            )
        waiting = f"{path} is a fine-tuning whose runs have no metrics: wait for their first line"
        return [], [NoMetrics(waiting)]
    name, has_several = path.resolve().name, len(runs) + len(left_out) > 1
    for place, run in enumerate(runs):
        seed = run.path.parent.name
        runs[place] = replace(run, name=f"{name} {seed}" if has_several else name)
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
    return any((path / name).is_file() for name in (STATE, METRICS))


def read_run(path: Path) -> Run:
    """Read a run folder; a last line of metrics that was torn off is left out."""
    if not path.is_dir():
        near = did_you_mean(str(path), map(str, _runs_near(path)))
        raise InputError(f"no folder {str(path)!r}{near or '; expected a run, such as runs/NAME'}")
    if not _is_run(path):
        near = did_you_mean(str(path), map(str, _runs_in(path)))
        raise InputError(f"{path} is no run: it has neither {STATE} nor {METRICS}{near}")
    state, config = read_object(path / STATE), _read_config(path / CONFIG)
    if state.get("status") == "running" and not is_locked(path / LOCK):
        state["status"] = "interrupted"
    training, evaluations = _read_metrics(path / METRICS)
    if not training and not evaluations:
        goes_on = f"before its first line; vit train {shlex.quote(str(path))} goes on"
        reasons = {
            "failed": f"it failed: {state.get('message')}",
            "stopped": f"it was stopped {goes_on}",
            "interrupted": f"it was interrupted {goes_on}",
        }
        reason = reasons.get(str(state.get("status")), "wait for its first line")
        raise NoMetrics(f"{path} has no metrics: {reason}")
    name = str(state.get("name") or path.resolve().name)
    return Run(path, name, state, config, training, evaluations, path)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings by their dotted names."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


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
        yield from _runs_in(Path("runs"))


def _runs_in(folder: Path) -> list[Path]:
    return sorted({state.parent for name in (STATE, FINETUNE) for state in folder.glob(f"*/{name}")})


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):  # a model may be one file
        return ""
    except UnicodeDecodeError:
        raise InputError(f"{path} is damaged: expected text in UTF-8") from None


def read_object(path: Path) -> dict[str, Any]:
    """Read a file of one JSON object; {} where there is none."""
    try:
        state = json.loads(_read_text(path) or "{}")
    except (ValueError, RecursionError):
        state = None
    if not isinstance(state, dict):
        raise InputError(f"{path} is damaged: expected one JSON object")
    return state


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(_read_text(path)) or {}
    except (yaml.YAMLError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise InputError(f"{path} is damaged: expected settings as YAML")
    return config


def _read_metrics(path: Path) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Return training and evaluation lines; of several for one step the last holds."""
    training: dict[float, dict[str, float]] = {}
    evaluations: dict[float, dict[str, float]] = {}
    content = path.read_bytes().decode("utf-8", "replace") if path.is_file() else ""
    lines = content.split("\n")
    for number, written in enumerate(lines, 1):
        if not written.strip():
            continue
        try:
            found = json.loads(written)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or finite(found.get("step")) is None:
            if number == len(
                lines
            ):  # no line break after it: it is being written, or the run was killed there
                continue
            raise InputError(
                f"{path}, line {number} is damaged: expected a JSON object with a step; remove it"
            )
        line = {str(key): value for key, value in found.items() if finite(value) is not None}
        kind = evaluations if any("/" in key for key in found) else training
        kind[line["step"]] = {**kind.get(line["step"], {}), **line}
    return (
        [training[step] for step in sorted(training)],
        [evaluations[step] for step in sorted(evaluations)],
    )
