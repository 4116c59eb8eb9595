"""A model as a Ray Serve application: replicas on many machines, each with the batcher and the API of `vit serve`."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from vitkit.config import Bounds
from vitkit.errors import InputError
from vitkit.models.configs import Size
from vitkit.predictor import AnyModel, Names
from vitkit.serving.run import require
from vitkit.serving.service import Service, make_service

GRACE = 30.0
"Seconds that a replica has to finish what it accepted."
ONGOING = 4096
"Requests that Ray sends to a replica at a time: the batcher refuses what is too much, and says when to come back."


def ray_application(
    model: AnyModel,
    *,
    replicas: int = 2,
    gpus: float = 0,
    host: str = "127.0.0.1",
    latency: str | float = "1s",
    batch_size: int = 32,
    threads: int = 1,
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
) -> Any:
    """Return a Ray Serve application, for `ray.serve.run`: every replica answers as `vitkit.serve` does.

    The bound counts from when a request reaches a replica. What a replica can't answer in time it refuses at once.
    replicas: processes, each with a model of its own, on `threads` cores and so many `gpus`. host: the address that Ray's
    proxies listen on, which decides whether keys are needed. The other settings are those of `vitkit.serve`.
    """
    require()
    try:
        from ray import serve
    except ImportError:
        raise InputError('a Ray Serve application needs ray: pip install "vitkit[cluster,serve]"') from None
    Bounds(at_least=1).check("replicas", replicas)
    if not isinstance(model, str | os.PathLike):
        raise InputError("replicas load the model themselves: give its name or path, not the model itself")
    service = make_service(
        _whole(model),
        host,
        latency=latency,
        batch_size=batch_size,
        threads=threads,
        device="cuda" if gpus else "cpu",
        image_size=image_size,
        names=names,
        accept=accept,
        features=None if features is None else _whole(features),
        keys=keys,
        public=public,
        allow_host=allow_host,
        max_bytes=max_bytes,
        max_images=max_images,
        max_pixels=max_pixels,
    )
    deployment = serve.deployment(
        name="vitkit",
        num_replicas=replicas,
        max_ongoing_requests=ONGOING,
        graceful_shutdown_timeout_s=GRACE,
        health_check_period_s=2.0,
        ray_actor_options={"num_cpus": threads, "num_gpus": gpus},
    )(Replica)
    return deployment.bind(service)


def _whole(path: str | os.PathLike[str]) -> str:
    """Return a path that replicas in other folders find as well; a name stays as it is."""
    return os.path.abspath(path) if os.path.exists(path) else os.fspath(path)


def build(arguments: Mapping[str, Any]) -> Any:
    """Return the application for Ray's command: serve run vitkit.serving.cluster:build model=photos/ latency=100ms"""
    known = dict(arguments)
    for name, kind in (("replicas", int), ("gpus", float), ("batch_size", int), ("threads", int)):
        if name in known:
            known[name] = kind(known[name])
    if "model" not in known:
        raise InputError("name the model: serve run vitkit.serving.cluster:build model=photos/")
    return ray_application(**known)


class Replica:
    """One process of the application."""

    def __init__(self, service: Service) -> None:
        from vitkit.serving.app import make_app
        from vitkit.serving.settings import Hosts

        self._engine = service.open()
        self._app = make_app(
            self._engine, service.keys, Hosts(service.host, service.allow_host), service.limits
        )

    async def __call__(self, request: Any) -> Any:
        """Answer one request, as Ray's proxy passes it on."""
        from starlette.responses import Response

        status, headers, body = 500, list[tuple[bytes, bytes]](), list[bytes]()

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers.extend(message["headers"])
            else:
                body.append(message.get("body", b""))

        await self._app(request.scope, request.receive, send)
        response = Response(b"".join(body), status)
        response.raw_headers = headers
        return response

    def check_health(self) -> None:
        """Raise an error where Ray should replace the replica."""
        if not self._engine.batcher.is_alive():
            raise RuntimeError("the batcher has stopped")

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None:
            engine.close(GRACE)
