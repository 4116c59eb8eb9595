"""`vit serve`: a model over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from vitkit.cli.options import Accept, BatchSize, Device, ImageSize, Json, Model, Names, parse_size
from vitkit.cli.output import note, print_json


def serve(
    model: Model,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 is all.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="Port; 0 uses a free one.")
    ] = 8000,
    latency: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Bound on the time to answer, such as 100ms or 2s; requests that would take longer are refused at once.",
        ),
    ] = "1s",
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="Processes that share the port.")] = 1,
    batch_size: BatchSize = 32,
    threads: Annotated[int | None, typer.Option(metavar="N", help="CPU threads of each process.")] = None,
    device: Device = "auto",
    image_size: ImageSize = None,
    names: Names = None,
    accept: Accept = None,
    features: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A file that vit embed wrote: adds the search for similar images."),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="API keys, one per line; also those in the variable VIT_KEYS."),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Let everyone in, without keys, on an address others can reach.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name by which the server is reached; repeatable."),
    ] = None,
    max_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Largest size of a request, such as 500KB.")
    ] = "32MB",
    max_images: Annotated[int, typer.Option(min=1, metavar="N", help="Most images in a request.")] = 32,
    max_pixels: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most pixels in an image.")
    ] = 50_000_000,
    json: Json = False,
) -> None:
    """Answer over HTTP, for programs and in a browser: vit serve runs/photos --latency 100ms

    Requests that arrive together are computed together. Ctrl-C answers the accepted requests, then stops.
    """
    size = parse_size(image_size)

    from vitkit.serving.run import serve as run

    result = run(
        model,
        host,
        port,
        latency=latency,
        workers=workers,
        batch_size=batch_size,
        threads=threads,
        device=device,
        image_size=size,
        names=names,
        accept=accept or (),
        features=features,
        keys=keys,
        public=public,
        allow_host=allow_host or (),
        max_bytes=max_bytes,
        max_images=max_images,
        max_pixels=max_pixels,
        announce=note,
    )
    if json:
        print_json(result)
    else:
        print(
            f"{result.images:,} images answered, {result.late:,} of them late; {result.refused:,} refused, "
            f"{result.unreadable:,} unreadable"
        )
