"""`vit study`: many runs from one file: plan them, run them, show what they found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vitkit.cli.options import Changes, Device, Json
from vitkit.cli.output import note, print_json, print_table
from vitkit.figures.numbers import compact, flops, rough_duration

if TYPE_CHECKING:
    from vitkit.studies.plan import StudyPlan

File = Annotated[str, typer.Argument(metavar="STUDY", help="A YAML file, or the name of a study.")]


def plan(study: File, changes: Changes = None, device: Device = "auto", json: Json = False) -> None:
    """Count what a study costs before it runs: vit study plan paper_compute

    Lists every run with its exaFLOPs and estimated time on this device. The data needn't be here if the study says how
    many images it has (data_images=N).
    """
    from vitkit.studies.plan import plan_study

    result = plan_study(study, changes or (), device=device)
    if json:
        print_json(result)
    else:
        print_plan(result)


def print_plan(result: StudyPlan) -> None:
    """Print the runs and their total."""
    rows = [
        [
            run.name,
            run.model,
            compact(run.parameters),
            f"{run.images:,}",
            f"{run.steps:,} x {run.batch_size:,}",
            flops(run.exaflops),
            rough_duration(run.seconds),
        ]
        for run in result.runs
    ]
    numbers = ["parameters", "images", "steps", "training", "time"]
    total = f"{len(result.runs):,} runs, {flops(result.exaflops)}, {rough_duration(result.seconds)} on {result.device}"
    how = "as measured here" if result.is_measured else "estimated from a matrix product"
    print_table(
        f"{result.study}: {result.about}",
        ["run", "model", *numbers],
        rows,
        f"{total}, {how}, one run after another and with what is measured of each.",
        right=numbers,
    )
    if result.absent:
        note(f"not here: {', '.join(result.absent)}")


STUDY = {"plan": plan}
