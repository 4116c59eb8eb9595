"""A running server and a client for it, over real connections on this machine."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from vitkit.serving.app import make_app
from vitkit.serving.engine import Engine
from vitkit.serving.server import Server
from vitkit.serving.service import listen
from vitkit.serving.settings import Hosts, Keys, Limits


class Reply(NamedTuple):
    """What the server answered."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)


class Client:
    """Asks a server, with a connection for each request."""

    def __init__(self, port: int, key: str = "") -> None:
        self.port, self.key = port, key

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        """headers: with underscores for dashes."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.key:
            given = {"Authorization": f"Bearer {self.key}", **given}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            return Reply(
                answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
            )
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, **headers)

    def post(self, path: str, files: Mapping[str, bytes], **headers: str) -> Reply:
        """Send files as a form."""
        kind, body = form(files)
        return self.ask("POST", path, body, **{"Content_Type": kind, **headers})

    def post_json(self, path: str, document: Any, **headers: str) -> Reply:
        body = json.dumps(document).encode()
        return self.ask("POST", path, body, **{"Content_Type": "application/json", **headers})

    def raw(self, data: bytes, seconds: float = 10.0) -> bytes:
        """Send bytes, and return all that comes until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            connection.sendall(data)
            received = b""
            try:
                while part := connection.recv(65536):
                    received += part
            except ConnectionResetError:
                pass
            return received


def form(files: Mapping[str, bytes], field: str = "file") -> tuple[str, bytes]:
    """Return the content type and the body of a form."""
    boundary = "b" * 20
    parts = b""
    for name, data in files.items():
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n'
        parts += head.encode() + b"Content-Type: image/jpeg\r\n\r\n" + data + b"\r\n"
    return f"multipart/form-data; boundary={boundary}", parts + f"--{boundary}--\r\n".encode()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@contextmanager
def running(engine: Engine, *keys: str, **limits: Any) -> Iterator[Client]:
    """Serve in another thread of this process."""
    chosen = Limits(**limits)
    opened = listen("127.0.0.1", 0)
    server = Server(make_app(engine, Keys(keys), Hosts("127.0.0.1"), chosen), chosen, lambda: None)
    thread = threading.Thread(target=server.run, args=([opened],))
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        yield Client(opened.getsockname()[1], keys[0] if keys else "")
    finally:
        server.stop()
        thread.join(40)
        opened.close()
