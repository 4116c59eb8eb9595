"""`vit convert`: weights from any format to any other."""

from __future__ import annotations

from typing import Annotated

import typer

from vitkit.cli.options import ImageSize, Json, Overwrite, parse_size
from vitkit.cli.output import note, print_json, print_line
from vitkit.models.configs import Resample
from vitkit.weights import Format


def convert(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="MODEL: a file, a folder, NAME@FILE, NAME@TAG, ...")
    ],
    target: Annotated[str, typer.Argument(metavar="DST", help="Folder or file to write.")],
    to: Annotated[
        Format | None,
        typer.Option(help="Format to write; the default is npz for DST.npz, else vitkit."),
    ] = None,
    image_size: ImageSize = None,
    num_classes: Annotated[
        int | None, typer.Option(help="Replace the head with a new one for this many classes.")
    ] = None,
    channels: Annotated[
        int | None, typer.Option(help="Adapt the first convolution to this many input channels.")
    ] = None,
    resample: Annotated[
        Resample | None,
        typer.Option(help="How to resample positions; the default is the source's own way."),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(help="Tensors that may be unused or missing (pattern; repeatable), or 'numerics'."),
    ] = None,
    force: Overwrite = False,
    json: Json = False,
) -> None:
    """Read weights in any format and write them in another.

    Reads Google's .npz, timm, transformers, torchvision and Compact-Transformers files and folders,
    recognised by their content. Next to a single file, a JSON file holds its numerics and preprocessing.
    """
    from vitkit.weights.convert import convert as run

    result = run(
        source,
        target,
        to,
        image_size=parse_size(image_size),
        num_classes=num_classes,
        channels=channels,
        resample=resample,
        accept=accept or (),
        force=force,
    )
    for line in result.notes:
        note(line)
    if json:
        print_json(result)
    else:
        print_line(f"{result.target}: {result.model}, {result.parameters:,} parameters, as {result.to}")
