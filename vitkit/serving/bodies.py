"""The body of a request: read within limits of size, time and memory, and taken apart into pictures; nothing goes to disk."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, NamedTuple

from vitkit.serving.metrics import Metrics
from vitkit.serving.settings import Limits

LARGE = 1 << 20
"Bodies from this size on are taken apart in another thread."
_PART_HEAD = 1 << 14
"Bytes that the head of a part may have."
_NAME = 255
"Characters that are kept of a file's name."


class Problem(Exception):
    """A request that is answered with an error."""

    def __init__(
        self, status: int, error: str, retry_after: float | None = None, closes: bool = False
    ) -> None:
        """closes: whether the connection ends, since the rest of the body won't be read."""
        super().__init__(error)
        self.status, self.error, self.retry_after, self.closes = status, error, retry_after, closes


class Gone(Exception):
    """The client has left."""


class Picture(NamedTuple):
    """A file of a request."""

    name: str
    data: bytes


class Room(AbstractContextManager["Room"]):
    """Memory that one request's body takes, out of what all may take."""

    taken = 0
    "By all requests of this process."

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self._limits, self._metrics, self._own = limits, metrics, 0

    def take(self, size: int) -> None:
        """Take more, or raise Problem where there isn't any."""
        if Room.taken + size > self._limits.max_memory:
            raise Problem(503, "too many large requests at once", 1.0)
        Room.taken += size
        self._own += size
        self._metrics.set("vit_body_bytes", Room.taken)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        Room.taken -= self._own
        self._metrics.set("vit_body_bytes", Room.taken)


async def read_body(receive: Callable[[], Awaitable[Any]], room: Room, limits: Limits) -> tuple[bytes, float]:
    """Return a request's body and when its last byte came."""
    parts, size = list[bytes](), 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                part = message.get("body", b"")
                size += len(part)
                if size > limits.max_bytes:
                    raise too_large(limits)
                if part:
                    room.take(len(part))
                    parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts), time.monotonic()
    except TimeoutError:
        raise Problem(
            408, f"the request took longer than {limits.body_seconds:g} s to arrive", closes=True
        ) from None


def too_large(limits: Limits) -> Problem:
    """Return the answer for a body that is too large."""
    return Problem(413, f"the request is larger than {limits.max_bytes:,} bytes")


def take_apart(kind: str, body: bytes, most: int) -> list[Picture]:
    """Return the pictures of a body by its content type; most: how many there may be."""
    main = kind.partition(";")[0].strip().lower()
    if main == "multipart/form-data":
        pictures = _from_multipart(kind, body, most)
    elif main == "application/json":
        pictures = _from_json(body, most)
    elif main.startswith("image/"):
        pictures = [Picture("image", body)]
    else:
        given = main[:80] or "nothing"
        raise Problem(
            415, f"the content type is {given!r}; expected multipart/form-data, application/json or image/..."
        )
    if not pictures:
        raise Problem(400, "the request has no pictures")
    return pictures


def _too_many(most: int) -> Problem:
    return Problem(400, f"the request has more than {'one picture' if most == 1 else f'{most} pictures'}")


def _from_json(body: bytes, most: int) -> list[Picture]:
    expected = 'expected {"images": ["base64", ...]}'
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise Problem(400, f"the body is not JSON; {expected}") from None
    if not isinstance(document, dict) or document.keys() != {"images"}:
        raise Problem(400, f"the JSON document has other keys; {expected}")
    images = document["images"]
    if not isinstance(images, list) or not all(isinstance(text, str) for text in images):
        raise Problem(400, f"images is no list of texts; {expected}")
    if len(images) > most:
        raise _too_many(most)
    pictures = []
    for number, text in enumerate(images, start=1):
        try:
            pictures.append(Picture(f"image {number}", base64.b64decode(text, validate=True)))
        except (binascii.Error, ValueError):
            raise Problem(400, f"image {number} is not base64") from None
    return pictures


class _Parts:
    """Takes a multipart body apart, as python-multipart calls it."""

    def __init__(self, most: int) -> None:
        self._most, self.pictures = most, list[Picture]()
        self._field, self._value, self._head = bytearray(), bytearray(), dict[str, str]()
        self._data, self._name, self._taken = list[bytes](), "", 0

    def callbacks(self) -> dict[str, Callable[..., None]]:
        return {
            "on_part_begin": self.begin,
            "on_header_field": self.header_field,
            "on_header_value": self.header_value,
            "on_header_end": self.header_end,
            "on_headers_finished": self.headers_finished,
            "on_part_data": self.part_data,
            "on_part_end": self.end,
        }

    def begin(self) -> None:
        if len(self.pictures) >= self._most:
            raise _too_many(self._most)
        self._head, self._data, self._taken = {}, [], 0
        self._field.clear()
        self._value.clear()

    def _take_head(self, size: int) -> None:
        self._taken += size
        if self._taken > _PART_HEAD:
            raise Problem(400, "the head of a part is too long")

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._take_head(end - start)
        self._field += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._take_head(end - start)
        self._value += data[start:end]

    def header_end(self) -> None:
        self._head[self._field.decode("latin-1").lower()] = self._value.decode("latin-1")
        self._field.clear()
        self._value.clear()

    def headers_finished(self) -> None:
        from python_multipart.multipart import parse_options_header

        _, options = parse_options_header(self._head.get("content-disposition", ""))
        if options.get(b"name") != b"file":
            raise Problem(400, "the form has a field that is not named 'file'")
        name = options.get(b"filename", b"").decode("utf-8", "replace")[:_NAME]
        self._name = name or f"image {len(self.pictures) + 1}"

    def part_data(self, data: bytes, start: int, end: int) -> None:
        self._data.append(data[start:end])

    def end(self) -> None:
        self.pictures.append(Picture(self._name, b"".join(self._data)))


def _from_multipart(kind: str, body: bytes, most: int) -> list[Picture]:
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import MultipartParser, parse_options_header

    _, options = parse_options_header(kind)
    boundary = options.get(b"boundary")
    if not boundary or len(boundary) > 70:
        raise Problem(400, "the content type has no boundary of 1 to 70 characters")
    parts = _Parts(most)
    parser = MultipartParser(boundary, parts.callbacks())  # type: ignore[arg-type]
    try:
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise Problem(400, f"the form is broken: {str(error).splitlines()[0][:200]}") from None
    if body and parser.state.name != "END":
        raise Problem(400, "the form is broken: it has no end")
    return parts.pictures
