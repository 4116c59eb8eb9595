"""`vit serve`: load a model, listen, and answer until a signal comes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from vitkit.config import Bounds
from vitkit.errors import InputError
from vitkit.machine import num_cores
from vitkit.models.configs import Size
from vitkit.predictor import AnyModel, Names, Predictor, named_model
from vitkit.results import Result
from vitkit.serving.metrics import STATUSES, Metrics
from vitkit.serving.service import BACKLOG, answer, bind, make_service
from vitkit.serving.workers import supervise


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
    workers: int = 1,
    batch_size: int = 32,
    threads: int | None = None,
    device: str = "auto",
    image_size: Size | None = None,
    names: Names | None = None,
    accept: str | Sequence[str] = (),
    features: str | os.PathLike[str] | None = None,
    keys: str | os.PathLike[str] | None = None,
    public: bool = False,
    allow_host: Sequence[str] = (),
    max_bytes: str | int = "32MB",
    max_images: int = 32,
    max_pixels: int = 50_000_000,
    announce: Callable[[str], None] | None = None,
) -> Served:
    """Answer requests over HTTP until SIGINT or SIGTERM, then answer the accepted ones and return.

    latency: bound on the time from a request's last byte to the first byte of its answer, in seconds or as '100ms'.
    Requests that can't be answered in time are refused at once.
    workers: processes that share the port, each with a model of its own; one that dies is replaced.
    batch_size: most images in a batch. threads: CPU threads of each worker; by default, workers share the cores.
    features: a file that `embed` wrote with this model, to search for similar images.
    keys: a file of API keys, one per line; those in the environment variable VIT_KEYS count too.
    public: let everyone in, although other machines can reach the server and there are no keys.
    allow_host: names by which the server is reached, for example behind a proxy.
    announce: called with the address once the server listens.
    """
    require()
    model, spec = named_model(model)
    Bounds(at_least=1).check("workers", workers)
    service = make_service(
        model if isinstance(model, Predictor) else os.fspath(model),
        host,
        latency=latency,
        batch_size=batch_size,
        threads=threads if threads is not None else max(1, num_cores() // workers),
        device=device,
        image_size=image_size,
        names=names,
        accept=accept,
        features=features,
        keys=keys,
        public=public,
        allow_host=allow_host,
        max_bytes=max_bytes,
        max_images=max_images,
        max_pixels=max_pixels,
    )
    start = 0.0
    with bind(host, port, shared=workers > 1) as opened:  # before the model is loaded, which takes longer
        address = address_of(host, opened.getsockname()[1])

        def on_ready(*_: object) -> None:
            nonlocal start
            start = time.monotonic()
            if announce:
                announce(f"{spec} at {address}, answers within {1000 * service.latency:g} ms; Ctrl-C stops")

        if workers > 1:
            metrics = supervise(service, opened, workers, on_ready)
        else:
            metrics = Metrics()
            opened.listen(BACKLOG)
            answer(service, lambda: opened, on_ready, metrics)
    total = metrics.total
    return Served(
        os.fspath(spec),
        address,
        time.monotonic() - start if start else 0.0,
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


def address_of(host: str, port: int) -> str:
    """Return the URL of a server."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
