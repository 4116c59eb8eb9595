"""The results of inspection as pictures with captions, for the whole model and for one photo."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from PIL import Image
from torch import Tensor

from vitkit.data.images import ImageFile, fit, read_image
from vitkit.data.splits import counted
from vitkit.figures import maps as pictures
from vitkit.figures.framed import Sheet, webp
from vitkit.inspection.weights import captioned_filters, position_similarity
from vitkit.models.configs import (
    CompactConfig,
    HybridConfig,
    ModelConfig,
    Preprocessing,
    TransformerConfig,
    ViTConfig,
)
from vitkit.predictor import Predictor

LARGEST, SMALL, LAYER = 320, 160, 150
"In pixels: longest side of a photo; side below which a photo's pixels are drawn as squares; side of a layer's map."
ALONE = 672
"Longest side of a photo that is shown by itself, in pixels, about."


@dataclass(frozen=True)
class Drawing:
    """A picture, its file name without the ending, and its caption."""

    name: str
    image: Image.Image
    caption: str
    svg: str = ""
    "SVG for a page, which sets the text's colours; '' for a picture without text."

    @cached_property
    def png(self) -> bytes:
        """The PNG file."""
        buffer = io.BytesIO()
        self.image.save(buffer, "PNG")
        return buffer.getvalue()

    @cached_property
    def webp(self) -> bytes:
        """A WebP version for a page."""
        return webp(self.image)


def _of_sheet(name: str, sheet: Sheet, caption: str) -> Drawing:
    return Drawing(name, sheet.image(), caption, sheet.svg(caption))


def draw_filters(predictor: Predictor) -> Drawing:
    """Draw the filters of the first layer."""
    values, caption = captioned_filters(predictor)
    return _of_sheet("filters", pictures.filter_sheet(values, caption), pictures.sentence(caption))


def draw_positions(predictor: Predictor) -> Drawing:
    """Draw the similarity of position embeddings."""
    sheet = pictures.similarity_sheet(position_similarity(predictor))
    config = predictor.model.config
    caption = "Each tile shows how similar a patch's position embedding is to those of all patches."
    if getattr(config, "positions", "") in ("sincos_2d", "sine"):
        caption += " They are fixed sines, not learned: every model with this grid and width has the same."
    if isinstance(config, ViTConfig) and config.positions_at == "every_layer":
        caption += f" Every layer has its own table; this is the first of {config.depth}."
    return _of_sheet("positions", sheet, caption)


def draw_distances(values: np.ndarray, uniform: float, num_images: int) -> Drawing:
    """Draw mean attention distances (layers, heads) as a chart."""
    caption = f"Mean over {counted(num_images, 'image')}. Each point is a head."
    image, svg = pictures.distance_picture(values, uniform), pictures.distance_svg(values, uniform)
    return Drawing("attention_distance", image, caption, svg)


def draw_photo(prepared: Tensor, config: ModelConfig, preprocessing: Preprocessing) -> Image.Image:
    """Draw the pixels of a prepared image (channels, height, width) that the model reads, at a viewable size."""
    height, width = config.covered
    picture = pictures.photo(prepared[:, :height, :width], preprocessing)
    longest = max(picture.size)
    if longest < SMALL:  # keep the few pixels sharp
        factor = -(-SMALL // longest)
        return picture.resize((factor * picture.width, factor * picture.height), Image.Resampling.NEAREST)
    picture.thumbnail((LARGEST, LARGEST), Image.Resampling.BICUBIC)
    return picture


def draw_over_photo(
    source: ImageFile, heat: np.ndarray, config: ModelConfig, preprocessing: Preprocessing
) -> Image.Image:
    """Draw a map over the part of an image that the model reads, at a viewable size."""
    factor = max(1, ALONE // max(config.size))
    (height, width), (tall, wide) = config.size, config.covered
    larger = replace(preprocessing, image_size=(factor * height, factor * width))
    picture = fit(read_image(source), larger).crop((0, 0, factor * wide, factor * tall))
    return pictures.overlay(picture, heat, _cells(config))


def photo_tiles(
    name: str,
    picture: Image.Image,
    maps: Mapping[str, np.ndarray],
    target: str | None,
    config: ModelConfig,
) -> list[Drawing]:
    """Return the photo, and the maps that have the photo's size."""
    found = [Drawing(name, picture, f"What the model saw{_not_covered(config)}")]
    cells = _cells(config) if maps else None
    pool = "SeqPool" if getattr(config, "pool", "") == "seqpool" else "the MAP head"
    captions = {
        "rollout": "Attention rollout",
        "gradient": f"Gradient rollout for {target}",
        "pooling": f"Weights of {pool}",
    }
    for method, caption in captions.items():
        if method in maps:
            heat = maps[method]
            image = pictures.overlay(picture, heat, cells)
            found.append(Drawing(f"{name}-{method}", image, f"{caption}: {_scale(heat)}"))
    if "tokens" in maps:
        image = pictures.color_picture(maps["tokens"], picture.size, cells)
        found.append(Drawing(f"{name}-tokens", image, "Patch tokens as colours"))
    return found


def photo_sheets(
    name: str, picture: Image.Image, maps: Mapping[str, np.ndarray], config: ModelConfig
) -> list[Drawing]:
    """Draw each layer's map over the photo, and the map of every head of every layer."""
    if "attention" not in maps:
        return []
    layers = maps["attention"].mean(1)  # (layers, rows, columns)
    overlays = [pictures.overlay(picture, layer, _cells(config)) for layer in layers]
    captions = [
        f"layer {number}: {_scale(layer).replace(' to ', '–')}" for number, layer in enumerate(layers)
    ]
    title = "Attention of each layer, mean of its heads"
    note = "Each map has its own scale: the range below it is the attention of its darkest and brightest patches."
    sheet = pictures.sheet(overlays, captions, min(6, len(layers)), title, note, side=LAYER)
    grid = pictures.head_grid(maps["attention"])
    return [
        _of_sheet(
            f"{name}-layers",
            sheet,
            "Each layer over the photo, mean of its heads, with the attention of its darkest and brightest patches.",
        ),
        _of_sheet(f"{name}-heads", grid, "Every head: columns are layers, rows are heads, counted from 0."),
    ]


def grid_in_words(config: ModelConfig) -> str:
    """Return a description of a map's cells, or '' for a model without them."""
    if not isinstance(config, TransformerConfig):
        return ""
    rows, columns = config.grid
    if isinstance(config, HybridConfig):
        cells = "cells" if config.patch == 1 else "patches"
        what = f"{cells} of the ResNet's feature map"
    elif isinstance(config, CompactConfig) and config.tokenizer == "convolutions":
        what = "cells of the tokenizer's feature map"
    else:
        what = "patches"
    return f"{rows} × {columns} {what}, each {config.stride} × {config.stride} pixels"


def _cells(config: ModelConfig) -> tuple[float, float]:
    """Return how many rows and columns of the grid cover the pixels that the model reads; the last may be partial."""
    assert isinstance(config, TransformerConfig)
    return config.covered[0] / config.stride, config.covered[1] / config.stride


def _not_covered(config: ModelConfig) -> str:
    """Return a caption about pixels that no patch covers, or '' if there are none."""
    (height, width), (tall, wide) = config.size, config.covered
    if config.covered == config.size:
        return ""
    return f": {wide} × {tall} of {width} × {height} pixels, the part that whole patches cover"


def _scale(heat: np.ndarray) -> str:
    """Return the darkest and the brightest value of a map: '0.21 to 1.4%'."""
    low, high = (f"{round(100 * value, 2):.3g}" for value in pictures.scale_of(heat))
    return f"{low} to {high}%"
