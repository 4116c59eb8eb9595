"""Weights from any format to any other: `vit convert SRC DST --to npz|timm|hf|torchvision|vitkit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol, get_args

from vitkit.errors import InputError
from vitkit.files import written_whole
from vitkit.models.configs import Preprocessing, Resample, Size
from vitkit.models.model import Model
from vitkit.models.names import default_preprocessing
from vitkit.weights import google, huggingface, timm, torchvision
from vitkit.weights.files import Tensors, write_npz, write_pth, write_safetensors
from vitkit.weights.folder import (
    differing_numerics,
    replacing,
    sidecar,
    to_json,
    why_not_portable,
    write_folder,
    write_json,
)
from vitkit.weights.load import LoadedModel, load_model


class Described(Protocol):
    """A network with what is known of it: what `vitkit.load` returns, or LoadedModel."""

    @property
    def model(self) -> Model: ...

    @property
    def preprocessing(self) -> Preprocessing: ...

    @property
    def class_names(self) -> Sequence[str] | None: ...

    @property
    def several_labels(self) -> bool: ...


Format = Literal["npz", "timm", "hf", "torchvision", "vitkit"]
LAYOUTS: dict[str, tuple[str, ModuleType]] = {
    "npz": ("Google's code", google),
    "timm": ("timm", timm),
    "hf": ("transformers", huggingface),
    "torchvision": ("torchvision", torchvision),
}
# Endings of files that we don't write; without this list they would become folders.
OTHER_ENDINGS = (".pt", ".bin", ".ckpt", ".h5", ".onnx", ".msgpack", ".tflite", ".gguf", ".pkl")
# What writes a single file, by its ending; any other path is a folder.
WRITERS: dict[str, Callable[[Path, Tensors], None]] = {
    ".npz": write_npz,
    ".safetensors": write_safetensors,
    ".pth": write_pth,
}


def convert(
    source: str | Path,
    target: str | Path,
    to: Format = "vitkit",
    *,
    image_size: Size | None = None,
    num_classes: int | None = None,
    channels: int | None = None,
    resample: Resample | None = None,
    accept: str | Sequence[str] = (),
    force: bool = False,
) -> dict[str, Any]:
    """Read MODEL and write it in another format; return what was written."""
    path = Path(target).expanduser()
    check_target(path, to, force)
    accept = (accept,) if isinstance(accept, str) else accept
    loaded = load_model(
        source,
        image_size=image_size,
        num_classes=num_classes,
        channels=channels,
        resample=resample,
        accept=accept,
    )
    save(loaded, path, to, accept=accept, force=force)
    parameters = sum(parameter.numel() for parameter in loaded.model.parameters())
    notes = list(loaded.notes)
    if to == "vitkit" and path.suffix not in WRITERS and (reason := why_not_portable(loaded.model.config)):
        notes.append(f"vitkit alone opens this folder: {reason}")
    return {
        "source": str(source),
        "target": str(path),
        "format": to,
        "model": loaded.name,
        "parameters": parameters,
        "image_size": list(loaded.model.config.size),
        "num_classes": loaded.model.config.num_classes,
        "notes": notes,
    }


def save(
    model: Model | Described,
    path: str | Path,
    to: Format = "vitkit",
    *,
    class_names: Sequence[str] | None = None,
    several_labels: bool | None = None,
    preprocessing: Preprocessing | None = None,
    accept: str | Sequence[str] = (),
    force: bool = False,
) -> None:
    """Write a model as a folder, or as one file with our JSON beside it where the path names a file.

    What `vitkit.load` returned keeps its class names, whether an image may have several, and its preprocessing, unless
    others are given.
    """
    path = Path(path).expanduser()
    accept = (accept,) if isinstance(accept, str) else accept
    check_target(path, to, force)
    loaded = _described(model, class_names, several_labels, preprocessing)
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
    if path.suffix in WRITERS:
        _write_file(path, tensors, loaded)
    elif to == "hf":
        with replacing(path, force=force) as new:
            write_safetensors(new / "model.safetensors", tensors)
            write_json(
                new / "config.json", huggingface.describe(config, loaded.class_names, loaded.several_labels)
            )
            preprocessor = huggingface.describe_preprocessing(loaded.preprocessing)
            write_json(new / "preprocessor_config.json", preprocessor)
    else:
        write_folder(
            path,
            config,
            tensors,
            loaded.preprocessing,
            loaded.class_names,
            loaded.several_labels,
            accept_numerics="numerics" in accept,
            force=force,
        )


def _described(
    model: Model | Described,
    class_names: Sequence[str] | None,
    several_labels: bool | None,
    preprocessing: Preprocessing | None,
) -> LoadedModel:
    if isinstance(model, Model):
        network, names, stated, several = model, class_names, default_preprocessing(model.config), False
    else:
        network, stated, several = model.model, model.preprocessing, model.several_labels
        names = model.class_names if class_names is None else class_names
    if names is not None and len(names) != network.config.num_classes:
        raise InputError(f"{len(names)} class names for {network.config.num_classes} classes")
    return LoadedModel(
        network,
        preprocessing or stated,
        None if names is None else tuple(names),
        "",
        several_labels=several if several_labels is None else several_labels,
    )


def check_target(path: Path, to: Format, force: bool) -> None:
    """Refuse, before anything is read, a target of another kind, or one that is there."""
    if to not in get_args(Format):
        raise InputError(f"unknown format {to!r}; expected one of {', '.join(get_args(Format))}")
    if (path.suffix == ".npz") != (to == "npz"):
        raise InputError(
            f"--to {to} can't write {path.name}: .npz files are --to npz, and the other way round"
        )
    if path.suffix in OTHER_ENDINGS:
        raise InputError(f"{path.name} can't be written: files end in .safetensors, .pth or .npz")
    if to == "hf" and path.suffix in WRITERS:
        raise InputError("--to hf writes a folder: give a path without an ending")
    if to == "torchvision" and path.suffix not in WRITERS:
        raise InputError("--to torchvision writes one file: give a path ending in .pth or .safetensors")
    for there in (path, sidecar(path)) if path.suffix in WRITERS else (path,):
        if there.exists() and not force:
            raise InputError(f"{there} exists; --force overwrites it")


def _write_file(path: Path, tensors: Tensors, loaded: LoadedModel) -> None:
    """Write the weights and their JSON, both whole or neither."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path} can't be written: {error.strerror}") from None
    with written_whole(sidecar(path)) as note, written_whole(path) as weights:
        WRITERS[path.suffix](weights, {name: tensor.contiguous() for name, tensor in tensors.items()})
        write_json(
            note,
            to_json(loaded.model.config, loaded.preprocessing, loaded.class_names, loaded.several_labels),
        )
