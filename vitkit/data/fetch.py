"""How the loader gets images by index: read, decoded and cropped by workers, or kept decoded in memory or on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vitkit.data.decode import decode, read_pixels
from vitkit.data.draws import Draw, generator
from vitkit.data.operations import send
from vitkit.data.order import Order
from vitkit.data.pipeline import BATCHED_STEPS, IMAGE_STEPS, Step
from vitkit.data.sources.source import Picture, Source, Subset
from vitkit.data.threads import Unreadable, as_unreadable, map_in_order
from vitkit.errors import InputError

Cache = Literal["none", "ram", "device"]
MOST_REPLACEMENTS = 100
"Images that are tried in the place of an unreadable one."


@dataclass
class Fetched:
    """Images of one size with their indices in the source, and what could not be read."""

    images: Tensor
    "uint8 (images, channels, height, width)"
    indices: np.ndarray
    bad: dict[int, Unreadable] = field(default_factory=dict)
    "Unreadable images that were skipped, by index."

    def pin_memory(self) -> Fetched:
        """Let torch's DataLoader pin the images for a quick copy to the GPU."""
        return replace(self, images=self.images.pin_memory())


class Fetcher:
    """Reads images by index; `position` is all that its random crops depend on."""

    def __init__(
        self, source: Source, steps: tuple[Step, ...], seed: int, order: Order | None = None
    ) -> None:
        """order: names another image for one that is unreadable; without it such images are missing from the result."""
        self.source, self.steps, self.seed, self.order = source, steps, seed, order
        self.mark: Callable[[int], None] | None = None
        "Told the index of each image before it is read."

    def __call__(self, indices: np.ndarray, positions: np.ndarray) -> Fetched:
        """Return the images at these indices, prepared for these global positions."""
        bad: dict[int, Unreadable] = {}
        if self.mark is not None:
            self.mark(int(indices[0]))
        rendered = self.source.render(indices)  # together, which is faster; None for images that are read
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

    def _image(self, index: int, position: int, bad: dict[int, Unreadable]) -> tuple[Tensor, int] | None:
        """Return an image and its index, or another's in the place of an unreadable one; `bad` collects these."""
        for attempt in range(MOST_REPLACEMENTS):
            if self.mark is not None:
                self.mark(index)
            try:
                return read_pixels(self.source, index), index
            except InputError as error:
                bad[index] = as_unreadable(self.source, index, error)
            if self.order is None:
                return None
            # A function of position and attempt, so that a run that resumes, or has other workers, takes the same image.
            index = self.order.replacement(position, attempt)
        raise _too_many(bad)

    def _crop(self, image: Tensor, position: int) -> Tensor:
        if self.steps:
            # Drawn for the position, not in order of work: workers finish in any order.
            random = generator(self.seed, "crop", position)
            for step in self.steps:
                image = IMAGE_STEPS[step.name](image, random, **dict(step.arguments))
        return image


class MemoryFetcher:
    """Images of one size on the device, by index, through the per-image steps of a pipeline in their batched form."""

    def __init__(self, source: Source, steps: tuple[Step, ...], device: torch.device) -> None:
        assert source.images is not None
        # Channels first in memory too, once: every batch then gathers whole images.
        self.images = torch.from_numpy(source.images).permute(0, 3, 1, 2).contiguous().to(device)
        self.steps = steps
        self.bad = known_bad(source)
        self.is_bad = np.isin(np.arange(len(source)), [*self.bad])

    def readable(
        self, indices: np.ndarray, positions: np.ndarray, order: Order | None = None
    ) -> tuple[np.ndarray, dict[int, Unreadable]]:
        """Return the indices with others in the place of unreadable images, or without these; and which these are."""
        if not self.is_bad[indices].any():
            return indices, {}
        met: dict[int, Unreadable] = {}
        used = []
        for index, position in zip(indices.tolist(), positions.tolist(), strict=True):
            for attempt in range(MOST_REPLACEMENTS):
                if index not in self.bad:
                    used.append(index)
                    break
                met[index] = self.bad[index]
                if order is None:
                    break
                index = order.replacement(position, attempt)
            else:
                raise _too_many(met)
        return np.array(used, np.int64), met

    def __call__(self, indices: np.ndarray, draw: Draw) -> Tensor:
        """Return uint8 (images, channels, height, width)."""
        [places] = send(self.images.device, indices)
        images = self.images[places]
        for place, step in enumerate(self.steps):
            function = BATCHED_STEPS[step.name]
            images = function(images, draw.child(f"crop/{place}"), **dict(step.arguments))
        return images


def _too_many(bad: Mapping[int, Unreadable]) -> InputError:
    entry = [*bad.values()][-1]
    return InputError(
        f"{MOST_REPLACEMENTS} images in a row can't be read; the last: {entry.image}: {entry.reason}"
    )


class Decoded(Source):
    """A source whose pictures are decoded once and kept; what can't be read is an error when it is read."""

    def __init__(self, source: Source, pictures: list[np.ndarray | InputError]) -> None:
        self.source, self.pictures = source, pictures
        self.name, self.split, self.class_names = source.name, source.split, source.class_names
        self.labels, self.may_lack_classes = source.labels, source.may_lack_classes
        self.may_change = source.may_change

    @cached_property
    def bad(self) -> dict[int, Unreadable]:
        """The unreadable images, by index."""
        return {
            index: as_unreadable(self, index, picture)
            for index, picture in enumerate(self.pictures)
            if isinstance(picture, InputError)
        }

    def read(self, index: int) -> Picture:
        picture = self.pictures[index]
        if isinstance(picture, InputError):
            raise picture
        return picture

    def where(self, index: int) -> str:
        return self.source.where(index)

    def identity(self, index: int) -> str:
        return self.source.identity(index)

    def content_keys(self) -> list[str] | None:
        return self.source.content_keys()


def known_bad(source: Source) -> dict[int, Unreadable]:
    """Return the unreadable images, by index, of a source whose images are in memory."""
    if isinstance(source, Decoded):
        return source.bad
    if not isinstance(source, Subset):
        return {}
    inner = known_bad(source.source)
    places = enumerate(source.indices.tolist()) if inner else ()
    return {place: inner[index] for place, index in places if index in inner}


def cached(source: Source, cache: Cache) -> Source:
    """Return a source as it is kept: read each time, decoded in memory, or as one array, which lives on the device."""
    if cache == "none" or source.images is not None:
        return source
    decoded = source if isinstance(source, Decoded) else in_memory(source)
    if cache == "device":
        pictures = [picture for picture in decoded.pictures if not isinstance(picture, InputError)]
        if len(shapes := {picture.shape for picture in pictures}) > 1:
            sizes = " and ".join("x".join(map(str, shape[:2])) for shape in sorted(shapes)[:2])
            raise InputError(
                f"cache=device needs images of one size, but {source.name} has {sizes}: use cache=ram, or resize them"
            )
        if pictures:
            # Unreadable images keep their place, as zeros that `readable` never picks, so that indices stay the source's.
            decoded.images = np.zeros((len(decoded), *pictures[0].shape), np.uint8)
            decoded.images[~np.isin(np.arange(len(decoded)), [*decoded.bad])] = pictures
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
