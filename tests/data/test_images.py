"""Every kind of image becomes the same input that timm and torchvision make of it, or a clear error."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from timm.data import create_transform
from timm.data.transforms import ResizeKeepRatio
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from vitkit.data import images as module
from vitkit.data.images import Room, find_images, prepare, read_image
from vitkit.errors import InputError
from vitkit.models.configs import Preprocessing

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def photo(width: int = 60, height: int = 40) -> Image.Image:
    """A picture with smooth and rough parts, different in each channel and corner."""
    rows, columns = np.mgrid[:height, :width]
    noise = np.random.default_rng(0).integers(0, 60, (height, width))
    bands = [rows * 190 // height + noise, columns * 190 // width + noise, (rows * columns) % 200]
    return Image.fromarray(np.stack(bands, -1).astype(np.uint8))


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image).astype(int)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("crop", [1.0, 0.9, 0.875])
@pytest.mark.parametrize("size", [(60, 40), (40, 61), (333, 257), (20, 20), (1, 9)])
def test_square_input_is_timms(size: tuple[int, int], crop: float, interpolation: str) -> None:
    image = photo(*size)
    ours = prepare(image, Preprocessing(32, crop, interpolation, MEAN, STD))
    timms = create_transform((3, 32, 32), crop_pct=crop, interpolation=interpolation, mean=MEAN, std=STD)
    torchvisions = transforms.Compose(
        [
            transforms.Resize(int(32 / crop), InterpolationMode(interpolation)),
            transforms.CenterCrop(32),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    assert ours.dtype == torch.float32 and ours.is_contiguous()
    assert torch.equal(ours, timms(image))
    assert torch.equal(ours, torchvisions(image))


@settings(max_examples=60, deadline=None)
@given(
    width=st.integers(1, 90),
    height=st.integers(1, 90),
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    crop=st.floats(0.3, 1.0),
)
def test_any_shape_is_timms(width: int, height: int, rows: int, columns: int, crop: float) -> None:
    image = photo(width, height)
    ours = prepare(image, Preprocessing((rows, columns), crop, "bilinear"))
    timms = create_transform(
        (3, rows, columns), crop_pct=crop, interpolation="bilinear", mean=(0.5,) * 3, std=(0.5,) * 3
    )
    assert torch.equal(ours, timms(image))


def test_interpolation_counts_where_the_input_is_not_square() -> None:
    """timm's own factory resizes for such inputs with its default, bilinear, whatever it was told."""
    image, half = photo(), (0.5, 0.5, 0.5)
    reference = transforms.Compose(
        [
            ResizeKeepRatio((20, 40), interpolation="bicubic"),
            transforms.CenterCrop((18, 36)),
            transforms.ToTensor(),
            transforms.Normalize(half, half),
        ]
    )
    assert torch.equal(prepare(image, Preprocessing((18, 36), 0.9, "bicubic")), reference(image))


@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
def test_no_crop_is_timms_squash(size: tuple[int, int]) -> None:
    image = photo()
    timms = create_transform((3, *size), crop_pct=1.0, crop_mode="squash", interpolation="bilinear")
    assert torch.equal(prepare(image, Preprocessing(size, None, "bilinear", MEAN, STD)), timms(image))


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "ppm", "webp", "jp2"])
def test_lossless_formats(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a.{suffix}"
    photo().save(file, **({"lossless": True} if suffix == "webp" else {}))
    assert np.array_equal(pixels(read_image(file)), pixels(photo()))
    assert np.array_equal(pixels(read_image(str(file))), pixels(photo()))
    assert np.array_equal(pixels(read_image(file.read_bytes())), pixels(photo()))
    with Image.open(file) as opened:
        assert np.array_equal(pixels(read_image(opened)), pixels(photo()))


@pytest.mark.parametrize(
    ("name", "mode"), [("a.avif", "RGB"), ("a.jpg", "RGB"), ("a.jpg", "CMYK"), ("a.webp", "RGB")]
)
def test_lossy_formats(tmp_path: Path, name: str, mode: str) -> None:
    Image.new("RGB", (16, 16), (200, 40, 90)).convert(mode).save(tmp_path / name, quality=95)
    assert np.abs(pixels(read_image(tmp_path / name)) - (200, 40, 90)).max() < 6


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "RGBX", "LA", "CMYK", "YCbCr", "HSV"])
def test_modes_of_opaque_images_are_as_pillow_converts_them(mode: str) -> None:
    image = photo().convert(mode)
    assert np.array_equal(pixels(read_image(image)), pixels(image.convert("RGB")))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "tiff", "webp"])
def test_orientation(tmp_path: Path, suffix: str, orientation: int) -> None:
    """Corner values, as EXIF defines them: orientation 6 puts the stored left edge on top, and so on."""
    stored = np.zeros((2, 3, 3), np.uint8)
    stored[0, 0], stored[0, 2], stored[1, 0], stored[1, 2] = 10, 20, 30, 40
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = tmp_path / f"a.{suffix}"
    Image.fromarray(stored).save(file, exif=exif, **({"lossless": True} if suffix == "webp" else {}))
    corners = {
        1: (10, 20, 30, 40),
        2: (20, 10, 40, 30),
        3: (40, 30, 20, 10),
        4: (30, 40, 10, 20),
        5: (10, 30, 20, 40),
        6: (30, 10, 40, 20),
        7: (40, 20, 30, 10),
        8: (20, 40, 10, 30),
    }
    upright = pixels(read_image(file))[..., 0]
    assert upright.shape == ((2, 3) if orientation < 5 else (3, 2))
    assert (upright[0, 0], upright[0, -1], upright[-1, 0], upright[-1, -1]) == corners[orientation]


HEIC_HEAD = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"


@pytest.mark.parametrize("head", [HEIC_HEAD, b"\0\0\0\x18ftypmif1\0\0\0\0mif1heix"])
def test_without_its_reader_heic_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    file = tmp_path / "a.heic"
    file.write_bytes(head + bytes(100))
    for source, name in ((file, str(file)), (file.read_bytes(), "the image's bytes")):
        with pytest.raises(InputError) as error:
            read_image(source)
        assert str(error.value) == f'cannot read {name}: HEIC needs pillow-heif: pip install "vitkit[heic]"'
    assert find_images(tmp_path) == [file]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["heic", "avif"])
def test_heic_and_avif_are_upright(tmp_path: Path, suffix: str, orientation: int) -> None:
    """Both say how they are turned in boxes of their own; EXIF data that repeats it is not applied again."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored, file = photo(64, 48), tmp_path / f"a.{suffix}"
    stored.save(tmp_path / "a.png", exif=exif)
    if suffix == "heic":
        heif = pytest.importorskip("pillow_heif")
        heif.encode("RGB", stored.size, stored.tobytes(), file, exif=exif.tobytes(), quality=95)
        assert (b"irot" in file.read_bytes()) == (orientation in (3, 5, 6, 7, 8))
    else:
        stored.save(file, exif=exif, quality=95)
    turned = read_image(tmp_path / "a.png")
    found = read_image(file)
    assert found.size == turned.size
    assert np.abs(pixels(found.reduce(8)) - pixels(turned.reduce(8))).max() < 16
    assert np.array_equal(pixels(read_image(file.read_bytes())), pixels(found))


def test_a_broken_heic_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heif = pytest.importorskip("pillow_heif")
    file = tmp_path / "a.heic"
    heif.from_pillow(photo(200, 100)).save(file)
    with monkeypatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 5_000)
        with pytest.raises(InputError, match="20000 pixels.*exceeds limit of 5000.*Make it smaller"):
            read_image(file)
    file.write_bytes(file.read_bytes()[:-500])
    with pytest.raises(InputError, match=f"^cannot read {file}: .+[^\\n]$"):
        read_image(file)


def test_broken_exif_does_not_hide_the_pixels(tmp_path: Path) -> None:
    photo().save(tmp_path / "a.png", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff garbage")
    assert np.array_equal(pixels(read_image(tmp_path / "a.png")), pixels(photo()))


@pytest.mark.parametrize("suffix", ["png", "tiff", "pgm"])
def test_sixteen_bits_are_scaled(tmp_path: Path, suffix: str) -> None:
    Image.fromarray(np.array([[0, 257 * 7, 40000, 65535]], np.uint16)).save(tmp_path / f"a.{suffix}")
    assert pixels(read_image(tmp_path / f"a.{suffix}"))[0, :, 1].tolist() == [0, 7, 156, 255]


def test_float_pictures_run_from_zero_to_one() -> None:
    values = np.array([[0.0, 0.5, 1.0]], np.float32)
    assert pixels(read_image(Image.fromarray(values)))[0, :, 0].tolist() == [0, 128, 255]
    with pytest.raises(InputError, match="its values run from 0 to 3, expected 0 to 1$"):
        read_image(Image.fromarray(values * 3))
    with pytest.raises(InputError, match="expected 0 to 65535"):
        read_image(Image.fromarray(np.array([[70000]], np.int32)))


def test_clear_parts_are_white(tmp_path: Path) -> None:
    half_clear = np.array([[[200, 0, 0, 255], [200, 0, 0, 0], [200, 0, 0, 51]]], np.uint8)
    Image.fromarray(half_clear).save(tmp_path / "a.png")
    expected = [[200, 0, 0], [255, 255, 255], [244, 204, 204]]
    assert np.abs(pixels(read_image(tmp_path / "a.png"))[0] - expected).max() <= 1

    palette = Image.new("P", (2, 1))
    palette.putpalette([0, 0, 0, 9, 80, 7])
    palette.putpixel((1, 0), 1)
    palette.save(tmp_path / "p.png", transparency=0)
    assert pixels(read_image(tmp_path / "p.png")).tolist() == [[[255, 255, 255], [9, 80, 7]]]

    gray = Image.fromarray(np.array([[3, 90]], np.uint8))
    gray.save(tmp_path / "g.png", transparency=3)
    assert pixels(read_image(tmp_path / "g.png")).tolist() == [[[255] * 3, [90] * 3]]


@pytest.mark.parametrize("suffix", ["gif", "webp", "png", "tiff", "mpo"])
def test_first_frame(tmp_path: Path, suffix: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / f"a.{suffix}", save_all=True, append_images=frames[1:])
    red, green, blue = pixels(read_image(tmp_path / f"a.{suffix}"))[0, 0]
    assert red > 240 and green < 15 and blue < 15


def jpeg() -> bytes:
    file = io.BytesIO()
    photo(200, 200).save(file, "JPEG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"just text\n", r"it is not an image in a known format \(JPEG, PNG, "),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it is not an image in a known format"),
        (jpeg()[:2000], "image file is truncated"),
        (jpeg()[:20], "."),
    ],
)
def test_unreadable_files(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "a.jpg"
    file.write_bytes(content)
    with pytest.raises(InputError, match=f"^cannot read {file}: {message}"):
        read_image(file)
    with pytest.raises(InputError, match=f"^cannot read the image's bytes: {message}"):
        read_image(content)


@pytest.mark.slow
def test_pillows_warnings_are_not_shown(tmp_path: Path) -> None:
    """In a process of its own, since pytest has filters of its own."""
    file = tmp_path / "a.jpg"
    file.write_bytes(b"II*\x00\x08\x00\x00\x00\x05\x00")
    with pytest.warns(UserWarning, match="Corrupt EXIF"), pytest.raises(InputError):
        read_image(file)
    code = f"from vitkit.data.images import read_image; read_image({str(file)!r})"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "it is not an image in a known format" in answer.stderr and "EXIF" not in answer.stderr


def test_missing_files_folders_and_wrong_types(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="^cannot read nowhere.png: No such file or directory$"):
        read_image("nowhere.png")
    with pytest.raises(
        InputError, match=r"it is a folder; vitkit\.predict\(MODEL, FOLDER\) reads all images in it$"
    ):
        read_image(tmp_path)
    with pytest.raises(InputError, match="not int$"):
        read_image(3)  # type: ignore[arg-type]


def test_decompression_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo(200, 100).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5_000)
    with pytest.raises(InputError, match="20000 pixels.*exceeds limit of 10000.*Make it smaller"):
        read_image(tmp_path / "a.png")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(("depth", "colour"), [(16, 0), (8, 6)], ids=["16-bit grey", "RGBA"])
def test_a_small_file_of_many_pixels_is_refused_by_its_header(depth: int, colour: int) -> None:
    """Between Pillow's limit and twice it, where Pillow warns and goes on."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 12992, 13000, depth, colour, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    with pytest.raises(InputError, match="168896000 pixels.*exceeds limit of 89478485.*Make it smaller"):
        read_image(data)


def test_every_sixteen_bit_value_is_rounded() -> None:
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    expected = np.rint(values / 257.0).astype(int)
    assert np.array_equal(pixels(read_image(Image.fromarray(values)))[..., 0], expected)


def test_sixteen_bits_take_little_memory() -> None:
    image = Image.fromarray(np.full((1000, 1000), 65535, np.uint16))
    tracemalloc.start()
    try:
        read_image(image)
        assert tracemalloc.get_traced_memory()[1] < 10 * 1000 * 1000
    finally:
        tracemalloc.stop()


def test_a_thread_of_an_image_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(InputError, match="^an image of 1x9000 pixels is too long and thin"):
        prepare(photo(9000, 1), Preprocessing(224, 0.9))
    assert prepare(photo(9000, 1), Preprocessing(224)).shape == (3, 224, 224)


PLAIN = Preprocessing(32, 0.9, "bicubic")


def test_arrays_and_tensors_equal_the_picture() -> None:
    image = photo()
    expected, array = prepare(image, PLAIN), np.asarray(image)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    assert torch.equal(prepare(array, PLAIN), expected)
    assert torch.equal(prepare(array[:, ::-1][:, ::-1], PLAIN), expected)
    assert torch.equal(prepare(tensor, PLAIN), expected)
    for floats in (tensor / 255, (tensor / 255).numpy().transpose(1, 2, 0), (tensor / 255).double()):
        assert torch.equal(prepare(floats, PLAIN), expected)


def test_gray_arrays_fill_three_channels() -> None:
    gray = np.asarray(photo().convert("L"))
    expected = prepare(photo().convert("L"), PLAIN)
    assert expected.shape == (3, 32, 32)
    for source in (gray, gray[..., None], torch.from_numpy(gray.copy()), torch.from_numpy(gray.copy())[None]):
        assert torch.equal(prepare(source, PLAIN), expected)
    assert torch.equal(prepare(gray / 255, PLAIN), expected)


def test_one_channel_is_grayscale() -> None:
    one = Preprocessing(32, 0.9, "bicubic", (0.5,), (0.5,))
    reference = transforms.Compose(
        [
            transforms.Resize(35, InterpolationMode.BICUBIC),
            transforms.CenterCrop(32),
            transforms.ToTensor(),
            transforms.Normalize(0.5, 0.5),
        ]
    )
    expected = reference(photo().convert("L"))
    assert expected.shape == (1, 32, 32)
    assert torch.equal(prepare(photo(), one), expected)
    assert torch.equal(prepare(np.asarray(photo()), one), expected)
    assert torch.equal(prepare(np.asarray(photo()) / 255, one), expected)


def test_other_channel_counts_take_arrays_only() -> None:
    four = Preprocessing(32, 0.9, "bicubic", (0.1, 0.2, 0.3, 0.4), (1.0, 2.0, 3.0, 4.0))
    array = np.dstack([np.asarray(photo()), np.asarray(photo())[..., 0]])
    prepared = prepare(array, four)
    first = prepare(array[..., :3], Preprocessing(32, 0.9, "bicubic", (0.1, 0.2, 0.3), (1.0, 2.0, 3.0)))
    assert prepared.shape == (4, 32, 32) and torch.equal(prepared[:3], first)
    assert torch.equal(prepare(array / 255, four), prepared)
    with pytest.raises(InputError, match="^the model takes 4 channels, but an image file has 1 or 3"):
        prepare(photo(), four)
    with pytest.raises(InputError, match=r"shape \(40, 60, 3\); .* with 4 channels"):
        prepare(np.asarray(photo()), four)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            np.zeros((3, 8, 9), np.uint8),
            r"shape \(3, 8, 9\); an array is \(height, width, channels\) with 1 or 3",
        ),
        (torch.zeros(8, 9, 3), r"shape \(8, 9, 3\); a tensor is \(channels, height, width\) with 1 or 3"),
        (np.zeros((2, 8, 9, 3), np.uint8), r"shape \(2, 8, 9, 3\)"),
        (np.zeros((0, 9, 3), np.uint8), r"shape \(0, 9, 3\)"),
        (np.zeros(5, np.uint8), r"shape \(5,\)"),
        (np.zeros((8, 9, 3), np.int64), "type int64; expected uint8, or float from 0 to 1"),
        (np.full((8, 9, 3), 255.0), "values from 255 to 255; expected 0 to 1"),
        (torch.full((3, 8, 9), -0.5), "values from -0.5 to -0.5"),
        (torch.full((3, 8, 9), torch.nan), "values from nan to nan"),
    ],
)
def test_refused_arrays(source: np.ndarray | torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare(source, PLAIN)


def test_one_lazy_image_in_many_threads(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    photo(400, 300).save(tmp_path / "a.png", exif=exif)
    image, shapes = Image.open(tmp_path / "a.png"), []
    threads = [threading.Thread(target=lambda: shapes.append(read_image(image).size)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shapes == [(300, 400)] * 8


def test_find_images(tmp_path: Path) -> None:
    for name in ("b/2.JPG", "b/1.png", "a.jpeg", ".hidden.png", ".git/x.png", "b/notes.txt", "c/d/e.webp"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [tmp_path / name for name in ("a.jpeg", "b/1.png", "b/2.JPG", "c/d/e.webp")]
    assert find_images(tmp_path) == find_images(str(tmp_path)) == find_images([tmp_path]) == found
    text = tmp_path / "b" / "notes.txt"
    assert find_images([text, tmp_path / "c", text]) == [text, found[-1], text]
    assert find_images(tmp_path / ".git") == [tmp_path / ".git" / "x.png"]


def test_a_link_to_nothing_is_an_image_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.png").symlink_to("nowhere.png")
    assert find_images(tmp_path) == [tmp_path / "a.png"]
    with pytest.raises(InputError, match="a.png: No such file"):
        read_image(tmp_path / "a.png")


def test_a_pipe_is_no_image(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    os.mkfifo(tmp_path / "b.png")
    assert find_images(tmp_path) == [tmp_path / "a.png"]


@pytest.mark.parametrize(
    "images", [Image.new("RGB", (2, 2)), [Image.new("RGB", (2, 2))], np.zeros((2, 2, 3))]
)
def test_find_images_refuses_images_in_memory(images: Any) -> None:
    with pytest.raises(InputError, match=r"^expected files or folders, not (Image|ndarray); vitkit.load"):
        find_images(images)


def test_find_images_refuses_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="^no such file or folder: nowhere$"):
        find_images(["nowhere"])
    with pytest.raises(InputError, match=f"^no images in {tmp_path}: looked for .avif .bmp "):
        find_images([tmp_path])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_threads_give_back_the_memory_of_large_images(tmp_path: Path) -> None:
    """glibc would keep an image of 144 MB, as Pillow stores it, for each of eight threads."""
    Image.new("RGB", (6000, 6000)).save(tmp_path / "large.png", compress_level=1)
    code = f"""
import vitkit.data.images as images
from vitkit.data.threads import map_in_order
from vitkit.models.configs import Preprocessing
from vitkit.timing.memory import status
images.ROOM.pixels = 1
before = status("VmRSS")
def read(file):
    return images.prepare(file, Preprocessing(image_size=8))
list(map_in_order(read, [{str(tmp_path / "large.png")!r}] * 16, threads=8))
print(status("VmHWM") - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 5 * 4 * 6000**2


def test_threads_share_the_room_for_decoded_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen large pictures of few bytes would otherwise fill the memory at once."""
    room, lock, now, most, alone = Room(2500), threading.Lock(), 0, 0, []
    monkeypatch.setattr(module, "ROOM", room)
    whole = module.fit

    def fit(image: Image.Image, preprocessing: Preprocessing) -> Image.Image:
        nonlocal now, most
        pixels = image.width * image.height
        with lock:
            now, most = now + pixels, max(most, now + pixels)
            if pixels > 2500:
                alone.append(now)
        time.sleep(0.002)
        with lock:
            now -= pixels
        return whole(image, preprocessing)

    monkeypatch.setattr(module, "fit", fit)
    pictures = []
    for number in range(24):
        buffer = io.BytesIO()
        Image.new("RGB", (60, 60) if number == 12 else (30, 30)).save(buffer, "PNG")
        pictures.append(buffer.getvalue())
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda data: prepare(data, Preprocessing(image_size=(8, 8))), pictures))
        for result in [pool.submit(read_image, data[:60]) for data in pictures]:
            with pytest.raises(InputError):
                result.result()
    assert 900 < most <= 3600 and alone == [3600], "more than fits is decoded alone"
    with room.take(2500):  # all was given back, after errors too
        pass


def test_a_jp2_counts_for_what_its_decoder_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    room = Room(1)
    monkeypatch.setattr(room, "take", lambda pixels: taken.append(pixels) or nullcontext())
    monkeypatch.setattr(module, "ROOM", room)
    for kind in ("PNG", "JPEG2000"):
        buffer = io.BytesIO()
        Image.new("L", (10, 20)).save(buffer, kind)
        read_image(buffer.getvalue())
    assert taken == [200, 800]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_or_a_device_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", Path("/dev/zero")):
        with pytest.raises(InputError, match=f"^cannot read {path}: it is a pipe or a device, not a file$"):
            read_image(path)
