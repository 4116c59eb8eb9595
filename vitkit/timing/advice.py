"""The ways to run a small model on this machine, measured, and the fastest of them: `vit doctor --measure`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitkit.errors import InputError
from vitkit.machine import busy_note, num_cores
from vitkit.models.precision import PRECISIONS
from vitkit.predictor import Predictor, choose_device
from vitkit.progress import Progress, showing
from vitkit.results import Result
from vitkit.timing.candidates import Candidate, own_candidate, peer_candidate
from vitkit.timing.measure import measure
from vitkit.timing.peers import check, written
from vitkit.timing.results import BenchRow, in_rows, short
from vitkit.timing.run import open_filled
from vitkit.timing.ways import LIBRARIES, Way

MODEL = "Ti/16"
ROUNDS = 3
# How a user gets a way, by library and whether it is compiled.
HOW = {
    ("vitkit", "eager"): "as vitkit.load returns it",
    ("vitkit", "compiled"): "torch.compile(vitkit.load(MODEL).model)",
    ("onnxruntime", "graph"): "vit export MODEL --to onnx",
    ("openvino", "graph"): "vit export MODEL --to openvino",
}


@dataclass(frozen=True)
class Advice(Result):
    """The fastest way at one batch size."""

    batch_size: int
    library: str
    runs: str
    precision: str
    threads: int
    images_per_second: float
    milliseconds: float
    "Of a batch: the median."
    ratio: float
    "Rate next to the first way: eager PyTorch with all cores."
    how: str

    @property
    def words(self) -> str:
        """The advice as one line."""
        way = f"{LIBRARIES[self.library]}, {self.runs}, {self.precision}, {self.threads} threads"
        return (
            f"batches of {self.batch_size}: {way}: {short(self.milliseconds)} ms, {short(self.images_per_second)} images/s, "
            f"{self.ratio:.2f} times the first row: {self.how}"
        )


@dataclass(frozen=True)
class MeasuredWays(Result):
    """Every way that was measured, the fastest for each batch size, and ways that this machine lacks."""

    model: str
    rows: tuple[BenchRow, ...]
    fastest: tuple[Advice, ...]
    notes: tuple[str, ...]

    _tables = ("fastest", "rows")


def measure_ways(
    model: str = MODEL,
    batch_sizes: tuple[int, ...] = (1, 8),
    *,
    device: str = "auto",
    compile: bool = True,
    rounds: int = ROUNDS,
    progress: bool | Progress | None = True,
) -> MeasuredWays:
    """Time the ways to run a small model with random weights on this machine: threads, precisions, runtimes."""
    chosen, before = choose_device(device).type, torch.get_num_threads()
    notes = [line for line in (busy_note(),) if line and chosen == "cpu"]
    try:
        with tempfile.TemporaryDirectory(prefix="vitkit-ways-") as folder:
            predictor = open_filled(model, chosen, None)
            candidates = list(_ways(predictor, Path(folder), chosen, compile, notes))
            with showing(progress, "measuring ways to run a model") as tell:
                measured = measure(candidates, batch_sizes, rounds, False, tell)
    finally:
        torch.set_num_threads(before)
    rows = in_rows(candidates, measured)
    return MeasuredWays(
        model, rows, tuple(_fastest(rows, size) for size in batch_sizes), (*notes, *measured.notes)
    )


def _ways(
    predictor: Predictor, folder: Path, device: str, compile: bool, notes: list[str]
) -> Iterator[Candidate]:
    cores = num_cores()
    first = Way("vitkit", device, PRECISIONS[device][0], cores)
    yield own_candidate(predictor, first, None)
    if device == "cpu":
        for threads in sorted({1, cores // 2} - {0, cores}):
            yield own_candidate(predictor, replace(first, threads=threads), None)
    for precision in PRECISIONS[device]:
        if precision == "float8":
            continue  # its scales need images
        way = replace(first, precision=precision)
        if way != first:
            yield own_candidate(predictor, way, None)
        if compile:
            yield own_candidate(predictor, replace(way, is_compiled=True), None)
        for library in ("onnxruntime", "openvino"):
            peer = replace(way, library=library)
            try:
                check(library, peer, train=False)
                yield peer_candidate(predictor, peer, written(library, predictor, folder))
            except InputError as error:
                notes.append(f"{LIBRARIES[library]} in {precision}: {error}")


def _fastest(rows: tuple[BenchRow, ...], batch_size: int) -> Advice:
    best = max((row for row in rows if row.batch_size == batch_size), key=lambda row: row.images_per_second)
    how = HOW[best.library, best.runs]
    if best.library == "vitkit" and best.precision != PRECISIONS[best.device][0]:
        how += f", with precision={best.precision!r}"
    if best.library == "openvino" and best.precision != "float32":
        how += f" --precision {best.precision}"
    return Advice(
        batch_size,
        best.library,
        best.runs,
        best.precision,
        best.threads,
        best.images_per_second,
        1000 * best.p50,
        best.ratio,
        how,
    )
