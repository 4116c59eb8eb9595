"""`vit finetune`: a trained model becomes a model for other data, or with --suite for each of the paper's."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitkit.cli.eval import print_classes
from vitkit.cli.options import AcceptData, Device, Force, Json, Model, Run, Sweep, Verbose
from vitkit.cli.output import note, print_json, print_table
from vitkit.progress import follow

if TYPE_CHECKING:
    from vitkit.transfer.finetune import FinetuneResult
    from vitkit.transfer.suite import SuiteResult


def finetune(
    model: Model,
    rest: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DATA] [KEY=VALUE]...", help="Training data, and settings to change."),
    ] = None,
    sweep: Sweep = None,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", help="Number of seeds to average over; by default 1, with --suite 3."),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            metavar="paper",
            help="Fine-tune on every data set of the paper that is available, or in the folder DATA.",
        ),
    ] = None,
    run: Run = None,
    device: Device = "auto",
    force: Force = False,
    accept: AcceptData = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Fine-tune a model on your data: vit finetune Ti/16@pretrained ./photos

    DATA is a folder of class folders, or any other DATA. Run the same command again to resume.

    Settings are minutes=10 (how long a quick run takes), protocol=paper or quick, image_size=384,
    head_first=false, and all those of `vit train`: duration=500, optimizer.learning_rate=0.003,
    optimizer.freeze='["blocks.*"]', optimizer.layer_decay=0.75, average=0.9999 and so on.
    """
    from vitkit.errors import InputError

    words = list(rest or ())
    data = words.pop(0) if words and not re.match(r"[a-z_]+(\.[a-z_]+)*=", words[0]) else None
    if data is None and suite is None:
        raise InputError("finetune needs DATA, such as vit finetune MODEL ./photos, or --suite paper")
    options: dict[str, Any] = {"run": run, "device": device, "force": force, "accept": accept or ()}
    if suite is not None:
        if sweep is not None:
            raise InputError("--suite has no --sweep: give optimizer.learning_rate=, or sweep one data set")
        _finetune_suite(model, suite, data, words, seeds=seeds, verbose=verbose, json=json, **options)
        return
    assert data is not None
    with follow(note, verbose) as listener:
        from vitkit.transfer.finetune import finetune as run_finetune

        seeds = 1 if seeds is None else seeds
        result = run_finetune(model, data, words, sweep=sweep, seeds=seeds, listener=listener, **options)
    if json:
        print_json(result)
    else:
        print_result(result)
    if result.status == "stopped":
        raise typer.Exit(130)


def print_result(result: FinetuneResult) -> None:
    """Print what came out, and what to do next."""
    if result.status == "stopped":
        note("stopped; run the same command again to resume")
        return
    mean = result.mean_average_precision if result.accuracy is None else result.accuracy
    value = f"{mean:.2%}"
    if result.std is not None:
        value += f" ± {result.std * 100:.2f} ({len(result.values)} seeds)"
    size = "x".join(map(str, result.image_size))
    rows = [
        [f"{result.metric.replace('_', ' ')} on {result.measured_on}", value],
        ["model", result.request.model],
        [
            "images",
            f"{result.train_images:,} to train on, {result.test_images:,} to measure on, {size} pixels",
        ],
        ["protocol", f"paper, {result.rule}" if result.protocol == "paper" else "quick"],
        *([["calibration error", calibration_words(result)]] if result.accuracy is not None else []),
        *([["settings", ", ".join(result.departures)]] if result.departures else []),
        ["kept", result.kept],
        ["steps", f"{result.steps:,} of {result.batch_size} images"],
        ["learning rate", f"{result.learning_rate:g}"],
        ["training time", f"{result.seconds:,.0f} s"],
    ]
    for tried in result.sweep_results:
        rows.append([f"  tried {tried.learning_rate:g}", f"{tried.accuracy:.2%} on the dev split"])
    print_table(f"{result.run}: done", ["", "value"], rows)

    assert result.evaluation is not None
    print_classes(result.evaluation)
    if len(result.values) > 1:
        note("classes, evaluation/ and model are those of the first seed")
    written = (
        "results" if result.evaluation.confusion is None else "confusion and worst mistakes, as pictures"
    )
    note(f"model: {result.model}; {written}: {result.run}/evaluation")
    run = shlex.quote(result.run)
    note(f"next: vit predict {run} IMAGES, or vit inspect {run} IMAGES")


def calibration_words(result: FinetuneResult) -> str:
    """Say how far the model's confidence is from its accuracy, and what a temperature did for it."""
    assert result.evaluation is not None
    error, found = result.evaluation.calibration_error, result.calibration
    if found is None:
        return f"{error:.2%}, no temperature fitted"
    return f"{error:.2%} ({found.error_before:.2%} before the head was divided by a temperature of {found.temperature:.3g})"


def _finetune_suite(
    model: str,
    suite: str,
    data: str | None,
    changes: list[str],
    *,
    seeds: int | None,
    verbose: bool,
    json: bool,
    **options: Any,
) -> None:
    """Run a suite and print it."""
    from vitkit.transfer.suite import SEEDS, run_suite

    with follow(note, verbose) as listener:
        seeds = SEEDS if seeds is None else seeds
        result = run_suite(model, suite, data, changes, seeds=seeds, listener=listener, **options)
    if json:
        print_json(result)
    else:
        print_suite(result)
    if result.status != "done":
        raise typer.Exit(130 if result.status == "stopped" else 1)


def print_suite(result: SuiteResult) -> None:
    """Print the table of a suite next to the paper's."""
    from vitkit.transfer.suite import CAPTION, table_cells, table_remarks, table_title

    columns, rows = table_cells(result)
    caption = "\n".join([CAPTION, *table_remarks(result)])
    print_table(table_title(result), columns, rows, caption, right=[columns[1], *columns[3:]])
    note(f"kept: {result.run}/suite.json and suite.md")
    if result.status == "stopped":
        note("stopped; run the same command again to resume")
