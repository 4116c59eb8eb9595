"""Requests that are wrong in every way that a stranger may think of, drawn from a seed."""

from __future__ import annotations

import io
import json
import random
import struct
import zlib
from collections.abc import Callable

from PIL import Image

from tests.serving.client import encoded, form

PATHS = ("/predict", "/embed", "/attention", "/search")
KINDS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "ICO", "AVIF")


def _pictures() -> list[bytes]:
    found = []
    for kind in KINDS:
        file = io.BytesIO()
        Image.radial_gradient("L").resize((48, 36)).convert("RGB").save(file, kind)
        found.append(file.getvalue())
    file = io.BytesIO()
    Image.radial_gradient("L").save(file, "JPEG", progressive=True)
    return [*found, file.getvalue()]


PICTURES = _pictures()


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Return bytes with some flipped, cut, doubled or moved."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 5, 30))):
        if not changed:
            break
        place = draw.randrange(len(changed))
        match draw.randrange(5):
            case 0:
                changed[place] = draw.randrange(256)
            case 1:
                del changed[place:]
            case 2:
                del changed[place : place + draw.randrange(1, 20)]
            case 3:
                changed[place:place] = draw.randbytes(draw.randrange(1, 20))
            case 4:
                changed[place : place + 4] = draw.choice(
                    (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff")
                )
    return bytes(changed)


def http(
    method: str,
    path: str,
    body: bytes = b"",
    kind: str | None = None,
    length: int | None = None,
    more: str = "",
) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    if kind is not None:
        head += f"Content-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body) if length is None else length}\r\n{more}\r\n".encode() + body


def picture(draw: random.Random) -> bytes:
    return mutated(draw.choice(PICTURES), draw)


def as_body(draw: random.Random) -> bytes:
    return http("POST", draw.choice(PATHS), picture(draw), "image/jpeg")


def as_form(draw: random.Random) -> bytes:
    kind, body = form({f"{number}": picture(draw) for number in range(draw.choice((0, 1, 2, 9, 60)))})
    return http("POST", draw.choice(PATHS), body, kind)


def broken_form(draw: random.Random) -> bytes:
    kind, body = form({"a.jpg": PICTURES[0]}, draw.choice(("file", "other", "", "x" * 999, '"', "\r\n\r\n")))
    return http(
        "POST", draw.choice(PATHS), mutated(body, draw), draw.choice((kind, kind, mutated_text(kind, draw)))
    )


def in_json(draw: random.Random) -> bytes:
    document = draw.choice(
        (
            {"images": [encoded(picture(draw))]},
            {"images": [encoded(picture(draw))] * draw.choice((2, 40))},
            {
                "images": draw.choice(
                    (None, 1, "x", [1], [None], [[]], {}, [""], [], ["/etc/passwd"], ["file:///etc/passwd"])
                )
            },
            {"images": ["x"], "url": "http://localhost/"},
            [],
            1e400,
            "x" * draw.choice((1, 1000)),
        )
    )
    body = json.dumps(document).encode()
    return http("POST", draw.choice(PATHS), draw.choice((body, mutated(body, draw))), "application/json")


def deep_json(draw: random.Random) -> bytes:
    depth = draw.choice((10, 1000, 50_000))
    body = draw.choice((b"[" * depth, b'{"images":' * depth, b"[" * depth + b"]" * depth, b"9" * depth))
    return http("POST", draw.choice(PATHS), body, "application/json")


def mutated_text(text: str, draw: random.Random) -> str:
    return mutated(text.encode(), draw).decode("latin-1").replace("\r", "").replace("\n", "")


def odd_request(draw: random.Random) -> bytes:
    method = draw.choice(
        ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT", "BREW", "", "G" * 99)
    )
    path = draw.choice(
        (
            "/", "/predict", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/thumbnail/-1", "/%ff%fe",
            "/thumbnail/999999999999999999999", "/page.js/../../x", "*", "http://other/predict", "/" + "x" * 5000, "",
            "/predict?top=" + draw.choice(("0", "-1", "x", "9" * 400, "1e9", "%00", "5&top=x")),
            "/attention?layer=" + draw.choice(("99", "-1", "x", "rollout&head=99", "%0d%0aX: y", "9" * 99)),
            "/search?k=" + draw.choice(("0", "x", "101")),
        )
    )  # fmt: skip
    return http(
        method, path, PICTURES[0], draw.choice((None, "image/jpeg", "text/html", "x", "image/", "/", ";"))
    )


def odd_head(draw: random.Random) -> bytes:
    more = draw.choice(
        (
            "Host: other\r\n", "Origin: http://attacker.example\r\n", "Authorization: Bearer x\r\n", "X: " + "y" * 80_000 + "\r\n",
            "X: y\r\n" * 20_000, "Transfer-Encoding: chunked\r\n", "Content-Length: 5\r\n", "Content-Length: -1\r\n",
            "Expect: 100-continue\r\n", "Upgrade: websocket\r\nConnection: upgrade\r\n", "Content-Encoding: gzip\r\n",
            "Transfer-Encoding: gzip, chunked\r\n", "X\x00: y\r\n", " folded\r\n", ": empty\r\n", "Range: bytes=0-1\r\n",
            "Upgrade: h2c\r\nConnection: upgrade, HTTP2-Settings\r\nHTTP2-Settings: x\r\n",
        )
    )  # fmt: skip
    return http("POST", draw.choice(PATHS), picture(draw), "image/jpeg", more=more)


def wrong_length(draw: random.Random) -> bytes:
    length = draw.choice((0, 1, 10**6, 10**7, 10**9, 10**30))
    return http("POST", draw.choice(PATHS), PICTURES[0], "image/jpeg", length)


def chunked(draw: random.Random) -> bytes:
    head = f"POST {draw.choice(PATHS)} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: image/jpeg\r\n"
    size = draw.choice(("0", "5", "-1", "ffffffffffffffffff", "zz", "5;x=" + "y" * 1000, "100000"))
    return (
        f"{head}Transfer-Encoding: chunked\r\n\r\n{size}\r\n".encode()
        + draw.randbytes(20)
        + draw.choice((b"", b"\r\n0\r\n\r\n"))
    )


def no_http(draw: random.Random) -> bytes:
    return draw.choice(
        (
            draw.randbytes(draw.randrange(1, 400)),
            mutated(http("GET", "/info"), draw),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        )
    )


def bomb(draw: random.Random) -> bytes:
    side = draw.choice((5000, 7001, 9000, 20_000, 65_535, 2**31 - 1))
    data = draw.choice((_png, _gif, _bmp, _jpeg))(side)
    return http("POST", draw.choice(PATHS), data, "image/png")


def _png(side: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    packed = zlib.compress(bytes(200_000))
    header = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
    text = b"k\0\0" + zlib.compress(bytes(3_000_000))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"zTXt", text)
        + chunk(b"IDAT", packed)
        + chunk(b"IEND", b"")
    )


def _gif(side: int) -> bytes:
    size = struct.pack("<HH", side % 65536, side % 65536)
    return b"GIF89a" + size + b"\xf0\0\0" + bytes(6) + b"," + bytes(4) + size + b"\0\x02\x02\x4c\x01\0;"


def _bmp(side: int) -> bytes:
    return (
        b"BM"
        + struct.pack("<IHHI", 100, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0)
    )


def _jpeg(side: int) -> bytes:
    data = PICTURES[0]
    place = data.index(b"\xff\xc0") + 5
    return data[:place] + struct.pack(">HH", side % 65536, side % 65536) + data[place + 4 :]


def scans(draw: random.Random) -> bytes:
    """A progressive JPEG whose passes over the pixels are repeated."""
    data = PICTURES[-1]
    place = data.rindex(b"\xff\xda")
    return http("POST", draw.choice(PATHS), data[:place] + data[place:-2] * 500 + data[-2:], "image/jpeg")


def huge(draw: random.Random) -> bytes:
    return http(
        "POST",
        draw.choice(PATHS),
        bytes(draw.choice((1_000_001, 2_500_000))),
        draw.choice(("image/jpeg", "application/json")),
    )


WAYS: tuple[tuple[int, Callable[[random.Random], bytes]], ...] = (
    (30, as_body), (15, as_form), (15, broken_form), (15, in_json), (2, deep_json), (15, odd_request), (15, odd_head),
    (6, wrong_length), (6, chunked), (15, no_http), (4, bomb), (1, scans), (1, huge),
)  # fmt: skip


def malformed(seed: int) -> bytes:
    """Return the bytes of one request."""
    draw = random.Random(seed)
    weights, ways = zip(*WAYS, strict=True)
    [way] = draw.choices(ways, weights)
    return way(draw)
