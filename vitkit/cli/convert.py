"""`vit convert`: weights from any format to any other."""

from __future__ import annotations

from typing import Annotated, Literal

import typer


def convert(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="MODEL: a file, a folder, NAME@FILE, NAME@TAG, ...")
    ],
    target: Annotated[str, typer.Argument(metavar="DST", help="Folder or file to write.")],
    to: Annotated[
        Literal["vitkit", "npz", "timm", "hf", "torchvision"], typer.Option(help="Format to write.")
    ] = "vitkit",
    image_size: Annotated[
        str | None, typer.Option(help="Resample positions to this size: N or HEIGHTxWIDTH.")
    ] = None,
    num_classes: Annotated[int | None, typer.Option(help="Replace the head by a fresh one.")] = None,
    channels: Annotated[int | None, typer.Option(help="Adapt the first convolution.")] = None,
    resample: Annotated[
        Literal["bilinear_corners", "bicubic", "bicubic_plain", "bilinear"] | None,
        typer.Option(help="How positions are resampled; left out, as the source does it."),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(help="Tensors that may be unused or missing (pattern; repeatable), or 'numerics'."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Read weights in any format and write them in another.

    Reads Google's .npz, timm, transformers, torchvision and Compact-Transformers files and folders,
    recognised by their content. A single file gets a JSON beside it with numerics and preprocessing.
    """
    from vitkit.cli.arguments import parse_size
    from vitkit.cli.output import note, print_json
    from vitkit.weights.convert import convert as run

    result = run(
        source,
        target,
        to,
        image_size=None if image_size is None else parse_size(image_size),
        num_classes=num_classes,
        channels=channels,
        resample=resample,
        accept=accept or (),
        force=force,
    )
    for line in result["notes"]:
        note(line)
    if json:
        print_json(result)
    else:
        print(f"{result['target']}: {result['model']}, {result['parameters']:,} parameters, as {to}")
