"""Weights from any format to any other: `vit convert SRC DST --to npz|timm|hf|torchvision|vitkit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from vitkit.errors import InputError
from vitkit.models.configs import Size
from vitkit.weights import google, huggingface, timm, torchvision
from vitkit.weights.files import Tensors, write_npz, write_safetensors
from vitkit.weights.folder import (
    differing_numerics,
    replacing,
    sidecar,
    to_json,
    write_folder,
    write_json,
)
from vitkit.weights.load import LoadedModel, load_model

Format = Literal["npz", "timm", "hf", "torchvision", "vitkit"]
LAYOUTS: dict[str, tuple[str, ModuleType]] = {
    "npz": ("Google's code", google),
    "timm": ("timm", timm),
    "hf": ("transformers", huggingface),
    "torchvision": ("torchvision", torchvision),
}


def convert(
    source: str | Path,
    target: str | Path,
    to: Format = "vitkit",
    *,
    image_size: Size | None = None,
    num_classes: int | None = None,
    channels: int | None = None,
    accept: Sequence[str] = (),
    force: bool = False,
) -> dict[str, Any]:
    """Read MODEL and write it in another format; return what was written."""
    loaded = load_model(
        source, image_size=image_size, num_classes=num_classes, channels=channels, accept=accept
    )
    path = Path(target).expanduser()
    save(loaded, path, to, accept=accept, force=force)
    parameters = sum(parameter.numel() for parameter in loaded.model.parameters())
    return {
        "source": str(source),
        "target": str(path),
        "format": to,
        "model": loaded.name,
        "parameters": parameters,
        "image_size": list(loaded.model.config.size),
        "num_classes": loaded.model.config.num_classes,
        "notes": list(loaded.notes),
    }


def save(
    loaded: LoadedModel, path: Path, to: Format = "vitkit", *, accept: Sequence[str] = (), force: bool = False
) -> None:
    """Write a model as a folder, or as one file with our JSON beside it where the path names a file."""
    config = loaded.model.config
    tensors = {name: tensor.detach().cpu() for name, tensor in loaded.model.state_dict().items()}
    if to in LAYOUTS:
        peer, layout = LAYOUTS[to]
        if reason := layout.unsupported(config):
            raise InputError(f"{peer} has no such model: {reason}")
        differing = differing_numerics(config, layout.numerics(config))
        if differing and "numerics" not in accept:
            listed = ", ".join(f"{name} {theirs} for {ours}" for name, (ours, theirs) in differing.items())
            raise InputError(
                f"{peer} computes {listed}, so its logits would differ; --accept numerics writes it anyway"
            )
        tensors = layout.write(config, tensors)
    writer = _file_writer(path, to)
    if writer is not None:
        _write_file(path, tensors, loaded, writer, force)
    elif to == "hf":
        with replacing(path, force=force) as new:
            write_safetensors(new / "model.safetensors", tensors)
            write_json(new / "config.json", huggingface.describe(config, loaded.class_names))
            preprocessor = huggingface.describe_preprocessing(loaded.preprocessing)
            write_json(new / "preprocessor_config.json", preprocessor)
    else:
        write_folder(
            path,
            config,
            tensors,
            loaded.preprocessing,
            loaded.class_names,
            accept_numerics="numerics" in accept,
            force=force,
        )


def _file_writer(path: Path, to: Format) -> Callable[[Path, Tensors], None] | None:
    """Return what writes this file; None for a folder."""
    writers: dict[str, Callable[[Path, Tensors], None]] = {
        ".npz": write_npz,
        ".safetensors": write_safetensors,
        ".pth": lambda path, tensors: torch.save({k: t.contiguous() for k, t in tensors.items()}, path),
    }
    if (path.suffix == ".npz") != (to == "npz"):
        raise InputError(
            f"--to {to} can't write {path.name}: .npz files are --to npz, and the other way round"
        )
    if to == "hf" and path.suffix in writers:
        raise InputError("--to hf writes a folder: give a path without an ending")
    if to == "torchvision" and path.suffix not in writers:
        raise InputError("--to torchvision writes one file: give a path ending in .pth or .safetensors")
    return writers.get(path.suffix)


def _write_file(
    path: Path, tensors: Tensors, loaded: LoadedModel, writer: Callable[[Path, Tensors], None], force: bool
) -> None:
    if path.exists() and not force:
        raise InputError(f"{path} exists; --force overwrites it")
    document = to_json(loaded.model.config, loaded.preprocessing, loaded.class_names)
    temporary = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer(temporary, {name: tensor.contiguous() for name, tensor in tensors.items()})
        write_json(sidecar(path), document)
        temporary.rename(path)
    except OSError as error:
        raise InputError(f"{path} can't be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
