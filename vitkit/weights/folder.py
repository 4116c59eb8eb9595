"""The model folder: config.json, model.safetensors and a model card. Also the JSON next to a single weight file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.config import from_dict, to_dict
from vitkit.errors import InputError
from vitkit.files import check_output, folder_written_whole, write_file, written_whole
from vitkit.models.configs import (
    CompactConfig,
    HybridConfig,
    ModelConfig,
    OwnConfig,
    Preprocessing,
    ResNetConfig,
    ViTConfig,
)
from vitkit.models.names import find_name
from vitkit.notes import visible
from vitkit.weights.files import Document, Numeric, Tensors, write_safetensors
from vitkit.weights.public import known_licence

FORMAT_VERSION = 1
CARD = "README.md"
# All files that our model folders may hold.
FILES = {"config.json", "model.safetensors", CARD, "preprocessor_config.json", "float8.json"}
FAMILIES: dict[str, type[ModelConfig]] = {
    "vit": ViTConfig,
    "hybrid": HybridConfig,
    "resnet": ResNetConfig,
    "compact": CompactConfig,
    "own": OwnConfig,
}


@dataclass(frozen=True)
class Origin:
    """The origin of a model, for its card; unknown fields are empty."""

    start: str = ""
    "The MODEL that the weights are from, or that training started from; empty for training from scratch."
    data: str = ""
    "The data it was trained on."
    images: int = 0
    result: str = ""
    "Its evaluation in words: 'accuracy 97.33% on ./photos:test, 30 images'."
    command: str = ""


@dataclass(frozen=True)
class Stored:
    """A model's description, as stored in our JSON and shown on the model card."""

    config: ModelConfig
    preprocessing: Preprocessing
    class_names: tuple[str, ...] | None
    multi_label: bool
    calibration: Document | None = None
    "About the temperature that the head is divided by: what it was fitted on, and its effect. For people; never read back."
    origin: Origin = Origin()
    "For the model card; never read back."


def to_json(stored: Stored) -> dict[str, object]:
    """Return the entry 'vitkit' of config.json, which is also the JSON next to a single file."""
    family = next(name for name, cls in FAMILIES.items() if cls is type(stored.config))
    return {
        "format_version": FORMAT_VERSION,
        "name": find_name(stored.config),
        "family": family,
        "model": to_dict(stored.config),
        "preprocessing": to_dict(stored.preprocessing),
        "class_names": None if stored.class_names is None else list(stored.class_names),
        "multi_label": stored.multi_label,
        **({} if stored.calibration is None else {"calibration": stored.calibration}),
    }


def read_stored(entry: Any) -> Stored:
    """Read and check a 'vitkit' entry."""
    if not isinstance(entry, dict):
        raise InputError("the entry 'vitkit' is not an object")
    version = entry.get("format_version")
    if version != FORMAT_VERSION:
        raise InputError(f"its format version is {version!r}; this version of vitkit reads {FORMAT_VERSION}")
    family = FAMILIES.get(str(entry.get("family")))
    if family is None:
        raise InputError(f"unknown family {entry.get('family')!r}; expected one of {', '.join(FAMILIES)}")
    parts: dict[str, Document] = {}
    for part in ("model", "preprocessing"):
        if not isinstance(entry.get(part), dict):
            raise InputError(f"{part!r} is missing or not an object")
        parts[part] = entry[part]
    names = entry.get("class_names")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise InputError("'class_names' is not a list of texts")
    multi_label = entry.get("multi_label", entry.get("several_labels", False))  # the name before 0.1.0
    if not isinstance(multi_label, bool):
        raise InputError("'multi_label' is neither true nor false")
    return Stored(
        from_dict(family, parts["model"], "model"),
        from_dict(Preprocessing, parts["preprocessing"], "preprocessing"),
        None if names is None else tuple(names),
        multi_label,
    )


def sidecar(path: Path) -> Path:
    """Return the path of the JSON that belongs to a single weight file."""
    return path.with_name(path.name + ".json")


def fill_folder(folder: Path, stored: Stored, tensors: Tensors, accept_numerics: bool = False) -> None:
    """Write a model's files into an existing folder, which timm and transformers open too if timm has the model.

    accept_numerics: let timm and transformers open it even if some of their numerics differ.
    """
    write_safetensors(folder / "model.safetensors", tensors)
    describe_folder(folder, stored, accept_numerics)


def describe_folder(folder: Path, stored: Stored, accept_numerics: bool = False) -> None:
    """Write a model folder's config and card, each atomically."""
    from vitkit.weights import huggingface, timm  # see `why_not_portable`

    document: dict[str, object] = {}
    portable = why_not_portable(stored.config, accept_numerics) is None
    if portable:
        document = timm.config_json(stored.config, stored.preprocessing)
        if stored.class_names is not None:
            document["label_names"] = list(stored.class_names)
        if stored.multi_label:  # makes transformers use sigmoids
            document["problem_type"] = huggingface.MULTI_LABEL
    document["vitkit"] = to_json(stored)
    with written_whole(folder / "config.json") as part:
        write_json(part, document)
    write_file(folder / CARD, model_card(stored, portable))


def why_not_portable(config: ModelConfig, accept_numerics: bool = False) -> str | None:
    """Return why timm, and so transformers, can't open this model's folder, or None if they can."""
    if isinstance(config, OwnConfig):
        return f"{config.module} is a module of your own"
    from vitkit.weights import timm  # not needed to read a folder

    if reason := timm.unsupported(config):
        return f"timm has no such model ({reason})"
    if not accept_numerics and (differing := differing_numerics(config, timm.numerics(config))):
        return f"timm uses another {', '.join(differing)}; to write it for timm anyway, use --to timm --accept numerics"
    return None


def differing_numerics(
    config: ModelConfig, theirs: Mapping[str, Numeric]
) -> dict[str, tuple[Numeric, Numeric]]:
    """Return the numerics in which a peer differs from the config: name -> (ours, theirs)."""
    ours: dict[str, Numeric] = {name: getattr(config, name) for name in theirs}
    return {name: (ours[name], theirs[name]) for name in theirs if ours[name] != theirs[name]}


def write_json(path: Path, document: Document) -> None:
    path.write_text(
        json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
    )


@contextmanager
def replacing(target: Path, *, force: bool) -> Iterator[Path]:
    """Yield a hidden folder to fill, which becomes `target`. Only a model folder is ever replaced."""
    check_output(target, FILES, force=force, alone=True)
    with folder_written_whole(target) as new:
        yield new


def model_card(stored: Stored, portable: bool) -> str:
    """Return the README of a model folder."""
    config, class_names = stored.config, stored.class_names
    own = config.module if isinstance(config, OwnConfig) else None
    name = own or find_name(config) or "a model of an unpublished size"
    classes = f"{config.num_classes} classes" if config.num_classes else "no head: it returns features"
    labels = (
        f" ({', '.join(class_names[:5])}{', ...' if len(class_names) > 5 else ''})" if class_names else ""
    )
    if stored.multi_label:
        labels += ", multi-label (a sigmoid gives the probability of each)"
    has_head = config.num_classes > 0
    task, call = ("image-classification", "predict") if has_head else ("image-feature-extraction", "embed")
    auto = "AutoModelForImageClassification" if has_head else "AutoModel"
    peers = (
        "It also opens with timm (`timm.create_model('local-dir:FOLDER', pretrained=True)`) and with\n"
        f"`transformers.{auto}.from_pretrained('FOLDER')`."
        if portable
        else "The module itself is not in this folder, only its weights."
        if own
        else "timm has no model with this architecture and numerics, so only vitkit opens this folder."
    )
    return f"""---
library_name: {"timm" if portable else "vitkit"}
tags: [{task}, vision-transformer, vitkit]
---

# {name}

{classes}{labels}; images of {config.size[0]}x{config.size[1]} pixels, {config.channels} channels.

{origin_in_words(stored.origin)}

Preprocessing: {preprocessing_in_words(stored.preprocessing)}.
{calibration_in_words(stored.calibration)}
```python
import vitkit

model = vitkit.load("FOLDER"{f", module={own}(...)" if own else ""})
model.{call}("photo.jpg")
```

{peers}
"""


def calibration_in_words(calibration: Document | None) -> str:
    """Return the card's paragraph on calibration, or '' for a model without a fitted temperature."""
    if calibration is None:
        return ""
    before, after = (calibration[f"error_{when}"] for when in ("before", "after"))
    told = ""
    if before is not None and after is not None:
        told = f" The calibration error on {calibration['measured_on']} is {after:.1%}; without it, {before:.1%}."
    return (
        f"\nCalibration: the head's weights are divided by a temperature of {calibration['temperature']:.3g}, which was "
        f"fitted on {calibration['fitted_on']} ({calibration['images']:,} images).{told}\n"
    )


def origin_in_words(origin: Origin) -> str:
    """Return the card's list on a model's origin: its data, its start, its result and its command."""
    import vitkit

    data, start, result, command = (
        visible(text, keep="") for text in (origin.data, origin.start, origin.result, origin.command)
    )
    licence = f" (licence: {known})" if (known := known_licence(origin.start)) else ""
    lines = []
    if data:
        begin = f"starting from `{start}`{licence}" if start else "from scratch"
        lines.append(f"- Trained on `{data}`, {origin.images:,} images, {begin}.")
    elif start:
        lines.append(f"- Weights of `{start}`{licence}.")
    if result:
        lines.append(f"- Measured: {result}.")
    is_ours = command.split(" ")[0] in ("vit", "torchrun")  # not that of a notebook
    lines.append(f"- Made with vitkit {vitkit.__version__}{f': `{command}`' if is_ours else '.'}")
    return "\n".join(lines)


def preprocessing_in_words(preprocessing: Preprocessing) -> str:
    """Return a description of the preprocessing."""
    height, width = preprocessing.size
    how = f"{preprocessing.interpolation}, mean {_numbers(preprocessing.mean)}, std {_numbers(preprocessing.std)}"
    if preprocessing.crop_fraction is None:
        return f"the whole image resized to {height}x{width}, {how}"
    rows, columns = (int(side / preprocessing.crop_fraction) for side in (height, width))
    resized = f"shorter side resized to {rows}" if rows == columns else f"resized to cover {rows}x{columns}"
    return f"{resized}, centre crop {height}x{width}, {how}"


def _numbers(values: tuple[float, ...]) -> str:
    return f"{values[0]:g}" if len(set(values)) == 1 else " ".join(f"{value:g}" for value in values)
