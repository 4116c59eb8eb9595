"""Tensor files from strangers: safetensors, .npz and .pth; headers are checked first, and no code in them is run."""

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

from vitkit.errors import InputError

Tensors = dict[str, Tensor]
Document = Mapping[str, Any]
"A JSON document as it comes in: config.json of timm or transformers."
Settings = dict[str, object]
"Fields of a config by name, checked where the config is made of them."
Numeric = str | float
"A setting on which the result of the same tensors depends, such as the form of GELU."

# What trainers and compilers put before every name, and where trainers put the weights inside a .pth file.
WRAPPERS = ("module.", "_orig_mod.", "model.")
STATE_KEYS = ("state_dict", "model", "model_state_dict")
MAX_TENSORS = 100_000
MAX_NAME = 500  # characters
MAX_ALIGNMENT = 2**20  # bytes; torch's own is 64
MAX_JSON = 2**25  # bytes; the names of ImageNet-21k's classes take 3 million
# A zip file may inflate to this many bytes and to this many times its own size: weights hardly compress.
MAX_INFLATED, MAX_RATIO = 2**28, 16
# Half floats as numpy stores them where it has no such type: raw two-byte values.
BFLOAT16 = np.dtype("V2")


@dataclass
class Reading:
    """What a layout's reader makes of a file: tensors under our names, and what it says of the model besides."""

    tensors: Tensors
    unused: list[str] = field(default_factory=list)
    "Their names that no rule reads."
    settings: Settings = field(default_factory=dict)
    "Fields of the model's config that follow from the layout or stand in its config file."
    preprocessing: Settings = field(default_factory=dict)
    "Fields of the preprocessing that the layout fixes or its config file states."
    class_names: tuple[str, ...] | None = None
    multi_label: bool = False
    "Whether an image may have several classes."


class FileError(InputError):
    """Something is wrong with a file, and the message names it."""


def read_header(path: Path) -> Tensors:
    """Return every tensor of a file on the meta device: names, shapes and types, no data."""
    return _read(path, meta=True)


def read_tensors(path: Path) -> Tensors:
    """Return every tensor of a file, floats as float32, and refuse values that are not finite."""
    tensors = {}
    for name, tensor in _read(path, meta=False).items():
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
    path.chmod(0o666 & ~mask)  # safetensors makes files that nobody else can read


def write_pth(path: Path, tensors: Tensors) -> None:
    try:
        torch.save(tensors, path)
    except RuntimeError as error:
        raise OSError(0, str(error).splitlines()[0]) from error


def write_npz(path: Path, tensors: Tensors) -> None:
    with path.open("wb") as file:
        np.savez(file, **{name: tensor.numpy() for name, tensor in tensors.items()})  # type: ignore[arg-type]


def file_size(path: Path) -> int:
    """Return the size of a file in bytes; what is no plain file, such as a pipe or a device, is refused unopened."""
    try:
        found = path.stat()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise FileError(f"{path} is not a plain file")
    return found.st_size


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    if (size := file_size(path)) > MAX_JSON:
        raise FileError(f"{path} has {size:,} bytes, at most {MAX_JSON:,} are read as JSON")
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise FileError(f"{path} holds a JSON {type(value).__name__}, expected an object")
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
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileError(f"{path} is damaged or not a weight file: {cause}") from None
    if not tensors:
        raise FileError(f"{path} holds no tensors")
    if len(tensors) > MAX_TENSORS:
        raise FileError(f"{path} has {len(tensors):,} tensors, at most {MAX_TENSORS:,} are read")
    for name, tensor in tensors.items():
        if len(name) > MAX_NAME:
            raise FileError(
                f"{path}: the name {name[:40]}... has {len(name):,} characters, at most {MAX_NAME}"
            )
        if tensor.numel() == 0:
            raise FileError(f"{path}: {name} has shape {tuple(tensor.shape)} and holds nothing")
    return _without_wrapper(tensors)


def _check_archive(path: Path, size: int) -> None:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if len(members) > MAX_TENSORS:
        raise FileError(f"{path} has {len(members):,} members, at most {MAX_TENSORS:,} are read")
    inflated = sum(member.file_size for member in members)
    if inflated > MAX_INFLATED + MAX_RATIO * size:
        raise FileError(
            f"{path} would inflate from {size:,} to {inflated:,} bytes: no weights compress so well"
        )


def _without_wrapper(tensors: Tensors) -> Tensors:
    """Return the tensors under a model's own names: trainers and compilers put it inside other modules."""
    first, last, start = min(tensors), max(tensors), 0  # what these two share, all share
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
            f"{path} holds pickled objects besides tensors, which could run code; "
            "save its state_dict alone, best as .safetensors"
        ) from None
    for key in STATE_KEYS:
        if isinstance(loaded, dict) and key in loaded:
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(map(_is_plain, loaded.values())):
        raise FileError(f"{path} holds no state dict: expected a mapping of names to tensors")
    for name, tensor in loaded.items():
        if tensor.nbytes > path.stat().st_size:  # one number can be repeated by strides
            raise FileError(f"{path}: {name} says shape {tuple(tensor.shape)}, more than the file holds")
    return {str(name): tensor.detach() for name, tensor in loaded.items()}


def _check_records(path: Path) -> None:
    """Refuse what ends the process in torch.load on the meta device: swapping bytes that aren't there, dividing by 0."""
    archive: Any = torch._C.PyTorchFileReader(
        str(path)
    )  # torch.load's own, so that both find the same records
    if archive.has_record("byteorder") and archive.get_record("byteorder") != b"little":
        raise FileError(f"{path} was written on a big-endian machine: save it as .safetensors there")
    if archive.has_record(".storage_alignment"):
        alignment = archive.get_record(".storage_alignment").decode()
        if not 0 < int(alignment) <= MAX_ALIGNMENT:
            raise FileError(f"{path} says storage alignment {alignment}, expected 1 to {MAX_ALIGNMENT}")


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
                    raise FileError(f"{path}: {name} has type {dtype}, expected numbers")
                count = math.prod(shape)
                declared = member.file_size - file.tell()
                if count * dtype.itemsize != declared:
                    raise FileError(f"{path}: {name} says shape {shape}, but holds {declared} bytes")
                if meta:
                    tensors[name] = torch.empty(shape, device="meta")
                    continue
                data = file.read(declared)
                if len(data) != declared:
                    raise FileError(f"{path}: {name} is cut short")
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
