"""`vit vtab`: a model on VTAB-1k's tasks, or on practice tasks, next to the paper's results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vitkit.cli.options import AcceptData, BadImages, Device, Force, Json, Model, Run, Seeds, Sweep, Verbose
from vitkit.cli.output import note, print_json, print_table
from vitkit.progress import follow

if TYPE_CHECKING:
    from vitkit.transfer.vtab.document import TaskRow, VtabResult


def vtab(
    model: Model,
    data: Annotated[
        str, typer.Argument(metavar="DIR|shapes", help="Folder of VTAB's tasks, or shapes to practise.")
    ],
    protocol: Annotated[str, typer.Option(help="vit, bit, light or fewshot.")] = "vit",
    tasks: Annotated[str | None, typer.Option(metavar="A,B", help="Only these tasks.")] = None,
    seeds: Seeds = 1,
    sweep: Sweep = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of training steps, if not the protocol's.")
    ] = None,
    run: Run = None,
    device: Device = "auto",
    bad_images: BadImages = "skip",
    force: Force = False,
    accept: AcceptData = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Measure a model on VTAB-1k: vit vtab B/16@augreg_in21k ./vtab

    Run the same command again to resume; finished tasks are not repeated.
    If a task fails, the others still run, and the exit status is 1.
    """
    from vitkit.transfer.vtab.run import vtab as run_vtab

    with follow(note, verbose) as listener:
        document = run_vtab(
            model,
            data,
            protocol=protocol,
            tasks=tasks,
            seeds=seeds,
            sweep=sweep,
            steps=steps,
            run=run,
            device=device,
            bad_images=bad_images,
            force=force,
            accept=accept or (),
            listener=listener,
        )
    if json:
        print_json(document)
    else:
        print_results(document)
    for row in document.tasks:
        if row.status == "failed":
            note(f"{row.task} failed: {row.reason}")
    if document.figure:
        note(f"figure: {document.figure}")
    if document.status == "stopped":
        note("stopped; run the same command again to resume")
        raise typer.Exit(130)
    if document.status == "failed":
        raise typer.Exit(1)


def print_results(document: VtabResult) -> None:
    """Print tasks, groups and the overall mean in points, next to the paper's rows."""
    from vitkit.data.splits import counted

    published = document.published
    rows = []
    for row in document.tasks:
        if row.status != "absent":
            theirs = [points(paper.tasks[row.task]) for paper in published]
            ours = with_deviation(row.accuracy, row.std)
            rows.append([row.task, row.group, ours, *theirs, remark(row, bool(published))])
    for group in document.groups:
        theirs = [points(paper.groups[group.group]) for paper in published]
        count = f"{group.tasks} of {counted(group.of, 'task')}"
        rows.append([group.group, "", with_deviation(group.accuracy, group.std), *theirs, count])
    if overall := document.overall:
        theirs = [points(paper.overall) for paper in published]
        rows.append([overall.name, "", with_deviation(overall.accuracy, overall.std), *theirs, ""])
    names = [paper.model for paper in published]
    print_table(
        f"{document.model} on {document.data}, {document.words}",
        ["task", "group", "accuracy", *names, ""],
        rows,
        caption=caption(document),
        right=["accuracy", *names],
    )


def caption(document: VtabResult) -> str:
    """Say what the numbers are."""
    absent = [row.task for row in document.tasks if row.status == "absent"]
    words = "Top-1 accuracy on the test split, in points."
    if document.published:
        words += " The paper's rows are ViT's table 9; their means are over the same tasks."
    else:
        words += " Practice: procedural images, nothing to compare with."
    return words + (f" Absent: {', '.join(absent)}." if absent else "")


def remark(row: TaskRow, is_vtab: bool) -> str:
    if row.status in ("failed", "not run"):
        return row.status
    return "not the official images" if is_vtab and not row.official_images else ""


def points(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * ratio:.1f}"


def with_deviation(accuracy: float | None, std: float | None) -> str:
    return points(accuracy) + ("" if std is None else f" ± {100 * std:.1f}")
