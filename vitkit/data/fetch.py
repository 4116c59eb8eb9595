"""What a worker does: read, decode and crop some images into one uint8 tensor of a fixed size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vitkit.config import check_choice
from vitkit.data.decode import decode, read_pixels
from vitkit.data.draws import generator
from vitkit.data.order import Order
from vitkit.data.pipeline import IMAGE_STEPS, Step
from vitkit.data.sources.source import Source, what_is_wrong
from vitkit.errors import InputError

BadImages = Literal["error", "skip"]
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


def check_sizes(shapes: Iterable[tuple[int, ...]]) -> None:
    """Refuse images, or batches of them, of different sizes."""
    sizes = {f"{shape[-2]}x{shape[-1]}" for shape in shapes}
    if len(sizes) > 1:
        raise InputError(
            f"images of different sizes, {' and '.join(sorted(sizes)[:2])}, can't form a batch: "
            "start the pipeline with inception_crop(SIZE), resize(SIZE) or resize_small(SIZE)|central_crop(SIZE)"
        )
