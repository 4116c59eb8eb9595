"""Power laws of error against compute, E = a (C + d)^-b + c, with bootstrap intervals; and the Pareto frontier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin

from vitkit.config import Bounds
from vitkit.errors import InputError

NAMES = ("a", "b", "c", "d")
EXPONENTS = tuple(np.geomspace(0.03, 3.0, 24))
"Exponents that a fit starts from."
LEAST = 1e-9
"Smallest c and d relative to the data, which stands for 0."
WIDEST = 5.0
"From this ratio of the ends of its interval, a or b counts as undetermined."
ROUNDS = 200
"Most steps of a fit."


class Interval(NamedTuple):
    """The ends of a confidence interval."""

    low: float
    high: float


class Prediction(NamedTuple):
    """Predicted errors, and the interval in which a new measurement is expected."""

    error: np.ndarray
    low: np.ndarray
    high: np.ndarray


class PowerLaw(RegressorMixin, BaseEstimator):
    """E = a (C + d)^-b + c: c is the error that remains with any compute, d shifts the curve for small compute.

    Least squares on log E, since errors of measurement are relative to E. Intervals are from a bootstrap of residuals.

    c, d: None to fit them; a number fixes one, as 0 does for a law without saturation.
    resamples: fits of the bootstrap. confidence: of the intervals. seed: of the bootstrap.
    Learned: a_, b_, c_, d_, intervals_ (name -> Interval, of what was fitted), spread_, the standard deviation of log E.
    """

    def __init__(
        self,
        c: float | None = None,
        d: float | None = None,
        resamples: int = 1000,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> None:
        self.c = c
        self.d = d
        self.resamples = resamples
        self.confidence = confidence
        self.seed = seed

    def fit(self, compute: Any, error: Any) -> PowerLaw:
        """Fit the law to runs: compute in any unit, error as a share; InputError if they can't determine it."""
        compute, error = self._checked(compute, error)
        fit = _Fit(compute, self.c, self.d, error)
        target = np.log(error)[None]
        starts = fit.starts(error)
        found, losses = fit.minimise(starts, np.repeat(target, len(starts), 0))
        best = found[int(losses.argmin())]
        fitted = fit.log_error(best[None])[0]
        residuals = target[0] - fitted
        free = int(fit.is_free.sum())
        degrees = len(compute) - free
        self.spread_ = float(np.sqrt((residuals**2).sum() / degrees))
        # A fit pulls the curve towards its points; dividing by sqrt(1 - leverage) undoes that.
        leverage = np.clip(fit.leverage(best), 0.0, 0.95)
        noise = residuals / np.sqrt(1.0 - leverage)
        noise -= noise.mean()
        random = np.random.default_rng(self.seed)
        drawn = random.choice(noise, (self.resamples, len(compute)))
        draws, _ = fit.minimise(np.repeat(best[None], self.resamples, 0), fitted + drawn)
        self._noise, self._draws, self._degrees = noise, fit.values(draws), degrees
        self.a_, self.b_, self.c_, self.d_ = map(float, fit.values(best[None])[0])
        self.intervals_ = {
            name: Interval(*map(float, self._ends(self._draws[:, place])))
            for place, name in enumerate(NAMES)
            if fit.is_free[place]
        }
        self._refuse_undetermined()
        return self

    def predict(self, compute: Any, interval: bool = False) -> Any:
        """Return the error at each compute; with `interval`, a Prediction with the range of a new measurement there."""
        compute = _row(compute, "compute")
        if (compute < 0).any():
            raise InputError(f"compute is {compute.min():g}; expected 0 or more")
        error = _law(np.array([[self.a_, self.b_, self.c_, self.d_]]), compute)[0]
        if not interval:
            return error
        noise = np.random.default_rng(self.seed + 1).choice(self._noise, (len(self._draws), len(compute)))
        low, high = self._ends(_law(self._draws, compute) * np.exp(noise))
        return Prediction(error, low, high)

    def score(self, compute: Any, error: Any) -> float:
        """Return the share of the variance of log E that the law explains."""
        log_error = np.log(_row(error, "error"))
        rest = log_error - np.log(self.predict(compute))
        return float(1 - (rest**2).sum() / ((log_error - log_error.mean()) ** 2).sum())

    def __str__(self) -> str:
        shift = f"(C + {self.d_:.3g})" if self.d_ else "C"
        return f"E = {self.a_:.3g} {shift}^-{self.b_:.3g}" + (f" + {self.c_:.3g}" if self.c_ else "")

    def _checked(self, compute: Any, error: Any) -> tuple[np.ndarray, np.ndarray]:
        Bounds(above=0, below=1).check("confidence", self.confidence)
        Bounds(at_least=20).check("resamples", self.resamples)
        for name in ("c", "d"):
            if getattr(self, name) is not None:
                Bounds(at_least=0).check(name, getattr(self, name))
        compute, error = _row(compute, "compute"), _row(error, "error")
        if len(compute) != len(error):
            raise InputError(f"{len(compute)} values of compute and {len(error)} of error; expected as many")
        if len(compute) and compute.min() <= 0:
            raise InputError(f"compute is {compute.min():g}; expected more than 0")
        if len(error) and error.min() <= 0:
            raise InputError(f"error is {error.min():g}; expected more than 0")
        free = [name for name in NAMES if getattr(self, name, None) is None]
        different = len(np.unique(compute))
        if different <= len(free):
            fixed = "" if "c" not in free else ", or fix c and d, as in PowerLaw(c=0, d=0)"
            raise InputError(
                f"{different} points of different compute can't determine {', '.join(free)}: a law needs "
                f"{len(free) + 1} or more; add runs{fixed}"
            )
        slope = np.polyfit(np.log(compute), np.log(error), 1)[0]
        if slope >= 0:
            raise InputError("the error doesn't fall with compute, so no power law describes it")
        if self.c is not None and self.c >= error.max():
            raise InputError(f"c is {self.c:g}, and no error is above {error.max():g}: give a smaller c")
        return compute, error

    def _ends(self, draws: np.ndarray) -> np.ndarray:
        """Return both ends of the interval of draws (resamples, ...), widened as Student's t is for few points."""
        from scipy.stats import norm, t

        tail = norm.cdf(t.ppf((1 - self.confidence) / 2, self._degrees))
        return np.quantile(draws, [tail, 1 - tail], axis=0)

    def _refuse_undetermined(self) -> None:
        for name in ("b", "a"):
            low, high = self.intervals_[name]
            if not (low > 0 and np.isfinite(high) and high < WIDEST * low):
                share = f"{self.confidence:.0%}"
                fixed = [word for word in ("c", "d") if word in self.intervals_]
                advice = f", or fix {' or '.join(fixed)}, as in PowerLaw({fixed[-1]}=0)" if fixed else ""
                raise InputError(
                    f"these points don't determine {name}: it may be {low:.2g} to {high:.2g} ({share} interval); "
                    f"add runs with less and with more compute{advice}"
                )


class _Fit:
    """Levenberg-Marquardt for many targets at once: parameters are logs, so that all stay positive.

    The first is the log of the falling part at the median compute, which is nearly independent of the exponent.
    """

    def __init__(self, compute: np.ndarray, c: float | None, d: float | None, error: np.ndarray) -> None:
        self.compute, self.middle = compute, float(np.median(compute))
        self.is_free = np.array([True, True, c is None, d is None])
        self.least = np.log([LEAST * error.min(), LEAST * compute.min()])
        self.most = np.log([error.max(), 100 * compute.max()])  # with noise, c is above the lowest error
        with np.errstate(divide="ignore"):
            self.fixed = np.log([c or 0.0, d or 0.0])  # -inf stands for 0

    def values(self, theta: np.ndarray) -> np.ndarray:
        """Return a, b, c, d of parameters (fits, 4)."""
        with np.errstate(over="ignore"):
            b, c, d = np.exp(theta[:, 1:]).T
            a = np.exp(theta[:, 0] + b * np.log(self.middle + d))
        c = np.where(theta[:, 2] <= self.least[0], 0.0, c)
        d = np.where(theta[:, 3] <= self.least[1], 0.0, d)
        return np.stack([a, b, c, d], 1)

    def starts(self, error: np.ndarray) -> np.ndarray:
        """Return parameters (fits, 4) to start from: for exponents and shifts, the best a and c by linear least squares."""
        shifts = [np.exp(self.fixed[1])]
        if self.is_free[3]:
            low, high = self.compute.min(), self.compute.max()
            shifts = [LEAST * low * 10, *np.geomspace(low / 10, high / 10, 8)]
        starts = []
        for b in EXPONENTS:
            for d in shifts:
                falling = ((self.compute + d) / (self.middle + d)) ** -b
                rows, target = (falling / error)[:, None], np.ones(len(error))
                if self.is_free[2]:
                    rows = np.stack([falling / error, 1 / error], 1)
                else:
                    target = 1 - np.exp(self.fixed[0]) / error
                found = np.linalg.lstsq(rows, target, rcond=None)[0]
                height = max(found[0], 1e-6 * error.max())
                floor = np.clip(found[-1], 1e-3 * error.min(), np.median(error))
                c = np.log(floor) if self.is_free[2] else self.fixed[0]
                starts.append([np.log(height), np.log(b), c, np.log(d) if d else -np.inf])
        table = np.array(starts)
        losses = ((np.log(error) - self.log_error(table)) ** 2).sum(1)
        return table[np.argsort(losses)[:12]]

    def log_error(self, theta: np.ndarray) -> np.ndarray:
        """Return log E, (fits, points)."""
        return np.log(sum(self._parts(theta)[:2]))

    def minimise(self, theta: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the parameters that fit each target (fits, points) best, and their sums of squares."""
        theta, damping = theta.copy(), np.full(len(theta), 1e-2)
        losses = ((target - self.log_error(theta)) ** 2).sum(1)
        still = np.zeros(len(theta), int)
        for _ in range(ROUNDS):
            if not len(active := np.flatnonzero(still < 3)):
                break
            step = self._step(theta[active], target[active], damping[active])
            tried = theta[active] + step
            tried[:, 2:] = np.where(
                self.is_free[2:], np.clip(tried[:, 2:], self.least, self.most), tried[:, 2:]
            )
            tried[:, :2] = np.clip(tried[:, :2], [-60, -8], [60, 4])
            found = ((target[active] - self.log_error(tried)) ** 2).sum(1)
            is_better = found < losses[active]
            gain = (losses[active] - found) / np.maximum(losses[active], 1e-300)
            still[active] = np.where(~is_better | (gain < 1e-10), still[active] + 1, 0)
            still[active] = np.where(losses[active] < 1e-28, 3, still[active])
            theta[active] = np.where(is_better[:, None], tried, theta[active])
            losses[active] = np.where(is_better, found, losses[active])
            damping[active] = np.clip(damping[active] * np.where(is_better, 0.2, 8.0), 1e-12, 1e8)
            still[active] = np.where(~is_better & (damping[active] < 1e4), 0, still[active])
        return theta, losses

    def leverage(self, theta: np.ndarray) -> np.ndarray:
        """Return how much each point pulls the curve towards itself, (points,)."""
        slopes = self._slopes(theta[None])[0]
        return np.einsum("ij,ji->i", slopes, np.linalg.pinv(slopes, rcond=1e-10))

    def _step(self, theta: np.ndarray, target: np.ndarray, damping: np.ndarray) -> np.ndarray:
        slopes = self._slopes(theta)  # (fits, points, free)
        square = np.einsum("fpi,fpj->fij", slopes, slopes)
        moment = np.einsum("fpi,fp->fi", slopes, target - self.log_error(theta))
        places = np.arange(square.shape[1])
        diagonal = square[:, places, places]
        square[:, places, places] = diagonal * (1 + damping[:, None]) + 1e-14
        step = np.zeros_like(theta)
        step[:, self.is_free] = np.clip(np.linalg.solve(square, moment[..., None])[..., 0], -2, 2)
        return step

    def _parts(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the falling part, c, and the log of compute relative to its median, each (fits, points)."""
        b, c, d = np.exp(theta[:, 1:, None]).transpose(1, 0, 2)
        relative = np.log((self.compute + d) / (self.middle + d))
        return np.exp(theta[:, :1] - b * relative), c, relative

    def _slopes(self, theta: np.ndarray) -> np.ndarray:
        """Return the derivatives of log E by the free parameters, (fits, points, free)."""
        falling, c, relative = self._parts(theta)
        b, d = np.exp(theta[:, 1:2]), np.exp(theta[:, 3:4])
        share = falling / (falling + c)
        by_shift = -b * (d / (self.compute + d) - d / (self.middle + d))
        columns = [share, -share * b * relative, np.broadcast_to(1 - share, share.shape), share * by_shift]
        return np.stack(columns, 2)[:, :, self.is_free]


def frontier(compute: Sequence[float] | np.ndarray, error: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the places of the Pareto-optimal runs, by compute: no other run has less error for as much or less compute."""
    cost, lost = _row(compute, "compute"), _row(error, "error")
    if len(cost) != len(lost):
        raise InputError(f"{len(cost)} values of compute and {len(lost)} of error; expected as many")
    kept: list[int] = []
    for place in np.lexsort((lost, cost)).tolist():
        if not kept or lost[place] < lost[kept[-1]]:
            kept.append(place)
    return np.array(kept, np.int64)


def _law(values: np.ndarray, compute: np.ndarray) -> np.ndarray:
    """Return the error of each law (laws, 4) at each compute, (laws, points)."""
    a, b, c, d = values.T[:, :, None]
    with np.errstate(divide="ignore"):
        return a * (compute + d) ** -b + c


def _row(values: Any, name: str) -> np.ndarray:
    """Return finite numbers as float64 (points,); a single column, as scikit-learn passes, is one too."""
    try:
        row = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} is {values!r}; expected numbers") from None
    row = row.reshape(-1) if row.ndim == 2 and row.shape[1] == 1 else np.atleast_1d(row)
    if row.ndim != 1:
        raise InputError(f"{name} has shape {row.shape}; expected one number per run")
    if not np.isfinite(row).all():
        raise InputError(f"{name} has values that are not finite: leave out those runs")
    return row
