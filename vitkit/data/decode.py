"""Decode for training: any picture becomes RGB pixels, a tensor uint8 (3, height, width), as fast as it can."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.io import ImageReadMode

from vitkit.data.images import ROOM, orientation_of, read_image
from vitkit.data.sources.source import Picture, Source
from vitkit.errors import InputError, first_line
from vitkit.files import read_file

_JPEG = b"\xff\xd8\xff"
# Segments that may stand before a JPEG's frame header: tables, restart interval, APPn and comments.
_BEFORE_FRAME = frozenset((0xC4, 0xCC, 0xDB, 0xDD, *range(0xE0, 0xF0), 0xFE))
# Without either of these a JPEG is stored upright. Two plain searches: one for both at once, by a regular expression,
# would take as long as decoding.
_TURN_MARKS = (b"Exif\0\0", b"tiff:Orientation")
# torchvision's own function warns that it will go; where it has gone, Pillow reads everything.
_decode = getattr(torch.ops.image, "decode_jpeg", None)


def decode(picture: Picture) -> Tensor:
    """Return the pixels of a file, its bytes or an array; a picture that can't be read raises InputError."""
    if isinstance(picture, np.ndarray):
        return _from_array(picture)
    data = picture if isinstance(picture, bytes) else read_file(picture)
    pixels = _decode_jpeg(data) if data.startswith(_JPEG) else None
    if pixels is not None:
        return pixels
    # Pillow reads what is no plain JPEG, and says what is wrong with a broken one.
    image = read_image(data if isinstance(picture, bytes) else picture)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def read_pixels(source: Source, index: int) -> Tensor:
    """Return the pixels of an image of a source; whatever goes wrong is an InputError."""
    try:
        return decode(source.read(index))
    except InputError:
        raise
    except Exception as error:  # a disk that fails, a source's own reader
        raise InputError(first_line(error)) from error


def _decode_jpeg(data: bytes) -> Tensor | None:
    """Return the pixels of a JPEG, upright; None for what torchvision doesn't read right."""
    count = _pixels(data)
    if _decode is None or count is None or count > (Image.MAX_IMAGE_PIXELS or count):
        return None
    try:
        raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        with ROOM.take(count):
            pixels = _decode(raw, ImageReadMode.UNCHANGED.value, False)
            if any(
                mark in data for mark in _TURN_MARKS
            ):  # torchvision overlooks some EXIF data, so that Pillow is asked
                with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
                    pixels = turn_upright(pixels, orientation_of(image))
    except Exception:  # a broken file can raise anything
        return None
    if pixels.shape[0] == 3:
        return pixels
    return pixels.expand(3, -1, -1) if pixels.shape[0] == 1 else None  # CMYK is Pillow's


def turn_upright(pixels: Tensor, orientation: int) -> Tensor:
    """Return pixels (channels, height, width) that are stored with an EXIF orientation, 1 to 8, as they are meant."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 2)
    flipped = {2: (2,), 3: (1, 2), 4: (1,), 6: (2,), 7: (1, 2), 8: (1,)}.get(orientation)
    return pixels.flip(flipped) if flipped else pixels


def _pixels(data: bytes) -> int | None:
    """Return the number of pixels that a JPEG's frame header declares; None where it isn't found at once."""
    place = 2
    while place + 9 < len(data):
        if data[place] != 0xFF:
            return None
        marker = data[place + 1]
        if marker == 0xFF:  # fill byte
            place += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height = int.from_bytes(data[place + 5 : place + 7], "big")
            return height * int.from_bytes(data[place + 7 : place + 9], "big")
        if marker not in _BEFORE_FRAME:
            return None
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return None


def _from_array(array: np.ndarray) -> Tensor:
    pixels = torch.from_numpy(array)
    if pixels.ndim != 3 or pixels.dtype != torch.uint8 or pixels.shape[2] not in (1, 3):
        raise InputError(f"an image array is {array.dtype} {array.shape}; expected uint8 (height, width, 3)")
    return pixels.permute(2, 0, 1).expand(3, -1, -1)
