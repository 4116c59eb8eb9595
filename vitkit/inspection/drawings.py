"""What inspection finds as pictures with captions: of the whole model, and of one photo."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image
from torch import Tensor

from vitkit.figures import maps as pictures
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
"Longest side of a photo in pixels; side below which its pixels are drawn as squares; side of a layer's map."


@dataclass(frozen=True)
class Drawing:
    """A picture, the name of its file without ending, and its caption."""

    name: str
    image: Image.Image
    caption: str

    @cached_property
    def png(self) -> bytes:
        buffer = io.BytesIO()
        self.image.save(buffer, "PNG")
        return buffer.getvalue()


def draw_filters(predictor: Predictor) -> Drawing:
    """Return the filters that the model sees pixels through."""
    values, caption = captioned_filters(predictor)
    return Drawing("filters", pictures.filter_sheet(values, caption), pictures.sentence(caption))


def draw_positions(predictor: Predictor) -> Drawing:
    """Return how alike position embeddings are."""
    image = pictures.similarity_picture(position_similarity(predictor))
    config = predictor.model.config
    caption = "Each tile: how alike a patch's position embedding is to those of all patches."
    if getattr(config, "positions", "") in ("sincos_2d", "sine"):
        caption += " They are fixed sines, not learned: the same in every model of this grid and width."
    if isinstance(config, ViTConfig) and config.positions_at == "every_layer":
        caption += f" Every layer has a table of its own; this is the first of {config.depth}."
    return Drawing("positions", image, caption)


def draw_distances(values: np.ndarray, uniform: float, num_images: int) -> Drawing:
    """Return mean attention distances (layers, heads) as a chart."""
    caption = f"Mean over {num_images:,} {'image' if num_images == 1 else 'images'}; a point is a head."
    return Drawing("attention_distance", pictures.distance_picture(values, uniform), caption)


def draw_photo(prepared: Tensor, config: ModelConfig, preprocessing: Preprocessing) -> Image.Image:
    """Return the pixels that the model reads of a prepared image (channels, height, width), in a size to look at."""
    height, width = config.covered
    picture = pictures.photo(prepared[:, :height, :width], preprocessing)
    longest = max(picture.size)
    if longest < SMALL:  # few pixels stay sharp squares
        factor = -(-SMALL // longest)
        return picture.resize((factor * picture.width, factor * picture.height), Image.Resampling.NEAREST)
    picture.thumbnail((LARGEST, LARGEST), Image.Resampling.BICUBIC)
    return picture


def photo_tiles(
    name: str,
    picture: Image.Image,
    maps: Mapping[str, np.ndarray],
    target: str | None,
    config: ModelConfig,
) -> list[Drawing]:
    """Return the photo and what is drawn in its size."""
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
    """Return each layer's map over the photo, and the map of every head of every layer."""
    if "attention" not in maps:
        return []
    layers = maps["attention"].mean(1)  # (layers, rows, columns)
    overlays = [pictures.overlay(picture, layer, _cells(config)) for layer in layers]
    captions = [
        f"layer {number}: {_scale(layer).replace(' to ', '–')}" for number, layer in enumerate(layers)
    ]
    title = "Attention of each layer, mean of its heads"
    note = "Each map is on a scale of its own: below it the attention that a dark and a bright patch has."
    sheet = pictures.sheet(overlays, captions, min(6, len(layers)), title, note, side=LAYER)
    grid = pictures.head_grid(maps["attention"])
    return [
        Drawing(f"{name}-layers", sheet, "Each layer over the photo, mean of its heads."),
        Drawing(f"{name}-heads", grid, "Every head: columns are layers, rows are heads."),
    ]


def grid_in_words(config: ModelConfig) -> str:
    """Say what a map's cells are, '' for a model without any."""
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
    """Return how many rows and columns of the grid lie over what the model reads; the last may reach beyond it."""
    assert isinstance(config, TransformerConfig)
    return config.covered[0] / config.stride, config.covered[1] / config.stride


def _not_covered(config: ModelConfig) -> str:
    """Say which pixels patches don't cover, '' where they cover all."""
    (height, width), (tall, wide) = config.size, config.covered
    if config.covered == config.size:
        return ""
    return f": {wide} × {tall} of {width} × {height} pixels, all that whole patches cover"


def _scale(heat: np.ndarray) -> str:
    """Return the shares that a map draws darkest and brightest: '0.21 to 1.4%'"""
    low, high = (f"{round(100 * value, 2):.3g}" for value in pictures.scale_of(heat))
    return f"{low} to {high}%"
