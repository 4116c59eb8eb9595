"""Convert weights between formats: `vit convert SRC DST [--to FORMAT]`, and `vitkit.save`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from vitkit.errors import InputError
from vitkit.files import check_output, written_whole
from vitkit.models.configs import OwnConfig, Preprocessing, Resample, Size
from vitkit.models.model import Model
from vitkit.models.names import default_preprocessing
from vitkit.notes import Note
from vitkit.results import Result
from vitkit.weights import Format, huggingface
from vitkit.weights.files import Tensors, write_safetensors
from vitkit.weights.folder import (
    FILES,
    Origin,
    Stored,
    differing_numerics,
    fill_folder,
    replacing,
    sidecar,
    to_json,
    why_not_portable,
    write_json,
)
from vitkit.weights.formats import FORMATS, WRITERS, format_of
from vitkit.weights.load import load_model


class NoSuchModel(InputError):
    """A model that another library doesn't have, and the reason."""

    def __init__(self, library: str, reason: str) -> None:
        super().__init__(f"{library} has no such model: {reason}")
        self.reason = reason


class Described(Protocol):
    """A network with its metadata: a model from `vitkit.load`, or a LoadedModel."""

    @property
    def model(self) -> Model: ...

    @property
    def preprocessing(self) -> Preprocessing: ...

    @property
    def class_names(self) -> Sequence[str] | None: ...

    @property
    def multi_label(self) -> bool: ...


@dataclass(frozen=True)
class Converted(Result):
    """The result of `convert`."""

    source: str
    target: str
    to: Format = field(metadata={"json": "format"})
    model: str
    parameters: int
    image_size: tuple[int, int]
    num_classes: int
    notes: tuple[Note, ...]


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    to: Format | None = None,
    *,
    image_size: Size | None = None,
    num_classes: int | None = None,
    channels: int | None = None,
    resample: Resample | None = None,
    accept: str | Sequence[str] = (),
    force: bool = False,
) -> Converted:
    """Read MODEL and write it in another format; the default is the one that the target's ending implies."""
    path = Path(target).expanduser()
    to = check_target(path, to, force)
    accept = (accept,) if isinstance(accept, str) else accept
    loaded = load_model(
        source,
        image_size=image_size,
        num_classes=num_classes,
        channels=channels,
        resample=resample,
        accept=accept,
    )
    save(loaded, path, to, origin=Origin(start=str(source)), accept=accept, force=force)
    notes = loaded.notes
    if to == "vitkit" and path.suffix not in WRITERS and (reason := why_not_portable(loaded.model.config)):
        notes += (Note(f"only vitkit opens this folder: {reason}", "model"),)
    config = loaded.model.config
    parameters = sum(parameter.numel() for parameter in loaded.model.parameters())
    return Converted(
        str(source), str(path), to, loaded.name, parameters, config.size, config.num_classes, notes
    )


def save(
    model: Model | Described,
    path: str | os.PathLike[str],
    to: Format | None = None,
    *,
    class_names: Sequence[str] | None = None,
    multi_label: bool | None = None,
    preprocessing: Preprocessing | None = None,
    origin: Origin | None = None,
    accept: str | Sequence[str] = (),
    force: bool = False,
) -> None:
    """Write a model as a folder or, if the path names a file, as one file with vitkit's JSON next to it.

    to: the format; the default is the one that the path's ending implies (.npz is Google's).
    class_names, multi_label, preprocessing: replace those of a model from `vitkit.load`.
    origin: what the folder's model card says about the model's origin; the default is the MODEL that was loaded.
    accept: 'numerics' writes a model for a library even if some of that library's numerics differ.
    """
    path = Path(path).expanduser()
    accept = (accept,) if isinstance(accept, str) else accept
    to = check_target(path, to, force)
    network = model if isinstance(model, Model) else model.model
    network.check_whole(getattr(model, "spec", "the model"))
    stored = _describe(model, class_names, multi_label, preprocessing)
    stored = replace(stored, origin=Origin(start=getattr(model, "spec", "")) if origin is None else origin)
    config = stored.config
    tensors = {name: tensor.detach().cpu() for name, tensor in network.state_dict().items()}
    if isinstance(config, OwnConfig):
        if to != "vitkit":
            raise InputError(f"{config.module} is a module of your own, which {FORMATS[to].peer} can't open")
        tensors = {
            name: tensor.clone() for name, tensor in tensors.items()
        }  # tied tensors can't share memory
    if layout := FORMATS[to].layout:
        peer = FORMATS[to].peer
        if reason := layout.unsupported(config):
            raise NoSuchModel(peer, reason)
        differing = differing_numerics(config, layout.numerics(config))
        if differing and "numerics" not in accept:
            listed = ", ".join(
                f"{name} {theirs} instead of {ours}" for name, (ours, theirs) in differing.items()
            )
            raise InputError(
                f"{peer} uses {listed}, so its logits would differ; to write it anyway, use --accept numerics"
            )
        tensors = layout.write(config, tensors)
    if path.suffix in WRITERS:
        _write_file(path, tensors, stored)
        return
    with replacing(path, force=force) as new:
        if to == "hf":
            write_safetensors(new / "model.safetensors", tensors)
            document = huggingface.config_json(config, stored.class_names, stored.multi_label)
            write_json(new / "config.json", document)
            preprocessor = huggingface.preprocessor_json(stored.preprocessing)
            write_json(new / "preprocessor_config.json", preprocessor)
        else:
            fill_folder(new, stored, tensors, accept_numerics="numerics" in accept)


def _describe(
    model: Model | Described,
    class_names: Sequence[str] | None,
    multi_label: bool | None,
    preprocessing: Preprocessing | None,
) -> Stored:
    if isinstance(model, Model):
        config, names, stated, several = model.config, class_names, default_preprocessing(model.config), False
    else:
        config, stated, several = model.model.config, model.preprocessing, model.multi_label
        names = model.class_names if class_names is None else class_names
    if names is not None and len(names) != config.num_classes:
        raise InputError(f"{len(names)} class names for {config.num_classes} classes")
    return Stored(
        config,
        preprocessing or stated,
        None if names is None else tuple(names),
        several if multi_label is None else multi_label,
    )


def check_target(path: Path, to: Format | None, force: bool) -> Format:
    """Return the format to write. Refuse a target that doesn't fit it or already exists, before anything is read."""
    to = format_of(path, to)
    if path.suffix in WRITERS:
        for file in (path, sidecar(path)):
            check_output(file, force=force)
    else:
        check_output(path, FILES, force=force, alone=True)
    return to


def _write_file(path: Path, tensors: Tensors, stored: Stored) -> None:
    """Write the weights and their JSON: both or neither."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path} can't be written: {error.strerror}") from None
    with written_whole(sidecar(path)) as note, written_whole(path) as weights:
        WRITERS[path.suffix](weights, {name: tensor.contiguous() for name, tensor in tensors.items()})
        write_json(note, to_json(stored))
