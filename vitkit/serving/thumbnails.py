"""Small versions of the images of a features file, made when they are first asked for."""

from __future__ import annotations

import asyncio
import io
from collections import OrderedDict

from PIL import Image

from vitkit.errors import InputError
from vitkit.evaluation.embeddings import Embeddings

SIDE = 160
"Longer side in pixels."
KEPT = 2000
"How many are kept, a few kilobytes each."


class Thumbnails:
    """Makes one at a time, so that pictures of other requests aren't kept waiting."""

    def __init__(self, features: Embeddings) -> None:
        self._features, self._kept = features, OrderedDict[int, bytes]()
        self._turn = asyncio.Lock()

    async def get(self, index: int) -> bytes:
        """Return a JPEG; raise InputError for an image that isn't there any more."""
        if index >= len(self._features):
            raise InputError(f"no image {index}")
        if index not in self._kept:
            async with self._turn:
                made = await asyncio.to_thread(self._make, index)
            self._kept[index] = made
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(index)
        return self._kept[index]

    def _make(self, index: int) -> bytes:
        image, file = self._features.read(index), io.BytesIO()
        image.thumbnail((SIDE, SIDE), Image.Resampling.BICUBIC)
        image.save(file, "JPEG", quality=85)
        return file.getvalue()
