"""A server that answers as `vit serve` does, without a model, so that its page can be tested in every situation."""

from __future__ import annotations

import hashlib
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from PIL import Image, UnidentifiedImageError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
STATIC = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/ways.js": ("ways.js", "text/javascript"),
}
NAMES = ["tabby", "Egyptian cat", "lynx", "<b>tiger</b> cat", "Persian cat", "cougar", "snow leopard", "fox"]
INFO: dict[str, Any] = {
    "model": "Ti/16@pretrained",
    "architecture": "vit",
    "num_classes": len(NAMES),
    "multi_label": False,
    "image_size": [224, 224],
    "key_required": False,
    "attention": None,
    "attention_reason": "an exported model has no attention",
    "search": None,
    "max_bytes": 2_000_000,
    "max_images": 16,
    "latency_ms": 100,
}


class StandIn:
    """What the server is to answer, and the paths that it was asked for."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.reset()

    def reset(self, **info: Any) -> None:
        self.info = {**INFO, **info}
        self.key = ""
        self.num_refusals = 0
        "How many of the next pictures are refused as too much work."
        self.asked: list[str] = []
        self.names = list(NAMES)


class Handler(BaseHTTPRequestHandler):
    stand_in: ClassVar[StandIn]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def reply(self, content: bytes, kind: str, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def reply_json(self, content: Any, status: int = 200, **headers: str) -> None:
        self.reply(json.dumps(content).encode(), "application/json", status, **headers)

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.stand_in.asked.append(path)
        if path in STATIC:
            name, kind = STATIC[path]
            content = files("vitkit").joinpath("serving", "static", name).read_bytes()
            self.reply(content, f"{kind}; charset=utf-8")
        elif path.startswith("/thumbnail/"):
            made = io.BytesIO()
            Image.new("RGB", (96, 64), (30 * int(path.split("/")[-1]), 120, 160)).save(made, "PNG")
            self.reply(made.getvalue(), "image/png")
        elif path == "/info":
            self.reply_json(self.stand_in.info)
        else:
            self.reply_json({"error": "no such page"}, 404)

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.stand_in.asked.append(self.path)
        if self.stand_in.key and self.headers.get("Authorization") != f"Bearer {self.stand_in.key}":
            return self.reply_json({"error": "this server needs an API key"}, 401)
        if self.stand_in.num_refusals:
            self.stand_in.num_refusals -= 1
            return self.reply_json({"error": "overloaded"}, 503, Retry_After="1")
        if url.path == "/attention":
            if not self.stand_in.info["attention"]:
                return self.reply_json({"error": self.stand_in.info["attention_reason"]}, 501)
            return self.reply(self.look(query["layer"], query["head"]), "image/png")
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        [part] = BytesParser().parsebytes(head + body).get_payload()
        content = part.get_payload(decode=True)
        name = part.get_filename()
        if url.path == "/predict":
            return self.reply_json({"predictions": [self.predict(name, content, int(query["top"]))]})
        if url.path == "/search" and self.stand_in.info["search"]:
            found = [
                {"index": place, "name": f"folder/<i>{place}.jpg", "similarity": 0.98 - 0.05 * place}
                for place in range(8)
            ]
            return self.reply_json({"images": found})
        self.reply_json({"error": "no such page"}, 404)

    def look(self, layer: str, head: str) -> bytes:
        """A picture of one colour that tells layers and heads apart."""
        red, green = (0 if word in ("rollout", "mean") else 10 * (int(word) + 1) for word in (layer, head))
        made = io.BytesIO()
        Image.new("RGB", (224, 224), (red, green, 90)).save(made, "PNG")
        return made.getvalue()

    def predict(self, name: str, content: bytes, top: int) -> dict[str, Any]:
        """The classes in an order that the picture's bytes give."""
        try:
            with Image.open(io.BytesIO(content)) as image:
                image.load()
        except (UnidentifiedImageError, OSError):
            return {"file": name, "error": "image file is truncated (7 bytes not processed)"}
        names = self.stand_in.names
        first = hashlib.sha256(content).digest()[0] % len(names)
        classes = [
            {
                "name": names[(first + place) % len(names)],
                "index": (first + place) % len(names),
                "probability": 0.8 * 0.2**place,
            }
            for place in range(min(top, len(names)))
        ]
        return {"file": name, "classes": classes}


@contextmanager
def stand_in() -> Iterator[StandIn]:
    """Answer on a free port of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Handler.stand_in = StandIn(f"http://127.0.0.1:{server.server_address[1]}/")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Handler.stand_in
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
