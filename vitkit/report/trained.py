"""The models of runs, looked into for the report on those runs."""

from __future__ import annotations

from collections.abc import Sequence

from vitkit.data.open import open_data
from vitkit.data.parts import Progress
from vitkit.errors import InputError
from vitkit.predictor import load
from vitkit.report.findings import Findings, Rollout, examine, examine_weights
from vitkit.report.folder import Run, mapping, text
from vitkit.report.page import Html, element, section
from vitkit.report.sections import DISTANCE, FILTERS, POSITIONS, drawn, missing, photo_section, sentence

NUM_IMAGES, NUM_PHOTOS = 32, 3


def model_sections(
    runs: Sequence[Run], *, inspect: bool, device: str, progress: Progress | None
) -> list[Html]:
    """Return a section for each run that has a model: what needs no images and, to inspect, what needs a few.

    What can't be drawn has a sentence in its place.
    """
    parts = []
    for run in runs:
        if run.model is not None:
            title = "Inside the model" if len(runs) == 1 else f"Inside {run.name}"
            try:
                content = _content(run, inspect, device, progress)
            except InputError as error:
                content = [_note(f"the model can't be drawn: {error}")]
            parts.append(section(title, *content))
    return parts


def _content(run: Run, inspect: bool, device: str, progress: Progress | None) -> list[Html]:
    assert run.model is not None
    predictor = load(run.model, device=device)
    found, options = examine_weights(predictor), Rollout()
    if not inspect:
        return [_pictures(found), *missing(found)]
    try:
        source = open_data(_data(run), default="measure")
        found = examine(
            predictor,
            source,
            num_images=NUM_IMAGES,
            num_photos=NUM_PHOTOS,
            options=options,
            progress=progress,
        )
    except InputError as error:
        return [_pictures(found), *missing(found), _note(f"attention is not drawn: {error}")]
    return [_pictures(found), photo_section(found, predictor, options), *missing(found)]


def _data(run: Run) -> str:
    """Return the DATA that the run's model was measured on, else what the run learned from."""
    data = run.config.get("data")
    given = (run.results.get("data"), mapping(data).get("evaluate"), mapping(data).get("train"), data)
    found = next(filter(None, map(text, given)), None)
    if found is None:
        raise InputError("the run doesn't say its data")
    return found


def _pictures(found: Findings) -> Html:
    """Return what is drawn of the whole model side by side."""
    shown = (("filters", FILTERS), ("positions", POSITIONS), ("distance", DISTANCE))
    parts = (
        element("div", drawn(found, name), element("p", words, class_="note"))
        for name, words in shown
        if name in found.drawings
    )
    return element("div", *parts, class_="pair")


def _note(words: str) -> Html:
    return element("p", sentence(words), class_="note")
