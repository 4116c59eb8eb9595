"""Linear probe: multinomial logistic regression on standardised features, its regularisation chosen on a dev split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor

from vitkit.config import Bounds
from vitkit.data.open import Data
from vitkit.data.sources.source import Source
from vitkit.data.unreadable import BadImages
from vitkit.errors import InputError
from vitkit.evaluation.frozen import (
    FrozenEvaluator,
    FrozenResult,
    StrengthRow,
    check_classes,
    check_rows,
    mean_and_std,
    open_pair,
    row_blocks,
)
from vitkit.evaluation.metrics import read_answers
from vitkit.evaluation.passes import SourcePasses
from vitkit.evaluation.temperature import Calibration, FittedTemperature, fit_temperature, measure_calibration
from vitkit.models.configs import Size
from vitkit.notes import Note
from vitkit.predictor import AnyModel
from vitkit.progress import Progress

GRID = tuple(10.0**power for power in range(1, -6, -1))
DEV = 0.1
HELD_OUT = 200
"Images that are held out in all, in several turns if one has fewer: a choice by few is mostly chance."
KEPT_BYTES = 2**30
ALONE = 2**22
"Multiplications of a product below which one thread computes it."


class Probe(ClassifierMixin, BaseEstimator):
    """The minimum of mean cross-entropy + l2 / 2 |weights|², biases free, found by L-BFGS.

    l2: strength of the regularisation; None tries `grid` on images that are held out, then learns from all images with
    the most accurate strength, of equal ones that with the lowest loss. A temperature for its probabilities is fitted
    on the same images. A `dev` share of each class is held out, drawn with `seed`; where that is less than 200
    images, one share after the other.
    tolerance: the greatest entry of the gradient at the end; iterations: the most that are done for it.
    block_size: images taken at once; kept_bytes: standardised features beyond it are computed again in each pass.
    Learned: classes_, mean_, scale_, coef_ (classes, width), intercept_, l2_, n_iter_, converged_, and of the images
    held out grid_ (l2 -> accuracy), losses_ (l2 -> loss), temperature_ and held_out_, their number; without any, the
    temperature is 1.
    """

    def __init__(
        self,
        l2: float | None = None,
        grid: Sequence[float] = GRID,
        dev: float = DEV,
        seed: int = 0,
        tolerance: float = 1e-5,
        iterations: int = 1000,
        device: str = "cpu",
        block_size: int = 8192,
        kept_bytes: int | None = None,
    ) -> None:
        self.l2 = l2
        self.grid = grid
        self.dev = dev
        self.seed = seed
        self.tolerance = tolerance
        self.iterations = iterations
        self.device = device
        self.block_size = block_size
        self.kept_bytes = kept_bytes

    def fit(self, x: Any, y: Any) -> Probe:
        """Find the weights; x is (images, width), y holds their classes."""
        x = check_rows(x, y)
        self.classes_, labels = check_classes(y)
        self.n_features_in_ = x.shape[1]
        self.grid_: dict[float, float] = {}
        self.losses_: dict[float, float] = {}
        self.temperature_, self.held_out_ = 1.0, 0
        strengths = self.grid if self.l2 is None else (self.l2,)
        if not len(strengths):
            raise InputError("grid is empty; expected strengths of l2 to choose from")
        Bounds(above=0).check("l2", list(strengths))
        self.l2_ = float(strengths[0])
        if len(strengths) > 1:
            self._choose(x, labels, sorted(map(float, strengths), reverse=True))
        self.mean_, self.scale_ = self._statistics(x, None)
        data = _Blocks(self, x, labels, self.mean_, self.scale_, None)
        weights, self.n_iter_, self.converged_ = self._minimise(data, self.l2_, None)
        self.coef_, self.intercept_ = (
            weights[:-1].T.cpu().double().numpy(),
            weights[-1].cpu().double().numpy(),
        )
        return self

    def _choose(self, x: np.ndarray, labels: np.ndarray, strengths: Sequence[float]) -> None:
        """Find l2_ and temperature_ by images that are held out, those of each turn judged by what the others teach."""
        turns = cut_dev(labels, self.dev, self.seed)
        judged = labels[np.concatenate(turns)]
        pairs: list[tuple[_Blocks, _Blocks]] = []
        for rows in turns:
            rest = np.setdiff1d(np.arange(len(labels)), rows)
            mean, scale = self._statistics(x, rest)
            learned, held = (_Blocks(self, x, labels, mean, scale, part) for part in (rest, rows))
            pairs.append((learned, held))
        right = np.eye(len(self.classes_), dtype=bool)
        weights: list[Tensor | None] = [None] * len(pairs)
        best, best_logits = (-1.0, 0.0), np.empty(0)
        for l2 in strengths:
            parts = []
            for turn, (learned, held) in enumerate(pairs):
                found, _, _ = self._minimise(learned, l2, weights[turn])  # from where the stronger one ended
                parts += [_logits(z, found).float().cpu().numpy() for z, _ in held]
                weights[turn] = found
            logits = np.concatenate(parts)
            answers = read_answers(logits, judged, right)
            self.grid_[l2] = float((answers.ranks == 0).mean())
            self.losses_[l2] = float(answers.losses.mean())
            if (score := (self.grid_[l2], -self.losses_[l2])) > best:
                self.l2_, best, best_logits = l2, score, logits
        self.temperature_, self.held_out_ = fit_temperature(best_logits, judged), len(judged)

    def decision_function(self, x: Any) -> np.ndarray:
        """Return logits, not divided by the temperature: (images, classes)."""
        return np.concatenate(list(self._scores(x)))

    def predict_proba(self, x: Any) -> np.ndarray:
        """Return the probability of each class: (images, classes)."""
        return torch.from_numpy(self.decision_function(x) / self.temperature_).softmax(1).numpy()

    def predict(self, x: Any) -> np.ndarray:
        """Return the likeliest class."""
        return np.concatenate([self.classes_[scores.argmax(1)] for scores in self._scores(x)])

    def _scores(self, x: Any) -> Iterator[np.ndarray]:
        x = check_rows(x, width=self.n_features_in_)
        for _, block in row_blocks(x, self.block_size):
            yield (block - self.mean_) / self.scale_ @ self.coef_.T + self.intercept_

    def _statistics(self, x: np.ndarray, rows: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        mean, std = mean_and_std(x, self.block_size, rows)
        std[std <= 1e-10 * np.abs(mean)] = 1.0  # a constant column, but for rounding
        return mean, std

    def _minimise(self, data: _Blocks, l2: float, start: Tensor | None) -> tuple[Tensor, int, bool]:
        """Return weights (width + 1, classes) with the biases in their last row, iterations, and whether they sufficed."""
        shape = (self.n_features_in_ + 1, len(self.classes_))
        weights = torch.zeros(shape, dtype=data.dtype, device=data.device) if start is None else start.clone()
        weights.grad = torch.zeros_like(weights)

        def closure() -> Tensor:
            assert weights.grad is not None
            weights.grad.copy_(weights * l2)
            weights.grad[-1] = 0
            loss = weights[:-1].square().sum() * (l2 / 2)
            for z, target in data:
                logits = _logits(z, weights)
                loss += F.cross_entropy(logits, target, reduction="sum") / len(data)
                error = logits.softmax(1)
                error[torch.arange(len(z), device=z.device), target] -= 1
                error /= len(data)
                weights.grad[:-1] += z.T @ error
                weights.grad[-1] += error.sum(0)
            return loss

        optimizer = torch.optim.LBFGS(
            [weights],
            max_iter=self.iterations,
            max_eval=2 * self.iterations,
            tolerance_grad=self.tolerance,
            tolerance_change=0.0,
            history_size=20,
            line_search_fn="strong_wolfe",
        )
        with torch.no_grad(), _threads_for(len(data) * weights.numel()):
            optimizer.step(closure)
            closure()
        steps = int(optimizer.state[weights]["n_iter"])
        return weights.detach(), steps, bool(weights.grad.abs().max() <= self.tolerance)


class _Blocks:
    """Standardised rows with their labels on the device, block by block; kept there if they fit, else made each time."""

    def __init__(
        self,
        probe: Probe,
        x: np.ndarray,
        labels: np.ndarray,
        mean: np.ndarray,
        scale: np.ndarray,
        rows: np.ndarray | None,
    ) -> None:
        self.x, self.mean, self.scale, self.rows, self.size = x, mean, scale, rows, probe.block_size
        self.labels = torch.from_numpy(labels if rows is None else labels[rows])
        self.device = torch.device(probe.device)
        self.dtype = torch.float32 if self.device.type == "mps" else torch.float64  # mps has no float64
        kept_bytes = _free_bytes(self.device) if probe.kept_bytes is None else probe.kept_bytes
        fits = len(self) * x.shape[1] * self.dtype.itemsize <= kept_bytes
        self.kept = list(self._made()) if fits else None

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self._made() if self.kept is None else iter(self.kept)

    def _made(self) -> Iterator[tuple[Tensor, Tensor]]:
        for places, block in row_blocks(self.x, self.size, self.rows):
            z = torch.from_numpy((block - self.mean) / self.scale).to(dtype=self.dtype)
            yield z.to(self.device), self.labels[places].to(self.device)


@contextmanager
def _threads_for(work: int) -> Iterator[None]:
    """Use one thread for products that are too small to share.

    On a busy machine, threads that wait for each other make a small product fifty times slower.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if work < ALONE else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _logits(z: Tensor, weights: Tensor) -> Tensor:
    return torch.addmm(weights[-1], z, weights[:-1])


def _free_bytes(device: torch.device) -> int:
    """Return how much of a GPU's memory the features may take; on other devices a constant."""
    return torch.cuda.mem_get_info(device)[0] // 3 if device.type == "cuda" else KEPT_BYTES


def cut_dev(
    labels: np.ndarray, share: float, seed: int, advice: str = "give --l2 (l2= in Python)"
) -> list[np.ndarray]:
    """Return the images to hold out in each turn, int64: a share of each class, one at least where it has two.

    There are as many turns as hold out HELD_OUT images, or all.
    """
    Bounds(above=0, below=1).check("dev", share)
    counts = np.bincount(labels)
    sizes = np.minimum(counts - 1, np.maximum(1, np.floor(share * counts + 0.5))).astype(np.int64)
    if not (sizes > 0).any():
        raise InputError(f"no class has two images, so the dev split is empty: {advice}")
    order = np.lexsort((np.random.default_rng(seed).permutation(len(labels)), labels))
    places = np.empty(len(labels), np.int64)  # of an image among those of its class, in the order of a draw
    places[order] = np.arange(len(labels)) - (np.cumsum(counts) - counts)[labels[order]]
    rows = np.flatnonzero(sizes[labels] > 0)
    turn = places[rows] // sizes[labels[rows]]
    totals = np.cumsum(np.bincount(turn))
    needed = int(np.searchsorted(totals, min(HELD_OUT, totals[-1]))) + 1
    return [rows[turn == number] for number in range(needed)]


@dataclass(frozen=True)
class ProbeResult(FrozenResult):
    """What `probe` measured."""

    accuracy: float
    l2: float
    grid: tuple[StrengthRow, ...]
    "Accuracies and losses on the images of train that were held out; none where l2 was given."
    iterations: int
    converged: bool
    calibration_error: float | None
    "At temperature 1."
    calibration: Calibration | None
    "None where l2 was given: no images were held out to fit a temperature on."
    notes: tuple[str, ...]
    seconds: float

    _leads = ("accuracy", "l2", "model", "train", "test")
    _tables = ("grid",)


def probe(
    model: AnyModel,
    data: Data,
    *,
    l2: float | None = None,
    evaluate: Data | None = None,
    device: str = "auto",
    batch_size: int = 64,
    image_size: Size | None = None,
    bad_images: BadImages = "skip",
    progress: bool | Progress | None = True,
) -> ProbeResult:
    """Return the accuracy of logistic regression on frozen features.

    l2: regularisation strength; by default it is chosen on held-out images of train, and a temperature is fitted on them.
    evaluate: DATA to measure on; by default the source's test split, else val.
    bad_images: "skip", "error" or "any", for unreadable images.
    progress: False shows none; a function is called with the number of images done, and with their total.
    """
    Bounds(above=0).check("l2", l2)
    pair = open_pair(data, evaluate)
    if l2 is None:
        cut_dev(pair.train.labels, DEV, seed=0)
    features = pair.features(
        model,
        device=device,
        batch_size=batch_size,
        image_size=image_size,
        progress=progress,
        bad_images=bad_images,
    )
    train, test = features.train, features.test
    fitted = Probe(l2, device=features.predictor.device.type).fit(train.x, train.labels)
    notes = []
    if not fitted.converged_:
        text = f"the probe did not converge in {fitted.n_iter_:,} iterations: its accuracy is approximate"
        notes.append(Note(text, "warning"))
    if fitted.l2_ in (max(GRID), min(GRID)) and l2 is None:
        text = f"the best l2, {fitted.l2_:g}, is at the end of the grid: a value beyond it may be better; give --l2"
        notes.append(Note(text, "advice"))
    how = f"l2 {fitted.l2_:g}"
    if l2 is None:
        held_out = f"{fitted.held_out_:,} held-out images of train"
        how += f", the best of {len(GRID)} on {held_out}, then fitted to all of train"
    how = f"multinomial logistic regression on standardised features, {how}"
    logits = fitted.decision_function(test.x)
    places = np.searchsorted(fitted.classes_, test.labels)
    fitted_on = f"held-out images of {pair.train.data_name}"
    fit = FittedTemperature(fitted.temperature_, fitted_on, fitted.held_out_)
    calibration = measure_calibration(logits, places, fit)
    return features.result(
        ProbeResult,
        how,
        notes,
        accuracy=float(np.mean(logits.argmax(1) == places)),
        l2=fitted.l2_,
        grid=tuple(StrengthRow(l2, value, fitted.losses_[l2]) for l2, value in fitted.grid_.items()),
        iterations=fitted.n_iter_,
        converged=fitted.converged_,
        calibration_error=calibration.error_before,
        calibration=calibration if l2 is None else None,
    )


class ProbeEvaluator(FrozenEvaluator):
    """Accuracy of a linear probe of a model while it trains."""

    def __init__(self, train: Source, test: Source, passes: SourcePasses, *, l2: float | None = None) -> None:
        images = passes(train)
        super().__init__("probe", Probe(l2, device=str(images.world.device)), images, passes(test))
        if l2 is None:
            cut_dev(train.labels, DEV, 0, "leave probe out of frozen.evaluators")
