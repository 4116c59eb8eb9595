"""How the loader gets images by index: read, decoded and cropped by workers, or kept decoded in memory or on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vitkit.config import check_choice
from vitkit.data.decode import decode, read_pixels
from vitkit.data.draws import Draw, generator
from vitkit.data.operations import send
from vitkit.data.order import Order
from vitkit.data.pipeline import BATCHED_STEPS, IMAGE_STEPS, Step
from vitkit.data.sources.source import Picture, Source, what_is_wrong
from vitkit.data.threads import map_in_order
from vitkit.errors import InputError

BadImages = Literal["error", "skip"]
Cache = Literal["none", "ram", "device"]
MOST_REPLACEMENTS = 100


@dataclass
class Fetched:
    """Images of one size with their indices in the source, and what could not be read."""

    images: Tensor
    "uint8 (images, channels, height, width)"
    indices: np.ndarray
    bad: dict[str, str] = field(default_factory=dict)
    "Which image -> what is wrong with it."

    def pin_memory(self) -> Fetched:
        """Let torch's DataLoader pin the images for a quick copy to the GPU."""
        return replace(self, images=self.images.pin_memory())


class Fetcher:
    """Reads images by index; `position` is all that its random crops depend on."""

    def __init__(
        self,
        source: Source,
        steps: tuple[Step, ...],
        seed: int,
        bad_images: BadImages | None = None,
        order: Order | None = None,
    ) -> None:
        """bad_images: what is done with those that can't be read; None is an error that no setting changes."""
        if bad_images is not None:
            check_choice("bad_images", bad_images, BadImages)
        self.source, self.steps, self.seed = source, steps, seed
        self.bad_images, self.order = bad_images, order
        self.mark: Callable[[int], None] | None = None
        "Told the index of each image before it is read."

    def __call__(self, indices: np.ndarray, positions: np.ndarray) -> Fetched:
        """Return the images at these indices, prepared for these global positions."""
        bad: dict[str, str] = {}
        if self.mark is not None:
            self.mark(int(indices[0]))
        rendered = self.source.render(indices)
        if rendered is not None:
            pairs = zip(rendered, positions.tolist(), strict=True)
            images = [self._crop(decode(pixels), position) for pixels, position in pairs]
            used = indices.tolist()
        else:
            images, used = [], []
            for index, position in zip(indices.tolist(), positions.tolist(), strict=True):
                if (found := self._image(index, position, bad)) is None:
                    continue
                image, index = found
                try:
                    images.append(self._crop(image, position))
                except InputError as error:
                    raise InputError(f"{self.source.where(index)}: {error}") from None
                used.append(index)
        check_sizes(image.shape for image in images)
        stacked = torch.stack(images) if images else torch.empty(0, 0, 0, 0, dtype=torch.uint8)
        return Fetched(stacked, np.array(used, np.int64), bad)

    def _image(self, index: int, position: int, bad: dict[str, str]) -> tuple[Tensor, int] | None:
        """Return an image and its index; what is left out on the way to it is noted in `bad`.

        In training another takes the place of one that is left out; where each comes once, None does.
        """
        for attempt in range(MOST_REPLACEMENTS):
            if self.mark is not None:
                self.mark(index)
            try:
                return read_pixels(self.source, index), index
            except InputError as error:
                where = self.source.where(index)
                message = what_is_wrong(where, error)
            if self.bad_images != "skip":
                advice = "data.bad_images=skip (bad_images='skip' in Python) leaves such images out"
                if self.bad_images is None:
                    advice = "vit data DATA names all such images"
                raise InputError(f"cannot read {where}: {message}; {advice}")
            bad[where] = message
            if self.order is None:
                return None
            index = self.order.replacement(position, attempt)
        raise InputError(f"{MOST_REPLACEMENTS} images in a row can't be read; the last: {where}: {message}")

    def _crop(self, image: Tensor, position: int) -> Tensor:
        if self.steps:
            random = generator(self.seed, "crop", position)
            for step in self.steps:
                image = IMAGE_STEPS[step.name](image, random, **dict(step.arguments))
        return image


class MemoryFetcher:
    """Images of one size on the device, by index, through the per-image steps of a pipeline in their batched form."""

    def __init__(self, images: np.ndarray, steps: tuple[Step, ...], device: torch.device) -> None:
        self.images = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().to(device)
        self.steps = steps

    def __call__(self, indices: np.ndarray, draw: Draw) -> Tensor:
        """Return uint8 (images, channels, height, width)."""
        [places] = send(self.images.device, indices)
        images = self.images[places]
        for place, step in enumerate(self.steps):
            function = BATCHED_STEPS[step.name]
            images = function(images, draw.child(f"crop/{place}"), **dict(step.arguments))
        return images


class Decoded(Source):
    """A source whose pictures are decoded once and kept; what can't be read is an error when it is read."""

    def __init__(self, source: Source, pictures: list[np.ndarray | InputError]) -> None:
        self.source, self.pictures = source, pictures
        self.name, self.split, self.class_names = source.name, source.split, source.class_names
        self.labels = source.labels

    def read(self, index: int) -> Picture:
        picture = self.pictures[index]
        if isinstance(picture, InputError):
            raise picture
        return picture

    def where(self, index: int) -> str:
        return self.source.where(index)

    def content_keys(self) -> list[str] | None:
        return self.source.content_keys()


def cached(source: Source, cache: Cache) -> Source:
    """Return a source as it is kept: read each time, decoded in memory, or as one array, which lives on the device."""
    if cache == "none" or source.images is not None:
        return source
    decoded = source if isinstance(source, Decoded) else in_memory(source)
    if cache == "device":
        pictures = [
            np.asarray(decoded.read(index)) for index in range(len(decoded))
        ]  # raises what can't be read
        if len(shapes := {picture.shape for picture in pictures}) > 1:
            sizes = " and ".join("x".join(map(str, shape[:2])) for shape in sorted(shapes)[:2])
            raise InputError(
                f"cache=device keeps images of one size, {source.name} has {sizes}: take cache=ram, or resize them"
            )
        decoded.images = np.stack(pictures)
    return decoded


def in_memory(source: Source) -> Decoded:
    """Return a source with every picture decoded, by threads."""

    def decoded(index: int) -> np.ndarray | InputError:
        try:
            return np.ascontiguousarray(read_pixels(source, index).permute(1, 2, 0).numpy())
        except InputError as error:
            return error

    return Decoded(source, list(map_in_order(decoded, range(len(source)))))


def check_sizes(shapes: Iterable[tuple[int, ...]]) -> None:
    """Refuse images, or batches of them, of different sizes."""
    sizes = {f"{shape[-2]}x{shape[-1]}" for shape in shapes}
    if len(sizes) > 1:
        raise InputError(
            f"images of different sizes, {' and '.join(sorted(sizes)[:2])}, can't form a batch: "
            "start the pipeline with inception_crop(SIZE), resize(SIZE) or resize_small(SIZE)|central_crop(SIZE)"
        )
