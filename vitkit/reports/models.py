"""Models looked into, as sections of a page: each picture with how to read it, and why others are missing.

An inspection shows all of its findings; the report on runs shows those of their models side by side.
"""

from __future__ import annotations

from collections.abc import Sequence

from vitkit.data.open import open_data
from vitkit.errors import InputError
from vitkit.figures.maps import sentence
from vitkit.inspection.asking import join_reasons, reads_class_token
from vitkit.inspection.drawings import grid_in_words
from vitkit.inspection.findings import Findings, Photo, RolloutOptions, examine, examine_weights
from vitkit.models.configs import TransformerConfig
from vitkit.page import Html, element, figure, fold, section, table
from vitkit.predictor import Prediction, Predictor, load
from vitkit.progress import Progress
from vitkit.runs.reading import Run, mapping, text

NO_IMAGES = "No images were given: vit inspect MODEL IMAGES also shows where the model looks, and how far."
FILTERS = (
    "What the model sees pixels through. Trained filters look smoother, with edges, waves and colours; "
    "untrained ones look like noise."
)
POSITIONS = (
    "Where they were learned, nearby patches have similar embeddings, and rows and columns show as lines; "
    "class and register tokens are left out."
)
DISTANCE = (
    "How far a head looks from a patch, weighted by its attention, in pixels of the model's input. Below the dashed "
    "line a head attends to what is near, at the line everywhere alike, above it to what is far away."
)
KINDS = {"filters": "sheet", "positions": "wide square", "distance": "wide"}
"How each picture of the whole model is shown."
RUN_IMAGES, RUN_PHOTOS = 32, 3
"Of those that a run's model was measured on."


def weight_sections(found: Findings) -> list[Html]:
    """Return filters and positions."""
    shown = (("Filters", "filters", FILTERS), ("Position embeddings", "positions", POSITIONS))
    return [
        section(title, element("p", words), _drawn(found, name))
        for title, name, words in shown
        if name in found.drawings
    ]


def distance_sections(found: Findings) -> list[Html]:
    """Return the mean attention distance, and its table."""
    title = "Attention distance"
    if found.distances is None:
        return []
    values = found.distances.values
    columns = ["Layer", *(f"Head {head}" for head in range(values.shape[1])), "Mean"]
    rows = [
        [f"{layer}", *(f"{value:.1f}" for value in (*row, row.mean()))] for layer, row in enumerate(values)
    ]
    words = "By layer and head, in pixels"
    numbers = fold(words, table(columns, rows, label=f"{title} {words.lower()}", right=columns))
    return [section(title, element("p", DISTANCE), _drawn(found, "distance"), numbers)]


def photo_parts(found: Findings, predictor: Predictor, options: RolloutOptions) -> list[Html]:
    """Return a card for each photo, after how to read them."""
    if not found.photos:
        was_asked = found.distances is not None or "distance" in found.undefined
        words = "No photos were drawn: none was asked for, or none can be read." if was_asked else NO_IMAGES
        return [element("p", words, class_="note")]
    return [*_how_to_read(predictor, options), *map(_card, found.photos)]


def missing(found: Findings) -> list[Html]:
    """Say what is not defined for the model, and why; each reason once."""
    return [element("p", sentence(line), class_="note") for line in join_reasons(found.undefined.values())]


def _how_to_read(predictor: Predictor, options: RolloutOptions) -> list[Html]:
    """Return one sentence, and what each kind of map is."""
    config = predictor.model.config
    grid = grid_in_words(config)
    if not grid:
        return [element("p", "What the model saw, and what it predicts.")]
    assert isinstance(config, TransformerConfig)
    whose = "of the class token" if reads_class_token(config) else "of all patches, their mean"
    discarded = f", the smallest {options.discard:.0%} discarded" if options.discard else ""
    lines = (
        f"A map has {grid}.",
        "Each map has a scale of its own. The numbers after its name are the shares of the whole at its dark and bright "
        "ends; a few patches may have more.",
        f"Attention rollout multiplies the attention of all layers: {options.fuse} of heads, residual "
        f"{options.residual:g}{discarded}.",
        "Gradient rollout keeps what raises the logit of one class.",
        "Patches of one colour have similar tokens after the last layer. A colour means the same in every photo here.",
        f"Layers and heads show the attention {whose}.",
    )
    return [
        element(
            "p", "What the model saw, what it predicts, and where it looks; brighter means more attention."
        ),
        fold("How to read the maps", element("ul", *(element("li", line) for line in lines))),
    ]


def _card(photo: Photo) -> Html:
    label = [element("p", f"Class: {photo.label}", class_="note")] if photo.label else []
    tiles = [
        figure(drawing.webp, f"{photo.name}: {drawing.caption}", drawing.caption) for drawing in photo.tiles
    ]
    if photo.top:  # next to the photo itself
        tiles.insert(1, element("ol", *map(_guess, photo.top), class_="guesses"))
    sheets = (
        figure(Html(drawing.svg), f"{photo.name}: {drawing.caption}", drawing.caption, kind="wide")
        for drawing in photo.sheets
    )
    return element(
        "article",
        element("h3", photo.name),
        *label,
        element("div", *tiles, class_="tiles"),
        *([fold("Attention of every layer and head", *sheets)] if photo.sheets else []),
    )


def _guess(guess: Prediction) -> Html:
    """Return a class and its probability, over a bar as long as that."""
    share = guess.probability
    words = f"{share:.1%}" if share >= 0.0005 else "< 0.1%"
    return element("li", element("span", guess.name), element("b", words), style=f"--share:{share:.2%}")


def _drawn(found: Findings, name: str) -> Html:
    """Return a picture of the whole model."""
    drawing = found.drawings[name]
    return figure(Html(drawing.svg), drawing.caption, drawing.caption, kind=KINDS[name])


def model_sections(
    runs: Sequence[Run], *, inspect: bool, device: str, progress: Progress | None
) -> tuple[list[Html], list[str]]:
    """Return a section for each run that has a model: what needs no images and, to inspect, what needs a few.

    What can't be drawn has a sentence in its place; these sentences are returned too.
    """
    parts, left_out = list[Html](), list[str]()
    for run in runs:
        if run.model is not None:
            title = "Inside the model" if len(runs) == 1 else f"Inside {run.name}"
            try:
                # How to read the pictures is said once.
                content, reason = _content(run, not parts, inspect, device, progress)
            except InputError as error:
                content, reason = [], f"the model can't be drawn: {error}"
            if reason:
                content.append(element("p", sentence(reason), class_="note"))
                left_out.append(f"{run.name}: {reason}")
            parts.append(section(title, *content))
    return parts, left_out


def _content(
    run: Run, is_explained: bool, inspect: bool, device: str, progress: Progress | None
) -> tuple[list[Html], str]:
    """Return what is drawn of a model, and why attention isn't, '' where it is or needn't be."""
    assert run.model is not None
    predictor = load(run.model, device=device)
    if not inspect:
        return _of_weights(predictor, is_explained), ""
    options = RolloutOptions()
    try:
        objective = mapping(run.config.get("objective")).get("name", "supervised")
        source = open_data(_data(run), default="measure", labelled=objective == "supervised")
        found = examine(
            predictor,
            source,
            num_images=RUN_IMAGES,
            num_photos=RUN_PHOTOS,
            options=options,
            progress=progress,
        )
    except InputError as error:
        return _of_weights(predictor, is_explained), f"attention is not drawn: {error}"
    photos = photo_parts(found, predictor, options)
    return [*photos, _pictures(found, is_explained), *missing(found)], ""


def _of_weights(predictor: Predictor, is_explained: bool) -> list[Html]:
    found = examine_weights(predictor)
    return [_pictures(found, is_explained), *missing(found)]


def _data(run: Run) -> str:
    """Return the DATA that the run's model was measured on, else what the run learned from."""
    data = run.config.get("data")
    given = (run.results.get("data"), mapping(data).get("evaluate"), mapping(data).get("train"), data)
    found = next(filter(None, map(text, given)), None)
    if found is None:
        raise InputError("the run doesn't name its data")
    return found


def _pictures(found: Findings, is_explained: bool) -> Html:
    """Return what is drawn of the whole model side by side."""
    shown = (("filters", FILTERS), ("positions", POSITIONS), ("distance", DISTANCE))
    parts = (
        element("div", _drawn(found, name), *([element("p", words, class_="note")] if is_explained else []))
        for name, words in shown
        if name in found.drawings
    )
    return element("div", *parts, class_="pair")
