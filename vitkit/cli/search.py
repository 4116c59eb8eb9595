"""`vit search`: images of a file of embeddings that are nearest to others, or near-duplicates of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vitkit.cli.options import BatchSize, Device, Json, Overwrite, Verbose
from vitkit.cli.output import announcer, note, print_json, print_line, print_table
from vitkit.errors import InputError
from vitkit.progress import progress_bar

if TYPE_CHECKING:
    from vitkit.evaluation.search import DuplicatesResult, SearchResult

MOST_GROUPS = 20
"Groups of near-duplicates that a table shows."


def search(
    features: Annotated[str, typer.Argument(metavar="FEATURES", help="A file that vit embed wrote.")],
    queries: Annotated[
        list[str] | None, typer.Argument(metavar="[IMAGE|FOLDER]...", help="Files, or folders of them.")
    ] = None,
    k: Annotated[int, typer.Option(min=1, metavar="N", help="Number of images to show for each query.")] = 10,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The same model at its current place, if it was moved."),
    ] = None,
    duplicates: Annotated[
        bool, typer.Option("--duplicates", help="Find near-duplicates among the images of the file.")
    ] = False,
    at_least: Annotated[
        float | None,
        typer.Option(metavar="SIMILARITY", help="Cosine similarity of near-duplicates; by default 0.9."),
    ] = None,
    approximate: Annotated[
        bool,
        typer.Option(
            "--approximate",
            help="Use an index, which is built once: faster for very many images, but may miss some.",
        ),
    ] = False,
    device: Device = "auto",
    batch_size: BatchSize = 32,
    out: Annotated[
        str | None, typer.Option(metavar="FILE.png", help="Draw the images that were found.")
    ] = None,
    force: Overwrite = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Find the nearest images of a set: vit search features.parquet photo.jpg --out found.png

    Images are compared by cosine similarity, each query with all of them. Embed them first:

    vit embed MODEL DATA --out features.parquet
    """
    if duplicates == bool(queries):
        raise InputError("give images to search for, or --duplicates" + (", not both" if duplicates else ""))
    if at_least is not None and not duplicates:
        raise InputError("--at-least is for --duplicates")
    from vitkit.evaluation.search import AT_LEAST, find_duplicates
    from vitkit.evaluation.search import search as run_search

    announce = announcer(verbose)
    if duplicates:
        limit = AT_LEAST if at_least is None else at_least
        with progress_bar("comparing") as progress:
            found = find_duplicates(
                features,
                at_least=limit,
                approximate=approximate,
                device=device,
                out=out,
                force=force,
                progress=progress,
            )
        print_json(found) if json else print_groups(found)
        sheet, is_failed = found.sheet, False
    else:
        with progress_bar("searching") as progress:
            result = run_search(
                features,
                queries or [],
                k=k,
                model=model,
                approximate=approximate,
                device=device,
                batch_size=batch_size,
                out=out,
                force=force,
                progress=progress,
            )
        for line in result.notes:
            announce(line)
        print_json(result) if json else print_nearest(result)
        sheet, is_failed = result.sheet, any(query.error for query in result.queries)
    if sheet:
        note(f"written: {sheet}")
    if is_failed:
        raise typer.Exit(1)


def print_nearest(result: SearchResult) -> None:
    """Print the images that were found, below each other."""
    cells = []
    for query in result.queries:
        if query.error is not None:
            cells.append([query.image, "", f"can't be read: {query.error}", ""])
        for place, image in enumerate(query.nearest or ()):
            name = "" if place else query.image
            cells.append([name, f"{image.similarity:.3f}", image.image, image.label])
    title = f"{result.features}: {result.images:,} images by {result.model}"
    _print_images(title, "query", cells)


def print_groups(result: DuplicatesResult) -> None:
    """Print the largest groups of near-duplicates."""
    cells = []
    for number, group in enumerate(result.groups[:MOST_GROUPS], 1):
        for place, image in enumerate(group.images):
            name = "" if place else f"{number}"
            cells.append([name, f"{image.similarity:.3f}", image.image, image.label])
    from vitkit.data.splits import counted

    title = (
        f"{result.features}: {result.duplicates:,} of {result.images:,} images are near-duplicates of others "
        f"({counted(len(result.groups), 'group')}, cosine similarity of {result.at_least:g} or more)"
    )
    if not cells:
        print_line(title)
        return
    mixed = sum(group.has_several_labels for group in result.groups)
    captions = []
    if len(result.groups) > MOST_GROUPS:
        captions.append(f"The largest {MOST_GROUPS} groups; --json has all.")
    if mixed:
        captions.append(
            f"{counted(mixed, 'group')} {'has' if mixed == 1 else 'have'} images of different classes."
        )
    _print_images(title, "group", cells, " ".join(captions))


def _print_images(title: str, first: str, cells: list[list[str]], caption: str = "") -> None:
    """Print a table, without the column of classes if no image has one."""
    columns = [first, "similarity", "image", "class"]
    if not any(row[3] for row in cells):
        columns, cells = columns[:3], [row[:3] for row in cells]
    print_table(title, columns, cells, caption, right=["similarity"])
