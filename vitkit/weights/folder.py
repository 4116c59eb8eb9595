"""The model folder: config.json, model.safetensors and a model card; and the JSON beside a single weight file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.config import from_dict, to_dict
from vitkit.errors import InputError
from vitkit.files import folder_written_whole
from vitkit.models.configs import (
    CompactConfig,
    HybridConfig,
    ModelConfig,
    Preprocessing,
    ResNetConfig,
    ViTConfig,
)
from vitkit.models.names import find_name
from vitkit.weights.files import Document, Numeric, Tensors, write_safetensors

FORMAT_VERSION = 1
# All that a model folder of ours may hold.
FILES = {"config.json", "model.safetensors", "README.md", "preprocessor_config.json"}
FAMILIES: dict[str, type[ModelConfig]] = {
    "vit": ViTConfig,
    "hybrid": HybridConfig,
    "resnet": ResNetConfig,
    "compact": CompactConfig,
}


@dataclass(frozen=True)
class Stored:
    """What our JSON says of a model, and what a model card tells."""

    config: ModelConfig
    preprocessing: Preprocessing
    class_names: tuple[str, ...] | None
    multi_label: bool


def to_json(stored: Stored) -> dict[str, Any]:
    """Return the entry 'vitkit' of config.json, which is also the JSON beside a single file."""
    family = next(name for name, cls in FAMILIES.items() if cls is type(stored.config))
    return {
        "format_version": FORMAT_VERSION,
        "name": find_name(stored.config),
        "family": family,
        "model": to_dict(stored.config),
        "preprocessing": to_dict(stored.preprocessing),
        "class_names": None if stored.class_names is None else list(stored.class_names),
        "multi_label": stored.multi_label,
    }


def read_stored(entry: Any) -> Stored:
    """Return what a 'vitkit' entry says, checked."""
    if not isinstance(entry, dict):
        raise InputError("the entry 'vitkit' is not an object")
    version = entry.get("format_version")
    if version != FORMAT_VERSION:
        raise InputError(f"it has format version {version!r}, this vitkit reads {FORMAT_VERSION}")
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
    """Return where the JSON of a single weight file stands."""
    return path.with_name(path.name + ".json")


def fill_folder(folder: Path, stored: Stored, tensors: Tensors, accept_numerics: bool = False) -> None:
    """Write a model folder's files into one that is there: vitkit opens it, and timm and transformers where timm has the model.

    accept_numerics lets those two open it although they compute some numerics otherwise.
    """
    from vitkit.weights import huggingface, timm  # see `why_not_portable`

    document: dict[str, Any] = {}
    portable = why_not_portable(stored.config, accept_numerics) is None
    if portable:
        document = timm.config_json(stored.config, stored.preprocessing)
        if stored.class_names is not None:
            document["label_names"] = list(stored.class_names)
        if stored.multi_label:  # transformers takes sigmoids then
            document["problem_type"] = huggingface.MULTI_LABEL
    document["vitkit"] = to_json(stored)
    write_safetensors(folder / "model.safetensors", tensors)
    write_json(folder / "config.json", document)
    (folder / "README.md").write_text(model_card(stored, portable), encoding="utf-8")


def why_not_portable(config: ModelConfig, accept_numerics: bool = False) -> str | None:
    """Say why timm, and through it transformers, can't open this model's folder; None where they can."""
    from vitkit.weights import timm  # to read a folder, no other format is needed

    if reason := timm.unsupported(config):
        return f"timm has no such model, {reason}"
    if not accept_numerics and (differing := differing_numerics(config, timm.numerics(config))):
        return f"timm computes another {', '.join(differing)}; the format timm, with numerics accepted, is one for it"
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
    """Yield a hidden folder to fill, which becomes the model folder `target`; refuse to replace anything else."""
    if target.exists() and not force:
        raise InputError(f"{target} exists; --force overwrites it")
    if target.is_file():
        raise InputError(f"{target} is a file; expected a folder to write")
    if target.exists() and (others := {entry.name for entry in target.iterdir()} - FILES):
        raise InputError(
            f"{target} holds {sorted(others)[0]!r} and is no model folder: --force replaces those alone"
        )
    with folder_written_whole(target) as new:
        yield new


def model_card(stored: Stored, portable: bool) -> str:
    """Return the README of a model folder."""
    config, class_names = stored.config, stored.class_names
    name = find_name(config) or "a model of no published size"
    classes = f"{config.num_classes} classes" if config.num_classes else "no head: it gives features"
    labels = (
        f" ({', '.join(class_names[:5])}{', ...' if len(class_names) > 5 else ''})" if class_names else ""
    )
    if stored.multi_label:
        labels += ", of which an image may have several: a sigmoid gives the probability of each"
    has_head = config.num_classes > 0
    task, call = ("image-classification", "predict") if has_head else ("image-feature-extraction", "embed")
    auto = "AutoModelForImageClassification" if has_head else "AutoModel"
    peers = (
        "It also opens with timm (`timm.create_model('local-dir:FOLDER', pretrained=True)`) and with\n"
        f"`transformers.{auto}.from_pretrained('FOLDER')`."
        if portable
        else "timm has no model with this architecture and numerics, so the folder opens with vitkit alone."
    )
    return f"""---
library_name: {"timm" if portable else "vitkit"}
tags: [{task}, vision-transformer, vitkit]
---

# {name}

{classes}{labels}; images of {config.size[0]}x{config.size[1]} pixels, {config.channels} channels.

Preprocessing: {preprocessing_in_words(stored.preprocessing)}.

```python
import vitkit

model = vitkit.load("FOLDER")
model.{call}("photo.jpg")
```

{peers}
"""


def preprocessing_in_words(preprocessing: Preprocessing) -> str:
    """Say what happens to an image."""
    height, width = preprocessing.size
    how = f"{preprocessing.interpolation}, mean {_numbers(preprocessing.mean)}, std {_numbers(preprocessing.std)}"
    if preprocessing.crop_fraction is None:
        return f"the whole image resized to {height}x{width}, {how}"
    rows, columns = (int(side / preprocessing.crop_fraction) for side in (height, width))
    resized = f"shorter side resized to {rows}" if rows == columns else f"resized to cover {rows}x{columns}"
    return f"{resized}, centre crop {height}x{width}, {how}"


def _numbers(values: tuple[float, ...]) -> str:
    return f"{values[0]:g}" if len(set(values)) == 1 else " ".join(f"{value:g}" for value in values)
