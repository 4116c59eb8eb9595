"""What tests of data share: a cache of their own, and pictures."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the user's cache out of tests, and tests out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def png() -> Callable[[int], bytes]:
    """Return the bytes of a small picture, another for each number."""

    def draw(number: int) -> bytes:
        pixels = np.random.default_rng(number).integers(0, 256, (4, 6, 3), np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        return buffer.getvalue()

    return draw
