"""`vit train`: a recipe, or a run to resume, becomes a trained model; `vit recipes` lists the recipes."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from vitkit.cli.options import AcceptData, Changes, Device, Force, Json, Pattern, Run, Verbose
from vitkit.cli.output import note, print_json, print_table
from vitkit.figures.numbers import metric
from vitkit.progress import follow
from vitkit.results import as_json

if TYPE_CHECKING:
    from vitkit.training.recipes import Explanation
    from vitkit.training.run import TrainResult


def train(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe, a YAML file, or a run to resume.")
    ],
    changes: Changes = None,
    run: Run = None,
    device: Device = "auto",
    explain: Annotated[
        bool, typer.Option("--explain", help="Print every setting with its meaning; do not train.")
    ] = False,
    force: Force = False,
    accept: AcceptData = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Train a model: vit train cifar10_cct7 duration=30ep

    Run the same command again to resume. `vit recipes` lists the recipes. Over several GPUs or machines:

    torchrun --nproc-per-node=8 -m -- vitkit train RECIPE parallel=fsdp
    """
    if explain:
        from vitkit.training.recipes import explain as run_explain

        explanation = run_explain(recipe, changes or ())
        if json:
            print_json(explanation)
        else:
            _print_settings(explanation)
        return
    from vitkit.training.run import train as run_train
    from vitkit.world import is_first_process

    with follow(note, verbose) as listener:
        result = run_train(
            recipe,
            changes or (),
            run=run,
            device=device,
            force=force,
            accept=accept or (),
            listener=listener,
        )
    if not is_first_process():
        return
    if json:
        print_json(result)
    else:
        print_result(result)
    if result.status == "stopped":
        raise typer.Exit(130)


def recipes(
    pattern: Pattern = "*",
    json: Json = False,
) -> None:
    """List the recipes that `vit train` knows, with their published result: vit recipes 'cifar*'"""
    from vitkit.training.recipes import list_recipes

    found = list_recipes(pattern)
    if json:
        print_json(found)
        return
    rows = [[row["name"], row["about"], row.get("cost", ""), row.get("result", "")] for row in found]
    print_table(None, ["recipe", "about", "cost", "result"], rows, "vit train RECIPE [KEY=VALUE]...")


def print_result(result: TrainResult) -> None:
    """Print the summary table of a run, and what to do next."""
    metrics, best, run = result.metrics, result.best, shlex.quote(result.run)
    rows = [["steps", f"{result.step:,} of {result.steps:,}"]]
    rows += [
        [name, "not finite" if value is None else metric(name, value)]
        for name, value in metrics.items()
        if "loss" in name
    ]
    for name, value in metrics.items():
        if name.endswith(("accuracy", "mean_average_precision")) and value is not None:
            rows.append([name, metric(name, value)])
    if best:
        rows.append([f"best {best.metric}", f"{best.value:.2%} at step {best.step:,}"])
    if "images_per_second" in metrics:  # not before the first line of metrics
        rows.append(["images per second", f"{metrics['images_per_second']:,.0f}"])
        rows.append(["time waiting for data", f"{metrics['waiting']:.0%}"])
    rows.append(["training time", f"{result.seconds:,.0f} s"])
    print_table(f"{result.run}: {result.status}", ["", "value"], rows, right=["value"])
    if result.status == "stopped":
        note(f"stopped; resume with: vit train {run}")
    elif result.model and not result.classes:
        pool = " model.pool=mean" if result.pool == "none" else ""  # a head needs one
        start = f"vit finetune {run} DATA{pool}"
        note(f"model: {result.model}; it has no head; to train one: {start}")
    elif result.model:
        note(f"model: {result.model}; use it with: vit predict {run} IMAGES")


def _print_settings(explanation: Explanation) -> None:
    rows = [
        [row.name, "" if row.value is None else str(as_json(row.value)), row.meaning]
        for row in explanation.settings
    ]
    print_table(f"{explanation.recipe}: every setting", ["setting", "value", "meaning"], rows)
    for line in explanation.notes:
        note(line)
