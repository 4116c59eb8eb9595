"""The app in uvicorn: connections with limits of size and time, and a shutdown that finishes what was accepted."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vitkit.serving.guard import App
from vitkit.serving.settings import Limits

HEAD_BYTES = 1 << 16
"Of the first line and the headers of a request."
GRACE = 30.0
"Seconds in which open connections may end after a signal to stop."
_INVALID = b'{"error": "this is not HTTP"}'


def make_protocol(limits: Limits) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with limits: of connections, and of what one of them may send and how slowly."""

    class Limited(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None
        _taking: asyncio.TimerHandle | None = None
        _head_bytes = 0
        _unread_bytes = 0
        _is_in_head = True

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > limits.max_connections:
                transport.abort()
                return
            self._wait(limits.head_seconds)

        def connection_lost(self, exc: Exception | None) -> None:
            self._wait(None)
            self._take_in(None)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._is_in_head:
                self._head_bytes += len(data)
                if self._head_bytes > HEAD_BYTES + len(data):  # a full head of earlier reads, and no end
                    self.transport.abort()
                    return
            super().data_received(data)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._is_in_head, self._head_bytes = True, 0
            self._wait(limits.head_seconds)

        def on_headers_complete(self) -> None:
            self._is_in_head, self._unread_bytes = False, 0
            self._wait(limits.body_seconds + 5)  # the app answers before
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            if self.cycle.response_complete:  # a client that goes on sending what was refused
                self._unread_bytes += len(body)
                if self._unread_bytes > limits.max_bytes:
                    self.transport.abort()
                    return
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._wait(None)
            super().on_message_complete()
            self._is_in_head, self._head_bytes = True, 0

        def pause_writing(self) -> None:
            self._take_in(limits.body_seconds)
            super().pause_writing()

        def resume_writing(self) -> None:
            self._take_in(None)
            super().resume_writing()

        def send_400_response(self, msg: str) -> None:
            head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(_INVALID)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + _INVALID)
            self.transport.close()

        def _wait(self, seconds: float | None) -> None:
            """Close the connection after so many seconds in which the next part of a request doesn't come."""
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

        def _take_in(self, seconds: float | None) -> None:
            """Close the connection after so many seconds in which nobody takes the answer."""
            if self._taking is not None:
                self._taking.cancel()
            self._taking = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

    return Limited


class Server(uvicorn.Server):
    """uvicorn, which on a signal finishes what was accepted and then returns."""

    def __init__(self, app: App, limits: Limits, on_stop: Callable[[], None]) -> None:
        """on_stop: called when the server is asked to stop."""
        config = uvicorn.Config(
            app,
            http=make_protocol(limits),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            backlog=2048,
            timeout_keep_alive=limits.idle_seconds,
            timeout_graceful_shutdown=int(GRACE),
        )
        super().__init__(config)
        self._on_stop = on_stop

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGINT and SIGTERM; unlike uvicorn's own, don't raise them again at the end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.stop()
        if sig == signal.SIGINT and self._asked_twice:
            self.force_exit = True
        self._asked_twice = True

    _asked_twice = False

    def stop(self) -> None:
        """Accept no more connections, finish the requests that are there, and return from `run`."""
        self._on_stop()
        self.should_exit = True
