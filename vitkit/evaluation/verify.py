"""`vitkit.verify`: whether a model's features tell if two images show the same identity, such as the same person."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitkit.config import Bounds
from vitkit.data.open import Data, open_data, stated_splits
from vitkit.data.sources.source import Source, Subset, spread
from vitkit.data.spec import DataSpec, as_spec
from vitkit.data.splits import counted
from vitkit.data.threads import Unreadable
from vitkit.data.unreadable import BadImageRule, BadImages, skipped_notes
from vitkit.display import png_files
from vitkit.errors import InputError
from vitkit.evaluation.features import frozen_features, load_frozen
from vitkit.evaluation.learned import warn_if_learned
from vitkit.evaluation.neighbours import unit_rows
from vitkit.evaluation.pairs import MOST_PAIRS, Pairs, Protocol, draw_protocol, read_protocol
from vitkit.evaluation.roc import Roc, fold_accuracies, resolved_rates, roc
from vitkit.figures.roc import RocCurve, draw_roc
from vitkit.files import check_output, write_file, write_json
from vitkit.models.configs import Size
from vitkit.notes import Note, worded
from vitkit.predictor import AnyModel, Predictor
from vitkit.progress import Progress, showing
from vitkit.results import Result

ROC, RESULTS = "roc.png", "results.json"
DRAWS = 200
"Resamples of identities behind an interval."
TIMED, WARM_UP = 30, 3
"Images that are timed, and before them images that are not."
_BLOCK = 1 << 16


class Interval(NamedTuple):
    """A 95% interval, by resampling identities."""

    low: float
    high: float


@dataclass(frozen=True)
class AcceptRate(Result):
    """The share of same pairs that are accepted when no more than a share of different ones is."""

    far: float
    "False accept rate: the share of different pairs that may be accepted."
    tar: float
    "True accept rate: the share of same pairs that are accepted."
    interval: Interval | None
    threshold: float
    "Cosine similarity from which a pair is accepted."


@dataclass(frozen=True)
class FoldAccuracy(Result):
    """Accuracy in each fold, with the threshold that is best in the others."""

    mean: float
    std: float
    "Over folds."
    threshold: float
    "Mean over folds."
    folds: int
    pairs: int
    "Half of them the same, in all folds together."


@dataclass(frozen=True)
class Latency(Result):
    """Milliseconds from an image file to its features, one image at a time."""

    median: float
    slowest: float
    "Of ten images, nine take less."
    device: str


@dataclass(frozen=True)
class Verification(Result):
    """What `verify` measured."""

    model: str
    data: str
    pairs: str | None
    "The file of pairs; None where they were drawn."
    images: int
    identities: int
    same_pairs: int
    different_pairs: int
    image_size: tuple[int, int]
    auc: float
    "The probability that a same pair is more similar than a different one."
    auc_interval: Interval | None
    equal_error_rate: float
    "Where as large a share of different pairs is accepted as of same pairs is refused."
    equal_error_interval: Interval | None
    equal_error_threshold: float
    accept_rates: tuple[AcceptRate, ...]
    "At those false accept rates that the number of different pairs can resolve."
    accuracy: FoldAccuracy | None
    latency: Latency
    unreadable: tuple[Unreadable, ...] = ()
    "Images that were skipped, with their pairs."
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    seconds: float = field(default=0.0)

    _leads = ("auc", "equal_error_rate", "accuracy", "model", "data")
    _tables = ("accept_rates",)

    def _pictures(self) -> list[tuple[str, bytes]]:
        return png_files(self.files)


def verify(
    model: AnyModel,
    data: Data,
    *,
    pairs: str | os.PathLike[str] | None = None,
    num_pairs: int = MOST_PAIRS,
    seed: int = 0,
    device: str = "auto",
    batch_size: int = 64,
    image_size: Size | None = None,
    bad_images: BadImages = "skip",
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: bool | Progress | None = True,
    announce: Callable[[str], None] | None = None,
) -> Verification:
    """Measure how well the cosine similarity of features tells whether two images show the same identity.

    The classes of DATA are identities. If DATA has splits and names none, test is used, else val; without splits, every
    image. pairs: a file in LFW's format, whose images are in the folders of DATA; without it, all pairs are compared.
    num_pairs: at most this many pairs of each kind, same and different, are drawn. seed: seed for drawing them.
    bad_images: "skip", "error" or "any", for unreadable images. out: folder for roc.png and results.json. progress: False
    shows none; a function is called with the number of images done, and with their total. announce: called with each note
    at once; the result has the notes too.
    """
    began = time.perf_counter()
    Bounds(at_least=100).check("num_pairs", num_pairs)
    folder = None if out is None else Path(out).expanduser()
    if folder is not None:
        check_output(folder, (ROC, RESULTS), force=force)
    source, protocol = _open(data, pairs, num_pairs, seed)
    predictor = load_frozen(model, device, image_size)
    notes = [*predictor.notes, *source.notes, *warn_if_learned(predictor.spec, source)]
    for line in notes if announce else ():
        announce(line)  # type: ignore[misc]
    with showing(progress, "features") as tell:
        rule = BadImageRule(bad_images, "option")
        features = frozen_features(predictor, source, batch_size=batch_size, progress=tell, bad_images=rule)
    if features.bad:
        protocol = protocol.among(features.indices, len(source))
    everything, rows = protocol.pairs, unit_rows(features.x).numpy()
    if everything.is_same.all() or not everything.is_same.any():
        raise InputError(
            f"{source.data_name}: too few images can be read to compare same and different pairs"
        )
    scores = similarities(rows, everything)
    rates = roc(scores, everything.is_same)
    wanted = resolved_rates(int(rates.different))
    intervals = _intervals(scores, everything, features.labels, wanted, seed)
    rate, threshold = rates.equal_error
    accepted = [rates.accepted(far) for far in wanted]
    skipped = skipped_notes(features.bad.values())
    late = [*_limits(protocol, features.labels, wanted), *skipped]
    for line in late if announce else ():
        announce(line)  # type: ignore[misc]
    result = Verification(
        model=predictor.spec,
        data=source.data_name,
        pairs=None if pairs is None else os.fspath(pairs),
        images=len(rows),
        identities=len(np.unique(features.labels)),
        same_pairs=int(everything.is_same.sum()),
        different_pairs=int(rates.different),
        image_size=predictor.preprocessing.size,
        auc=rates.auc,
        auc_interval=intervals[0],
        equal_error_rate=rate,
        equal_error_interval=intervals[1],
        equal_error_threshold=threshold,
        accept_rates=tuple(
            AcceptRate(far, tar, interval, limit)
            for far, (tar, limit), interval in zip(wanted, accepted, intervals[2:], strict=True)
        ),
        accuracy=_accuracy(rows, protocol.folds),
        latency=_latency(predictor, source, features.indices),
        unreadable=tuple(features.bad.values()),
        notes=tuple(map(worded, (*notes, *late))),
        seconds=time.perf_counter() - began,
    )
    return result if folder is None else _written(result, rates, scores, everything, folder)


def similarities(rows: np.ndarray, pairs: Pairs) -> np.ndarray:
    """Return the cosine similarity of each pair of rows, which have length one."""
    found = np.empty(len(pairs), np.float32)
    for start in range(0, len(pairs), _BLOCK):
        part = slice(start, start + _BLOCK)
        found[part] = np.einsum("nw,nw->n", rows[pairs.first[part]], rows[pairs.second[part]])
    return found


def _open(
    data: Data, pairs: str | os.PathLike[str] | None, num_pairs: int, seed: int
) -> tuple[Source, Protocol]:
    """Return the images to compare, and which of them."""
    if isinstance(data, str | os.PathLike | DataSpec):
        spec = as_spec(data)
        if pairs is not None:
            root = Path(spec.source).expanduser()
            if not root.is_dir() or spec.split not in (None, "all"):
                raise InputError(
                    f"{data} is not a folder; a file of pairs names images in folders of identities"
                )
            protocol, files = read_protocol(pairs, root)
            files.spec = replace(spec, split="all")
            return files, protocol
        if spec.split is None and not stated_splits(spec):
            data = replace(spec, split="all")
    elif pairs is not None:
        raise InputError("a file of pairs names images in folders: give the folder as data")
    # So that people of test need not be people of train.
    source = open_data(data, default="measure", labelled=False)
    if source.is_multi_label:
        raise InputError(f"{source.data_name} is multi-label; an image has one identity")
    if "" in source.class_names:
        named = np.flatnonzero(source.labels != source.class_names.index(""))
        text = f"{source.data_name}: skipped {counted(len(source) - len(named), 'image')} in no class folder"
        source = Subset(source, named)
        source.notes += (Note(text, "warning"),)
    counts = np.bincount(source.labels)
    if np.count_nonzero(counts) < 2 or counts.max() < 2:
        raise InputError(
            f"{source.data_name} has {np.count_nonzero(counts)} identities with at most {counts.max(initial=0)} images; expected "
            "two or more, and one with two images"
        )
    return source, draw_protocol(source.labels, num_pairs, seed)


def _intervals(
    scores: np.ndarray, pairs: Pairs, labels: np.ndarray, wanted: list[float], seed: int
) -> list[Interval | None]:
    """Return the intervals of AUC, equal error rate and TARs: identities are drawn again and again.

    Pairs that share an identity are not independent, so pairs themselves are not drawn.
    """
    order = np.argsort(-scores, kind="stable")
    scores, is_same = scores[order], pairs.is_same[order]
    _, owners = np.unique(labels, return_inverse=True)
    first, second = owners[pairs.first[order]], owners[pairs.second[order]]
    random, count = np.random.default_rng(seed), int(owners.max()) + 1
    found = []
    for _ in range(DRAWS):
        times = np.bincount(random.integers(0, count, count), minlength=count)
        weights = np.where(is_same, times[first], times[first] * times[second])
        if weights[is_same].any() and weights[~is_same].any():
            drawn = roc(scores, is_same, weights)
            found.append([drawn.auc, drawn.equal_error[0], *(drawn.accepted(far)[0] for far in wanted)])
    if len(found) < DRAWS // 2:
        return [None] * (2 + len(wanted))
    low, high = np.quantile(found, [0.025, 0.975], axis=0)
    return [Interval(*pair) for pair in zip(low.tolist(), high.tolist(), strict=True)]


def _limits(protocol: Protocol, labels: np.ndarray, wanted: list[float]) -> list[Note]:
    """Return notes on what so few pairs or identities can't say."""
    notes = []
    different = int(np.count_nonzero(~protocol.pairs.is_same))
    if not wanted:
        text = f"{different:,} different pairs are too few for a false accept rate of 10%"
        notes.append(Note(text, "warning"))
    if not protocol.folds:
        notes.append(Note("too few identities, or one fold: accuracy over folds is not measured", "info"))
    return notes


def _accuracy(rows: np.ndarray, folds: tuple[Pairs, ...]) -> FoldAccuracy | None:
    if not folds:
        return None
    found = fold_accuracies([(similarities(rows, fold), fold.is_same) for fold in folds])
    accuracies, thresholds = np.array(found).T
    return FoldAccuracy(
        float(accuracies.mean()),
        float(accuracies.std(ddof=1)),
        float(thresholds.mean()),
        len(folds),
        sum(map(len, folds)),
    )


def _latency(predictor: Predictor, source: Source, readable: np.ndarray) -> Latency:
    """Time images one by one: reading, preparing, features."""
    chosen = readable[spread(len(readable), TIMED)]
    pictures = [source.read(int(index)) for index in chosen]
    for picture in pictures[:WARM_UP]:
        predictor.embed(picture)
    times = []
    for picture in pictures:
        start = time.perf_counter()
        predictor.embed(picture)
        times.append(1000 * (time.perf_counter() - start))
    median, slowest = np.quantile(times, [0.5, 0.9]).tolist()
    return Latency(median, slowest, str(predictor.device))


def _written(
    result: Verification, rates: Roc, scores: np.ndarray, pairs: Pairs, folder: Path
) -> Verification:
    """Write the picture and, last, the results."""
    paths = [folder / name for name in (ROC, RESULTS)]
    result = replace(result, files=tuple(map(str, paths)))
    curve = RocCurve(f"AUC {rates.auc:.4f}", rates.far, rates.tar)
    title = f"{result.identities} identities, {len(pairs):,} pairs"
    write_file(paths[0], draw_roc(title, [curve], scores[pairs.is_same], scores[~pairs.is_same]))
    write_json(paths[1], result.to_json())
    return result
