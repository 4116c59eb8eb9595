"""One process of a server: everything that it needs, so that it can be sent to a worker, and how it answers."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from vitkit.config import Bounds
from vitkit.errors import InputError
from vitkit.evaluation.embeddings import open_embeddings
from vitkit.models.configs import Size
from vitkit.predictor import AnyModel, Names, load
from vitkit.serving.engine import Engine
from vitkit.serving.metrics import Metrics
from vitkit.serving.settings import (
    Hosts,
    Keys,
    Limits,
    check_public,
    parse_bytes,
    parse_seconds,
    read_keys,
)

BACKLOG = 2048
"Connections that wait to be accepted."
WATCH_SECONDS = 1.0
STUCK = 70
"Exit status of a worker whose batch doesn't end, so that another one takes its place."


@dataclass(frozen=True)
class Service:
    """What is served, and how."""

    model: AnyModel
    host: str
    latency: float
    batch_size: int
    threads: int
    device: str = "auto"
    image_size: Size | None = None
    names: Names | None = None
    accept: str | Sequence[str] = ()
    keys: Keys = field(default_factory=Keys)
    allow_host: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)
    features: str | os.PathLike[str] | None = None

    def open(self, metrics: Metrics | None = None) -> Engine:
        """Load the model and measure it."""
        torch.set_num_threads(self.threads)
        predictor = load(
            self.model, device=self.device, image_size=self.image_size, names=self.names, accept=self.accept
        )
        return Engine(
            predictor,
            self.latency,
            self.batch_size,
            self.threads,
            self.limits.max_pixels,
            self.limits.max_waiting,
            metrics,
            None if self.features is None else open_embeddings(self.features),
        )


def make_service(
    model: AnyModel,
    host: str,
    *,
    latency: str | float,
    batch_size: int,
    threads: int,
    device: str,
    image_size: Size | None,
    names: Names | None,
    accept: str | Sequence[str],
    features: str | os.PathLike[str] | None,
    keys: str | os.PathLike[str] | None,
    public: bool,
    allow_host: Sequence[str],
    max_bytes: str | int,
    max_images: int,
    max_pixels: int,
) -> Service:
    """Return what a server needs, checked and read, from the settings of `vitkit.serve`."""
    seconds, most = parse_seconds(latency, "latency"), parse_bytes(max_bytes, "max_bytes")
    counts = {
        "batch_size": batch_size,
        "threads": threads,
        "max_images": max_images,
        "max_pixels": max_pixels,
    }
    for name, value in counts.items():
        Bounds(at_least=1).check(name, value)
    known = read_keys(keys)
    check_public(host, known, public)
    limits = Limits(max_bytes=most, max_images=max_images, max_pixels=max_pixels)
    return Service(
        model,
        host,
        seconds,
        batch_size,
        threads,
        device,
        image_size,
        names,
        accept,
        known,
        allow_host,
        limits,
        features,
    )


def answer(
    service: Service,
    listening: Callable[[], socket.socket],
    on_ready: Callable[[Engine, Callable[[], None]], None],
    metrics: Metrics,
    ends_if_stuck: bool = False,
) -> None:
    """Answer requests until a signal comes, then finish what was accepted.

    listening: returns the socket, once the model is ready. on_ready: called with a function that stops the server.
    """
    from vitkit.serving.app import make_app
    from vitkit.serving.server import Server

    for name in ("uvicorn.error", "python_multipart"):  # each malformed request would be a warning
        logging.getLogger(name).setLevel(logging.ERROR)
    engine = service.open(metrics)
    hosts = Hosts(service.host, service.allow_host)
    server = Server(make_app(engine, service.keys, hosts, service.limits), service.limits, engine.drain)
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(engine, ended, ends_if_stuck), name="watch", daemon=True)
    try:
        with listening() as opened:
            metrics.set("vit_workers", 1)
            watch.start()
            on_ready(engine, server.stop)
            server.run([opened])
    finally:
        ended.set()
        engine.close()


def _watch(engine: Engine, ended: threading.Event, ends_if_stuck: bool) -> None:
    """Note once a second how much memory the process has, and whether its batch is stuck."""
    while not ended.wait(WATCH_SECONDS):
        engine.metrics.set("vit_resident_memory_bytes", resident_bytes())
        if ends_if_stuck and not engine.batcher.is_alive() and not engine.batcher.is_closed:
            os._exit(STUCK)


def resident_bytes() -> int:
    """Return the memory of this process; 0 where that isn't known."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def listen(host: str, port: int, shared: bool = False) -> socket.socket:
    """Return a socket that listens on an address; port 0 takes a free one. shared: by several processes."""
    opened = bind(host, port, shared)
    opened.listen(BACKLOG)
    return opened


def bind(host: str, port: int, shared: bool = False) -> socket.socket:
    """Return a socket at an address, which doesn't listen yet."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            opened.bind(address)
        except BaseException:
            opened.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot listen on {host} port {port}: {words}") from None
    return opened
