"""From image files, arrays and tensors to model inputs, bit for bit as timm and torchvision prepare them."""

from __future__ import annotations

import ctypes
import io
import math
import os
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from vitkit.errors import CannotRead, InputError
from vitkit.files import check_regular
from vitkit.models.configs import Preprocessing, Size, as_size

ImageFile = str | os.PathLike[str] | bytes | Image.Image
ImageSource = ImageFile | np.ndarray | Tensor

# HEIC counts as an image with and without its reader: without, it is reported as unreadable.
EXTENSIONS = frozenset(
    ".avif .bmp .gif .heic .heif .jfif .jp2 .jpe .jpeg .jpg .pbm .pgm .png .pnm .ppm .tif .tiff .webp".split()
)
# What systems put next to images: resource forks in zip files, thumbnails of a Synology disk, deleted files.
SYSTEM_FOLDERS = ("__MACOSX", "@eaDir", "$RECYCLE.BIN")
# Only plain pictures: Pillow's EPS reader, for one, runs Ghostscript on whatever the file says.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
# Brands of an ISO base media file whose images are coded with HEVC.
HEIC_BRANDS = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"))
NEEDS_READER = 'HEIC needs pillow-heif: pip install "vitkit[heic]"'

ORIENTATION = 0x0112  # EXIF tag
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Pillow's warnings name no file. An image that can't be read is named by whoever reads it; others lack only metadata.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.\w+ImagePlugin$")
# The C library keeps what a thread has freed for that thread: sixteen threads would keep a large image each.
_give_back = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
LARGE = 1 << 25
"Pixels of an image before whose decoding memory is given back: more than a camera's, so that it takes no time of photos."
# Pillow loads an image on first use; one image given twice must not load in two threads at once.
_given_image = threading.Lock()


class Room:
    """How many pixels the threads of this process may decode at a time; an image with more is decoded alone."""

    def __init__(self, pixels: int) -> None:
        self.pixels = pixels
        self._mine = threading.local()
        self._clear()
        if hasattr(os, "register_at_fork"):  # the threads that would give pixels back are not in a child
            os.register_at_fork(after_in_child=self._clear)

    def _clear(self) -> None:
        self._changed, self._taken = threading.Condition(), 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep what this thread takes inside to the end: until then it has a use for the decoded image."""
        if hasattr(self._mine, "taken"):
            yield
            return
        self._mine.taken = 0
        try:
            yield
        finally:
            with self._changed:
                self._taken -= self._mine.taken
                self._changed.notify_all()
            del self._mine.taken

    @contextmanager
    def take(self, pixels: int) -> Iterator[None]:
        """Wait until so many pixels fit; a thread that holds an image already doesn't, so that none waits for another."""
        with self.hold():
            if not self._mine.taken:
                with self._changed:
                    self._changed.wait_for(lambda: not self._taken or self._taken + pixels <= self.pixels)
                    self._taken += pixels
                self._mine.taken = pixels
            if pixels > LARGE and _give_back is not None:
                _give_back(0)
            yield


# Twenty photos of a camera, or 2 GiB while they are RGB and turned.
ROOM = Room(1 << 29)
# Enough for the brands of any file.
_HEAD_BYTES = 256
# OpenJPEG decodes into 32 bits a value.
_WEIGHT = {"JPEG2000": 4}


IN_MEMORY = "vitkit.load(MODEL).predict takes images in memory"


def find_images(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Path]:
    """List files as given, and all image files in folders, at any depth, sorted, without hidden ones."""
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    if not isinstance(paths, Iterable) or isinstance(paths, np.ndarray | Tensor):
        raise InputError(f"expected files or folders, not {type(paths).__name__}; {IN_MEMORY}")
    found: list[Path] = []
    for given in paths:
        if not isinstance(given, str | os.PathLike):
            raise InputError(f"expected files or folders, not {type(given).__name__}; {IN_MEMORY}")
        path = Path(given)
        if path.is_dir():
            images = sorted(_images_below(path))
            if not images:
                raise InputError(f"no images in {path}: looked for {' '.join(sorted(EXTENSIONS))}")
            found += images
        elif path.exists():
            found.append(path)
        else:
            raise InputError(f"no such file or folder: {path}")
    return found


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is no part of the data by its name: hidden, or a system's own."""
    return name.startswith(".") or name in SYSTEM_FOLDERS


def _images_below(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise InputError(f"cannot list {error.filename}: {error.strerror}")

    for parent, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not is_hidden(name)]
        for name in files:
            is_image = not is_hidden(name) and os.path.splitext(name)[1].lower() in EXTENSIONS
            path = Path(parent, name)
            # A pipe would wait for ever; a link to nothing is an image that can't be read.
            if is_image and (path.is_file() or not path.exists()):
                yield path


def read_image(source: ImageFile) -> Image.Image:
    """Return a file, bytes or a PIL image as RGB: upright, first frame, 16 bits scaled, clear parts white."""
    if not isinstance(source, str | os.PathLike | bytes | Image.Image):
        raise InputError(
            f"an image is a path, bytes, a PIL image, an array or a tensor, not {type(source).__name__}"
        )
    try:
        if isinstance(source, Image.Image):
            with ROOM.take(source.width * source.height), _given_image:
                return _upright_rgb(source)
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        if not isinstance(source, bytes):
            check_regular(source)
        with open_image(file) as image:
            _refuse_bomb(image)
            with ROOM.take(image.width * image.height * _WEIGHT.get(image.format or "", 1)):
                return _upright_rgb(image)
    except InputError:
        raise
    except Exception as error:  # a broken file can raise anything in Pillow's decoders
        raise read_error(source, error) from error


def read_error(source: ImageFile, error: Exception) -> CannotRead:
    """Return the error for an image that Pillow can't read."""
    return CannotRead(_name(source), _reason(source, error))


def open_image(file: str | os.PathLike[str] | BinaryIO) -> Image.Image:
    """Open a file as Pillow does, its header alone; HEIC needs pillow-heif, which turns images upright itself."""
    try:
        return Image.open(file, formats=FORMATS)
    except Exception:  # a file that might be AVIF by its brand can raise anything
        if not _is_heic(file):
            raise
    try:
        from pillow_heif import HeifImageFile
    except ImportError:
        raise ValueError(NEEDS_READER) from None
    opened: Image.Image = HeifImageFile(file)
    return opened


def _is_heic(file: str | os.PathLike[str] | BinaryIO) -> bool:
    if isinstance(file, str | os.PathLike):
        with open(file, "rb") as opened:
            head = opened.read(_HEAD_BYTES)
    else:
        file.seek(0)
        head = file.read(_HEAD_BYTES)
        file.seek(0)
    end = int.from_bytes(head[:4], "big")
    brands = {head[place : place + 4] for place in (8, *range(16, min(end, len(head)), 4))}
    return head[4:8] == b"ftyp" and not brands.isdisjoint(HEIC_BRANDS)


def _refuse_bomb(image: Image.Image) -> None:
    """Refuse what Pillow only warns of, up to twice its limit."""
    pixels, limit = image.width * image.height, Image.MAX_IMAGE_PIXELS
    if limit and pixels > limit:
        raise Image.DecompressionBombError(f"Image size ({pixels} pixels) exceeds limit of {limit} pixels.")


def orientation_of(image: Image.Image) -> int:
    """Return how an image is stored, 1 (upright) to 8, by its EXIF or XMP data: the one rule for all that read images."""
    try:
        found = image.getexif().get(ORIENTATION, 1)
    except Exception:  # broken EXIF data says nothing about the pixels
        return 1
    return found if found in _UPRIGHT else 1


def _upright_rgb(image: Image.Image) -> Image.Image:
    image.load()
    turn = _UPRIGHT.get(orientation_of(image))
    if image.mode.startswith("I") or image.mode == "F":
        image = _eight_bits(image)
    if image.has_transparency_data:
        colours = image if image.mode == "RGBA" else image.convert("RGBA")
        image = Image.new("RGB", image.size, "white")
        image.paste(colours, mask=colours)
    if image.mode != "RGB":
        image = image.convert("RGB")
    return image if turn is None else image.transpose(turn)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit integers and floats from 0 to 1 to 8 bits; Pillow's own conversion clips them."""
    values = np.asarray(image)
    top = 1 if image.mode == "F" else 65535
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= top):
        raise ValueError(f"its values run from {low:g} to {high:g}, expected 0 to {top}")
    if image.mode == "F":
        return Image.fromarray(np.rint(values * np.float32(255)).astype(np.uint8))
    scaled = values.astype(np.uint32)  # in place from here on: pictures may be large
    scaled *= 255
    scaled += 32767  # rounds
    scaled //= 65535
    return Image.fromarray(scaled.astype(np.uint8))


def _name(source: ImageFile) -> str:
    if isinstance(source, bytes):
        return "the image's bytes"
    if isinstance(source, Image.Image):
        return getattr(source, "filename", "") or "the PIL image"
    return os.fspath(source)


def _reason(source: ImageFile, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        empty = not source if isinstance(source, bytes) else os.path.getsize(_name(source)) == 0
        return "it is empty" if empty else f"it is not an image in a known format ({', '.join(FORMATS)})"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"{error} Make it smaller, or raise PIL.Image.MAX_IMAGE_PIXELS"
    if isinstance(error, IsADirectoryError):
        return "it is a folder; vitkit.predict(MODEL, FOLDER) reads all images in it"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).strip() or type(error).__name__


def to_pixels(source: ImageSource) -> np.ndarray:
    """Return an image in any form as RGB pixels, uint8 (height, width, 3); arrays and tensors are as for `prepare`."""
    with ROOM.hold():
        image = _bands(source, 3)[0] if isinstance(source, np.ndarray | Tensor) else read_image(source)
        return np.array(image)


def prepare(source: ImageSource, preprocessing: Preprocessing) -> Tensor:
    """Return the model's input, float (channels, height, width).

    Arrays are (height, width[, channels]), tensors ([channels,] height, width): uint8, or float from 0 to 1,
    which is rounded to 8 bits first, so that an image gives the same input in any form.
    """
    channels = len(preprocessing.mean)
    with ROOM.hold():
        if isinstance(source, np.ndarray | Tensor):
            images = _bands(source, channels)
        elif channels in (1, 3):
            image = read_image(source)
            images = [image.convert("L") if channels == 1 else image]
        else:
            raise InputError(
                f"the model takes {channels} channels, but an image file has 1 or 3: give arrays or tensors"
            )
        pixels = np.dstack([np.asarray(fit(image, preprocessing)) for image in images])
    # In NumPy: PyTorch would start a pool of its own in each thread that prepares images.
    values = pixels.transpose(2, 0, 1).astype(np.float32, order="C")  # (channels, height, width)
    values /= 255
    values -= np.array(preprocessing.mean, np.float32)[:, None, None]
    values /= np.array(preprocessing.std, np.float32)[:, None, None]
    return torch.from_numpy(values)


def fit(image: Image.Image, preprocessing: Preprocessing) -> Image.Image:
    """Resize to the model's input, or resize the shorter side and cut out the centre."""
    height, width = preprocessing.size
    resized_height, resized_width = height, width
    if preprocessing.crop_fraction is not None:
        rows, columns = (math.floor(side / preprocessing.crop_fraction) for side in preprocessing.size)
        resized_height, resized_width = covering(image.height, image.width, (rows, columns))
    resample = Image.Resampling[preprocessing.interpolation.upper()]
    image = image.resize((resized_width, resized_height), resample)
    top, left = round((resized_height - height) / 2), round((resized_width - width) / 2)
    return image.crop((left, top, left + width, top + height))


def covering(height: int, width: int, size: Size) -> tuple[int, int]:
    """Return the smallest size of the same ratio that covers a box, rounded as torchvision (square) and timm do."""
    rows, columns = as_size(size)
    if rows == columns:
        short = min(height, width)
        # torchvision cuts the fraction off.
        resized = int(rows * height / short), int(rows * width / short)
    else:
        ratio = min(height / rows, width / columns)
        # timm's ResizeKeepRatio rounds both.
        resized = round(height / ratio), round(width / ratio)
    if Image.MAX_IMAGE_PIXELS and resized[0] * resized[1] > Image.MAX_IMAGE_PIXELS:
        raise InputError(
            f"an image of {height}x{width} pixels is too long and thin: "
            f"it would be resized to {resized[0]}x{resized[1]}"
        )
    return resized


def _bands(source: np.ndarray | Tensor, channels: int) -> list[Image.Image]:
    """Return an array or tensor as one PIL image, or as one per channel where PIL has no such mode."""
    array, shape = source, tuple(source.shape)
    if isinstance(array, Tensor):
        array = array.detach().cpu()
        array = (array.float() if array.is_floating_point() else array).numpy()
        array = np.moveaxis(array, 0, -1) if array.ndim == 3 else array
    array = array[..., None] if array.ndim == 2 else array  # (height, width, channels)
    accepted = (1, 3) if channels in (1, 3) else (channels,)
    if array.ndim != 3 or array.size == 0 or array.shape[-1] not in accepted:
        counts = " or ".join(map(str, accepted))
        if isinstance(source, Tensor):
            expected = f"a tensor is (channels, height, width) with {counts} channels"
        else:
            expected = f"an array is (height, width, channels) with {counts} channels"
        raise InputError(f"an image has shape {shape}; {expected}")
    if array.dtype.kind == "f":
        if not (array.min() >= 0 and array.max() <= 1):
            raise InputError(
                f"a float image has values from {array.min():g} to {array.max():g}; expected 0 to 1: vitkit "
                "normalises images itself, so leave out Normalize (and ToTensor), or give uint8"
            )
        array = np.rint(array * 255).astype(np.uint8)  # what it was before it was divided by 255
    if array.dtype != np.uint8:
        raise InputError(f"an image has type {array.dtype}; expected uint8, or float from 0 to 1")
    if channels not in (1, 3):
        return [Image.fromarray(band) for band in np.moveaxis(array, -1, 0)]
    image = Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array)
    return [image.convert("L" if channels == 1 else "RGB")]
