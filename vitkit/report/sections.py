"""Findings of an inspection as sections of a page: each picture with how to read it, or why there is none."""

from __future__ import annotations

from vitkit.predictor import Prediction, Predictor
from vitkit.report.findings import Findings, Photo, Rollout, grid_in_words
from vitkit.report.page import Html, element, figure, fold, section, table

NO_IMAGES = "No images were given, and this is measured on images: name some, as in vit inspect MODEL IMAGES."
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
PHOTO_METHODS = ("prediction", "rollout", "gradient", "pooling", "tokens", "attention")


def sentence(text: str) -> str:
    """'a map is ...' -> 'A map is ... .'"""
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith(".") else ".")


def weight_sections(found: Findings) -> list[Html]:
    """Return filters and positions."""
    return [
        section("Filters", *_figure_and_words(FILTERS, found, "filters")),
        section("Position embeddings", *_figure_and_words(POSITIONS, found, "positions")),
    ]


def distance_section(found: Findings) -> Html:
    """Return the mean attention distance, and its table."""
    parts = _figure_and_words(DISTANCE, found, "distance", "sheet chart")
    if found.distances is not None:
        values = found.distances.values
        columns = ["Layer", *(f"Head {head}" for head in range(values.shape[1])), "Mean"]
        rows = [
            [f"{layer}", *(f"{value:.1f}" for value in (*row, row.mean()))]
            for layer, row in enumerate(values)
        ]
        parts.append(fold("By layer and head, in pixels", table(columns, rows, right=columns)))
    return section("Attention distance", *parts)


def photo_section(found: Findings, predictor: Predictor, options: Rollout) -> Html:
    """Return a card for each photo, after how to read them and what is not defined."""
    if not found.photos:
        was_asked = found.distances is not None or "distance" in found.undefined
        words = "No photo was to be drawn, or none of them can be read." if was_asked else NO_IMAGES
        return section("Photos", element("p", words, class_="note"))
    missing = [found.undefined[name] for name in PHOTO_METHODS if name in found.undefined]
    return section(
        "Photos",
        element("p", _how_to_read(predictor, options)),
        *(element("p", sentence(reason), class_="note") for reason in dict.fromkeys(missing)),
        *(_card(photo, is_open=place == 0) for place, photo in enumerate(found.photos)),
    )


def _how_to_read(predictor: Predictor, options: Rollout) -> str:
    grid = grid_in_words(predictor)
    if not grid:
        return "What the model takes photos for."
    discarded = f", the smallest {options.discard:.0%} discarded" if options.discard else ""
    return (
        f"Maps have {grid}. Bright is much, dark is little, each map on a scale of its own. Rollout multiplies the "
        f"attention of all layers, {options.fuse} of heads, residual {options.residual:g}{discarded}; gradient rollout "
        "keeps what raises the logit of one class. Patches of one colour have similar tokens after the last layer, and a "
        "colour means the same in every photo here."
    )


def _card(photo: Photo, is_open: bool) -> Html:
    label = [element("p", f"Class: {photo.label}", class_="note")] if photo.label else []
    tiles = [
        figure(drawing.png, f"{photo.name}: {drawing.caption}", drawing.caption) for drawing in photo.tiles
    ]
    if photo.top:
        tiles.append(element("ol", *map(_guess, photo.top), class_="guesses"))
    sheets = (
        figure(drawing.png, f"{photo.name}: {drawing.caption}", kind="wide") for drawing in photo.sheets
    )
    return element(
        "article",
        element("h3", photo.name),
        *label,
        element("div", *tiles, class_="tiles"),
        *([fold("Attention of every layer and head", *sheets, is_open=is_open)] if photo.sheets else []),
    )


def _guess(guess: Prediction) -> Html:
    """Return a class and its probability, over a bar as long as that."""
    share = guess["probability"]
    words = f"{share:.1%}" if share >= 0.0005 else "< 0.1%"
    return element("li", element("span", guess["name"]), element("b", words), style=f"--share:{share:.2%}")


def _figure_and_words(words: str, found: Findings, name: str, kind: str = "sheet told") -> list[Html]:
    if drawing := found.drawings.get(name):
        return [element("p", words), figure(drawing.png, drawing.caption, drawing.caption, kind=kind)]
    return [element("p", sentence(found.undefined.get(name, NO_IMAGES)), class_="note")]
