"""`vitkit.evaluate`: all metrics of a classifier on labelled images."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from vitkit.config import check_choice
from vitkit.data.open import Data, open_data
from vitkit.data.sources.folder import scan
from vitkit.data.sources.source import Source, Subset
from vitkit.data.spec import DataSpec, as_spec
from vitkit.data.threads import Unreadable
from vitkit.data.unreadable import BadImageRule, BadImages, skipped_notes
from vitkit.display import png_files
from vitkit.errors import InputError
from vitkit.evaluation.classes import Among, HeadClasses, Matching, match, read_mapping
from vitkit.evaluation.imagenet import NUM_CLASSES
from vitkit.evaluation.learned import warn_if_learned
from vitkit.evaluation.measured import CONFUSION, MISTAKES, Measures, Predictions, check_finite
from vitkit.evaluation.passes import SourcePass
from vitkit.evaluation.real import RealAccuracy, read_real, real_accuracy, validation_numbers
from vitkit.files import check_output, digest, write_json
from vitkit.models.configs import Size
from vitkit.models.model import Model, check_rgb
from vitkit.models.precision import Precision
from vitkit.notes import Note, worded
from vitkit.predictor import AnyModel, Names, Predictor, choose_device, exported_path, load, named_model
from vitkit.progress import Progress, showing, telling
from vitkit.runtimes.model import RuntimeModel
from vitkit.weights.load import weight_file
from vitkit.world import join_world

RESULTS = "results.json"


@dataclass(frozen=True, kw_only=True)
class Evaluation(Measures):
    """What `evaluate` measured, and of what."""

    model: str
    weights_sha256: str | None = None
    "Of the weights' file; None for a loaded model, whose weights may have changed since they were read."
    image_size: tuple[int, int]
    precision: str
    "Of the computation, or of an exported graph."
    merge: int
    "Patches that each layer merges."
    data: str
    images: int
    "That were measured."
    left_out: int
    "By the mapping."
    classes: int
    real: RealAccuracy | None = field(default=None, metadata={"optional": True})
    unreadable: tuple[Unreadable, ...] = ()
    "Images that were skipped."
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    _leads = (
        *("accuracy", "mean_average_precision", "top_5_accuracy", "loss", "calibration_error", "real"),
        *("model", "data", "images", "left_out", "classes"),
    )

    def _pictures(self) -> list[tuple[str, bytes]]:
        return png_files(self.files) or super()._pictures()


def evaluate(
    model: AnyModel,
    data: Data,
    *,
    real: str | os.PathLike[str] | None = None,
    mapping: str | os.PathLike[str] | None = None,
    classes: Among = "head",
    names: Names | None = None,
    device: str = "auto",
    batch_size: int = 64,
    image_size: Size | None = None,
    accept: Sequence[str] = (),
    precision: Precision | None = None,
    merge: int | None = None,
    calibrate: Data | None = None,
    bad_images: BadImages | BadImageRule = "skip",
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: bool | Progress | None = True,
    announce: Callable[[str], None] | None = None,
    predicted: Callable[[Predictions], None] | None = None,
) -> Evaluation:
    """Measure a model on every image of DATA.

    Under torchrun, the processes share the images and each returns the result; only the first announces and writes.

    real: ReaL's real.json, for ImageNet's validation images. mapping: a file that maps the data's classes to the head's;
    images of unlisted classes are excluded. classes: "head" chooses answers among all classes of the head, "data" only
    among those of the data. precision, merge, calibrate: as for `load`. bad_images: "skip" skips unreadable images, unless they are
    too many or all of a class; "error" stops at the first, "any" skips any number. out: folder for pictures and results.
    progress: False shows none; a function is called with the number of images done, and with their total. announce:
    called with each note at once; the result has the notes too. predicted: called with the logits of labelled images,
    which the result doesn't hold.
    """
    check_choice("classes", classes, Among)
    lists = None if real is None else read_real(real)
    folder = None if out is None else Path(out).expanduser()
    earlier = [] if folder is None else check_output(folder, (CONFUSION, MISTAKES, RESULTS), force=force)
    model, given = named_model(model)
    if isinstance(model, Predictor) and device == "auto":
        chosen = model.device
    else:
        chosen = choose_device(device, model)
    tell_note = telling(progress, announce)
    with join_world(chosen) as world:
        # The digest comes first: should a run write others meanwhile, it isn't theirs.
        is_file = not isinstance(model, Predictor) and exported_path(given) is None
        weights = weight_file(given) if is_file else None
        known = None if weights is None else digest(weights)
        predictor = load(
            model,
            device=world.device.type,
            image_size=image_size,
            names=names,
            accept=accept,
            precision=precision,
            merge=merge,
            calibrate=calibrate,
        )
        if isinstance(predictor.model, RuntimeModel):
            known = predictor.model.folder.graph_sha256
        named = predictor.spec
        _check_model(predictor, named)
        head = HeadClasses(named, predictor.class_names)
        source, is_labelled = _open(data, lists is not None)
        if lists is not None:
            _check_real(head, source, classes)
        numbers = None if lists is None else validation_numbers(source)
        matching = None
        if is_labelled:
            meaning = None if mapping is None else read_mapping(os.fspath(mapping), head)
            if meaning is not None and source.is_multi_label:
                raise InputError(f"{source.name} is multi-label; --mapping needs one label per image")
            matching = match(source, head, meaning, classes)
        notes = (*predictor.notes, *source.notes, *(matching.notes if matching else ()))
        if world.is_first:  # who alone announces and writes
            notes += tuple(warn_if_learned(named, source))
            for line in notes:
                tell_note(line)
        kept = _kept(source, matching)
        images = source if len(kept) == len(source) else Subset(source, kept)
        passed = SourcePass(
            images,
            predictor.preprocessing,
            world=world,
            batch_size=batch_size,
            bad_images=bad_images
            if isinstance(bad_images, BadImageRule)
            else BadImageRule(bad_images, "option"),
        )
        network = predictor.model.to(world.device)
        with showing(progress if world.is_first else None, "measuring") as tell:
            indices, logits = passed.logits(network, progress=tell)
        check_finite(logits, named)
        unreadable = tuple(passed.bad.values())
        if unreadable:
            kept, images = kept[indices], Subset(images, indices)
        skipped = skipped_notes(unreadable)
        if world.is_first:
            for line in skipped:
                tell_note(line)
        measured = None if matching is None else _measured(logits, images, head, matching)
        if predicted and measured:
            predicted(measured)
        reassessed = None
        if lists is not None and numbers is not None and head.imagenet is not None:
            reassessed = real_accuracy(head.imagenet[logits.argmax(1)], numbers[kept], lists)
        result = Evaluation(
            model=named,
            weights_sha256=known,
            image_size=predictor.preprocessing.size,
            precision=_precision(predictor.model),
            merge=predictor.model.merge,
            data=source.data_name,
            images=len(images),
            left_out=len(source) - len(images) - len(unreadable),
            classes=len(head) if matching is None else len(matching.answers),
            **({} if measured is None else vars(measured.numbers())),
            real=reassessed,
            unreadable=unreadable,
            notes=tuple(map(worded, (*notes, *skipped))),
        )
        return _written(result, measured, folder, earlier) if folder and world.is_first else result


def _precision(model: Model) -> str:
    return model.folder.precision if isinstance(model, RuntimeModel) else model.precision


def _check_model(predictor: Predictor, named: str) -> None:
    config = predictor.model.config
    if not config.num_classes:
        raise InputError(
            f"{named} has no classification head: its features are measured by vit fewshot, probe and knn"
        )
    if getattr(config, "pool", None) == "none":
        raise InputError(f"{named} has no pool and gives logits for each token, not for the image")
    check_rgb(config, named)
    if not all(tensor.isfinite().all() for tensor in predictor.model.parameters()):
        raise InputError(f"{named} has weights that are not finite: they are broken")


def _check_real(head: HeadClasses, source: Source, classes: Among) -> None:
    if classes == "data":
        raise InputError("ReaL chooses answers among all classes: leave out --classes data")
    if head.imagenet is None or len(set(head.imagenet.tolist())) < NUM_CLASSES:
        raise InputError(
            f"ReaL's labels are ImageNet's {NUM_CLASSES:,} classes; {head.model} has other classes"
        )
    if source.is_multi_label:
        raise InputError(f"{source.name} is multi-label; ReaL's labels would replace its own")


def _open(data: Data, may_be_flat: bool) -> tuple[Source, bool]:
    """Return the images, and whether they are labelled: ReaL's need no class folders."""
    if may_be_flat and isinstance(data, str | os.PathLike | DataSpec):
        spec = as_spec(data)
        root = os.path.expanduser(spec.source)
        is_folder = spec.is_path and os.path.isdir(root) and spec.split in (None, "all")
        if is_folder and not (found := scan(root)).paths and found.loose:
            source = open_data(replace(spec, split="all"), labelled=False)
            text = f"{spec.source}: no class folders, so only ReaL accuracy is measured"
            source.notes = (*source.notes, Note(text, "data"))
            return source, False
    source = open_data(data, default="measure")
    if not len(source):
        raise InputError(f"{source.name}:{source.split} has no images")
    return source, True


def _kept(source: Source, matching: Matching | None) -> np.ndarray:
    """Return the images that the mapping, if there is one, doesn't leave out."""
    if matching is None or source.is_multi_label:
        return np.arange(len(source))
    return np.flatnonzero(matching.places[source.labels] >= 0)


def _measured(logits: np.ndarray, source: Source, head: HeadClasses, matching: Matching) -> Predictions:
    answers = matching.answers
    if source.is_multi_label:
        labels = np.zeros((len(source), len(answers)), bool)
        for number, place in enumerate(matching.places.tolist()):
            if place >= 0:
                labels[:, place] |= source.labels[:, number]
    else:
        labels = matching.places[source.labels]
    return Predictions(
        logits if len(answers) == len(head) else logits[:, answers],
        source,
        labels=labels,
        class_names=matching.class_names,
        answer_names=[head.class_names[place] for place in answers.tolist()],
        members=matching.members,
    )


def _written(
    result: Evaluation, measured: Predictions | None, folder: Path, earlier: Sequence[Path]
) -> Evaluation:
    """Write the pictures and, last, the results, in place of an earlier evaluation's; return these with all paths."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from None
    files = [] if measured is None else measured.draw(folder)
    path = folder / RESULTS
    result = replace(result, files=tuple(str(file) for file in (*files, path)))
    write_json(path, result.to_json())
    for old in earlier:
        if str(old) not in result.files:
            old.unlink(missing_ok=True)
    return result
