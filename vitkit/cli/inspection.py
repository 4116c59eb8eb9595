"""`vit inspect`: what a model has learned, as a page and pictures."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from vitkit.cli.options import (
    Accept,
    BadImages,
    Device,
    ImageSize,
    Json,
    Model,
    Names,
    Overwrite,
    Verbose,
    parse_size,
)
from vitkit.cli.output import announcer, note, print_json, print_line
from vitkit.progress import progress_bar


def inspect(
    model: Model,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[IMAGES|DATA]", help="Files and folders of photos, or DATA such as 'cifar10:test'."
        ),
    ] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder to write.")] = "inspection",
    target: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS",
            help="Class of the gradient rollout, by name or number; the default is the predicted class.",
        ),
    ] = None,
    num_images: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of images to average attention distance over.")
    ] = 128,
    num_photos: Annotated[
        int, typer.Option(min=0, metavar="N", help="Number of photos to draw maps of.")
    ] = 6,
    fuse: Annotated[str, typer.Option(help="How rollout joins heads: mean, max or min.")] = "mean",
    residual: Annotated[float, typer.Option(help="Weight of the identity in rollout.")] = 0.5,
    discard: Annotated[float, typer.Option(help="Share of the smallest attention that rollout drops.")] = 0.0,
    names: Names = None,
    device: Device = "auto",
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Number of images in a batch; the default is what memory allows."
        ),
    ] = None,
    image_size: ImageSize = None,
    accept: Accept = None,
    bad_images: BadImages = "skip",
    force: Overwrite = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """See what a model has learned: vit inspect runs/photos holidays/ --out seen/

    Writes index.html, one page that needs no other file, and its pictures as PNG: filters, similarity of positions and
    attention distance; and for some photos rollout, gradient rollout, tokens, and every layer and head.
    Without images, only the parts that need none are drawn.
    """
    size = parse_size(image_size)

    from vitkit.inspection.flow import Fuse
    from vitkit.reports.inspection import inspect_model

    with progress_bar("inspecting (image passes)") as progress:
        result = inspect_model(
            model,
            images or None,
            out=out,
            target=target,
            num_images=num_images,
            num_photos=num_photos,
            fuse=cast(Fuse, fuse),
            residual=residual,
            discard=discard,
            names=names,
            device=device,
            batch_size=batch_size,
            image_size=size,
            accept=accept or (),
            bad_images=bad_images,
            force=force,
            progress=progress,
            announce=announcer(verbose),
        )
    if json:
        print_json(result)
    else:
        print_line(result.html)
        if result.attention_distance is None and "distance" not in result.undefined:
            note("attention is drawn over images: vit inspect MODEL IMAGES")
