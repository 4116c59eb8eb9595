"""`vit study`: many runs from one file: plan them, run them, show what they found."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vitkit.cli.options import Changes, Device, Json, Overwrite, parse_seconds
from vitkit.cli.output import note, print_json, print_line, print_table
from vitkit.errors import InputError
from vitkit.figures.numbers import compact, flops, percent, rough_duration

if TYPE_CHECKING:
    from vitkit.studies.plan import StudyPlan
    from vitkit.studies.records import RunState
    from vitkit.studies.run import StudyResult

File = Annotated[str, typer.Argument(metavar="STUDY", help="A YAML file, or the name of a study.")]

StudyFolder = Annotated[
    str | None, typer.Option("--run", metavar="NAME", help="Folder of the study's runs, in runs/; or a path.")
]


def plan(
    study: File,
    changes: Changes = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Time each model here for a few seconds, and keep the times.")
    ] = False,
    run: StudyFolder = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Count what a study costs before it runs: vit study plan paper_compute

    Lists every run with its exaFLOPs and estimated time on this device. The data needn't be here if the study says how
    many images it has (data_images=N).
    """
    from vitkit.studies.plan import plan_study

    result = plan_study(study, changes or (), measure=measure, run=run, device=device, progress=not json)
    if json:
        print_json(result)
    else:
        print_plan(result)


def run(
    study: File,
    changes: Changes = None,
    only: Annotated[
        str, typer.Option(metavar="PATTERN", help="Runs whose names match, such as '*seed-0*'.")
    ] = "*",
    limit: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Stop after this time, such as 10m; the same command resumes."),
    ] = None,
    workers: Annotated[
        str,
        typer.Option(
            metavar="N", help="Runs at once, on each GPU or on the CPU; auto measures what a GPU can take."
        ),
    ] = "auto",
    on: Annotated[
        str | None,
        typer.Option(metavar="ray[=ADDRESS]", help="Carry out the runs on a Ray cluster; here by default."),
    ] = None,
    run: StudyFolder = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train and measure all runs of a study: vit study run ./mine.yaml

    Each run is an ordinary run in runs/STUDY/. Run the same command again to resume: finished runs are skipped, interrupted
    ones resume, and failed ones are tried again. A run that fails doesn't affect the others; the exit status is then 1.
    """
    from vitkit.studies.run import run_study

    result = run_study(
        study,
        changes or (),
        only=only,
        limit=parse_seconds("--limit", limit),
        workers=parse_workers(workers),
        on=on,
        run=run,
        device=device,
    )
    if json:
        print_json(result)
    else:
        print_runs(result)
    if result.status != "done":
        raise typer.Exit(1 if result.status == "failed" else 130)


def parse_workers(text: str) -> int | Literal["auto"]:
    """Return the number of workers, or auto."""
    if text == "auto":
        return "auto"
    if not text.isdecimal():
        raise InputError(f"--workers is {text!r}; expected a number or auto")
    return int(text)


def print_runs(result: StudyResult) -> None:
    """Print how each run ended, and what to do next."""
    names = list(dict.fromkeys(one.name for state in result.runs for one in state.measured))
    rows = [
        [
            state.name,
            state.status,
            f"{state.step:,} / {state.steps:,}" if state.steps else "",
            *(measured_in(state, name) for name in names),
        ]
        for state in result.runs
    ]
    done = sum(state.status == "done" for state in result.runs)
    caption = f"{done:,} of {len(result.runs):,} runs are done, in {result.run}."
    print_table(
        f"{result.study}: {result.status}",
        ["run", "status", "step", *names],
        rows,
        caption,
        right=["step", *names],
    )
    for state in result.runs:
        if state.status == "failed":
            note(f"{state.name} failed: {state.message}")
    if result.status == "stopped":
        note("stopped; the same command resumes")


def measured_in(state: RunState, name: str) -> str:
    """Return what was measured of a run in one way, with its spread over seeds."""
    for one in state.measured:
        if one.name == name:
            spread = "" if one.std is None else f" ± {percent(one.std)}"
            return f"{percent(one.accuracy)}{spread}"
    return ""


def show(
    study: File,
    changes: Changes = None,
    measure: Annotated[
        str | None, typer.Option(metavar="NAME", help="What to draw; by default the study's first measure.")
    ] = None,
    paper: Annotated[bool, typer.Option("--paper", help="Add the ViT paper's own points.")] = False,
    at: Annotated[
        float | None,
        typer.Option(
            metavar="EXAFLOPS",
            help="Compute at which the laws predict the error; by default twice the largest of a run.",
        ),
    ] = None,
    run: StudyFolder = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder to write; the default is report/ in the study's folder."),
    ] = None,
    force: Overwrite = False,
    json: Json = False,
) -> None:
    """Draw what is finished of a study: vit study show ./mine.yaml

    Writes index.html, one page that needs no other file, each figure as PNG, SVG and CSV, and every run in runs.csv.
    """
    from vitkit.studies.show import show_study

    result = show_study(
        study, changes or (), measure=measure, paper=paper, at=at, run=run, out=out, force=force
    )
    if json:
        print_json(result)
        return
    for law in result.laws:
        if law.of == "compute":
            found = f"{percent(law.predicted)} ({percent(law.low)} to {percent(law.high)})"
            note(f"{law.group}: error {found} predicted at {flops(law.at)}")
    for one in result.predictions:
        if one.error is not None:
            where = "inside" if one.is_inside else "outside"
            ends = f"{percent(one.low)} to {percent(one.high)}"
            note(f"{one.group}: {one.run} has error {percent(one.error)}, {where} the predicted {ends}")
    for line in result.notes:
        note(line)
    if result.unfinished:
        note(f"{len(result.runs):,} of {len(result.runs) + len(result.unfinished):,} runs are finished")
    print_line(result.html)


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
    where = result.device if result.devices == 1 else f"{result.devices} of {result.device}"
    total = (
        f"{len(result.runs):,} runs, {flops(result.exaflops)}, {rough_duration(result.seconds)} on {where}"
    )
    how = (
        "as measured here"
        if result.is_measured
        else "estimated from a matrix product; --measure times the models"
    )
    at_once = "one run after another" if result.workers == 1 else f"{result.workers} runs at once on each"
    print_table(
        f"{result.study}: {result.about}",
        ["run", "model", *numbers],
        rows,
        f"{total}, {how}; {at_once}, with what is measured of each.",
        right=numbers,
    )
    for line in result.notes:
        note(line)
    if result.absent:
        note(f"not here: {', '.join(result.absent)}")


def list_all(json: Json = False) -> None:
    """List the studies that come with vitkit: vit study list"""
    from vitkit.studies.config import list_studies

    found = list_studies()
    if json:
        print_json(found)
        return
    rows = [[row["name"], row["about"], row.get("cost", "")] for row in found]
    print_table(None, ["study", "about", "cost"], rows, "vit study plan STUDY")


STUDY: dict[str, Callable[..., None]] = {"list": list_all, "plan": plan, "run": run, "show": show}
