"""What `load` returns: a model with its preprocessing and class names, which takes images as they come."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitkit.config import Bounds, override
from vitkit.data.images import ImageSource, find_images, prepare, read_image
from vitkit.data.open import Data
from vitkit.data.sources.source import what_is_wrong
from vitkit.data.threads import Unreadable, map_in_order
from vitkit.data.unreadable import skipped_notes
from vitkit.display import MOST_ROWS, html_table, pictures
from vitkit.errors import InputError
from vitkit.files import read_text
from vitkit.markup import element, join
from vitkit.models.configs import Interpolation, Preprocessing, Resample, Size
from vitkit.models.model import Model
from vitkit.models.names import IMAGENET_MEAN_STD, default_preprocessing, find_name
from vitkit.models.own import OWN, OwnModule, describe, object_name
from vitkit.models.precision import Precision, check_precision
from vitkit.models.record import Record
from vitkit.notes import Note, kind_of
from vitkit.progress import Progress, showing, telling
from vitkit.results import Result
from vitkit.runtimes.folder import is_exported, read_folder
from vitkit.runtimes.model import RuntimeModel
from vitkit.weights.folder import preprocessing_in_words
from vitkit.weights.load import LoadedModel

Images = ImageSource | Iterable[ImageSource]
THUMBNAIL = 96
"Longer side of an image in a notebook, in pixels."
Names = str | os.PathLike[str] | Sequence[str]


@dataclass(frozen=True)
class Prediction(Result):
    """One class and how likely it is."""

    name: str
    index: int
    probability: float


@dataclass(frozen=True)
class PredictedImage(Result):
    """An image file with its likeliest classes, the likeliest first, or with the reason why it can't be read."""

    image: str
    top: tuple[Prediction, ...] | None = field(default=None, metadata={"optional": True})
    error: str | None = field(default=None, metadata={"optional": True})

    _tables = ("top",)

    def _pictures(self) -> list[tuple[str, bytes]]:
        """Return the image, made small, if it is still there."""
        if self.error is not None or not os.path.isfile(self.image):
            return []
        image, file = read_image(Path(self.image)), io.BytesIO()
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        image.save(file, "PNG")
        return [(os.path.basename(self.image), file.getvalue())]


class PredictedImages(list[PredictedImage]):
    """What `predict` returns: a list, which notebooks show as a table with the first images.

    unreadable: the images that can't be read.
    """

    def __init__(self, rows: Iterable[PredictedImage] = (), unreadable: Iterable[Unreadable] = ()) -> None:
        super().__init__(rows)
        self.unreadable = list(unreadable)

    def _repr_html_(self) -> str:
        rows = ""
        for row in self[:MOST_ROWS]:
            best = row.top[0] if row.top else None
            words = f"{best.name}, {best.probability:.1%}" if best else row.error or ""
            cells = (pictures(row._pictures()), row.image, words)
            rows = join([rows, element("tr", *(element("td", cell) for cell in cells))])
        more = f"{len(self) - MOST_ROWS} more images" if len(self) > MOST_ROWS else ""
        return join([element("table", rows), more])


class Predictor:
    """A model ready to use; images are PIL images, paths, file bytes, arrays or tensors, one or many."""

    def __init__(
        self,
        model: Model,
        preprocessing: Preprocessing,
        class_names: Sequence[str],
        name: str = "model",
        notes: Sequence[str] = (),
        device: torch.device | str = "cpu",
        multi_label: bool = False,
        spec: str | None = None,
    ) -> None:
        """spec: the MODEL string that it was loaded by, which results name it by."""
        self.device = torch.device(device)
        self.model = model.to(self.device).eval()
        self._preprocessing = preprocessing
        self._class_names = tuple(class_names)
        self.name, self.spec = name, name if spec is None else spec
        self.notes = tuple(notes)
        self._multi_label = multi_label

    def __repr__(self) -> str:
        size = "x".join(map(str, self.model.config.size))
        classes = f"{len(self.class_names):,} classes" if self.class_names else "no head"
        options = "".join(f", {words}" for words in self.model.options)
        return f"Predictor({self.spec!r}, {classes}, images of {size}, on {self.device}{options})"

    def _repr_html_(self) -> str:
        """Return the model as notebooks show it."""
        runtime = self.model.folder if isinstance(self.model, RuntimeModel) else None
        names = ", ".join(self.class_names[:5]) + (", ..." if len(self.class_names) > 5 else "")
        facts = {
            "model": self.spec,
            "runtime": "" if runtime is None else f"{runtime.runtime}, {runtime.precision}",
            "parameters": "" if runtime else f"{sum(tensor.numel() for tensor in self.model.parameters()):,}",
            "images": preprocessing_in_words(self.preprocessing),
            "classes": f"{len(self.class_names):,}: {names}" if names else "no head",
            "labels": "several an image" if self.multi_label else "",
            "device": str(self.device),
            "inference": ", ".join(self.model.options),
            "notes": "; ".join(self.notes),
        }
        return html_table(self.name, {name: fact for name, fact in facts.items() if fact})

    @property
    def preprocessing(self) -> Preprocessing:
        """What happens to an image, for the size that the model takes now."""
        return replace(self._preprocessing, image_size=self.model.config.size)

    @property
    def class_names(self) -> tuple[str, ...]:
        """A name for each class of the head; a new head has none but 'class 0', 'class 1', ..."""
        num_classes = self.model.config.num_classes
        return self._class_names if len(self._class_names) == num_classes else default_names(num_classes)

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several classes, each with a probability of its own; False with a new head."""
        return self._multi_label and len(self._class_names) == self.model.config.num_classes

    def as_loaded(self) -> LoadedModel:
        """Return the model as the start of a run; one that was passed as a module may have no names of classes."""
        if isinstance(self.model, RuntimeModel):
            raise InputError(
                f"{self.spec} is an exported graph, which can't be trained: give the model folder that it was made from"
            )
        self.model.check_whole(self.spec)
        return LoadedModel(
            self.model,
            self.preprocessing,
            self.class_names if self._class_names else None,
            self.name,
            tuple(Note(line, kind_of(line)) for line in self.notes),
            is_passed=self.spec.startswith(OWN),
        )

    def set_image_size(self, image_size: Size) -> None:
        """Take images of another size from now on: a number, or (height, width)."""
        self.model.set_image_size(image_size)

    def predict(self, images: Images, top: int = 5, batch_size: int = 32) -> list[list[Prediction]]:
        """Return each image's most likely classes, the likeliest first."""
        return [_or_raise(row) for row in self._predictions(_each(images), top, batch_size)]

    def embed(self, images: Images, batch_size: int = 32) -> np.ndarray:
        """Return each image's features, what the head reads: float32 (images, width)."""
        rows = [_or_raise(row) for row in self._outputs(self.features, _each(images), batch_size)]
        channels, size = len(self.preprocessing.mean), self.preprocessing.size
        return torch.stack(rows).numpy() if rows else self.features(torch.empty(0, channels, *size)).numpy()

    def embed_files(
        self, files: Iterable[str | os.PathLike[str]], batch_size: int = 32
    ) -> Iterator[np.ndarray | InputError]:
        """Yield each file's features, in order, or its error where it can't be read."""
        for row in self._outputs(self.features, files, batch_size):
            yield row if isinstance(row, InputError) else row.numpy()

    def predict_files(
        self, files: Iterable[str | os.PathLike[str]], top: int = 5, batch_size: int = 32
    ) -> Iterator[PredictedImage]:
        """Yield each file's most likely classes, in order, or its error where it can't be read."""
        files = list(files)
        for file, row in zip(files, self._predictions(files, top, batch_size), strict=True):
            yield _predicted(file, row)

    def logits(self, batch: Tensor) -> Tensor:
        """Return the logits of prepared images on the CPU."""
        with torch.inference_mode():
            return self.model(batch.to(self.device)).float().cpu()

    def features(self, batch: Tensor) -> Tensor:
        """Return the features of prepared images on the CPU."""
        with torch.inference_mode():
            return self.model.features(batch.to(self.device)).float().cpu()

    def _predictions(
        self, images: Iterable[ImageSource], top: int, batch_size: int
    ) -> Iterator[list[Prediction] | InputError]:
        Bounds(at_least=1).check("top", top)
        if not self.class_names:
            raise InputError(
                f"{self.name} has no classification head: `vit finetune MODEL DATA` adds one; in Python, "
                "embed() returns its features"
            )
        for row in self._outputs(self.logits, images, batch_size):
            yield row if isinstance(row, InputError) else self.likeliest(row, top)

    def outputs(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and the features of prepared images on the CPU, from one pass."""
        record = Record("features")
        with torch.inference_mode():
            logits = self.model(batch.to(self.device), record=record)
        return logits.float().cpu(), record.features.float().cpu()

    def likeliest(self, logits: Tensor, top: int = 5) -> list[Prediction]:
        """Return the most likely classes of one image's logits, the likeliest first."""
        if logits.ndim != 1:
            raise InputError(f"{self.name} has no pool and gives logits for each token, not for the image")
        if not logits.isfinite().all():
            raise InputError(f"{self.name} gives logits that are not finite: its weights are broken")
        probabilities = logits.sigmoid() if self.multi_label else logits.softmax(-1)
        probabilities, indices = probabilities.topk(min(top, len(self.class_names)))
        return [
            Prediction(self.class_names[index], index, probability)
            for index, probability in zip(indices.tolist(), probabilities.tolist(), strict=True)
        ]

    def _outputs(
        self, compute: Callable[[Tensor], Tensor], images: Iterable[ImageSource], batch_size: int
    ) -> Iterator[Tensor | InputError]:
        """Yield one row per image, in order; an image that can't be prepared gives its error."""
        Bounds(at_least=1).check("batch_size", batch_size)
        prepared = map_in_order(self._prepare, images, ahead=batch_size)
        while batch := list(islice(prepared, batch_size)):
            inputs = [image for image in batch if isinstance(image, Tensor)]
            try:
                rows = iter(compute(torch.stack(inputs)) if inputs else ())
            except torch.OutOfMemoryError as error:
                raise InputError(f"out of memory with batch size {batch_size}: give a smaller one") from error
            for image in batch:
                yield next(rows) if isinstance(image, Tensor) else image

    def _prepare(self, image: ImageSource) -> Tensor | InputError:
        try:
            return prepare(image, self.preprocessing)
        except InputError as error:
            return error


AnyModel = str | os.PathLike[str] | Predictor | nn.Module
"What verbs take: a MODEL string, a path, what `load` or `wrap` returned, or what `create_model` returned."


def load(
    spec: AnyModel,
    *,
    device: str = "auto",
    image_size: Size | None = None,
    num_classes: int | None = None,
    channels: int | None = None,
    resample: Resample | None = None,
    names: Names | None = None,
    accept: str | Sequence[str] = (),
    module: nn.Module | None = None,
    precision: Precision | None = None,
    merge: int | None = None,
    calibrate: Data | None = None,
) -> Predictor:
    """Return a model with its preprocessing and class names; `names` is a list, or a file with one name per line.

    A loaded model is returned as it is, and a model from `create_model` is wrapped. So every function that takes a MODEL
    string also takes these.
    module: a module of your own, built like the one that was saved; it gets the folder's weights.
    precision: what the model computes in, by default float32. merge: how many patches each layer merges (ToMe). Both are
    for inference: a model loaded with them can't be trained, exported or saved. calibrate: images on which the scales of
    float8 are measured; a model folder keeps them.
    """
    if isinstance(spec, nn.Module):
        spec = wrap(spec)
    if isinstance(spec, Predictor):
        settings = {
            "image_size": image_size,
            "num_classes": num_classes,
            "channels": channels,
            "resample": resample,
            "names": names,
            "accept": accept or None,
            "device": None if device in ("auto", spec.device.type) else device,
            "module": module,
        }
        computed = {
            "precision": None if precision == spec.model.precision else precision,
            "merge": None if merge == spec.model.merge else merge,
            "calibrate": calibrate,
        }
        if changed := [name for name, value in computed.items() if value is not None]:
            raise InputError(f"{spec.name} is already loaded: give {', '.join(changed)} to vitkit.load")
        if late := [name for name, value in settings.items() if value is not None]:
            first = "vitkit.wrap" if spec.spec.startswith(OWN) else "vitkit.load"
            raise InputError(f"{spec.name} is already loaded: give {', '.join(late)} to {first}")
        return spec
    given = None if names is None else read_names(names)
    if (exported := exported_path(spec)) is not None:
        asked = {
            "num_classes": num_classes,
            "channels": channels,
            "resample": resample,
            "module": module,
            "precision": precision,
            "merge": merge or None,
            "calibrate": calibrate,
        }
        if late := [name for name, value in asked.items() if value is not None]:
            raise InputError(
                f"{spec} is an exported graph, which can't change: give {', '.join(late)} to the model folder that it was "
                "made from, and export again"
            )
        return _load_exported(exported, os.fspath(spec), device, image_size, given)
    from vitkit.weights.load import load_model, weight_file

    chosen = choose_device(device)
    if precision is not None:
        check_precision(precision, chosen.type)
    if calibrate is not None and precision != "float8":
        raise InputError("calibrate is for precision float8: leave it out, or give both")
    spec = spec if isinstance(spec, str) else Path(spec)
    loaded = load_model(
        spec,
        image_size=image_size,
        num_classes=num_classes,
        channels=channels,
        resample=resample,
        accept=accept,
        module=module,
    )
    loaded.model.set_merge(merge or 0)
    largest, notes = None, loaded.notes
    if precision == "float8":
        from vitkit.calibration import find_scales

        found = find_scales(loaded.model, loaded.preprocessing, weight_file(spec), calibrate, chosen)
        largest, notes = found[0], (*notes, found[1])
    loaded.model.set_precision(precision or "float32", largest)
    return Predictor(
        loaded.model,
        loaded.preprocessing,
        _named(given, loaded.class_names, loaded.model.config.num_classes, loaded.name),
        loaded.name,
        notes,
        chosen,
        loaded.multi_label,
        os.fspath(spec),
    )


def _named(
    given: Sequence[str] | None, stored: Sequence[str] | None, num_classes: int, model: str
) -> Sequence[str]:
    """Return the class names that were given, else those stored with the model, else the default ones."""
    if given is not None and len(given) != num_classes:
        raise InputError(f"{len(given)} class names for the {num_classes} classes of {model}")
    return given or stored or default_names(num_classes)


def exported_path(spec: AnyModel) -> Path | None:
    """Return the folder that a MODEL string names if it is an exported one."""
    if not isinstance(spec, str | os.PathLike):
        return None
    path = Path(spec).expanduser()
    try:
        return path if is_exported(path) else None
    except (OSError, ValueError):  # no path at all
        return None


def _load_exported(
    path: Path, spec: str, device: str, image_size: Size | None, names: Sequence[str] | None
) -> Predictor:
    from vitkit.runtimes.session import open_session

    chosen = choose_device(device, spec)
    folder = read_folder(path)
    stored = folder.stored
    model = RuntimeModel(folder, open_session(folder, torch.get_num_threads()))
    if image_size is not None:
        model.set_image_size(image_size)
    name = find_name(stored.config) or path.name
    named = _named(names, stored.class_names, stored.config.num_classes, name)
    return Predictor(
        model, stored.preprocessing, named, name, device=chosen, multi_label=stored.multi_label, spec=spec
    )


def wrap(
    module: nn.Module,
    image_size: Size | None = None,
    *,
    class_names: Names | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    crop_fraction: float | None = None,
    interpolation: Interpolation | None = None,
    multi_label: bool = False,
    name: str | None = None,
) -> Predictor:
    """Return a module of your own as a MODEL, which every function takes: to train, fine-tune, evaluate, probe or save it.

    The module's `forward(images)` returns logits (batch, classes). If it has a method `features(images)` that returns
    (batch, width), it can get a new head, and its frozen features can be measured. It stays on its device; nothing is
    copied.
    image_size: height and width that it takes, or one number; not needed for a model of `create_model`.
    class_names: a list, or a file with one name per line. Without them, training takes as many classes as there are logits.
    mean, std: by default ImageNet's. crop_fraction: share of the resized image that a centre crop keeps; without it the
    whole image is resized.
    name: what runs and results call it, as 'module:NAME'; by default its class and a hash of its shapes.
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"wrap takes a torch.nn.Module, not {type(module).__name__}")
    if isinstance(module, Model):
        if image_size is not None:
            module.set_image_size(image_size)
        model, base = module, default_preprocessing(module.config)
    else:
        if image_size is None:
            raise InputError(
                f"the image size of {type(module).__name__} is unknown: pass vitkit.wrap(net, image_size=224)"
            )
        model = OwnModule(module, describe(module, image_size))
        base = Preprocessing(model.config.size, None, "bilinear", *IMAGENET_MEAN_STD)
    given: dict[str, object] = {
        "mean": None if mean is None else tuple(mean),
        "std": None if std is None else tuple(std),
        "crop_fraction": crop_fraction,
        "interpolation": interpolation,
    }
    preprocessing = override(base, {key: value for key, value in given.items() if value is not None}, "wrap")
    classes = model.config.num_classes
    names = () if class_names is None else read_names(class_names)
    if names and len(names) != classes:
        raise InputError(f"{len(names)} class names for the {classes} classes of {type(module).__name__}")
    if multi_label and not names:
        names = default_names(classes)
    called = name or (find_name(model.config) if isinstance(module, Model) else None) or type(module).__name__
    like = next(module.parameters(), None)
    return Predictor(
        model,
        preprocessing,
        names,
        called,
        device="cpu" if like is None else like.device,
        multi_label=multi_label,
        spec=object_name(module, name),
    )


def predict(
    model: AnyModel,
    images: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    top: int = 5,
    names: Names | None = None,
    device: str = "auto",
    batch_size: int = 32,
    image_size: Size | None = None,
    accept: Sequence[str] = (),
    precision: Precision | None = None,
    merge: int | None = None,
    calibrate: Data | None = None,
    progress: bool | Progress | None = True,
    announce: Callable[[str], None] | None = None,
) -> PredictedImages:
    """Return the likeliest classes of images, given as files and folders.

    precision, merge, calibrate: as for `load`.
    progress: False shows none; a function is called with the number of images done, and with their total.
    announce: called with each note on the model at once; the caller then reports unreadable images itself.
    """
    files = find_images(images)
    predictor = load(
        model,
        device=device,
        image_size=image_size,
        names=names,
        accept=accept,
        precision=precision,
        merge=merge,
        calibrate=calibrate,
    )
    results, tell_note = PredictedImages(), telling(progress, announce)
    for line in predictor.notes:
        tell_note(line)
    is_short = progress is True and len(files) <= batch_size
    with showing(None if is_short else progress, "predicting") as tell:
        for file, row in zip(files, predictor._predictions(files, top, batch_size), strict=True):
            results.append(_predicted(file, row))
            if isinstance(row, InputError):
                results.unreadable.append(Unreadable(os.fspath(file), what_is_wrong(row)))
            if tell:
                tell(len(results), len(files))
    if announce is None:
        for line in skipped_notes(results.unreadable, "`unreadable` of the result"):
            tell_note(line)
    return results


def named_model(model: AnyModel) -> tuple[str | os.PathLike[str] | Predictor, str]:
    """Return a model, wrapped if it is a bare module, and the MODEL string by which configs and results name it."""
    if isinstance(model, nn.Module):
        model = wrap(model)
    return model, model.spec if isinstance(model, Predictor) else os.fspath(model)


def choose_device(device: str, model: AnyModel | None = None) -> torch.device:
    """Return the device that auto, cpu, cuda or mps stands for. An exported folder runs on the CPU alone."""
    if model is not None and exported_path(model) is not None:
        if device not in ("auto", "cpu"):
            raise InputError(
                f"{model} is an exported graph, which runs on the CPU, not on {device!r}: leave out --device"
            )
        return torch.device("cpu")
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if device == "auto":
        return torch.device(next(name for name in available if available[name]))
    if device not in available:
        raise InputError(f"unknown device {device!r}; expected auto, cpu, cuda or mps")
    if not available[device]:
        raise InputError(f"device {device!r} is not available here; `auto` uses what is available")
    return torch.device(device)


def read_names(names: Names) -> tuple[str, ...]:
    """Return class names from a list, or from a text file with one a line."""
    if not isinstance(names, str | os.PathLike):
        return tuple(names)
    lines = read_text(names, "the class names in").split("\n")
    return tuple(lines if lines[-1] else lines[:-1])


def default_names(num_classes: int) -> tuple[str, ...]:
    """Return ImageNet-1k's names for 1,000 classes, else 'class 0', 'class 1', ..."""
    if num_classes == 1000:
        from torchvision.models import ViT_B_16_Weights

        return tuple(ViT_B_16_Weights.IMAGENET1K_V1.meta["categories"])
    return tuple(f"class {index}" for index in range(num_classes))


def _each(images: Images) -> Iterable[Any]:
    """Return the images of one image, of a batch in one array or tensor, or of an iterable."""
    if isinstance(images, np.ndarray | Tensor):
        return images if images.ndim == 4 else [images]
    if isinstance(images, Iterable) and not isinstance(images, str | os.PathLike | bytes | Image.Image):
        return images
    return [images]


def _predicted(file: str | os.PathLike[str], row: list[Prediction] | InputError) -> PredictedImage:
    if isinstance(row, InputError):
        return PredictedImage(os.fspath(file), error=str(row))
    return PredictedImage(os.fspath(file), tuple(row))


def _or_raise(row: Any) -> Any:
    if isinstance(row, InputError):
        raise row
    return row
