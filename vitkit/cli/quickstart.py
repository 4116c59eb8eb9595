"""`vit quickstart`: the whole path from pre-training to a model, in a few minutes on a laptop."""

from __future__ import annotations

from typing import Annotated

import typer

from vitkit.cli.options import Force, Json, Verbose
from vitkit.cli.output import note, print_json, print_table
from vitkit.figures.numbers import duration
from vitkit.progress import follow


def quickstart(
    out: Annotated[str, typer.Option(help="Folder for the runs.")] = "runs/quickstart",
    force: Force = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Pre-train a small ViT on shapes, without labels, and fine-tune it on digits, next to the same model trained from scratch."""
    from vitkit.quickstart import quickstart as run

    with follow(note, verbose) as listener:
        result = run(out, force=force, listener=listener)
    if json:
        print_json(result)
        return
    rows = [
        [row.labels, f"{row.pre_trained:.1%}", f"{row.scratch:.1%}", str(row.seeds)]
        for row in result.accuracy
    ]
    columns = ["digits, test accuracy", "pre-trained on shapes", "from scratch", "seeds"]
    print_table(None, columns, rows, right=columns[1:])
    took = "" if result.seconds is None else f"; {duration(result.seconds)} in all"
    note(f"model: {result.model}{took}\nnext:")
    for command in result.next:
        note(f"  {command}")
