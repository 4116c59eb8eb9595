"""`vitkit.inspect_model`: what a model has learned, as one self-contained page with its pictures next to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from vitkit import __version__
from vitkit.costs import PartCost, cost_of
from vitkit.data.splits import counted
from vitkit.data.threads import Unreadable
from vitkit.data.unreadable import BadImageRule, BadImages, skipped_notes
from vitkit.display import png_files
from vitkit.errors import InputError
from vitkit.figures import numbers
from vitkit.figures.maps import distance_table, sentence
from vitkit.files import check_output, json_text, write_file
from vitkit.inspection.asking import join_reasons
from vitkit.inspection.drawings import Drawing, grid_in_words
from vitkit.inspection.findings import Findings, Images, RolloutOptions, examine, examine_weights, open_images
from vitkit.inspection.flow import Fuse
from vitkit.models.configs import Preprocessing, ResNetConfig, Size, TransformerConfig
from vitkit.notes import Note, kind_of
from vitkit.page import Html, element, facts, join, page, section, table
from vitkit.predictor import AnyModel, Names, Prediction, Predictor, load
from vitkit.progress import Progress, showing, telling
from vitkit.reports.models import distance_sections, missing, photo_parts, weight_sections
from vitkit.reports.outcomes import Accuracy, accuracy_in_words, accuracy_of
from vitkit.results import Result
from vitkit.runs.reading import read_object
from vitkit.weights.folder import preprocessing_in_words

PAGE, DISTANCES, RECORD = "index.html", "attention_distance.csv", "inspection.json"
FOLDER = "inspection"
PART_NAMES = {"mlp": "MLP", "qkv": "Queries, keys, values"}


@dataclass(frozen=True)
class AttentionDistance(Result):
    """Mean attention distances in pixels, over a number of images; uniform is that of uniform attention."""

    images: int
    uniform: float
    by_layer: list[float]
    by_head: list[list[float]]


@dataclass(frozen=True)
class InspectedPhoto(Result):
    """An image, its class where data says it, its likeliest classes, and the class of its gradient rollout."""

    image: str
    label: str | None
    top: list[Prediction]
    target: str | None


@dataclass(frozen=True)
class ImageCost(Result):
    """The cost of one image's forward pass, whole and by part."""

    parameters: int
    tokens: int | None
    macs: int
    flops: int
    parts: Mapping[str, PartCost]


@dataclass(frozen=True)
class Inspection(Result):
    """What an inspection found, and the files that it wrote; undefined has the reason for each part that isn't there."""

    name: str
    accuracy: Accuracy | None
    cost: ImageCost
    preprocessing: Preprocessing
    attention_distance: AttentionDistance | None
    photos: list[InspectedPhoto]
    unreadable: list[Unreadable]
    undefined: dict[str, str]
    model: str
    html: str
    files: list[str]
    notes: list[str]

    _leads = ("name", "accuracy", "model", "html")
    _tables = ("photos", "undefined")

    def _pictures(self) -> list[tuple[str, bytes]]:
        return png_files(self.files)


def inspect_model(
    model: AnyModel,
    images: Images | None = None,
    *,
    out: str | os.PathLike[str] = FOLDER,
    target: str | int | None = None,
    num_images: int = 128,
    num_photos: int = 6,
    fuse: Fuse = "mean",
    residual: float = 0.5,
    discard: float = 0.0,
    names: Names | None = None,
    device: str = "auto",
    batch_size: int | None = None,
    image_size: Size | None = None,
    accept: Sequence[str] = (),
    bad_images: BadImages = "skip",
    force: bool = False,
    progress: bool | Progress | None = True,
    announce: Callable[[str], None] | None = None,
) -> Inspection:
    """Draw what a model has learned into a folder, and return what was found (`to_json()`: what --json prints).

    model: any MODEL, or what `vitkit.load` returned. device, image_size, names and accept are passed to `load`.
    images: files and folders, a DATA string, or an open source. Without images, only the parts that need none are drawn.
    target: the class of the gradient rollout, by name or number; by default each photo's predicted class.
    num_images: attention distance is averaged over at most this many. num_photos: how many photos are drawn. Both are
    evenly spaced. fuse, residual, discard: settings of attention rollout.
    batch_size: images in a batch; by default as many as fit into memory with their attention.
    bad_images: "skip", "error" or "any", for unreadable images.
    progress: False shows none; a function is called with the number of images done, and with their total.
    """
    if not isinstance(model, str | os.PathLike | Predictor | nn.Module):
        raise InputError(f"model is a {type(model).__name__}; expected a MODEL, or what vitkit.load returns")
    options = RolloutOptions(fuse, residual, discard, target)
    folder = Path(out).expanduser()
    # Its pictures have names that depend on the model, so a new inspection wants a folder of its own.
    earlier = check_output(folder, _written_names(folder), force=force, alone=not force)
    source = None if images is None else open_images(images, earlier)
    predictor = load(model, device=device, image_size=image_size, names=names, accept=accept)
    given = os.fspath(model) if isinstance(model, str | os.PathLike) else ""
    notes = (*predictor.notes, *(source.notes if source else ()))
    accuracy = None
    try:
        accuracy = accuracy_of(given, predictor.model.config.size) if given else None
    except InputError as error:  # what was measured can't be read; the model can
        notes += (Note(f"its accuracy is not known: {error}", "warning"),)
    tell_note = telling(progress, announce)
    for line in notes:
        tell_note(line)
    if source is None and target is not None:
        raise InputError(f"the target {target!r} needs photos: give some, or leave it out")
    if source is None:
        found = examine_weights(predictor)
    else:
        with showing(progress, "inspecting (image passes)") as tell:
            found = examine(
                predictor,
                source,
                num_images=num_images,
                num_photos=num_photos,
                options=options,
                batch_size=batch_size,
                rule=BadImageRule(bad_images, "option"),
                progress=tell,
            )
    skipped = skipped_notes(found.unreadable, str(folder / RECORD))
    if skipped and source is not None and num_images < len(source):
        text = f"only {num_images:,} of {len(source):,} images were opened; --num-images opens more"
        skipped.append(Note(text))
    notes += tuple(skipped)
    for line in skipped:
        tell_note(line)
    # Few models have pooling weights, so nobody misses them.
    for line in join_reasons(error for name, error in found.undefined.items() if name != "pooling"):
        tell_note(line)
    contents = {f"{drawing.name}.png": drawing.png for drawing in _drawings(found)}
    if found.distances is not None:
        contents[DISTANCES] = distance_table(found.distances.values).encode()
    text = _page(given or predictor.name, predictor, found, options, accuracy)
    files = [str(folder / name) for name in (*contents, RECORD, PAGE)]
    result = _result(given, predictor, found, accuracy, str(folder / PAGE), files, list(notes))
    record = json_text(result.to_json()).encode()
    # The record is written first, so that all which it lists is known for an inspection's.
    contents = {RECORD: record, **contents, PAGE: text.encode("utf-8", "backslashreplace")}
    for name in contents:
        if (folder / name).exists() and folder / name not in earlier:
            raise InputError(
                f"{folder / name} is not part of an inspection and won't be overwritten: choose another --out"
            )
    for path in earlier:
        path.unlink(missing_ok=True)
    for name, content in contents.items():
        write_file(folder / name, content)
    return result


def _written_names(folder: Path) -> list[str]:
    """Return the names of the files that an inspection wrote here, by its record."""
    written = read_object(folder / RECORD).get("files")
    names = [Path(str(name)).name for name in written] if isinstance(written, list) else []
    return [name for name in names if name in (RECORD, PAGE) or name.endswith((".png", ".csv"))]


def _drawings(found: Findings) -> list[Drawing]:
    photos = (drawing for photo in found.photos for drawing in (*photo.tiles, *photo.sheets))
    return [*found.drawings.values(), *photos]


def _result(
    given: str,
    predictor: Predictor,
    found: Findings,
    accuracy: Accuracy | None,
    html: str,
    files: list[str],
    notes: list[str],
) -> Inspection:
    cost, distances = cost_of(predictor.model.config), found.distances
    return Inspection(
        name=predictor.name,
        accuracy=accuracy,
        cost=ImageCost(cost.parameters, cost.tokens, cost.macs, 2 * cost.macs, cost.parts),
        preprocessing=predictor.preprocessing,
        attention_distance=None
        if distances is None
        else AttentionDistance(
            distances.images,
            distances.uniform,
            distances.values.mean(1).tolist(),
            distances.values.tolist(),
        ),
        photos=[InspectedPhoto(photo.where, photo.label, photo.top, photo.target) for photo in found.photos],
        unreadable=found.unreadable,
        undefined={name: str(error) for name, error in found.undefined.items()},
        model=given or predictor.name,
        html=html,
        files=files,
        notes=notes,
    )


def _page(
    model: str, predictor: Predictor, found: Findings, options: RolloutOptions, accuracy: Accuracy | None
) -> str:
    about = "What the model has learned" if model == predictor.name else f"What {model} has learned"
    photos = photo_parts(found, predictor, options)
    preprocessing = sentence(preprocessing_in_words(predictor.preprocessing))
    return page(
        predictor.name,
        *_alerts(found, predictor),
        # What was asked about comes first; without photos their place has one sentence.
        *([section("Photos", *photos)] if found.photos else photos),
        *weight_sections(found),
        *distance_sections(found),
        *([section("Not drawn", *missing(found))] if found.undefined else []),
        section(
            "Model",
            _facts(predictor, accuracy),
            element("p", f"Preprocessing: {preprocessing}", class_="note"),
        ),
        _cost(predictor),
        about=about,
        foot=f"vitkit {__version__}",
    )


def _alerts(found: Findings, predictor: Predictor) -> list[Html]:
    untrained = [note for note in predictor.notes if kind_of(note) == "untrained"]
    alerts = [element("p", sentence(note), class_="alert") for note in untrained]
    if not found.unreadable:
        return alerts
    count, first = len(found.unreadable), found.unreadable[0]
    words = f"{counted(count, 'image')} can't be read"
    return [*alerts, element("p", f"{words}, such as {first.image}: {first.reason}", class_="alert")]


def _facts(predictor: Predictor, accuracy: Accuracy | None) -> Html:
    config = predictor.model.config
    cost = cost_of(config)
    known: dict[str, str] = {}
    if accuracy:
        known["Accuracy"] = accuracy_in_words(accuracy)
    known |= {"Parameters": numbers.compact(cost.parameters), "MACs an image": numbers.compact(cost.macs)}
    known["Classes"] = f"{config.num_classes:,}" if config.num_classes else "no head"
    shape, below = f"{config.size[0]} × {config.size[1]} pixels", grid_in_words(config)
    known["Image"] = join([shape, element("small", below)])
    if isinstance(config, TransformerConfig):
        words = element("small", f"{config.heads} heads, width {config.width}")
        known["Depth"] = join([f"{config.num_layers} layers", words])
        if (kind := getattr(config, "attention", "full")) != "full":
            known["Attention"] = kind
    elif isinstance(config, ResNetConfig):
        known["Units a stage"] = ", ".join(map(str, config.units))
    return facts(known.items(), num_leads=1 if accuracy else 0)


def _cost(predictor: Predictor) -> Html:
    cost = cost_of(predictor.model.config)
    rows = [
        [
            PART_NAMES.get(name, name.replace("_", " ").capitalize()),
            f"{part.parameters:,}",
            f"{part.macs:,}",
        ]
        for name, part in cost.parts.items()
        if part.parameters or part.macs
    ]
    rows.append(["All", f"{cost.parameters:,}", f"{cost.macs:,}"])
    columns = ["", "Parameters", "MACs"]
    note = "For one image; MACs are multiply-adds of matrix products and convolutions, each two FLOPs."
    shown = table(columns, rows, label="Cost by part", right=columns[1:])
    return section("Cost", shown, element("p", note, class_="note"))
