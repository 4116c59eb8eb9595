"""What happens to each request before and after the API sees it: host, origin, key, early refusal, headers, counts."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from vitkit.serving.batcher import Batcher, Refused
from vitkit.serving.bodies import Problem, too_large
from vitkit.serving.metrics import STATUSES, Metrics
from vitkit.serving.settings import Hosts, Keys, Limits

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COMPUTED = frozenset(("/predict", "/embed", "/attention", "/search"))
"Paths whose requests go through the batcher."
OPEN = frozenset(
    ("/", "/page.css", "/page.js", "/ways.js", "/info", "/docs", "/openapi.json", "/healthz", "/readyz")
)
"Paths that need no key."
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
ACCEPTED = "vit.accepted"
"Key of a request's scope: when its last byte came, and the seconds until it is due."


class Guard:
    """Wraps the API. It is plain ASGI, since a refusal must cost next to nothing."""

    def __init__(
        self,
        app: App,
        batcher: Batcher[Any, Any],
        metrics: Metrics,
        hosts: Hosts,
        keys: Keys,
        limits: Limits,
    ) -> None:
        self._app, self._batcher, self._metrics = app, batcher, metrics
        self._hosts, self._keys, self._limits = hosts, keys, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self._count(scope, message["status"])
                given = {name for name, _ in message.get("headers", ())}
                message["headers"] = [
                    *message.get("headers", ()),
                    *(header for header in HEADERS if header[0] not in given),
                ]
            await send(message)

        try:
            self._check(scope)
        except Problem as problem:
            headers, body = in_words(problem)
            written = [(name.encode(), value.encode()) for name, value in headers.items()]
            written.append((b"content-length", str(len(body)).encode()))
            await send_guarded({"type": "http.response.start", "status": problem.status, "headers": written})
            await send_guarded({"type": "http.response.body", "body": body})
        else:
            await self._app(scope, receive, send_guarded)

    def _check(self, scope: Scope) -> None:
        """Raise Problem for a request that the API shall not see."""
        hosts, origins, keys, lengths = list[str](), list[str](), list[str](), list[bytes]()
        for name, value in scope["headers"]:
            if name == b"host":
                hosts.append(value.decode("latin-1"))
            elif name == b"origin":
                origins.append(value.decode("latin-1"))
            elif name == b"authorization":
                keys.append(value.decode("latin-1"))
            elif name == b"content-length":
                lengths.append(value)
        if len(hosts) != 1 or not self._hosts.accept(hosts[0]):
            raise Problem(
                421, "the Host header names another server: `vit serve --allow-host NAME` adds a name"
            )
        for origin in origins:
            if origin.lower().rpartition("://")[2] != hosts[0].lower():
                raise Problem(403, "the request comes from a page of another site")
        path = scope["path"]
        if self._keys and path not in OPEN:
            scheme, _, key = keys[0].partition(" ") if len(keys) == 1 else ("", "", "")
            if scheme.lower() != "bearer" or not self._keys.accept(key.strip()):
                raise Problem(401, "this server needs an API key: send the header Authorization: Bearer KEY")
        if any(not value.isdigit() or int(value[:20]) > self._limits.max_bytes for value in lengths):
            raise too_large(self._limits)
        if path in COMPUTED and scope["method"] == "POST":
            try:
                self._batcher.check()
            except Refused as refused:
                self._metrics.add("vit_images_total", "refused")
                raise Problem(503, refused.reason, refused.retry_after or self._batcher.latency) from None

    def _count(self, scope: Scope, status: int) -> None:
        if status in STATUSES:
            self._metrics.add("vit_requests_total", status)
        if ACCEPTED in scope:
            arrived, bound, images = scope[ACCEPTED]
            seconds = time.monotonic() - arrived
            self._metrics.observe("vit_latency_seconds", seconds)
            if seconds > bound:
                self._metrics.add("vit_images_total", "late", images)


def in_words(problem: Problem) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of the answer to a request that can't be met."""
    document: dict[str, Any] = {"error": problem.error}
    headers = {"content-type": "application/json"}
    if problem.retry_after is not None:
        document["retry_after"] = round(problem.retry_after, 3)
        headers["retry-after"] = str(max(1, math.ceil(problem.retry_after)))
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    if problem.closes:
        headers["connection"] = "close"
    return headers, json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")
