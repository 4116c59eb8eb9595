"""`vit serve`: load a model, listen, and answer until a signal comes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from vitkit.config import Bounds
from vitkit.errors import InputError
from vitkit.machine import num_cores
from vitkit.models.configs import Size
from vitkit.predictor import AnyModel, Names, Predictor, load
from vitkit.results import Result
from vitkit.serving.metrics import STATUSES
from vitkit.serving.settings import (
    Hosts,
    Limits,
    check_public,
    parse_bytes,
    parse_seconds,
    read_keys,
)


@dataclass(frozen=True)
class Served(Result):
    """What a server did until it was stopped."""

    model: str
    address: str
    seconds: float
    requests: int
    images: int
    "That were answered."
    refused: int
    "Images that could not have been answered in time."
    late: int
    "Images that were answered after the bound."
    unreadable: int


def serve(
    model: AnyModel,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    latency: str | float = "1s",
    batch_size: int = 32,
    threads: int | None = None,
    device: str = "auto",
    image_size: Size | None = None,
    names: Names | None = None,
    accept: str | Sequence[str] = (),
    keys: str | os.PathLike[str] | None = None,
    public: bool = False,
    allow_host: Sequence[str] = (),
    max_bytes: str | int = "32MB",
    max_images: int = 32,
    max_pixels: int = 50_000_000,
    announce: Callable[[str], None] | None = None,
) -> Served:
    """Answer requests over HTTP until SIGINT or SIGTERM, then finish what was accepted and return.

    latency: the bound from a request's last byte to its answer's first, in seconds or as '100ms'; what can't be answered in
    time is refused at once.
    batch_size: the most images in a batch. threads: of the CPU; all cores unless given.
    keys: a file of API keys, one per line; those in the environment variable VIT_KEYS count as well.
    public: let everyone in although other machines can reach the server and there are no keys.
    allow_host: names by which the server is reached, for example behind a proxy.
    announce: called with the address once the server listens.
    """
    require()
    seconds, most = parse_seconds(latency, "latency"), parse_bytes(max_bytes, "max_bytes")
    for name, value in (("batch_size", batch_size), ("max_images", max_images), ("max_pixels", max_pixels)):
        Bounds(at_least=1).check(name, value)
    allowed = read_keys(keys)
    check_public(host, allowed, public)
    limits = Limits(max_bytes=most, max_images=max_images, max_pixels=max_pixels)

    from vitkit.serving.app import make_app
    from vitkit.serving.engine import Engine
    from vitkit.serving.server import Server, listen

    with listen(host, port) as opened:  # before the model is loaded, which takes longer
        threads = set_threads(threads)
        predictor = load(model, device=device, image_size=image_size, names=names, accept=accept)
        engine = Engine(predictor, seconds, batch_size, threads, max_pixels, limits.max_waiting)
        engine.metrics.set("vit_workers", 1)
        server = Server(make_app(engine, allowed, Hosts(host, allow_host), limits), limits, engine.drain)
        address = address_of(host, opened.getsockname()[1])
        if announce:
            announce(describe(predictor, engine.batcher.latency, address))
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        start = time.monotonic()
        try:
            server.run([opened])
        finally:
            engine.close()
    total = engine.metrics.total
    return Served(
        predictor.spec,
        address,
        time.monotonic() - start,
        int(sum(total("vit_requests_total", status) for status in STATUSES)),
        *(
            int(total("vit_images_total", outcome))
            for outcome in ("answered", "refused", "late", "unreadable")
        ),
    )


def require() -> None:
    """Raise InputError unless the packages of the extra `serve` are installed."""
    modules = {
        "fastapi": "fastapi",
        "uvicorn": "uvicorn",
        "python-multipart": "python_multipart",
        "httptools": "httptools",
    }
    missing = [name for name, module in modules.items() if find_spec(module) is None]
    if missing:
        raise InputError(f'serve needs {", ".join(missing)}: pip install "vitkit[serve]"')


def set_threads(threads: int | None) -> int:
    """Let PyTorch and the decoding of pictures use so many threads of the CPU; all cores unless given."""
    if threads is not None:
        Bounds(at_least=1).check("threads", threads)
    chosen = threads or num_cores()
    torch.set_num_threads(chosen)
    return chosen


def address_of(host: str, port: int) -> str:
    """Return the URL of a server."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def describe(predictor: Predictor, latency: float, address: str) -> str:
    """Return one line on what is served, and where."""
    return f"{predictor.spec} at {address}, answers within {1000 * latency:g} ms; Ctrl-C stops"
