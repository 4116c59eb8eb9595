"""Arguments and flags that verbs share, each declared once, and how their texts are read."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from vitkit.errors import InputError

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A run, a model folder, a weight file, NAME@TAG or NAME@FILE."),
]
TrainData = Annotated[
    str, typer.Argument(metavar="DATA", help="Images to learn from; the default split is train.")
]
Changes = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change.")]
Pattern = Annotated[str, typer.Argument(metavar="PATTERN", help="A name or a quoted pattern.")]

Run = Annotated[
    str | None, typer.Option(metavar="NAME", help="Name of the run, a folder in runs/; or a path.")
]
Force = Annotated[bool, typer.Option("--force", help="Start over, deleting the existing run.")]
Overwrite = Annotated[bool, typer.Option("--force", help="Overwrite existing output.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print all notes: on data, model, settings and cost.")
]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda|mps", help="Device to run on.")]
BatchSize = Annotated[int, typer.Option(min=1, metavar="N", help="Number of images in a batch.")]
ImageSize = Annotated[
    str | None, typer.Option(metavar="N|HxW", help="Input size in pixels, if not the model's own.")
]
Precision = Annotated[
    Literal["float32", "bfloat16", "float8"] | None,
    typer.Option(help="Precision of the computation; by default float32."),
]
Calibrate = Annotated[
    str | None,
    typer.Option(
        metavar="DATA",
        help="For float8: measure its scales on up to 64 of these images. A model folder keeps them.",
    ),
]
Merge = Annotated[
    int | None, typer.Option(metavar="N", help="Merge this many patches in each layer, for speed (ToMe).")
]
Names = Annotated[str | None, typer.Option(metavar="FILE", help="File of class names, one per line.")]
Accept = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Tensors that may be missing or unused; repeatable."),
]
BadImages = Annotated[
    Literal["skip", "error", "any"],
    typer.Option(
        help="Unreadable images: skip them, but stop if there are too many; error stops at the first; any skips any number."
    ),
]
AcceptData = Annotated[
    list[str] | None,
    typer.Option(metavar="data", help="Resume although training images were added or removed."),
]
Evaluate = Annotated[
    str | None,
    typer.Option(metavar="DATA", help="Images to measure on; by default DATA's test split, else val."),
]
Seeds = Annotated[int, typer.Option(metavar="N", help="Number of seeds to average over.")]
Sweep = Annotated[
    str | None,
    typer.Option(metavar="lr", help="Choose the learning rate on a held-out part of the training data."),
]

SECONDS = {"s": 1, "m": 60, "h": 3600}


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Return (height, width) of `--image-size 384` or 384x512, None without the flag."""
    from vitkit.config import admitted_values, convert
    from vitkit.models.configs import Size, as_size

    try:
        return None if text is None else as_size(convert(text, Size))
    except TypeError:
        raise InputError(f"--image-size is {text!r}; expected {admitted_values(Size)}") from None


def parse_integers(flag: str, text: str) -> list[int]:
    """Return the whole numbers of '1,5,10'."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"{flag} is {text!r}; expected whole numbers such as 1,5,10") from None


def parse_floats(flag: str, text: str) -> list[float]:
    """Return the numbers of '0.05,0.07'."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"{flag} is {text!r}; expected numbers such as 0.05,0.07") from None


def parse_seconds(flag: str, text: str | None) -> float | None:
    """Return the seconds of '90s', '10m', '1.5h' or '600', None without the flag."""
    if text is None:
        return None
    number, unit = (text[:-1], text[-1]) if text[-1:] in SECONDS else (text, "s")
    try:
        seconds = float(number) * SECONDS[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InputError(f"{flag} is {text!r}; expected a time such as 90s, 10m or 2h")
    return seconds
