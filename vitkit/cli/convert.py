"""`vit convert`: weights from any format to any other."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Format(StrEnum):
    """What `vit convert` writes."""

    vitkit = "vitkit"
    npz = "npz"
    timm = "timm"
    hf = "hf"
    torchvision = "torchvision"


def convert(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="MODEL: a file, a folder, NAME@FILE, NAME@TAG, ...")
    ],
    target: Annotated[str, typer.Argument(metavar="DST", help="Folder or file to write.")],
    to: Annotated[Format, typer.Option(help="Format to write.")] = Format.vitkit,
    image_size: Annotated[
        str | None, typer.Option(help="Resample positions to this size: N or HEIGHTxWIDTH.")
    ] = None,
    num_classes: Annotated[int | None, typer.Option(help="Replace the head by a fresh one.")] = None,
    channels: Annotated[int | None, typer.Option(help="Adapt the first convolution.")] = None,
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
        to.value,
        image_size=None if image_size is None else parse_size(image_size),
        num_classes=num_classes,
        channels=channels,
        accept=accept or (),
        force=force,
    )
    for line in result["notes"]:
        note(line)
    if json:
        print_json(result)
    else:
        print(f"{result['target']}: {result['model']}, {result['parameters']:,} parameters, as {to.value}")
