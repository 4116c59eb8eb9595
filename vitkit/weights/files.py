"""Tensor files from strangers: safetensors, .npz and .pth, their headers read first, no code in them ever run."""

from __future__ import annotations

import json
import math
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitkit.errors import InputError

Tensors = dict[str, Tensor]

# Where trainers put the weights inside a .pth file, in order of preference.
WRAPPERS = ("module.", "_orig_mod.", "model.")
STATE_KEYS = ("state_dict", "model", "model_state_dict")
MAX_MEMBERS = 100_000
# A zip file may inflate to this many bytes and to this many times its own size: weights hardly compress.
MAX_INFLATED, MAX_RATIO = 2**28, 16
# Half floats as numpy stores them where it has no such type: raw two-byte values.
BFLOAT16 = np.dtype("V2")


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
                raise InputError(f"{path}: {name} holds NaN or infinite values")
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


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} holds a JSON {type(value).__name__}, expected an object")
    return value


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"{text} is not a finite number")
    return float(text)


def _read(path: Path, meta: bool) -> Tensors:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    if size == 0:
        raise InputError(f"{path} is empty")
    try:
        if start[:4] == b"PK\x03\x04":
            _check_inflated(path, size)
            tensors = _read_npz(path, meta) if _is_npz(path) else _read_torch(path, meta)
        elif start[8:9] == b"{":
            tensors = _read_safetensors(path, meta)
        elif start[:1] == b"\x80":
            tensors = _read_torch(path, meta)
        else:
            raise InputError(f"{path} is not a weight file: expected safetensors, .npz or .pth")
    except InputError:
        raise
    except Exception as error:  # every reader has its own errors for a damaged file
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path} is damaged or not a weight file: {cause}") from None
    if not tensors:
        raise InputError(f"{path} holds no tensors")
    for name, tensor in tensors.items():
        if tensor.numel() == 0:
            raise InputError(f"{path}: {name} has shape {tuple(tensor.shape)} and holds nothing")
    return _without_wrapper(tensors)


def _check_inflated(path: Path, size: int) -> None:
    with zipfile.ZipFile(path) as archive:
        inflated = sum(member.file_size for member in archive.infolist())
    if inflated > MAX_INFLATED + MAX_RATIO * size:
        raise InputError(
            f"{path} would inflate from {size:,} to {inflated:,} bytes: no weights compress so well"
        )


def _without_wrapper(tensors: Tensors) -> Tensors:
    """Return the tensors under a model's own names: trainers and compilers put it inside other modules."""
    while prefix := next((p for p in WRAPPERS if all(name.startswith(p) for name in tensors)), None):
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


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
        raise InputError(
            f"{path} holds pickled objects besides tensors, which could run code; "
            "save its state_dict alone, best as .safetensors"
        ) from None
    for key in STATE_KEYS:
        if isinstance(loaded, dict) and key in loaded:
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(map(_is_plain, loaded.values())):
        raise InputError(f"{path} holds no state dict: expected a mapping of names to tensors")
    for name, tensor in loaded.items():
        if tensor.nbytes > path.stat().st_size:  # one number can be repeated by strides
            raise InputError(f"{path}: {name} says shape {tuple(tensor.shape)}, more than the file holds")
    return {str(name): tensor.detach() for name, tensor in loaded.items()}


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_quantized


def _is_npz(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    return bool(names) and all(name.endswith(".npy") for name in names)


def _read_npz(path: Path, meta: bool) -> Tensors:
    tensors = {}
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > MAX_MEMBERS:
            raise InputError(f"{path} has {len(members)} members, at most {MAX_MEMBERS} are read")
        for member in members:
            name = member.filename.removesuffix(".npy")
            with archive.open(member) as file:
                shape, fortran, dtype = _npy_header(file)
                if dtype.hasobject or (dtype.kind not in "fiub" and dtype != BFLOAT16):
                    raise InputError(f"{path}: {name} has type {dtype}, expected numbers")
                count = math.prod(shape)
                declared = member.file_size - file.tell()
                if count * dtype.itemsize != declared:
                    raise InputError(f"{path}: {name} says shape {shape}, but holds {declared} bytes")
                if meta:
                    tensors[name] = torch.empty(shape, device="meta")
                    continue
                data = file.read(declared)
                if len(data) != declared:
                    raise InputError(f"{path}: {name} is cut short")
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
