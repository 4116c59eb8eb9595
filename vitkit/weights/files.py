"""Untrusted tensor files: safetensors, .npz and .pth. Headers are checked first, and no code in them is run."""

from __future__ import annotations

import json
import math
import os
import pickle
import stat
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitkit.errors import InputError, first_line

Tensors = dict[str, Tensor]
Document = Mapping[str, Any]
"An unchecked JSON document, such as timm's or transformers' config.json."
Settings = dict[str, object]
"Fields of a config by name. They are checked when the config is built."
Numeric = str | float
"A setting that changes what the same tensors compute, such as the form of GELU."

# Prefixes that trainers and compilers add to every name, and the keys of the weights inside a .pth file.
WRAPPERS = ("module.", "_orig_mod.", "model.")
STATE_KEYS = ("state_dict", "model", "model_state_dict")
MAX_TENSORS = 100_000
MAX_NAME = 500  # characters
MAX_ALIGNMENT = 2**20  # bytes; torch's own is 64
MAX_JSON = 2**25  # bytes; the names of ImageNet-21k's classes take 3 million
# A zip file may inflate to MAX_INFLATED bytes plus MAX_RATIO times its own size: weights hardly compress.
MAX_INFLATED, MAX_RATIO = 2**28, 16
# NumPy has no bfloat16: it stores such values as two raw bytes.
BFLOAT16 = np.dtype("V2")


@dataclass
class Reading:
    """The content of a weight file: tensors under our names, and what else it says about the model."""

    tensors: Tensors
    unused: list[str] = field(default_factory=list)
    "Names of tensors that no rule reads."
    settings: Settings = field(default_factory=dict)
    "Fields of the model's config that the layout fixes or its config file states."
    preprocessing: Settings = field(default_factory=dict)
    "Fields of the preprocessing that the layout fixes or its config file states."
    class_names: tuple[str, ...] | None = None
    multi_label: bool = False
    "Whether an image may have several classes."


class FileError(InputError):
    """An error in a file. The message names the file."""


def read_header(path: Path, unwrap: bool = True) -> Tensors:
    """Return every tensor of a file on the meta device: names, shapes and types, no data.

    unwrap: whether to remove prefixes that trainers and compilers add to every name.
    """
    tensors = _read(path, meta=True)
    return _without_wrapper(tensors) if unwrap else tensors


def read_tensors(path: Path, unwrap: bool = True) -> Tensors:
    """Return every tensor of a file, floats as float32; raise FileError for NaN or infinite values."""
    tensors = {}
    found = _read(path, meta=False)
    for name, tensor in (_without_wrapper(found) if unwrap else found).items():
        if tensor.is_floating_point():
            tensor = tensor.float()
            if not torch.isfinite(tensor).all():
                raise FileError(f"{path}: {name} holds NaN or infinite values")
        tensors[name] = tensor
    return tensors


def write_safetensors(path: Path, tensors: Tensors) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, {"format": "pt"})
    except SafetensorError as error:
        raise OSError(0, str(error)) from error
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)  # safetensors creates files that only their owner can read


def write_pth(path: Path, tensors: Tensors) -> None:
    try:
        torch.save(tensors, path)
    except RuntimeError as error:
        raise OSError(0, first_line(error)) from error


def write_npz(path: Path, tensors: Tensors) -> None:
    with path.open("wb") as file:
        np.savez(file, **{name: tensor.numpy() for name, tensor in tensors.items()})  # type: ignore[arg-type]


def file_size(path: Path) -> int:
    """Return the size of a file in bytes. Anything else, such as a pipe or a device, is refused without opening it."""
    try:
        found = path.stat()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise FileError(f"{path} is not a regular file")
    return found.st_size


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    if (size := file_size(path)) > MAX_JSON:
        raise FileError(f"{path} has {size:,} bytes; the limit for JSON is {MAX_JSON:,}")
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise FileError(f"{path} holds a JSON {type(value).__name__}; expected an object")
    return value


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"{text} is not a finite number")
    return float(text)


def _read(path: Path, meta: bool) -> Tensors:
    size = file_size(path)
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    if size == 0:
        raise FileError(f"{path} is empty")
    try:
        if start[:4] == b"PK\x03\x04":
            _check_archive(path, size)
            if _is_npz(path):
                tensors = _read_npz(path, meta)
            else:
                _check_records(path)
                tensors = _read_torch(path, meta)
        elif start[8:9] == b"{":
            tensors = _read_safetensors(path, meta)
        elif start[:1] == b"\x80":
            tensors = _read_torch(path, meta)
        else:
            raise FileError(f"{path} is not a weight file: expected safetensors, .npz or .pth")
    except InputError:
        raise
    except Exception as error:  # every reader has its own errors for a damaged file
        cause = first_line(error)
        raise FileError(f"{path} is damaged or not a weight file: {cause}") from None
    if not tensors:
        raise FileError(f"{path} holds no tensors")
    if len(tensors) > MAX_TENSORS:
        raise FileError(f"{path} has {len(tensors):,} tensors; the limit is {MAX_TENSORS:,}")
    for name, tensor in tensors.items():
        if len(name) > MAX_NAME:
            raise FileError(
                f"{path}: the name {name[:40]}... has {len(name):,} characters; the limit is {MAX_NAME}"
            )
        if tensor.numel() == 0:
            raise FileError(f"{path}: {name} is empty: it has shape {tuple(tensor.shape)}")
    return tensors


def _check_archive(path: Path, size: int) -> None:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if len(members) > MAX_TENSORS:
        raise FileError(f"{path} has {len(members):,} members; the limit is {MAX_TENSORS:,}")
    inflated = sum(member.file_size for member in members)
    if inflated > MAX_INFLATED + MAX_RATIO * size:
        raise FileError(
            f"{path} would inflate from {size:,} to {inflated:,} bytes: weights don't compress that well"
        )


def _without_wrapper(tensors: Tensors) -> Tensors:
    """Return the tensors without the prefixes of modules that trainers and compilers wrap around a model."""
    first, last, start = min(tensors), max(tensors), 0  # a prefix of both is a prefix of all
    while wrapper := next(
        (text for text in WRAPPERS if first.startswith(text, start) and last.startswith(text, start)), None
    ):
        start += len(wrapper)
    return {name[start:]: tensor for name, tensor in tensors.items()}


def _read_safetensors(path: Path, meta: bool) -> Tensors:
    from safetensors import safe_open

    tensors = {}
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            if meta:
                view = file.get_slice(name)
                tensors[name] = torch.empty(view.get_shape(), device="meta")
            else:
                tensors[name] = file.get_tensor(name)
    return tensors


def _read_torch(path: Path, meta: bool) -> Tensors:
    try:
        loaded = torch.load(path, map_location="meta" if meta else "cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise FileError(
            f"{path} holds pickled objects other than tensors, which could run code; "
            "save only its state_dict, preferably as .safetensors"
        ) from None
    for key in STATE_KEYS:
        if isinstance(loaded, dict) and key in loaded:
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(map(_is_plain, loaded.values())):
        raise FileError(f"{path} holds no state dict: expected a mapping of names to tensors")
    for name, tensor in loaded.items():
        if tensor.nbytes > path.stat().st_size:  # strides can repeat one number
            raise FileError(
                f"{path}: {name} has shape {tuple(tensor.shape)}, which is more than the file holds"
            )
    return {str(name): tensor.detach() for name, tensor in loaded.items()}


def _check_records(path: Path) -> None:
    """Refuse records that crash torch.load on the meta device: it swaps missing bytes, or divides by zero."""
    # torch.load's own reader, so both find the same records.
    archive: Any = torch._C.PyTorchFileReader(str(path))
    if archive.has_record("byteorder") and archive.get_record("byteorder") != b"little":
        raise FileError(f"{path} was written on a big-endian machine: save it as .safetensors there")
    if archive.has_record(".storage_alignment"):
        alignment = archive.get_record(".storage_alignment").decode()
        if not 0 < int(alignment) <= MAX_ALIGNMENT:
            raise FileError(f"{path} has storage alignment {alignment}; expected 1 to {MAX_ALIGNMENT}")


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_quantized


def _is_npz(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    return bool(names) and all(name.endswith(".npy") for name in names)


def _read_npz(path: Path, meta: bool) -> Tensors:
    tensors = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            with archive.open(member) as file:
                shape, fortran, dtype = _npy_header(file)
                if dtype.hasobject or (dtype.kind not in "fiub" and dtype != BFLOAT16):
                    raise FileError(f"{path}: {name} has type {dtype}; expected numbers")
                count = math.prod(shape)
                declared = member.file_size - file.tell()
                if count * dtype.itemsize != declared:
                    raise FileError(f"{path}: {name} has shape {shape}, but holds {declared} bytes")
                if meta:
                    tensors[name] = torch.empty(shape, device="meta")
                    continue
                data = file.read(declared)
                if len(data) != declared:
                    raise FileError(f"{path}: {name} is truncated")
            array = np.frombuffer(bytearray(data), dtype)
            array = array.reshape(shape, order="F" if fortran else "C")
            if dtype == BFLOAT16:
                bits = torch.from_numpy(np.ascontiguousarray(array).view(np.int16))
                tensors[name] = bits.view(torch.bfloat16)
            else:
                tensors[name] = torch.from_numpy(np.ascontiguousarray(array))
    return tensors


def _npy_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)
