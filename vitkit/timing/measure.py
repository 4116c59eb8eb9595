"""Measure candidates: all of them in one process, in rounds, with the matrix rate of the machine in each round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitkit.kernels.float8 import DTYPE as FLOAT8
from vitkit.models.precision import DTYPES
from vitkit.timing.candidates import Candidate
from vitkit.timing.memory import allocated_peak
from vitkit.timing.rounds import Speed, interleaved, rates, speed, turn, warm_up
from vitkit.timing.steps import Step, make_step
from vitkit.training.estimate import matrix_rate

Tell = Callable[[int, int], None]
MATRIX_SECONDS = 0.1


@dataclass(frozen=True)
class Timed:
    """What was measured of a candidate at one batch size."""

    candidate: Candidate
    batch_size: int
    speed: Speed
    matrix_share: float | None
    "Share of the matrix rate, measured in the same rounds; None for int8."
    peak_bytes: int | None
    "On a GPU."


@dataclass(frozen=True)
class Measured:
    """What was measured, and what there was no memory for."""

    timed: tuple[Timed, ...]
    matrix_rates: dict[str, float]
    "Operations per second by precision: the median of the rounds."
    notes: tuple[str, ...]


def measure(
    candidates: Sequence[Candidate], batch_sizes: Sequence[int], rounds: int, train: bool, tell: Tell | None
) -> Measured:
    """Time each candidate at each batch size; `tell` hears how many turns are done, and of how many."""
    precisions = sorted({item.precision for item in candidates} & set(DTYPES))
    found, notes, seen = list[Timed](), list[str](), dict[str, list[float]]()
    total, done = len(batch_sizes) * len(candidates) * (rounds + 1), 0

    def advance() -> None:
        nonlocal done
        done += 1
        if tell:
            tell(done, total)

    for batch_size in batch_sizes:
        steps, passes = list[Step](), list[int]()
        peaks, present = list[int | None](), list[Candidate]()
        for item in candidates:
            torch.set_num_threads(item.way.threads)
            try:
                step = make_step(item.network, batch_size, item.source.model.config.num_classes, train)
                passes.append(warm_up(step))
            except torch.OutOfMemoryError:
                notes.append(f"{item.name}: out of memory with batch size {batch_size}")
                done += rounds
                torch.cuda.empty_cache()
            else:
                steps.append(step)
                present.append(item)
                peaks.append(allocated_peak(item, step) if item.way.device == "cuda" else None)
            advance()
        turns: list[list[list[float]]] = [[] for _ in present]
        matrix: dict[str, list[float]] = {precision: [] for precision in precisions}
        for number, place in interleaved(len(present), rounds):
            if len(matrix[precisions[0]] if precisions else ()) == number:
                for precision in precisions:
                    matrix[precision].append(_matrix_rate(present, precision))
            torch.set_num_threads(present[place].way.threads)
            turns[place].append(turn(steps[place], passes[place]))
            advance()
        for item, own, peak in zip(present, turns, peaks, strict=True):
            share = None
            if item.precision in matrix:
                operations = (6 if train else 2) * item.macs
                pairs = zip(rates(own, batch_size), matrix[item.precision], strict=True)
                share = statistics.median(rate * operations / limit for rate, limit in pairs)
            found.append(Timed(item, batch_size, speed(own, turns[0], batch_size), share, peak))
        for precision, values in matrix.items():
            seen.setdefault(precision, []).extend(values)
    medians = {precision: statistics.median(values) for precision, values in seen.items() if values}
    return Measured(tuple(found), medians, tuple(notes))


def _matrix_rate(candidates: Sequence[Candidate], precision: str) -> float:
    """Return the rate of a matrix product with as many threads as a candidate has at most."""
    torch.set_num_threads(max(item.way.threads for item in candidates))
    dtype = FLOAT8 if precision == "float8" else DTYPES[precision]
    return matrix_rate(torch.device(candidates[0].way.device), dtype, MATRIX_SECONDS)


def logits_difference(candidate: Candidate, images: Tensor) -> float | None:
    """Return the largest difference of a logit from those of the model as it was loaded; None if it is the same."""
    if candidate.network.call is candidate.source.model or (candidate.is_graph and _is_source(candidate)):
        return None
    device = candidate.way.device
    with torch.inference_mode():
        expected = candidate.source.model(images.to(device)).float()
        found = candidate.network(images.to(device))
    return float((found - expected).abs().max())


def _is_source(candidate: Candidate) -> bool:
    return candidate.plan is None or not candidate.plan.is_written
