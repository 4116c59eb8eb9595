"""What a picture's bytes promise before they are decoded: its format, its pixels, and how long decoding will take."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from vitkit.data.images import open_image, read_error
from vitkit.errors import InputError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "AVIF", "HEIF")
"What a server decodes for strangers; TIFF, JPEG 2000 and PPM stay with files of one's own."
SIDE = 512
"Of the pictures by which decoding is timed."
_SCAN = 0.3
"Cost of each further scan of a progressive JPEG, as a share of the first."
_SCAN_MARKER = b"\xff\xda"


@dataclass(frozen=True)
class Header:
    """What the first bytes of a picture say."""

    format: str
    pixels: int
    bytes: int
    scans: int = 1
    "Passes over the pixels, of a progressive JPEG."


def read_header(data: bytes, max_pixels: int) -> Header:
    """Return a picture's header, or raise InputError for what is no picture, or too large a one."""
    try:
        with open_image(io.BytesIO(data)) as image:
            kind, (width, height) = image.format or "", image.size
    except Exception as error:  # a broken file can raise anything
        raise read_error(data, error) from error
    if kind not in FORMATS:
        raise InputError(f"it is a {kind} file; expected one of {', '.join(FORMATS)}")
    if width * height > max_pixels:
        raise InputError(
            f"it has {width}x{height} pixels, {width * height:,} in all; expected at most {max_pixels:,}"
        )
    scans = max(1, data.count(_SCAN_MARKER)) if kind == "JPEG" else 1
    return Header(kind, width * height, len(data), scans)


@dataclass(frozen=True)
class DecodingCost:
    """Seconds for each pixel and for each byte of a format."""

    pixel: float
    byte: float

    def of(self, header: Header) -> float:
        return header.pixels * self.pixel * (1 + _SCAN * (header.scans - 1)) + header.bytes * self.byte


class DecodeTimes:
    """Predicts how long a picture takes to decode and resize, from its header."""

    def __init__(self, costs: dict[str, DecodingCost]) -> None:
        self._costs = costs
        self._unknown = DecodingCost(
            max(cost.pixel for cost in costs.values()), max(cost.byte for cost in costs.values())
        )

    def predict(self, header: Header) -> float:
        """Return seconds; a format that was not timed costs what the slowest one does."""
        return self._costs.get(header.format, self._unknown).of(header)


def time_decoding(
    decode: Callable[[bytes], object], clock: Callable[[], float] = time.perf_counter
) -> DecodeTimes:
    """Time JPEG, PNG and WebP on a plain and on a noisy picture: one has few bytes, the other many."""
    rows, columns = np.mgrid[:SIDE, :SIDE] / SIDE
    plain = np.stack([rows, columns, (rows + columns) / 2], axis=-1)
    noise = np.random.default_rng(0).normal(0.0, 0.15, plain.shape)
    pictures = [
        Image.fromarray((255 * values.clip(0, 1)).astype(np.uint8)) for values in (plain, plain + noise)
    ]
    costs = {}
    for kind, options in (
        ("JPEG", {"quality": 90}),
        ("PNG", {"compress_level": 3}),
        ("WEBP", {"quality": 80, "method": 0}),
    ):
        found = []
        for picture in pictures:
            file = io.BytesIO()
            picture.save(file, kind, **options)
            data = file.getvalue()
            decode(data)
            found.append((len(data), min(_seconds(decode, data, clock) for _ in range(3))))
        (few, quick), (many, slow) = found
        byte = max(0.0, (slow - quick) / (many - few))
        costs[kind] = DecodingCost(max(quick - few * byte, 0.2 * quick) / SIDE**2, byte)
    return DecodeTimes(costs)


def _seconds(decode: Callable[[bytes], object], data: bytes, clock: Callable[[], float]) -> float:
    start = clock()
    decode(data)
    return clock() - start
