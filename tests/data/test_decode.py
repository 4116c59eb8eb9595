"""Decoding for training: any picture becomes RGB, and a broken one a clean error."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitkit import InputError
from vitkit.data import decode as module
from vitkit.data.decode import decode
from vitkit.data.images import read_image

GRADIENT = np.stack(np.broadcast_arrays(np.arange(48)[:, None] * 5, np.arange(64) * 4, 90), axis=-1).astype(
    np.uint8
)


def encoded(image: Image.Image, kind: str, **settings: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **settings)  # type: ignore[arg-type]
    return file.getvalue()


def close(pixels: torch.Tensor, expected: np.ndarray, levels: int) -> bool:
    assert pixels.dtype == torch.uint8 and pixels.shape == (3, *expected.shape[:2])
    difference = np.abs(pixels.permute(1, 2, 0).numpy().astype(int) - expected.astype(int))
    return bool(difference.mean() <= levels)


@pytest.mark.parametrize(
    ("kind", "mode", "levels"),
    [
        ("JPEG", "RGB", 3),
        ("JPEG", "L", 3),
        ("JPEG", "CMYK", 4),
        ("PNG", "RGB", 0),
        ("PNG", "L", 0),
        ("PNG", "P", 20),
        ("PNG", "RGBA", 0),
        ("WEBP", "RGB", 4),
        ("BMP", "RGB", 0),
        ("GIF", "RGB", 20),
        ("TIFF", "RGB", 0),
    ],
)
def test_every_mode_comes_out_as_rgb(kind: str, mode: str, levels: int, tmp_path: Path) -> None:
    image = Image.fromarray(GRADIENT).convert(mode)
    data = encoded(image, kind, **({"quality": 95} if kind in ("JPEG", "WEBP") else {}))
    expected = np.asarray(image.convert("RGB"))
    assert close(decode(data), expected, levels)
    path = tmp_path / "picture"
    path.write_bytes(data)
    assert torch.equal(decode(path), decode(data))


def test_sixteen_bits_are_scaled() -> None:
    values = (GRADIENT[:, :, 0].astype(np.uint16) * 257).astype(np.uint16)
    assert close(decode(encoded(Image.fromarray(values), "PNG")), GRADIENT[:, :, :1].repeat(3, axis=2), 0)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photos_are_turned_upright(orientation: int) -> None:
    image, exif = Image.fromarray(GRADIENT), Image.Exif()
    exif[0x0112] = orientation
    from PIL import ImageOps

    data = encoded(image, "JPEG", quality=95, exif=exif)
    with Image.open(io.BytesIO(data)) as opened:
        expected = np.asarray(ImageOps.exif_transpose(opened))
    assert close(decode(data), expected, 2)


def test_the_two_decoders_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(Image.fromarray(GRADIENT), "JPEG", quality=90)
    fast = decode(data)
    monkeypatch.setattr(module, "_decode", None)
    assert close(fast, decode(data).permute(1, 2, 0).numpy(), 1)


def test_arrays_pass_as_they_are() -> None:
    assert torch.equal(decode(GRADIENT), torch.from_numpy(GRADIENT).permute(2, 0, 1))
    with pytest.raises(InputError, match="an image array is float64"):
        decode(GRADIENT.astype(float))


@pytest.mark.parametrize(
    "before", [b"", b"\x00", b"\xff\x01", b"\xff\xd3", b"\xff\xff\xff", b"\xff\xe1\x00\x00"]
)
def test_a_bomb_is_not_unpacked(before: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stray bytes, markers without a length and fill bytes don't hide the frame header, which libjpeg would find."""
    data = bytearray(encoded(Image.fromarray(GRADIENT), "JPEG"))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = b"\xff\xff\xff\xff"  # 65535 x 65535 pixels
    data[frame:frame] = before
    monkeypatch.setattr(module, "_decode", lambda *_: pytest.fail("the fast decoder was called"))
    with pytest.raises(InputError, match="cannot read the image's bytes"):
        decode(bytes(data))


def test_xmp_alone_turns_a_photo_for_both_decoders(monkeypatch: pytest.MonkeyPatch) -> None:
    xmp = b'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/>'
    data = encoded(Image.fromarray(GRADIENT), "JPEG", quality=95, xmp=xmp)
    turned = decode(data)
    assert turned.shape == (3, 64, 48)
    monkeypatch.setattr(module, "_decode", None)
    assert close(turned, decode(data).permute(1, 2, 0).numpy(), 1)


def with_segments(*payloads: bytes) -> bytes:
    """A JPEG with these APP1 segments before all others."""
    data = encoded(Image.fromarray(GRADIENT), "JPEG", quality=95)
    segments = (b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload for payload in payloads)
    return data[:2] + b"".join(segments) + data[2:]


def exif_of(order: str, kind: str, entry_type: int, count: int = 1) -> bytes:
    """EXIF data that says orientation 6, in either byte order, as a number of another type than it should be."""
    head = b"II*\0" if order == "<" else b"MM\0*"
    value = struct.pack(order + kind, 6).ljust(4, b"\0")
    entry = struct.pack(order + "HHI", 0x0112, entry_type, count) + value
    return head + struct.pack(order + "IH", 8, 1) + entry + bytes(4)


@pytest.mark.parametrize(
    "segments",
    [
        (b"http://ns.adobe.com/xap/1.0/\0<x/>", b"Exif\0\0" + exif_of("<", "H", 3)),
        (b"Exif\0\0Exif\0\0" + exif_of("<", "H", 3),),
        (b"Exif\0\0" + exif_of(">", "I", 4),),
        (b"Exif\0\0" + exif_of("<", "B", 1),),
        (b"Exif\0\0" + exif_of("<", "H", 3, count=0),),
        (b"Exif\0\1" + exif_of("<", "H", 3),),
    ],
    ids=["behind-xmp", "twice", "long", "byte", "none", "other-prefix"],
)
def test_training_turns_a_photo_as_prediction_does(segments: tuple[bytes, ...]) -> None:
    """EXIF data that torchvision and Pillow read differently."""
    data = with_segments(*segments)
    assert close(decode(data), np.asarray(read_image(data)), 1)


FUZZ = """
import io, sys, time
import numpy as np
from PIL import Image
from vitkit import InputError
from vitkit.data.decode import decode
from vitkit.timing.memory import status

random = np.random.default_rng(int(sys.argv[2]))
photo = Image.fromarray(random.integers(0, 256, (12, 16, 3), np.uint8)).resize((160, 120), Image.Resampling.BICUBIC)
seeds = []
for kind, settings in (("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("WEBP", {}), ("GIF", {}), ("BMP", {}),
                       ("TIFF", {}), ("JPEG2000", {}), ("PPM", {})):
    file = io.BytesIO()
    photo.save(file, kind, **settings)
    seeds.append(file.getvalue())
for picture in (photo.convert("RGBA"), Image.fromarray(np.asarray(photo.convert("L")).astype(np.uint16) * 257)):
    file = io.BytesIO()
    picture.save(file, "PNG")
    seeds.append(file.getvalue())
decoded, refused, slowest = 0, 0, 0.0
for number in range(int(sys.argv[1])):
    data = bytearray(seeds[number % len(seeds)])
    match number // len(seeds) % 4:
        case 0:
            data = data[: random.integers(0, len(data))]
        case 1:
            for place in random.integers(0, len(data), random.integers(1, 20)):
                data[place] ^= 1 << random.integers(0, 8)
        case 2:  # sizes in headers
            for place in random.integers(0, min(len(data), 200), 8):
                data[place] = 255
        case 3:
            cut = random.integers(0, len(data))
            data = data[:cut] + bytes(random.integers(0, 256, 50, np.uint8)) + data[cut:]
    began = time.perf_counter()
    try:
        pixels = decode(bytes(data))
        assert pixels.shape[0] == 3
        decoded += 1
    except InputError as error:
        assert "\\n" not in str(error)
        refused += 1
    slowest = max(slowest, time.perf_counter() - began)
print(decoded, refused, slowest, status("VmHWM"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("files", "seed"), [(300, 0), (2000, 1)])
def test_mutated_files_are_decoded_or_refused(files: int, seed: int) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FUZZ, str(files), str(seed)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    decoded, refused, slowest, peak = map(float, run.stdout.split())
    assert decoded > files * 0.1 and refused > files * 0.1
    assert slowest < 20 and peak < 2 * 2**30
