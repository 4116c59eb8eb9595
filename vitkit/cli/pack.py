"""`vit pack`: data as shards of smaller images."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from vitkit.cli.options import BadImages, Json, Verbose
from vitkit.cli.output import announcer, note, print_json, print_table
from vitkit.progress import progress_bar


def pack(
    source: Annotated[str, typer.Argument(metavar="SRC", help="DATA; the default is every split.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="Folder to write.")],
    size: Annotated[int, typer.Option(help="Shrink larger images to this shorter side.")] = 256,
    to: Annotated[Literal["tar", "parquet"], typer.Option(help="Kind of shards.")] = "tar",
    images_per_shard: Annotated[int, typer.Option(help="Number of images in one file.")] = 10_000,
    quality: Annotated[int, typer.Option(help="JPEG quality of shrunk images.")] = 95,
    bad_images: BadImages = "skip",
    force: Annotated[bool, typer.Option("--force", help="Start over, deleting the existing shards.")] = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Write data into tar or parquet shards of smaller images: vit pack ./photos ./packed

    Run the same command again to resume.
    """
    from vitkit.data.pack import pack as run

    try:
        with progress_bar("packing") as progress:
            result = run(
                source,
                target,
                size=size,
                to=to,
                images_per_shard=images_per_shard,
                quality=quality,
                bad_images=bad_images,
                force=force,
                progress=progress,
            )
    except KeyboardInterrupt:
        note(f"stopped; run the same command again to resume{', without --force' if force else ''}")
        raise
    announce = announcer(verbose)
    for line in result.notes:
        announce(line)
    if result.resumed_shards:
        note(f"{result.resumed_shards:,} of {result.shards:,} shards were already finished")
    if json:
        print_json(result)
    else:
        numbers = ["shards", "images", "made smaller", "MB"]
        rows = [
            [
                part.split,
                f"{part.shards:,}",
                f"{part.images:,}",
                f"{part.shrunk:,}",
                f"{part.bytes / 1e6:,.1f}",
            ]
            for part in result.splits
        ]
        print_table(
            f"{result.target}: {to}, shorter side {size}, JPEG {quality}",
            ["split", *numbers],
            rows,
            right=numbers,
        )
