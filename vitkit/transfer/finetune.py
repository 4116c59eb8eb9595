"""`finetune`: a trained model and a data set become a model for that data, by the paper's protocol or a quick one."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitkit.config import merge
from vitkit.data.open import open_data
from vitkit.data.pipeline import parse_pipeline
from vitkit.data.splits import counted
from vitkit.errors import InputError
from vitkit.evaluation.features import mean_and_spread
from vitkit.evaluation.run import evaluate
from vitkit.files import write_file
from vitkit.predictor import choose_device
from vitkit.runs import CONFIG, RECORD, ROOT, named_path, read_config, read_record, run_name
from vitkit.training.estimate import in_words
from vitkit.training.log import Listener, Silent
from vitkit.training.run import train_config
from vitkit.training.stop import listening, obey
from vitkit.transfer.forecast import seconds_for
from vitkit.transfer.head import fit_head
from vitkit.transfer.pace import seconds_per_step
from vitkit.transfer.plan import Part, Plan, make_plan
from vitkit.transfer.protocols import QUICK_EPOCHS
from vitkit.weights.load import lies_in

RESULT = "finetune.json"
HEAD_ALONE = "the fitted head alone"


def finetune(
    model: str,
    data: str,
    changes: Sequence[str] = (),
    *,
    sweep: str | None = None,
    seeds: int = 1,
    run: str | None = None,
    device: str = "auto",
    force: bool = False,
    listener: Listener | None = None,
) -> dict[str, Any]:
    """Take a model to new data; return what `vit finetune --json` prints. The same call goes on where it was stopped.

    changes: `key=value`, settings of TransferConfig and of TrainConfig.
    sweep: "lr" tries the protocol's learning rates on a part of train, then trains on all of train with the best.
    seeds: how often the last run is done, with seeds 0, 1, ...; the result is their mean and deviation.
    """
    if sweep not in (None, "lr"):
        raise InputError(f"sweep is {sweep!r}; expected lr")
    if seeds < 1:
        raise InputError(f"seeds must be at least 1, not {seeds}")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise InputError(
            "finetune runs in one process; several share the work by seeds or data sets, one --run each"
        )
    heard = listener or Silent()
    listener = Once(heard)
    request = {"model": model, "data": data, "changes": list(changes), "sweep": sweep, "seeds": seeds}
    path = folder_of(request, run)
    if lies_in(model, path):
        raise InputError(f"{path} holds {model}, where the fine-tuning starts: name another run")
    if not (path / RESULT).is_file() and path.is_dir() and any(path.iterdir()):
        raise InputError(f"{path} exists and holds no fine-tuning: name another run")
    known = {} if force else read_result(path, request)
    if known.get("status") == "done":
        listener.note(f"{path} is done already; --force begins anew")
        return known
    plan = make_plan(model, data, changes, device, sweep is not None)
    if force and (path / RESULT).is_file():  # not before the new one is known to be possible
        shutil.rmtree(path)
    for note in plan.notes:
        listener.note(note)
    with listening():
        try:
            result = run_all(plan, path, seeds, device, heard, listener, request)
        except KeyboardInterrupt:
            result = None
        except InputError as error:  # such as a file that can't be read
            if not any(path.glob("*/**/checkpoints/*")):
                raise
            advice = "what was trained is kept: put that right, and the same command goes on"
            raise InputError(f"{error}; {advice}") from error
    return result or {"request": request, "status": "stopped", "run": str(path)}


def run_all(
    plan: Plan,
    path: Path,
    seeds: int,
    device: str,
    heard: Listener,
    listener: Listener,
    request: dict[str, Any],
) -> dict[str, Any] | None:
    """Do the sweep, if any, then the last run with each seed; None after a request to stop."""
    trials = {rate: path / "sweep" / f"{rate:g}" for rate in (plan.rule.grid if plan.tuning else ())}
    last = [path / f"seed-{seed}" for seed in range(seeds)]
    left = sum(not is_done(folder) for folder in (*trials.values(), *last))
    steps = settle_steps(plan, path, device, heard, runs=left)
    write_result(path, {"request": request, "status": "running"})
    tried: list[dict[str, Any]] = []
    for rate, folder in trials.items():
        assert plan.tuning
        found = run_once(plan, plan.tuning, folder, device, listener, steps, rate)
        if found is None:
            return None
        same = {key: found[key] for key in ("kept", "seconds")}
        tried.append({"learning_rate": rate, "accuracy": found["dev_accuracy"], **same})
        listener.note(f"learning rate {rate:g}: {found['dev_accuracy']:.2%} on {plan.tuning.dev}")
    best = choose_rate(tried, listener) if tried else None
    # Without images of its own to choose by, the last run keeps what the sweep did.
    kept = {row["learning_rate"]: row["kept"] for row in tried}
    head_alone = plan.whole.dev is None and kept.get(best) == HEAD_ALONE
    base = int(merge({}, plan.changes).get("seed", 0))
    results: list[dict[str, Any]] = []
    for seed, folder in enumerate(last):
        found = run_once(plan, plan.whole, folder, device, listener, steps, best, base + seed, head_alone)
        if found is None:
            return None
        out = path / "evaluation" if seed == 0 else None
        found["evaluation"] = evaluate(
            found["model"], plan.test, device=device, out=out, force=True, progress=obey
        )
        results.append(found)
    shutil.rmtree(path / "model", ignore_errors=True)
    shutil.copytree(results[0]["model"], path / "model")
    result = {"request": request, **summary(plan, path, results, tried), "sweep_results": tried}
    write_result(path, result)
    return result


def choose_rate(tried: Sequence[dict[str, Any]], listener: Listener) -> float:
    """Return the learning rate that did best; of equals the middle one, and what the sweep leaves open is told."""
    top = max(row["accuracy"] for row in tried)
    equal = [row for row in tried if row["accuracy"] == top]
    rates = [row["learning_rate"] for row in equal]
    best: float = rates[len(rates) // 2]
    if all(row["kept"] == HEAD_ALONE for row in equal):
        listener.note("the head alone did best on the dev split, which no learning rate changes")
    elif len(rates) > 1:
        listener.note(
            f"{len(rates)} learning rates did equally well on the dev split; the middle one, {best:g}, is taken"
        )
    elif best in (tried[0]["learning_rate"], tried[-1]["learning_rate"]):
        listener.note(
            f"the best learning rate, {best:g}, is at the end of the grid: a better one may lie beyond"
        )
    return best


def run_once(
    plan: Plan,
    part: Part,
    path: Path,
    device: str,
    listener: Listener,
    steps: int | None,
    rate: float | None = None,
    seed: int = 0,
    head_alone: bool = False,
) -> dict[str, Any] | None:
    """Do the protocol once in a folder of its own, or its head alone; None after a request to stop."""
    changes = [] if rate is None else [f"optimizer.learning_rate={rate}"]
    changes.append(f"seed={seed}")
    settings: dict[str, Any] = {} if steps is None else {"duration": steps}
    head = None
    if plan.head_first:
        head = fit_head(plan.config(part, changes, **settings), part, path / "head", device, listener)
        fitted = {name: value for name, value in plan.settings["model"].items() if name != "new_head"}
        settings["model"] = {**fitted, "name": str(head.path)}
    config = plan.config(part, changes, **settings)
    how: dict[str, Any] = {"batch_size": config.batch_size, "learning_rate": config.optimizer.learning_rate}
    how["image_size"] = list(parse_pipeline(config.data.pipeline).size or plan.architecture.size)
    if head and head_alone:
        alone = {"model": str(head.path), "kept": HEAD_ALONE, "dev_accuracy": head.accuracy}
        return {**how, **alone, "seconds": head.seconds, "steps": 0}
    found = train_config(config, path / "run", device=device, listener=listener)
    if found["status"] != "done":
        return None
    obey()
    weights = "weights" if config.average is None else "average of weights"
    chosen, kept, accuracy = path / "run" / "model", f"{weights} of step {found['steps']}", None
    if part.dev:
        accuracy = found["best"]["value"]
        if config.select == "best":
            kept = f"{weights} of step {found['best']['step']}"
        else:
            accuracy = found["metrics"][found["best"]["metric"]]
    if head and accuracy is not None and head.accuracy is not None and head.accuracy > accuracy:
        listener.note(f"the head alone did better on {part.dev}, {head.accuracy:.2%}, so it is kept")
        chosen, accuracy, kept = head.path, head.accuracy, HEAD_ALONE
    return {
        **how,
        "model": str(chosen),
        "kept": kept,
        "dev_accuracy": accuracy,
        "seconds": found["seconds"] + (head.seconds if head else 0.0),
        "steps": found["steps"],
    }


def is_done(path: Path) -> bool:
    """Say whether a run in a folder of its own has trained to its end."""
    return (path / "run" / RECORD).is_file() and read_record(path / "run")["status"] == "done"


def settle_steps(plan: Plan, path: Path, device: str, listener: Listener, runs: int) -> int | None:
    """Return how many steps of a quick run fit its time; None where the length is given. Say how long all will take.

    A fine-tuning that has begun keeps its number.
    """
    on = choose_device(device)
    if plan.has_duration:
        if runs:
            words = in_words(seconds_for(plan.operations(runs), on))
            listener.note(f"estimated time: {words} in all on {on.type}: {counted(runs, 'run')}")
            listener.note("shorter: duration=STEPS, image_size=PIXELS, a smaller MODEL")
        return None
    for begun in sorted(path.glob(f"*/**/run/{CONFIG}")):
        return int(read_config(begun.parent)["duration"])
    config = plan.config(plan.whole, duration=1000)
    listener.note("timing a few steps")
    step = seconds_per_step(config, on)
    images = len(open_data(plan.whole.train))
    most = max(1, QUICK_EPOCHS * images // config.batch_size)
    steps = max(2, min(most, int(plan.minutes * 60 / step)))  # the first of a warm-up changes nothing
    shares = {
        "features": plan.head_first * images / config.batch_size * step / 3,  # forward only
        f"{counted(steps, 'step')} of {config.batch_size} images": steps * step,
    }
    listed = " and ".join(f"{in_words(seconds)} for {what}" for what, seconds in shares.items() if seconds)
    if runs > 1:
        listed = f"{in_words(runs * sum(shares.values()))} in all: {runs} runs, each {listed}"
    listener.note(
        f"estimated time: {listed} ({step:.2g} s a step, {steps * config.batch_size / images:.1f} epochs)"
    )
    return steps


def summary(
    plan: Plan, path: Path, results: Sequence[dict[str, Any]], tried: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the result of all seeds; details are the first's."""
    name = next(name for name in ("accuracy", "mean_average_precision") if name in results[0]["evaluation"])
    values = [result["evaluation"][name] for result in results]
    mean, std = mean_and_spread(values)
    seconds = sum(row["seconds"] for row in (*results, *tried))
    first, notes = results[0], list(plan.notes)
    if len(results) > 1 and all(result["kept"] == HEAD_ALONE for result in results):
        notes.append(
            "the fitted head was kept for every seed, which is the same each time: there is no spread"
        )
    return {
        "status": "done",
        "run": str(path),
        "model": str(path / "model"),
        "models": [result["model"] for result in results],
        "protocol": plan.protocol,
        "rule": plan.rule.origin,
        "departures": list(plan.departures),
        "train_images": plan.num_images,
        "test_images": plan.num_measured,
        "measured_on": plan.test,
        **{key: first[key] for key in ("kept", "learning_rate", "steps", "batch_size", "image_size")},
        "metric": name,
        name: mean,
        "std": std,
        "values": values,
        "seconds": seconds,
        "device_hours": seconds / 3600,
        "evaluation": first["evaluation"],
        "notes": notes,
    }


class Once:
    """Passes on what runs say, each note once: parts of a fine-tuning open the same data again and again.

    The time of all was told at the beginning: what training says of one run's is left out.
    """

    def __init__(self, listener: Listener) -> None:
        self.listener, self.said = listener, set[str]()
        self.start, self.stepped = listener.start, listener.stepped
        self.metrics, self.stop = listener.metrics, listener.stop

    def note(self, line: str) -> None:
        if line not in self.said and not line.startswith(("cost:", "shorter:")):
            self.said.add(line)
            self.listener.note(line)


def folder_of(request: dict[str, Any], run: str | None) -> Path:
    """Return where a fine-tuning lives: as named, else by its model, its data and a hash of what was asked."""
    if run is None:
        model, data = request["model"], re.split(r"[:\[]", request["data"].removeprefix("hf-hub:"))[0]
        model = (
            model.partition("@")[0] if "@" in model else Path(model).name if Path(model).exists() else model
        )
        name = "-".join(re.sub(r"[^A-Za-z0-9_]+", "", word) or "model" for word in (model, Path(data).name))
        return Path(ROOT, run_name(f"finetune-{name}", request))
    return named_path(run)


def read_result(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of a fine-tuning in a folder, which must be of the same request."""
    file = path / RESULT
    if not file.is_file():
        return {}
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        theirs = {name: known["request"][name] for name in request}
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{file} is damaged: remove {path}, or begin anew with --force") from None
    if known.get("status") == "running" and not any(path.glob("*/**/run")):
        return {}  # it failed before anything was trained
    for name, value in request.items():
        if theirs[name] != value:
            raise InputError(
                f"{path} holds another fine-tuning: {name} is {theirs[name]!r} there, {value!r} here; "
                "name another run, or begin anew with --force"
            )
    return dict(known)


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write what is known."""
    write_file(path / RESULT, json.dumps(result, indent=2, allow_nan=False) + "\n")
