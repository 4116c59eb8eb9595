"""Images by index, of sets that lie in memory."""

from __future__ import annotations

import numpy as np
import torch

from vitkit.data.draws import Draw
from vitkit.data.fetch import MemoryFetcher, in_memory
from vitkit.data.pipeline import Step
from vitkit.data.sources.source import Source


def pictures(count: int, height: int = 40, width: int = 56) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, 3, height, width), np.uint8))


def test_an_image_depends_on_its_position_alone() -> None:
    source = Pictures([])
    source.images = pictures(20).permute(0, 2, 3, 1).numpy()
    source.labels = np.zeros(20, np.int64)
    fetcher = MemoryFetcher(
        source,
        (Step("inception_crop", (("size", 24),)), Step("random_crop", (("size", 16),))),
        torch.device("cpu"),
    )
    indices, positions = np.arange(20), np.arange(100, 120)
    whole = fetcher(indices, Draw(0, 5, positions))
    parts = [fetcher(indices[s], Draw(0, 5, positions[s])) for s in (slice(0, 7), slice(7, 20))]
    assert torch.equal(whole, torch.cat(parts))
    assert whole.shape == (20, 3, 16, 16) and whole.dtype == torch.uint8
    assert not torch.equal(whole, fetcher(indices, Draw(0, 5, positions + 1)))


class Pictures(Source):
    name, split, class_names = "made", "train", ("a",)

    def __init__(self, arrays: list[np.ndarray]) -> None:
        self.arrays, self.labels = arrays, np.zeros(len(arrays), np.int64)

    def read(self, index: int) -> np.ndarray:
        return self.arrays[index]


def test_pictures_are_kept_as_they_are() -> None:
    arrays = list(pictures(4).permute(0, 2, 3, 1).numpy())
    kept = in_memory(Pictures([*arrays, arrays[0][:20]]))
    assert kept.images is None and np.array_equal(kept.read(4), arrays[0][:20])
