"""`finetune`: a trained model and a data set become a model for that data, by the paper's protocol or a quick one."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitkit.data.open import open_data
from vitkit.errors import InputError
from vitkit.evaluate.run import evaluate
from vitkit.predictor import choose_device
from vitkit.train.log import Listener, Silent
from vitkit.train.run import train_config
from vitkit.train.runs import CONFIG, ROOT, read_config, run_name
from vitkit.transfer.head import fit_head
from vitkit.transfer.pace import seconds_per_step
from vitkit.transfer.plan import Part, Plan, make_plan
from vitkit.transfer.protocols import QUICK_EPOCHS

RESULT = "finetune.json"


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
    listener = Once(listener or Silent())
    request = {"model": model, "data": data, "changes": list(changes), "sweep": sweep, "seeds": seeds}
    path = folder_of(request, run)
    if force and (path / RESULT).is_file():
        shutil.rmtree(path)
    known = read_result(path, request)
    if known.get("status") == "done":
        listener.note(f"{path} is done already; --force begins anew")
        return known
    plan = make_plan(model, data, changes, device)
    if sweep and plan.tuning is None:
        raise InputError(
            f"a sweep cuts its dev split from train, and {data} is a slice or shots: leave them out"
        )
    for note in plan.notes:
        listener.note(note)
    write_result(path, {"request": request, "status": "running"})
    tried: list[dict[str, Any]] = []
    for rate in plan.rule.grid if sweep else ():
        assert plan.tuning
        found = run_once(plan, plan.tuning, path / "sweep" / f"{rate:g}", device, listener, rate)
        if found is None:
            return {"request": request, "status": "stopped", "run": str(path)}
        tried.append({"learning_rate": rate, "accuracy": found["dev_accuracy"]})
        listener.note(f"learning rate {rate:g}: {found['dev_accuracy']:.2%} on {plan.tuning.dev}")
    best = max(tried, key=lambda row: row["accuracy"])["learning_rate"] if tried else None
    results: list[dict[str, Any]] = []
    for seed in range(seeds):
        found = run_once(plan, plan.whole, path / f"seed-{seed}", device, listener, best, seed)
        if found is None:
            return {"request": request, "status": "stopped", "run": str(path)}
        out = path / "evaluation" if seed == 0 else None
        found["evaluation"] = evaluate(found["model"], plan.test, device=device, out=out, force=True)
        results.append(found)
    shutil.rmtree(path / "model", ignore_errors=True)
    shutil.copytree(results[0]["model"], path / "model")
    result = {"request": request, **summary(plan, path, results), "sweep_results": tried}
    write_result(path, result)
    return result


def run_once(
    plan: Plan,
    part: Part,
    path: Path,
    device: str,
    listener: Listener,
    rate: float | None = None,
    seed: int = 0,
) -> dict[str, Any] | None:
    """Do the protocol once in a folder of its own; None after a request to stop."""
    changes = [] if rate is None else [f"optimizer.learning_rate={rate}"]
    changes += [f"seed={seed}"] if seed else []
    settings: dict[str, Any] = {}
    head = None
    if plan.head_first:
        head = fit_head(plan.model, part, path / "head", device, listener)
        settings["model"] = {**plan.settings["model"], "name": str(head.path)}
    if not plan.has_duration:
        settings["duration"] = quick_steps(plan, part, path / "run", changes, settings, device, listener)
    config = plan.config(part, changes, **settings)
    found = train_config(config, path / "run", device=device, listener=listener)
    if found["status"] != "done":
        return None
    chosen = path / "run" / "model"
    accuracy = found["best"]["value"] if part.dev else None
    if head and accuracy is not None and head.accuracy is not None and head.accuracy > accuracy:
        listener.note(f"the head alone did better on {part.dev}, {head.accuracy:.2%}, so it is kept")
        chosen, accuracy = head.path, head.accuracy
    return {
        "model": str(chosen),
        "kept": "head" if head and chosen == head.path else "all weights",
        "dev_accuracy": accuracy,
        "seconds": found["seconds"] + (head.seconds if head else 0.0),
        "steps": found["steps"],
        "batch_size": config.batch_size,
        "learning_rate": config.optimizer.learning_rate,
    }


def quick_steps(
    plan: Plan,
    part: Part,
    path: Path,
    changes: Sequence[str],
    settings: dict[str, Any],
    device: str,
    listener: Listener,
) -> int:
    """Return how many steps fit the time; a run that has begun keeps its number."""
    if (path / CONFIG).is_file():
        return int(read_config(path)["duration"])
    config = plan.config(part, changes, duration=1, **settings)
    source = open_data(part.train)
    step = seconds_per_step(config, source.class_names, choose_device(device))
    most = max(1, QUICK_EPOCHS * len(source) // config.batch_size)
    steps = max(1, min(most, int(plan.minutes * 60 / step)))
    listener.note(
        f"{steps:,} steps of {config.batch_size} images, about {steps * step / 60:.1f} minutes"
        f" ({step:.2g} s a step), {steps * config.batch_size / len(source):.1f} epochs"
    )
    return steps


def summary(plan: Plan, path: Path, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the result of all seeds; details are the first's."""
    name = next(name for name in ("accuracy", "mean_average_precision") if name in results[0]["evaluation"])
    values = [result["evaluation"][name] for result in results]
    seconds = sum(result["seconds"] for result in results)
    first = results[0]
    return {
        "status": "done",
        "run": str(path),
        "model": str(path / "model"),
        "protocol": plan.protocol,
        "rule": plan.rule.origin,
        "train_images": plan.num_images,
        "measured_on": plan.test,
        **{key: first[key] for key in ("kept", "learning_rate", "steps", "batch_size")},
        "metric": name,
        name: statistics.mean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "values": values,
        "seconds": seconds,
        "device_hours": seconds / 3600,
        "evaluation": first["evaluation"],
        "notes": list(plan.notes),
    }


class Once:
    """Passes on what a run says, each note once: parts of a fine-tuning open the same data again and again."""

    def __init__(self, listener: Listener) -> None:
        self.listener, self.said = listener, set[str]()
        self.start, self.stepped = listener.start, listener.stepped
        self.metrics, self.stop = listener.metrics, listener.stop

    def note(self, line: str) -> None:
        if line not in self.said:
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
    return Path(run) if Path(run).name != run else Path(ROOT, run)


def read_result(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of a fine-tuning in a folder, which must be of the same request."""
    file = path / RESULT
    if not file.is_file():
        if path.is_dir() and any(path.iterdir()):
            raise InputError(f"{path} exists and holds no fine-tuning: name another run")
        return {}
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        theirs = {name: known["request"][name] for name in request}
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{file} is damaged: remove {path}, or begin anew with --force") from None
    for name, value in request.items():
        if theirs[name] != value:
            raise InputError(
                f"{path} holds another fine-tuning: {name} is {theirs[name]!r} there, {value!r} here; "
                "name another run, or begin anew with --force"
            )
    return dict(known)


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write what is known, aside and then renamed."""
    path.mkdir(parents=True, exist_ok=True)
    aside = path / f".{RESULT}"
    aside.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    aside.replace(path / RESULT)
