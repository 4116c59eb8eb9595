"""Load a trained model: a MODEL string becomes a network, its preprocessing and its class names."""

from __future__ import annotations

import copy
import dataclasses
import fnmatch
import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.config import override
from vitkit.errors import InputError, did_you_mean, first_line
from vitkit.files import is_local
from vitkit.models import build
from vitkit.models.configs import (
    ModelConfig,
    OwnConfig,
    Preprocessing,
    Resample,
    Size,
    TransformerConfig,
    as_size,
    write_size,
)
from vitkit.models.model import Model, first_convolution
from vitkit.models.names import canonical_name, default_preprocessing, find_name, model_config, size_in_name
from vitkit.models.own import OWN, OwnModule
from vitkit.notes import Note, say
from vitkit.weights.files import (
    Document,
    FileError,
    Reading,
    Tensors,
    file_size,
    read_header,
    read_json,
    read_tensors,
)
from vitkit.weights.folder import Stored, preprocessing_in_words, read_stored, sidecar
from vitkit.weights.public import PublicWeights, download, find_timm_weights, find_weights

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
MOST_NAMES = 20
# Limits that a file's tensors don't set: patches (a fixed position table is computed) and pixels (a ResNet takes any image).
MAX_PATCHES = 2**16
MAX_PIXELS = 2**22


@dataclass
class LoadedModel:
    """A network ready for use, with the metadata of its source."""

    model: Model
    preprocessing: Preprocessing
    class_names: tuple[str, ...] | None
    name: str
    notes: tuple[Note, ...] = ()
    "Lines for a verb to print: what was assumed or changed."
    unstated: str | None = None
    "Name of a file that doesn't state its preprocessing, which is then assumed."
    multi_label: bool = False
    "Whether an image may have several classes, each with its own probability."

    is_passed: bool = False
    "Whether the caller passed the module itself; then its classes may have no names."
    assumed: Note | None = None
    "The note about the assumed preprocessing."

    def notes_with(self, preprocessing: Preprocessing) -> tuple[Note, ...]:
        """Return the notes for use with another preprocessing."""
        other = self._assumption(preprocessing)
        return tuple(other if note is self.assumed else note for note in self.notes)

    def note_assumed(self) -> None:
        """If the preprocessing is assumed, put a note about it first."""
        if self.unstated is not None:
            self.assumed = self._assumption(self.preprocessing)
            self.notes = (self.assumed, *self.notes)

    def _assumption(self, preprocessing: Preprocessing) -> Note:
        words = preprocessing_in_words(preprocessing)
        return Note(f"{self.unstated} doesn't state its preprocessing; assuming: {words}", "model")


@dataclass
class FoundModel:
    """What a MODEL string refers to: a path with weights (None if untrained), and the model's name, if it is given."""

    path: Path | None
    named: str | None = None
    public: PublicWeights | None = None


def load_model(
    spec: str | os.PathLike[str],
    *,
    image_size: Size | None = None,
    num_classes: int | None = None,
    channels: int | None = None,
    resample: Resample | None = None,
    accept: str | Sequence[str] = (),
    announce: Callable[[str], None] | None = None,
    module: nn.Module | None = None,
) -> LoadedModel:
    """Return the model that a MODEL string refers to, on the CPU, in evaluation mode.

    image_size: resample positions to this size.
    num_classes: replace a head of another size with a new, untrained one.
    channels: adapt the first convolution to this number of channels.
    resample: how to resample positions. Default: the method of the weights' source.
    accept: names or patterns of tensors that may be unused or missing.
    module: the user's own module, into which the weights of its folder are loaded.
    """
    accept = (accept,) if isinstance(accept, str) else accept
    source = find_model(spec, announce)
    if source.path is None:
        assert source.named is not None
        if module is not None:
            raise InputError(
                f"{source.named} is one of vitkit's models, not a module of your own: remove the argument module"
            )
        asked = {"image_size": image_size, "num_classes": num_classes, "channels": channels}
        config = model_config(source.named, **{k: v for k, v in asked.items() if v is not None})
        words = f"{source.named} is untrained: its weights are random, so its predictions are meaningless"
        note = Note(words, "untrained")
        return LoadedModel(build(config).eval(), default_preprocessing(config), None, source.named, (note,))
    named = model_config(source.named) if source.named else None
    if image_size is None and source.named:
        image_size = size_in_name(source.named)
    loaded = read_model(source.path, named, image_size, accept, source.public, module)
    notes, old = list(loaded.notes), loaded.model.config
    if channels is not None and channels != loaded.model.config.channels:
        adapt_channels(loaded, channels)
    if num_classes is not None and num_classes != loaded.model.config.num_classes:
        loaded.model.reset_head(num_classes)
        loaded.class_names, loaded.multi_label = None, False
        if num_classes:
            text = f"the head is new and untrained: {num_classes} classes instead of {old.num_classes}"
            notes.append(Note(text, "untrained"))
    if resample is not None:
        loaded.model.config = override(loaded.model.config, {"resample": resample}, "model")
    loaded.notes = tuple(notes)
    resample_to(loaded, old.size if image_size is None else image_size)
    loaded.note_assumed()
    loaded.model.eval()
    return loaded


def own_module(loaded: LoadedModel) -> nn.Module | None:
    """Return a copy of the user's own module, to load other weights into; None for one of vitkit's models."""
    return copy.deepcopy(loaded.model.module) if isinstance(loaded.model, OwnModule) else None


def resample_to(loaded: LoadedModel, image_size: Size) -> None:
    """Set the image size of a model, and add a note if it changes."""
    old = loaded.model.config.size
    if as_size(image_size) != old:
        loaded.model.set_image_size(image_size)
        sizes = [f"{height}x{width}" for height, width in (old, loaded.model.config.size)]
        loaded.notes += (Note(f"image size changed from {sizes[0]} to {sizes[1]}", "model"),)
    loaded.preprocessing = dataclasses.replace(loaded.preprocessing, image_size=loaded.model.config.size)


def find_model(spec: str | os.PathLike[str], announce: Callable[[str], None] | None = None) -> FoundModel:
    """Return what a MODEL string refers to. An existing path wins; otherwise the string is split at the first @."""
    text, announce = str(spec), announce or say
    if text.startswith(OWN):
        raise InputError(
            f"{text} is a model that was passed as an object: pass it again, as in vitkit.train(RUN, "
            "model=vitkit.wrap(module, ...))"
        )
    if text.startswith("hf-hub:"):
        return FoundModel(download(text.removeprefix("hf-hub:"), announce))
    if path := _existing(text):
        return FoundModel(_model_folder(path))
    if "@" in text:
        name, _, rest = text.partition("@")
        run = _existing(name)
        if run is not None and run.is_dir():
            if rest != "last":
                raise InputError(f"{text!r}: a run has only its best model (no @) and @last, not @{rest}")
            first = (
                run / "seed-0" / "run" / "model-last"
            )  # of a fine-tuning run, whose model is its first seed's
            return FoundModel(_model_folder(first if first.is_dir() else run / "model-last"))
        _check_name(name)
        if path := _existing(rest):
            return FoundModel(_model_folder(path), name)
        if _looks_like_path(rest):
            raise InputError(f"no such file: {rest}")
        return _public(find_weights(name, rest), announce)
    if row := find_timm_weights(text):
        return _public(row, announce)
    if _looks_like_path(text):
        raise _absent(text)
    _check_name(text)
    return FoundModel(None, text)


def weight_file(spec: str | os.PathLike[str]) -> Path | None:
    """Return the local weight file that a MODEL string refers to, or None."""
    path = find_model(spec).path if paths_in(spec) else None
    return None if path is None else _open(path)[0]


def paths_in(spec: str | os.PathLike[str]) -> list[Path]:
    """Return the existing paths among a MODEL string and the two sides of its first @."""
    found = (_existing(part) for part in (str(spec), *str(spec).split("@", 1)))
    return [path for path in found if path]


def _check_name(name: str) -> None:
    """Raise InputError unless this is the name of a model."""
    try:
        canonical_name(name)
    except InputError:
        if "/" in name and Path(name).parent.is_dir():  # as in runs/NAME
            raise _absent(name) from None
        raise


def _absent(text: str) -> InputError:
    """Return the error for a missing path, with similar names in its folder."""
    parent = Path(text).parent
    folder = _existing(str(parent))
    names = [path.name for path in folder.glob("*")] if folder else []
    prefix = f"{parent}/".removeprefix("./")
    return InputError(f"no such file or folder: {text}{did_you_mean(Path(text).name, names, prefix)}")


def read_model(
    path: Path,
    named: ModelConfig | None = None,
    image_size: Size | None = None,
    accept: Sequence[str] = (),
    public: PublicWeights | None = None,
    module: nn.Module | None = None,
) -> LoadedModel:
    """Return the model in a weight file or folder, whose format is recognised by its content.

    module: the user's own module; a folder has only its weights.
    """
    file, extra, stored = _open(path)
    if module is not None and not (stored and isinstance(stored.config, OwnConfig)):
        raise InputError(
            f"{path} holds one of vitkit's models, not a module of your own: remove the argument module"
        )
    with _blaming(file):
        is_own = stored is not None and isinstance(stored.config, OwnConfig)
        header = read_header(file, unwrap=not is_own)
        # Our own folders need no translation, so the other formats are not imported.
        translate = Reading if stored and path.is_dir() else _find_reader(header, extra)
        reading = translate(header)
        if stored:
            config, preprocessing = stored.config, stored.preprocessing
            class_names, several = stored.class_names, stored.multi_label
        else:
            from vitkit.weights.infer import infer_config

            config = infer_config(reading.tensors, reading.settings, named, image_size)
            preprocessing = _preprocessing(config, reading, public)
            class_names, several = reading.class_names, reading.multi_label
        if named is not None:
            from vitkit.weights.infer import check_name

            check_name(config, named)
        if image_size is None and math.prod(config.size) > MAX_PIXELS:
            raise InputError(
                f"it is made for images of {config.size[0]}x{config.size[1]} pixels, which take a lot of memory; "
                f"if you trust it, pass the size: --image-size {write_size(config.size)} (image_size in Python)"
            )
        if isinstance(config, OwnConfig) and module is not None:
            own = OwnModule(module, config)
            missing = account(config, reading, accept, own)
            model = fill(config, translate(read_tensors(file, unwrap=False)).tensors, missing, own)
        else:
            missing = account(config, reading, accept)
            model = fill(config, translate(read_tensors(file)).tensors, missing)
        if len(preprocessing.mean) != config.channels:
            channels = len(preprocessing.mean)
            raise InputError(f"mean and std have {channels} channels, but the model has {config.channels}")
    notes: tuple[Note, ...] = ()
    if not config.num_classes:
        class_names = None
    if class_names is not None and len(class_names) != config.num_classes:
        raise InputError(f"{path} names {len(class_names)} classes, but its head has {config.num_classes}")
    if missing:
        notes = (Note(f"not in {file.name}, so randomly initialised: {_names(missing)}", "untrained"),)
    unstated = path.name if stored is None and path.is_file() and public is None else None
    name = find_name(config) or _own_name(path)
    return LoadedModel(model, preprocessing, class_names, name, notes, unstated, several)


def account(
    config: ModelConfig, reading: Reading, accept: Sequence[str], own: Model | None = None
) -> list[str]:
    """Compare a file's tensors with the model's; return the accepted missing ones, raise InputError on any other difference.

    own: the model itself, if its config doesn't say how to build it.
    """
    found = reading.tensors
    _check_extent(config, len(found))
    with torch.device("meta"):
        expected = {name: tensor.shape for name, tensor in (own or build(config)).state_dict().items()}
    for name, shape in expected.items():
        if name in found and found[name].shape != shape:
            raise InputError(f"{name} has shape {tuple(found[name].shape)}; the model expects {tuple(shape)}")

    def refused(names: list[str]) -> list[str]:
        return [name for name in names if not any(fnmatch.fnmatchcase(name, pattern) for pattern in accept)]

    unused = [name for name in found if name not in expected] + reading.unused
    missing = [name for name in expected if name not in found]
    problems = []
    if names := refused(unused):
        problems.append(f"unused tensors ({len(names)}): {_names(names)}")
    if names := refused(missing):
        problems.append(f"missing tensors ({len(names)}): {_names(names)}")
    if problems:
        problems.append(
            "to load anyway, accept them by name or pattern: --accept 'NAME*' (accept=[...] in Python)"
        )
        raise InputError("; ".join(problems))
    return missing


def _check_extent(config: ModelConfig, num_tensors: int) -> None:
    """Refuse a model that would take long or a lot of memory to build although its file is small."""
    stages = (*getattr(config, "units", ()), *getattr(config, "backbone_units", ()))
    layers = getattr(config, "depth", 0) + getattr(config, "convolutions", 0) + sum(stages)
    if layers > num_tensors:
        raise InputError(
            f"its config says {layers} layers (depth, units), but the file holds only {num_tensors} tensors"
        )
    if isinstance(config, TransformerConfig) and (patches := math.prod(config.grid)) > MAX_PATCHES:
        size = f"{config.size[0]}x{config.size[1]}"
        raise InputError(f"images of {size} pixels have {patches:,} patches; the limit is {MAX_PATCHES:,}")


def fill(config: ModelConfig, tensors: Tensors, missing: Sequence[str], own: Model | None = None) -> Model:
    """Return a model with these weights; missing ones are randomly initialised, or unchanged in the user's own module."""
    with torch.device("cpu" if missing else "meta"):
        model = own or build(config)
    wanted = model.state_dict()
    state = {name: tensors[name].contiguous() for name in wanted if name in tensors}
    for name, tensor in state.items():
        if wanted[name].is_floating_point() and not tensor.is_floating_point():
            raise InputError(f"{name} holds {str(tensor.dtype).removeprefix('torch.')}; expected floats")
    model.load_state_dict(state, strict=not missing, assign=not missing and own is None)
    model.reset_tables()
    return model


def adapt_channels(loaded: LoadedModel, channels: int) -> None:
    """Adapt the first convolution to another number of channels: sum its kernels for one channel, else repeat them."""
    if isinstance(loaded.model, OwnModule):
        raise InputError(f"{loaded.name} is a module of your own: build it for {channels} channels")
    old = loaded.model.config.channels
    config = override(loaded.model.config, {"channels": channels}, "model")
    state = loaded.model.state_dict()
    name = f"{first_convolution(loaded.model)}.weight"
    state[name] = _adapt_kernel(state[name], channels)
    loaded.model = fill(config, state, ())

    def adapt(values: tuple[float, ...]) -> tuple[float, ...]:
        if channels == 1:
            return (sum(values) / old,)
        return tuple(values[index % old] for index in range(channels))

    loaded.preprocessing = dataclasses.replace(
        loaded.preprocessing, mean=adapt(loaded.preprocessing.mean), std=adapt(loaded.preprocessing.std)
    )


def _adapt_kernel(kernel: Tensor, channels: int) -> Tensor:
    old = kernel.shape[1]
    if channels == 1:
        return kernel.sum(dim=1, keepdim=True)
    return kernel[:, [index % old for index in range(channels)]] * (old / channels)


def _open(path: Path) -> tuple[Path, Document | None, Stored | None]:
    """Return a model's weight file, the JSON of other libraries, and our own JSON."""
    if not path.is_dir():
        file_size(path)
        note = sidecar(path)
        return path, None, _read_stored(read_json(note), note) if note.is_file() else None
    config = path / "config.json"
    if not config.is_file():
        if (path / "run.json").is_file() and (path / "config.yaml").is_file():
            last = f"; {path}@last has its latest weights" if (path / "model-last").is_dir() else ""
            raise InputError(f"{path} is a run without a model yet: `vit train {path}` resumes it{last}")
        raise InputError(f"{path} is not a model folder: it has no config.json")
    document = read_json(config)
    if "export" in document:
        raise InputError(
            f"{path} is an exported graph, for predict, eval and frozen features; here give the model that it was made from"
        )
    if "vitkit" in document:
        file_size(path / "model.safetensors")
        return path / "model.safetensors", None, _read_stored(document["vitkit"], config)
    preprocessor = path / "preprocessor_config.json"
    if preprocessor.is_file():
        document["preprocessor"] = read_json(preprocessor)
    file = next((path / name for name in WEIGHT_FILES if (path / name).is_file()), None)
    if file is None:
        raise InputError(f"{path} has no weights: expected {' or '.join(WEIGHT_FILES)}")
    return file, document, None


def _read_stored(entry: Any, path: Path) -> Stored:
    with _blaming(path):
        return read_stored(entry)


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Name the file in errors. Exceptions that its shapes and values cause in our code become errors of the file."""
    try:
        yield
    except FileError:
        raise
    except InputError as error:
        raise FileError(f"{path}: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        cause = first_line(error)
        raise FileError(f"{path}: unexpected tensors or settings ({cause})") from error


def _find_reader(header: Tensors, extra: Document | None) -> Callable[[Tensors], Reading]:
    """Return the reader for a file with these tensors, whose names identify the layout."""
    from vitkit.weights.formats import LAYOUTS

    for layout in LAYOUTS:
        if layout.matches(header):
            return functools.partial(layout.read, extra=extra)
    shown = _names(sorted(header)[:5])
    raise InputError(
        f"its tensors have no known layout ({shown}); expected Google's, timm's, transformers', torchvision's or Compact-Transformers'"
    )


def _preprocessing(config: ModelConfig, reading: Reading, public: PublicWeights | None) -> Preprocessing:
    stated = dict(reading.preprocessing)
    if public is not None:
        for name in ("crop_fraction", "interpolation", "mean", "std"):
            stated[name] = getattr(public, name)
    if config.channels != 3:
        for name in ("mean", "std"):
            values = stated.get(name)
            if isinstance(values, Sized) and len(values) != config.channels:
                del stated[name]
    return override(default_preprocessing(config), stated, "preprocessing")


def _existing(text: str) -> Path | None:
    """Return a text as a path if that exists, or None (also if the text can't be a path)."""
    try:
        path = Path(text).expanduser()
        return path if text and path.exists() else None
    except (OSError, RuntimeError, ValueError):
        return None


def _own_name(path: Path) -> str:
    """Return a name for a model without one: its file or folder, or the run that the folder belongs to."""
    if path.name not in ("model", "model-last"):
        return path.stem
    run = path.resolve().parent
    if run.name == "run":  # photos/seed-0/run
        return f"{run.parent.parent.name} {run.parent.name}"
    return run.name


def _model_folder(path: Path) -> Path:
    """Return the model folder inside a run, or the path itself."""
    if path.is_dir() and not (path / "config.json").exists() and (path / "model" / "config.json").exists():
        return path / "model"
    if not path.exists():
        raise InputError(f"no such file or folder: {path}")
    return path


def _public(row: PublicWeights, announce: Callable[[str], None]) -> FoundModel:
    folder = download(row.hub_id, announce, row.size_bytes(), row.licence)
    return FoundModel(folder, row.name, row)


def _looks_like_path(text: str) -> bool:
    endings = (".npz", ".safetensors", ".pth", ".pt", ".bin")
    return is_local(text) or Path(text).suffix in endings


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
