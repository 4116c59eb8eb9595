"""`vit embed`: a model's features of every image of a data set, in a file to search among."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

import typer

from vitkit.cli.options import (
    BadImages,
    BatchSize,
    Device,
    ImageSize,
    Json,
    Model,
    Overwrite,
    Verbose,
    parse_size,
)
from vitkit.cli.output import announcer, note, print_json, print_line
from vitkit.progress import progress_bar


def embed(
    model: Model,
    data: Annotated[str, typer.Argument(metavar="DATA", help="SOURCE[:SPLIT]; the default is every image.")],
    out: Annotated[
        str, typer.Option(metavar="FILE", help="Parquet file to write, such as features.parquet.")
    ],
    device: Device = "auto",
    batch_size: BatchSize = 64,
    image_size: ImageSize = None,
    bad_images: BadImages = "skip",
    force: Overwrite = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Write features of images to a file: vit embed runs/photos ./photos --out features.parquet

    Run the same command again to resume. It works with any number of processes:

    torchrun --nproc-per-node=8 -m -- vitkit embed MODEL DATA --out features.parquet
    """
    size = parse_size(image_size)
    from vitkit.evaluation.embed import embed as run_embed
    from vitkit.world import is_first_process

    is_first = is_first_process()
    with progress_bar("embedding") if is_first else nullcontext() as progress:
        result = run_embed(
            model,
            data,
            out,
            device=device,
            batch_size=batch_size,
            image_size=size,
            bad_images=bad_images,
            force=force,
            progress=progress,
            announce=announcer(verbose),
        )
    if not is_first:
        return
    if json:
        print_json(result)
        return
    if result.resumed_images:
        note(f"{result.resumed_images:,} images were already embedded")
    print_line(
        f"{result.out}: {result.images:,} images of {result.data}, {result.width} features each by {result.model}"
    )
