"""Power laws: the published ones come back, intervals cover the truth, what is undetermined is refused."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

from vitkit.errors import InputError
from vitkit.studies.laws import NAMES, PowerLaw, frontier

# a, b, c, d of Scaling ViT's figures 2 and 4: fine-tuned after JFT, 10-shot after JFT, 10-shot after ImageNet-21k.
LAWS = {
    "fine-tuned": (0.26, 0.35, 0.09, 0.01),
    "10-shot, JFT": (0.63, 0.32, 0.12, 0.52),
    "10-shot, ImageNet-21k": (0.96, 0.61, 0.24, 1.57),
}
COMPUTE = np.geomspace(1e-3, 1e5, 40)


def sample(law: tuple[float, ...], compute: np.ndarray = COMPUTE) -> np.ndarray:
    a, b, c, d = law
    return a * (compute + d) ** -b + c


def noisy(law: tuple[float, ...], seed: int, compute: np.ndarray = COMPUTE) -> np.ndarray:
    return sample(law, compute) * (1 + 0.01 * np.random.default_rng(seed).standard_normal(len(compute)))


def values(law: PowerLaw) -> list[float]:
    return [law.a_, law.b_, law.c_, law.d_]


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("points", [8, 40])
def test_published_laws_come_back(name: str, points: int) -> None:
    compute = np.geomspace(1e-3, 1e5, points)
    found = PowerLaw(resamples=50).fit(compute, sample(LAWS[name], compute))
    assert values(found) == pytest.approx(LAWS[name], rel=0.01)


def test_scaling_vits_own_values() -> None:
    """The law's errors at 1 to 10,000 core-days, from its printed parameters."""
    found = PowerLaw(resamples=50).fit(COMPUTE, sample(LAWS["fine-tuned"]))
    expected = [0.3491, 0.2061, 0.1419, 0.1132, 0.1004]
    assert found.predict([1, 10, 100, 1000, 10000]) == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize(("points", "least"), [(40, 180), (12, 176), (8, 168)])
def test_intervals_cover_the_truth(name: str, points: int, least: int) -> None:
    """Nine draws of ten, of 95% intervals, fewer for few points; of a measurement beyond the fit, too."""
    covered = dict.fromkeys((*NAMES, "prediction"), 0)
    compute = np.geomspace(1e-3, 1e5, points)
    for seed in range(200):
        found = PowerLaw(resamples=400, seed=seed).fit(compute, noisy(LAWS[name], seed, compute))
        for parameter, truth in zip(NAMES, LAWS[name], strict=True):
            low, high = found.intervals_[parameter]
            covered[parameter] += low <= truth <= high
        beyond = np.array([1e6])
        predicted = found.predict(beyond, interval=True)
        covered["prediction"] += bool(
            predicted.low <= noisy(LAWS[name], 1000 + seed, beyond) <= predicted.high
        )
    assert min(covered.values()) >= least, covered


def test_an_interval_is_wider_with_more_noise() -> None:
    compute = COMPUTE
    truth = sample(LAWS["10-shot, JFT"])
    widths = []
    for noise in (0.001, 0.01):
        error = truth * (1 + noise * np.random.default_rng(0).standard_normal(len(compute)))
        found = PowerLaw(resamples=200).fit(compute, error)
        assert found.spread_ == pytest.approx(noise, rel=0.3)
        predicted = found.predict([1e6], interval=True)
        assert predicted.low < predicted.error < predicted.high
        widths.append((predicted.high - predicted.low)[0])
    assert 5 < widths[1] / widths[0] < 20


def test_a_law_without_saturation() -> None:
    compute = np.geomspace(1, 1000, 4)
    found = PowerLaw(c=0, d=0, resamples=50).fit(compute, 0.5 * compute**-0.2)
    assert values(found) == pytest.approx([0.5, 0.2, 0, 0], rel=1e-6)
    assert set(found.intervals_) == {"a", "b"} and str(found) == "E = 0.5 C^-0.2"


def test_what_is_fixed_stays() -> None:
    found = PowerLaw(d=0.52, resamples=50).fit(COMPUTE, noisy(LAWS["10-shot, JFT"], 0))
    assert found.d_ == 0.52 and "d" not in found.intervals_
    assert found.b_ == pytest.approx(0.32, rel=0.05)


def test_it_speaks_scikit_learn() -> None:
    law = PowerLaw(seed=3, resamples=50)
    assert clone(law).get_params() == law.get_params()
    found = law.fit(COMPUTE[:, None], noisy(LAWS["fine-tuned"], 0))
    assert found is law and found.score(COMPUTE, sample(LAWS["fine-tuned"])) > 0.99
    again = clone(law).fit(COMPUTE, noisy(LAWS["fine-tuned"], 0))
    assert again.intervals_ == found.intervals_
    assert str(found).startswith("E = 0.2")


@pytest.mark.parametrize(
    ("compute", "error", "message"),
    [
        ([1, 10], [0.5, 0.4], "2 points of different compute can't determine a, b, c, d: a law needs 5 or more; add runs, or fix c and d, as in PowerLaw(c=0, d=0)"),
        ([1, 1, 1, 1, 1, 2], [0.5] * 6, "2 points of different compute can't determine a, b, c, d"),
        ([1, 2], [0.5], "2 values of compute and 1 of error; expected as many"),
        ([1, 2, 3, 4, 5], [0.1, 0.2, 0.3, 0.4, 0.5], "the error doesn't fall with compute, so no power law describes it"),
        ([0, 2, 3, 4, 5], [0.5, 0.4, 0.3, 0.2, 0.1], "compute is 0; expected more than 0"),
        ([1, 2, 3, 4, 5], [0.5, 0.4, 0.3, 0.2, 0], "error is 0; expected more than 0"),
        ([1, 2, 3, 4, np.nan], [0.5, 0.4, 0.3, 0.2, 0.1], "compute has values that are not finite"),
        ([1, "x"], [0.5, 0.4], "compute is [1, 'x']; expected numbers"),
        ([[1, 2], [3, 4]], [0.5, 0.4], "compute has shape (2, 2); expected one number per run"),
    ],
)  # fmt: skip
def test_refusals(compute: list[float], error: list[float], message: str) -> None:
    with pytest.raises(InputError) as refused:
        PowerLaw().fit(compute, error)
    assert str(refused.value).startswith(message)


def test_too_narrow_a_range_is_refused() -> None:
    """Noise of 5% over a factor of 3 in compute leaves the exponent open."""
    compute = np.geomspace(1, 3, 8)
    error = sample(LAWS["10-shot, JFT"], compute) * (1 + 0.05 * np.random.default_rng(1).standard_normal(8))
    with pytest.raises(
        InputError, match="these points don't determine [ab]: it may be .* add runs with less"
    ):
        PowerLaw().fit(compute, error)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"confidence": 1.0}, "confidence must be above 0 and below 1, not 1"),
        ({"resamples": 3}, "resamples must be at least 20, not 3"),
        ({"c": -1.0}, "c must be at least 0, not -1"),
        ({"c": 2.0}, "c is 2, and no error is above 1.35"),
    ],
)
def test_settings_out_of_bounds(settings: dict[str, float], message: str) -> None:
    with pytest.raises(InputError) as refused:
        PowerLaw(**settings).fit(COMPUTE, sample(LAWS["fine-tuned"]))  # type: ignore[arg-type]
    assert str(refused.value).startswith(message)


def test_the_frontier() -> None:
    compute = [3, 1, 2, 4, 4, 5]
    error = [0.3, 0.5, 0.6, 0.25, 0.2, 0.2]
    assert frontier(compute, error).tolist() == [1, 0, 4]
    assert frontier([], []).tolist() == []
