"""What a worker does: read, decode and crop some images into one uint8 tensor of a fixed size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vitkit.data.decode import decode
from vitkit.data.draws import generator
from vitkit.data.order import Order
from vitkit.data.pipeline import IMAGE_STEPS, Step
from vitkit.data.sources.source import Source
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
        bad_images: BadImages = "error",
        order: Order | None = None,
    ) -> None:
        self.source, self.steps, self.seed = source, steps, seed
        self.bad_images, self.order = bad_images, order
        self.mark: Callable[[int], None] | None = None
        "Told the index of each image before it is read."

    def __call__(self, indices: np.ndarray, positions: np.ndarray) -> Fetched:
        """Return the images at these indices, prepared for these global positions."""
        bad: dict[str, str] = {}
        rendered = self.source.render(indices)
        if rendered is not None:
            pairs = zip(rendered, positions.tolist(), strict=True)
            images = [self._crop(decode(pixels), position) for pixels, position in pairs]
            used = indices.tolist()
        else:
            images, used = [], []
            for index, position in zip(indices.tolist(), positions.tolist(), strict=True):
                image, index = self._image(index, position, bad)
                images.append(image)
                used.append(index)
        sizes = {tuple(image.shape) for image in images}
        if len(sizes) > 1:
            shown = " and ".join(f"{size[1]}x{size[2]}" for size in sorted(sizes)[:2])
            raise InputError(
                f"images of different sizes, {shown}, can't form a batch: "
                "start the pipeline with inception_crop(SIZE), resize(SIZE) or resize_small(SIZE)|central_crop(SIZE)"
            )
        return Fetched(torch.stack(images), np.array(used, np.int64), bad)

    def _image(self, index: int, position: int, bad: dict[str, str]) -> tuple[Tensor, int]:
        """Return an image and its index; what is left out on the way to it is noted in `bad`."""
        for attempt in range(MOST_REPLACEMENTS):
            if self.mark is not None:
                self.mark(index)
            try:
                return self._crop(decode(self.source.read(index)), position), index
            except InputError as error:
                where, message = self.source.where(index), str(error)
            if self.bad_images == "error" or self.order is None:
                shown = message if where in message else f"{where}: {message}"
                raise InputError(f"{shown}; bad_images=skip leaves such images out")
            bad[where] = message
            index = self.order.replacement(position, attempt)
        raise InputError(f"{MOST_REPLACEMENTS} images in a row can't be read; the last: {where}: {message}")

    def _crop(self, image: Tensor, position: int) -> Tensor:
        if self.steps:
            random = generator(self.seed, "crop", position)
            for step in self.steps:
                image = IMAGE_STEPS[step.name](image, random, **dict(step.arguments))
        return image
