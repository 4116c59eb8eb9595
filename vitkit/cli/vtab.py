"""`vit vtab`: a model on VTAB-1k's tasks, or on practice tasks, beside the paper's results."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def vtab(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="NAME@FILE, a weight file, a model folder or a run.")
    ],
    data: Annotated[
        str, typer.Argument(metavar="DIR|shapes", help="Folder of VTAB's tasks, or shapes to practise.")
    ],
    protocol: Annotated[str, typer.Option(help="vit, bit, light or fewshot.")] = "vit",
    tasks: Annotated[str | None, typer.Option(metavar="A,B", help="Only these tasks.")] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each task; their mean is reported.")] = 1,
    sweep: Annotated[
        str | None,
        typer.Option(metavar="lr", help="Choose each task's learning rate by train800 and val200."),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Fewer steps than the protocol's.")] = None,
    run: Annotated[str | None, typer.Option(help="Name of the run, in runs/; or a path.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Begin anew, whatever the run holds.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Measure a model on VTAB-1k: vit vtab B/16@augreg_in21k ./vtab

    The same command goes on where it was stopped: tasks that are done are not run again.
    A task that fails is reported, the others are still done, and the exit status is 1.
    """
    from vitkit.cli.following import follow
    from vitkit.cli.output import note, print_json
    from vitkit.transfer.vtab.run import vtab as run_vtab

    with follow() as listener:
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
            force=force,
            listener=listener,
        )
    if json:
        print_json(document)
    else:
        print_results(document)
    for entry in document["tasks"]:
        if entry["status"] == "failed":
            note(f"{entry['task']} failed: {entry['reason']}")
    if document["figure"]:
        note(f"figure: {document['figure']}")
    if document["status"] == "stopped":
        note("stopped; the same command goes on")
        raise typer.Exit(130)
    if document["status"] == "failed":
        raise typer.Exit(1)


def print_results(document: dict[str, Any]) -> None:
    """Print tasks, groups and the overall mean in percent, beside the paper's rows."""
    from vitkit.cli.output import print_table

    published = document["published"]
    rows = []
    for entry in document["tasks"]:
        if entry["status"] == "absent":
            continue
        theirs = [percent(row["tasks"][entry["task"]]) for row in published]
        rows.append([entry["task"], entry["group"], spread(entry), *theirs, remark(entry, bool(published))])
    means = []
    for group in document["groups"]:
        theirs = [percent(row["groups"][group["group"]]) for row in published]
        count = f"{group['tasks']} of {group['of']} task{'' if group['of'] == 1 else 's'}"
        means.append([group["group"], "", spread(group), *theirs, count])
    if overall := document["overall"]:
        theirs = [percent(row["overall"]) for row in published]
        means.append([overall["name"], "", spread(overall), *theirs, ""])
    names = [row["model"] for row in published]
    print_table(
        f"{document['model']} on {document['data']}, {document['words']}",
        ["task", "group", "accuracy", *names, ""],
        [*rows, *means],
        caption=caption(document),
        right=["accuracy", *names],
    )


def caption(document: dict[str, Any]) -> str:
    """Say what the numbers are."""
    absent = [entry["task"] for entry in document["tasks"] if entry["status"] == "absent"]
    words = "Top-1 accuracy on the test split, in percent."
    if document["published"]:
        words += " The paper's rows are ViT's table 9; their means are over the same tasks."
    else:
        words += " Practice: procedural images, nothing to compare with."
    return words + (f" Absent: {', '.join(absent)}." if absent else "")


def remark(entry: dict[str, Any], is_vtab: bool) -> str:
    if entry["status"] == "failed":
        return "failed"
    if entry["status"] == "not run":
        return "not run"
    return "not the official images" if is_vtab and not entry["official_images"] else ""


def percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * ratio:.1f}"


def spread(entry: dict[str, Any]) -> str:
    std = entry["std"]
    return percent(entry["accuracy"]) + ("" if std is None else f" ± {100 * std:.1f}")
