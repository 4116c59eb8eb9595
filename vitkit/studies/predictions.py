"""What laws predicted before it was run: kept in the study's folder, and compared with the run that came later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vitkit.errors import InputError
from vitkit.files import write_json
from vitkit.results import Result, from_json
from vitkit.runs.records import read_object
from vitkit.studies.charts import EVERY, FittedLaw
from vitkit.studies.results import Mean, StudyRow

FILE = "predictions.json"
NEAR = 0.02
"A run within this share of the predicted compute is the predicted one."


@dataclass(frozen=True)
class Prediction(Result):
    """An error that a law predicted, and that of the run that came later."""

    measure: str
    group: str
    at: float
    "exaFLOPs."
    predicted: float
    low: float
    high: float
    "95% interval of a new run."
    known: tuple[str, ...]
    "Runs that were finished then."
    run: str = ""
    "The one that came later; of several the best."
    error: float | None = None

    _leads = ("group", "at", "predicted", "low", "high", "run", "error")

    @property
    def is_inside(self) -> bool | None:
        """Whether the run's error is in the interval; None before there is one."""
        return None if self.error is None else self.low <= self.error <= self.high


def read_predictions(folder: Path) -> list[Prediction]:
    """Return the predictions of a study, the first first."""
    entries = read_object(folder / FILE).get("predictions", [])
    try:
        return [from_json(Prediction, entry) for entry in entries]
    except (TypeError, KeyError, AttributeError):
        raise InputError(f"{folder / FILE} is damaged; remove it to predict again") from None


def keep_predictions(
    folder: Path, laws: Iterable[FittedLaw], measure: str, rows: Sequence[StudyRow]
) -> list[Prediction]:
    """Add what laws predict against compute to a study's predictions, where it isn't predicted yet; return all."""
    found, known = read_predictions(folder), tuple(row.name for row in rows)
    for law in laws:
        key = (measure, law.group, law.at)
        if law.of == "compute" and key not in {(one.measure, one.group, one.at) for one in found}:
            found.append(Prediction(*key, law.predicted, law.low, law.high, known))
    if found:
        document = {"predictions": [one.to_json() for one in found]}
        write_json(folder / FILE, document)
    return found


def compare(predictions: Iterable[Prediction], means: Sequence[Mean], measure: str) -> tuple[Prediction, ...]:
    """Return the predictions of a measure, each with the run that came later, if there is one."""
    found = []
    for one in predictions:
        later = [
            mean
            for mean in means
            if mean.row.name not in one.known
            and abs(mean.row.exaflops / one.at - 1) <= NEAR
            and (one.group == EVERY or one.group in mean.row.groups)
        ]
        best = max(later, key=lambda mean: mean.accuracy, default=None)
        if one.measure == measure:
            found.append(one if best is None else replace(one, run=best.name, error=1 - best.accuracy))
    return tuple(found)
