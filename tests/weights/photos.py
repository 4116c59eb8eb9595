"""Real ImageNet photos, their classes, and the real weights that classify them, where they lie next to the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2].parent / "shared"
WEIGHTS = SHARED / "weights" / "vit_tiny_patch16_224.safetensors"
PHOTOS = SHARED / "data" / "imagenet" / "samples"
needs_photos = pytest.mark.skipif(
    not (WEIGHTS.exists() and PHOTOS.exists()), reason="needs the shared weights and photos"
)


def photos() -> list[Path]:
    return sorted(PHOTOS.glob("*.JPEG"))


def label(photo: Path) -> int:
    """The class that a photo's name tells: the place of its WordNet id in ImageNet's order."""
    synsets = (PHOTOS.parent / "synsets.txt").read_text().split("\n")
    ids = [line.split()[0] for line in synsets if line]
    return ids.index(photo.name.partition("_")[0])
