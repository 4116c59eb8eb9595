"""The models of runs, looked into for the report on those runs."""

from __future__ import annotations

from collections.abc import Sequence

from vitkit.data.open import open_data
from vitkit.data.threads import Progress
from vitkit.errors import InputError
from vitkit.figures.maps import sentence
from vitkit.inspection.findings import Findings, RolloutOptions, examine, examine_weights
from vitkit.predictor import load
from vitkit.reports.page import Html, element, section
from vitkit.reports.sections import DISTANCE, FILTERS, POSITIONS, drawn, missing, photo_parts
from vitkit.runs.reading import Run, mapping, text

NUM_IMAGES, NUM_PHOTOS = 32, 3


def model_sections(
    runs: Sequence[Run], *, inspect: bool, device: str, progress: Progress | None
) -> tuple[list[Html], list[str]]:
    """Return a section for each run that has a model: what needs no images and, to inspect, what needs a few.

    What can't be drawn has a sentence in its place; these sentences are returned beside.
    """
    parts, left_out = list[Html](), list[str]()
    for run in runs:
        if run.model is not None:
            title = "Inside the model" if len(runs) == 1 else f"Inside {run.name}"
            try:
                content, reason = _content(run, inspect, device, progress)
            except InputError as error:
                content, reason = [], f"the model can't be drawn: {error}"
            if reason:
                content.append(element("p", sentence(reason), class_="note"))
                left_out.append(f"{run.name}: {reason}")
            parts.append(section(title, *content))
    return parts, left_out


def _content(run: Run, inspect: bool, device: str, progress: Progress | None) -> tuple[list[Html], str]:
    """Return what is drawn of a model, and why attention isn't, '' where it is or needn't be."""
    assert run.model is not None
    predictor = load(run.model, device=device)
    if not inspect:
        return _of_weights(examine_weights(predictor)), ""
    options = RolloutOptions()
    try:
        objective = mapping(run.config.get("objective")).get("name", "supervised")
        source = open_data(_data(run), default="measure", labelled=objective == "supervised")
        found = examine(
            predictor,
            source,
            num_images=NUM_IMAGES,
            num_photos=NUM_PHOTOS,
            options=options,
            progress=progress,
        )
    except InputError as error:
        return _of_weights(examine_weights(predictor)), f"attention is not drawn: {error}"
    photos = photo_parts(found, predictor, options)
    return [_pictures(found), element("h3", "Photos"), *photos, *missing(found)], ""


def _of_weights(found: Findings) -> list[Html]:
    return [_pictures(found), *missing(found)]


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
