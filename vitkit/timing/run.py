"""`vitkit.bench`: the speed, memory and accuracy of models, next to other libraries in the same process."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import torch
from torch import nn

from vitkit.calibration import find_scales
from vitkit.config import Bounds
from vitkit.data.open import Data, open_data
from vitkit.data.sources.source import Source
from vitkit.errors import InputError
from vitkit.evaluation.run import evaluate
from vitkit.figures.scatter import Point, scatter
from vitkit.files import check_output, write_file, write_json
from vitkit.machine import busy_note, cpu_name
from vitkit.models.configs import OwnConfig, Size, as_size
from vitkit.models.own import OWN
from vitkit.notes import Note, kind_of
from vitkit.predictor import AnyModel, Predictor, choose_device
from vitkit.progress import Progress, showing
from vitkit.timing.candidates import Candidate, is_exported, open_model, own_candidate, peer_candidate
from vitkit.timing.measure import logits_difference, measure
from vitkit.timing.memory import resident_growth
from vitkit.timing.peers import PEERS, TORCHVISION, check, written
from vitkit.timing.results import BenchResult, BenchRow, as_csv, as_markdown, brief, in_rows, named
from vitkit.timing.ways import LIBRARIES, Way, choose_precision
from vitkit.weights.convert import save
from vitkit.weights.load import weight_file

TABLE, DOCUMENT, COLUMNS, PICTURE = "bench.md", "bench.json", "bench.csv", "bench.png"
"Files of `--out`."
COMPARED = 2
"Images whose logits are compared."


def bench(
    models: AnyModel | Sequence[AnyModel],
    device: str = "auto",
    batch_sizes: Sequence[int] = (1, 8, 64),
    threads: int | None = None,
    precision: str | Sequence[str] = "auto",
    peers: bool = False,
    data: Data | None = None,
    train: bool = False,
    *,
    compile: bool = False,
    merge: int | Sequence[int] = (),
    calibrate: Data | None = None,
    image_size: Size | None = None,
    rounds: int = 10,
    memory: bool = True,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: bool | Progress | None = True,
) -> BenchResult:
    """Measure the speed of models, side by side in the same process.

    models: MODEL strings, loaded models, exported folders, or torchvision's 'efficientnet_b0' and 'efficientnet_b7' for
    comparison. batch_sizes: numbers of images in a batch. threads: CPU threads; by default as many as torch uses.
    precision: one or several; by default bfloat16 on a GPU, else float32. peers: also run the same model with the same
    weights in timm, transformers, torchvision, ONNX Runtime and OpenVINO, if they are installed and have it. data: also
    measure accuracy on these images. train: measure training steps instead. compile: also measure each model compiled.
    merge: also measure with this many patches merged in each layer; one number or several. calibrate: images on which
    the scales of float8 are measured; then there are rows with and without them. rounds: turns of each candidate. memory: whether to measure memory; on a CPU this takes a process per candidate. out: folder for tables and
    a picture. progress: False shows none; a function is called with the number of turns done, and with their total.
    """
    given = _as_list(models)
    sizes = sorted({int(size) for size in batch_sizes})
    if not given or not sizes:
        raise InputError(f"{'models' if not given else 'batch_sizes'} is empty; expected at least one")
    Bounds(at_least=1).check("batch_sizes", sizes[0])
    Bounds(at_least=1).check("rounds", rounds)
    Bounds(at_least=1).check("threads", threads)
    if train and data is not None:
        raise InputError("accuracy is measured in inference: leave out data or train")
    chosen = choose_device(device).type
    named_precisions = [precision] if isinstance(precision, str) else list(precision)
    precisions = list(dict.fromkeys(choose_precision(name, chosen) for name in named_precisions))
    merges = sorted({merge} if isinstance(merge, int) else set(merge))
    if not precisions:
        raise InputError("precision is empty; expected at least one")
    Bounds(at_least=1).check("merge", tuple(merges))
    if "float8" in precisions and train:
        raise InputError("float8 is for inference: leave out train, or use another precision")
    if calibrate is not None and "float8" not in precisions:
        raise InputError("calibrate is for precision float8: leave it out, or give both")
    if merges and train:
        raise InputError("patches are merged only in inference: leave out merge or train")
    folder = None if out is None else Path(out).expanduser()
    if folder is not None:
        check_output(folder, (TABLE, DOCUMENT, COLUMNS, PICTURE), force=force)
    source = None if data is None else open_data(data, default="measure")
    size = None if image_size is None else as_size(image_size)
    with using_threads(threads) as count, ExitStack() as stack:
        ways = [Way("vitkit", chosen, name, count) for name in precisions]
        notes = [line for line in (busy_note(),) if line and chosen == "cpu"]
        candidates = list[Candidate]()
        for number, model in enumerate(given):
            predictor = open_filled(model, chosen, size)
            files = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"vitkit-bench-{number}-")))
            largest = None
            if "float8" in precisions and not is_exported(predictor):
                largest, note = _scales(predictor, model, calibrate)
                notes.append(note)
            candidates += _candidates(
                predictor, model, ways, merges, files, peers, compile, train, notes, largest
            )
        if not candidates:
            raise InputError(f"nothing can be measured: {'; '.join(notes)}")
        images = {item.network.config.size: _images(item) for item in candidates}
        differences = [logits_difference(item, images[item.network.config.size]) for item in candidates]
        accuracies = [_accuracy(item, source, progress, notes) for item in candidates]
        with showing(progress, "measuring speed") as tell:
            measured = measure(candidates, sizes, rounds, train, tell)
        notes += measured.notes
        grown: list[dict[int, int]] = [{} for _ in candidates]
        if memory and chosen == "cpu":
            with showing(progress, "measuring memory") as tell:
                for place, item in enumerate(candidates):
                    grown[place] = resident_growth(item, sizes, train)
                    if tell:
                        tell(place + 1, len(candidates))
    rows = in_rows(candidates, measured, grown, differences, accuracies, train)
    result = BenchResult(
        device=torch.cuda.get_device_name()
        if chosen == "cuda"
        else cpu_name()
        if chosen == "cpu"
        else chosen,
        threads=count,
        rounds=rounds,
        matrix_flops_per_second=measured.matrix_rates,
        data=None if source is None else source.data_name,
        versions=_versions(candidates),
        rows=rows,
        notes=tuple(dict.fromkeys(notes)),
    )
    return result if folder is None else _written(result, folder)


def _as_list(models: AnyModel | Sequence[AnyModel]) -> list[AnyModel]:
    one = isinstance(models, str | os.PathLike | Predictor | nn.Module)
    return [models] if one else list(models)  # type: ignore[arg-type,list-item]


@contextmanager
def using_threads(threads: int | None) -> Iterator[int]:
    """Let torch use this many threads for a while, and say how many there are."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def _candidates(
    predictor: Predictor,
    model: AnyModel,
    ways: Sequence[Way],
    merges: Sequence[int],
    folder: Path,
    peers: bool,
    compile: bool,
    train: bool,
    notes: list[str],
    largest: Mapping[str, float] | None,
) -> Iterator[Candidate]:
    """Yield a model in every way that was asked for, ours first; what can't be is a note."""
    name = predictor.spec.removeprefix(OWN)
    if train and (is_exported(predictor) or not predictor.model.config.num_classes):
        why = (
            "an exported graph doesn't train"
            if is_exported(predictor)
            else "it has no head, so it has no labels"
        )
        notes.append(f"{name}: {why}")
        return
    path = _path(predictor, model, folder)
    if is_exported(predictor):
        if peers or compile or merges or len(ways) > 1:
            notes.append(
                f"{name} is an exported graph: peers, compilation, merging and other precisions are for the model that it "
                "was made from"
            )
        yield own_candidate(predictor, ways[0], path, train)
        return
    modes = (False, True) if compile else (False,)
    for way in ways:
        # Fixed scales, if there are any, and dynamic ones.
        scales = [largest] if way.precision != "float8" else [largest, None] if largest else [None]
        for given, merge in itertools.product(scales, (0, *merges)):
            for is_compiled in modes:
                is_dynamic = way.precision == "float8" and given is None
                one = replace(way, is_compiled=is_compiled, merge=merge, is_dynamic=is_dynamic)
                try:
                    yield own_candidate(predictor, one, path, train, given)
                except InputError as error:
                    notes.append(f"{name} in {one.words}: {error}")
                    break
    for way in ways:
        for library in PEERS if peers else ():
            if path in TORCHVISION and not PEERS[library].is_runtime:
                continue  # it is torchvision's own, to compare with
            try:
                check(library, way, train)
                target = written(library, predictor, folder)
                for is_compiled in (False,) if PEERS[library].is_runtime else modes:
                    one = replace(way, library=library, is_compiled=is_compiled)
                    yield peer_candidate(predictor, one, target, train)
            except InputError as error:
                notes.append(f"{name} in {LIBRARIES[library]}: {error}")


def _scales(
    predictor: Predictor, model: AnyModel, calibrate: Data | None
) -> tuple[dict[str, float] | None, Note]:
    """Return the scales of float8, measured or from the model's folder, and a note on them."""
    weights = None if isinstance(model, Predictor | nn.Module) or model in TORCHVISION else weight_file(model)
    return find_scales(predictor.model, predictor.preprocessing, weights, calibrate, predictor.device)


def _path(predictor: Predictor, model: AnyModel, folder: Path) -> str | None:
    """Return what another process can open the model by; one that was passed as an object is saved for it."""
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    if isinstance(predictor.model.config, OwnConfig) or is_exported(predictor):
        return None
    save(predictor, folder / "model")
    return str(folder / "model")


def _is_untrained(predictor: Predictor) -> bool:
    return any(kind_of(note) == "untrained" for note in predictor.notes)


def open_filled(model: AnyModel, device: str, image_size: Size | None) -> Predictor:
    """Return a model to measure. An untrained head has random weights, so that logits differ where libraries do."""
    predictor = open_model(model, device, image_size)
    if _is_untrained(predictor):
        with torch.no_grad():
            for parameter in predictor.model.parameters():
                if parameter.ndim > 1 and not parameter.any():
                    parameter.normal_(std=0.02)
    return predictor


def _images(candidate: Candidate) -> torch.Tensor:
    config = candidate.network.config
    return torch.rand(COMPARED, config.channels, *config.size)


def _accuracy(
    candidate: Candidate, source: Source | None, progress: bool | Progress | None, notes: list[str]
) -> float | None:
    """Return a candidate's top-1 accuracy, in the precision and library that are timed."""
    if source is None:
        return None
    model = candidate.source
    if _is_untrained(model) or candidate.model in TORCHVISION:
        notes.append(f"{candidate.model} is untrained: it has no accuracy")
        return None
    if candidate.network.call is model.model:
        timed = model
    else:
        names = model.class_names
        timed = Predictor(
            candidate.network, model.preprocessing, names, candidate.name, (), model.device, model.multi_label
        )
    return evaluate(timed, source, progress=progress).accuracy


def _versions(candidates: Sequence[Candidate]) -> dict[str, str]:
    """Return the versions of torch and of what was measured."""
    packages = dict.fromkeys(["vitkit", "torch", *(item.way.library for item in candidates)])
    return {name: metadata.version(name) for name in packages}


def _written(result: BenchResult, folder: Path) -> BenchResult:
    """Write the tables and the picture; return the result with their paths."""
    files = [folder / name for name in (TABLE, COLUMNS, PICTURE, DOCUMENT)]
    result = replace(result, files=tuple(map(str, files)))
    write_file(folder / TABLE, as_markdown(result))
    write_file(folder / COLUMNS, as_csv(result.rows))
    write_file(folder / PICTURE, picture(result))
    write_json(folder / DOCUMENT, result.to_json())
    return result


def picture(result: BenchResult) -> bytes:
    """Return speed against accuracy or, without accuracies, against parameters; each candidate at its best batch size."""
    best = dict[str, BenchRow]()
    for name, row in zip(named(result.rows), result.rows, strict=True):
        if name not in best or row.images_per_second > best[name].images_per_second:
            best[name] = row
    has_accuracy = any(row.accuracy is not None for row in best.values())
    names, points = brief(result.rows), list[Point]()
    for row in best.values():
        group = f"{LIBRARIES[row.library]}{', compiled' if row.runs == 'compiled' else ''}"
        if (height := row.accuracy if has_accuracy else row.parameters) is not None:
            points.append(Point(row.images_per_second, height, names[row.model], group))
    first = result.rows[0]
    what = "training" if first.measures == "train" else "inference"
    alone = f"{names[first.model]}: " if len(names) == 1 else ""
    return scatter(
        f"{alone}speed of {what} on {result.device}",
        points,
        x="images per second, each at its fastest batch size",
        y="top-1 accuracy" if has_accuracy else "parameters",
    )
