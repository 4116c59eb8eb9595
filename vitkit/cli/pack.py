"""`vit pack`: data as shards of smaller images."""

from __future__ import annotations

from typing import Annotated, Literal

import typer


def pack(
    source: Annotated[str, typer.Argument(metavar="SRC", help="DATA; without a split, all of them.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="Folder to write.")],
    size: Annotated[int, typer.Option(help="Shorter side of images that are larger.")] = 256,
    to: Annotated[Literal["tar", "parquet"], typer.Option(help="Kind of shards.")] = "tar",
    images_per_shard: Annotated[int, typer.Option(help="Images that go into one file.")] = 10_000,
    quality: Annotated[int, typer.Option(help="JPEG quality of images that get smaller.")] = 95,
    bad_images: Annotated[
        Literal["error", "skip"], typer.Option(help="Stop at an image that can't be read, or leave it out.")
    ] = "error",
    force: Annotated[bool, typer.Option("--force", help="Pack anew what `vit pack` wrote there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write data into tar or parquet shards of smaller images: vit pack ./photos ./packed

    The same command goes on where it was stopped. The exit status is 1 when images were left out.
    """
    from vitkit.cli.output import note, print_json, print_table
    from vitkit.cli.progress import progress_bar
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
        note(f"stopped; the same command goes on{', without --force' if force else ''}")
        raise
    for line in result["notes"]:
        note(line)
    if result["resumed_shards"]:
        note(f"{result['resumed_shards']:,} of {result['shards']:,} shards were there already")
    if json:
        print_json(result)
    else:
        numbers = ["shards", "images", "made smaller", "MB"]
        rows = [
            [
                part["split"],
                f"{part['shards']:,}",
                f"{part['images']:,}",
                f"{part['shrunk']:,}",
                f"{part['bytes'] / 1e6:,.1f}",
            ]
            for part in result["splits"]
        ]
        print_table(
            f"{result['target']}: {to}, shorter side {size}, JPEG {quality}",
            ["split", *numbers],
            rows,
            right=numbers,
        )
    for entry in result["unreadable"]:
        note(f"left out {entry['image']}: {entry['reason']}")
    if count := len(result["unreadable"]):
        note(f"{count:,} images were left out" if count > 1 else "1 image was left out")
        raise typer.Exit(1)
